package render

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/release"
	files "github.com/zarf-dev/zarf-registry/test/golden"
)

func TestProgressIsLinesToRead(t *testing.T) {
	var out bytes.Buffer
	progress := NewProgress(&out, slog.LevelInfo)
	log := slog.New(progress)
	step := release.Ended{Phase: "prepare", Step: "1/8 look at the nodes", Did: "found 2 nodes", Why: "because",
		Duration: 12 * time.Millisecond}
	progress.Ended(step)
	step.Duration, step.Err = time.Second, errors.New("said at the end")
	progress.Ended(step)
	progress.Ended(release.Ended{Phase: "prepare", Duration: 2 * time.Second})
	progress.Waiting("the registry", "1 pod", "reason", "because")
	log.Warn("a node does not report the pause image", "node", "n1", "images", []string{"a", "b"})
	progress.Warn("cri-o", "node n1", "it is new", "do this")
	log.Debug("not told")
	files.Open(t, "progress").Check(t, "text", out.String())
}
