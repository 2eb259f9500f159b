package cmdflags

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/zarf-dev/zarf-registry/internal/logging"
)

func TestAFormatOfTheLogReplacesLines(t *testing.T) {
	var out bytes.Buffer
	flags := &Global{Log: logging.Options{Format: "json"}}
	flags.Progress(&out).Info("step done", "result", "x")
	if !json.Valid(out.Bytes()) {
		t.Errorf("--log-format=json writes %q", out.String())
	}
}
