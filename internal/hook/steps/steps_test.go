package steps

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/release"
)

// Another run continues where the time was over, unless the cause says that it cannot.
func TestTimeouts(t *testing.T) {
	wait := func(ctx context.Context) (string, error) {
		<-ctx.Done()
		return "", ctx.Err()
	}
	for name, c := range map[string]struct {
		own, given time.Duration // the time of the phase, and of the caller
		refused    bool
		want       string
	}{
		"of the phase":  {time.Minute, time.Hour, false, "(not done within 1m0s)"},
		"of the caller": {time.Hour, time.Minute, true, "(no attempt is left)"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeoutCause(t.Context(), c.given, exitcode.Refuse("no attempt is left"))
				defer cancel()
				err := Runner{Phase: "finish", Progress: release.Logged{Log: slog.New(slog.DiscardHandler)}, Now: time.Now, Timeout: c.own}.Run(ctx,
					[]Step{{Name: "wait", Run: wait}})
				if !errors.Is(err, context.DeadlineExceeded) || exitcode.IsRefusal(err) != c.refused ||
					!strings.Contains(err.Error(), c.want) {
					t.Errorf("error is %v, refused %t, want %t and %s", err, exitcode.IsRefusal(err), c.refused, c.want)
				}
			})
		})
	}
}
