package logging

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Of equal warnings, one per interval is logged, with the number of those that were not.
func TestRepeatedWarnings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		l := NewLimited(slog.New(slog.NewTextHandler(&log, nil)))
		for _, message := range []string{"a", "a", "b", "a"} {
			l.Warn(message, "n", 1)
		}
		time.Sleep(limitedInterval)
		l.Warn("a")
		l.Warn("b")
		var got []string
		for line := range strings.Lines(log.String()) {
			_, text, _ := strings.Cut(strings.TrimSpace(line), "msg=")
			got = append(got, text)
		}
		if want := "a n=1; b n=1; a suppressed=2; b"; strings.Join(got, "; ") != want {
			t.Errorf("logged %q, want %q", got, want)
		}
	})
}
