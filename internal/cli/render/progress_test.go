package render

import (
	"bytes"
	"log/slog"
	"testing"

	files "github.com/zarf-dev/zarf-registry/test/golden"
)

func TestProgressIsLinesToRead(t *testing.T) {
	var out bytes.Buffer
	log := NewProgress(&out, slog.LevelInfo)
	step := log.With("phase", "prepare", "step", "1/8 look at the nodes")
	step.Info("step done", "result", "found 2 nodes", "reason", "because", "duration", "12ms")
	step.Error("step failed", "reason", "because", "duration", "1s", "error", "said at the end")
	log.Info("phase done", "phase", "prepare", "duration", "2s")
	log.Info("waiting", "for", "the registry", "missing", "1 pod")
	log.Warn("a node does not report the pause image", "node", "n1", "images", []string{"a", "b"})
	log.Warn("preflight", "check", "cri-o", "object", "node n1", "cause", "it is new", "remedy", "do this")
	log.Debug("not told")
	files.Open(t, "progress").Check(t, "text", out.String())
}
