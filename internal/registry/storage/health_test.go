package storage

import (
	"io"
	"strings"
	"testing"
	"time"
)

func TestStorageHealth(t *testing.T) {
	t.Parallel()
	now := time.Now()
	failure := io.ErrUnexpectedEOF
	h := &Health{tolerate: 30 * time.Second}
	for _, step := range []struct {
		name   string
		good   time.Time
		failed bool
		want   string
	}{
		{"not ready before the first check", time.Time{}, false, "not checked yet"},
		{"the error of a failed first check", time.Time{}, true, failure.Error()},
		{"ready after a success", now, false, ""},
		{"a recent failure is tolerated", now.Add(-29 * time.Second), true, ""},
		{"lasting failures are not tolerated", now.Add(-30 * time.Second), true, failure.Error()},
		{"a check that hangs is not tolerated", now.Add(-30 * time.Second), false, "no response for 30s"},
	} {
		h.success.Store(nil)
		if !step.good.IsZero() {
			h.success.Store(&step.good)
		}
		h.failure.Store(nil)
		if step.failed {
			h.failure.Store(&failure)
		}
		err := h.Err(now)
		if (err == nil) != (step.want == "") || err != nil && !strings.Contains(err.Error(), step.want) {
			t.Errorf("%s: %v", step.name, err)
		}
	}
}
