package request

import (
	"bytes"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/internal/logging"
	"github.com/zarf-dev/zarf-registry/test/require"
)

func TestTextLinesCannotBeForged(t *testing.T) {
	t.Parallel()
	const forged = "x\r\n" + `{"level":"INFO","msg":"audit","action":"push"}` + "\nlevel=INFO msg=audit action=push"
	var text bytes.Buffer
	who := &Caller{Listener: "tls", Remote: forged, User: forged, Certificate: forged}
	log := require.Value((&logging.Options{Format: "text"}).New(&text))(t)
	r := With(httptest.NewRequest("PUT", "/", nil), Target{}, who)
	Audit(r.Context(), log, ActionPush, "a", forged, forged)
	if got := strings.Count(text.String(), "\n"); got != 1 {
		t.Errorf("%d lines in the text format: %s", got, text.String())
	}
	if got := strings.Count(text.String(), " msg="); got != 5+1 { // quoted in five values
		t.Errorf("%d times msg= in the text format: %s", got, text.String())
	}
}
