package audit

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/api/gc"
	"github.com/zarf-dev/zarf-registry/internal/logging"
	"github.com/zarf-dev/zarf-registry/internal/registry/request"
)

func TestTextLinesCannotBeForged(t *testing.T) {
	t.Parallel()
	const forged = "x\r\n" + `{"level":"INFO","msg":"audit","action":"push"}` + "\nlevel=INFO msg=audit action=push"
	var text bytes.Buffer
	who := &request.Caller{Listener: "tls", Remote: forged, User: forged, Credential: forged, Certificate: forged}
	log, err := (&logging.Options{Format: "text"}).New(&text)
	if err != nil {
		t.Fatal(err)
	}
	Log(t.Context(), log, ActionPush, forged, forged, who.Audit()...)
	if got := strings.Count(text.String(), "\n"); got != 1 {
		t.Errorf("%d lines in the text format: %s", got, text.String())
	}
	if got := strings.Count(text.String(), " msg="); got != 6+1 { // quoted in six values
		t.Errorf("%d times msg= in the text format: %s", got, text.String())
	}
}

func TestPruneByAnotherProgram(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer
	removed := gc.Removed{Repository: "a/b", Digest: digest.FromString("x").String()}
	Prune(t.Context(), slog.New(slog.NewJSONHandler(&text, nil)), removed, slog.String("program", "registry garbage-collect"))
	var got map[string]string
	if err := json.Unmarshal(text.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	delete(got, "time")
	want := map[string]string{"level": "INFO", "msg": "audit", "action": "prune", "reference": "a/b@" + removed.Digest,
		"digest": removed.Digest, "program": "registry garbage-collect"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("audit trail (-want +got):\n%s", diff)
	}
}
