// Package steps runs ordered steps and reports what each one did, why, and how long it took. It knows
// nothing about the content of the steps, and does not roll back.
package steps

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// Work does the work of a step and describes in words what it did.
type Work = func(context.Context) (did string, err error)

// Step is one named step of a phase.
type Step struct {
	Name string
	// Why is logged with the step, so that a log explains itself.
	Why string
	// In are the modes that have the step; nil: all.
	In []state.Mode
	// Run does the work. Nil: the step does not apply and is left out.
	Run Work
}

// OnlyIf returns work, or nil to leave the step out.
func OnlyIf(on bool, work Work) Work {
	if !on {
		return nil
	}
	return work
}

// Runner runs the steps of a phase in a mode. Progress and Now must be set.
type Runner struct {
	Phase string
	Mode  state.Mode
	Now   func() time.Time
	// Progress observes the ends of the steps.
	Progress release.Progress
	// Timeout bounds all steps together; 0 means no limit.
	Timeout time.Duration
}

// Run runs the steps in order until one fails, and returns its error with the names of the phase
// and the step, and with the cause if the time is over.
func (r Runner) Run(ctx context.Context, steps []Step) error {
	if r.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, r.Timeout, fmt.Errorf("not done within %s", r.Timeout))
		defer cancel()
	}
	begin := r.Now()
	steps = slices.DeleteFunc(steps, func(s Step) bool {
		return s.Run == nil || s.In != nil && !slices.Contains(s.In, r.Mode)
	})
	for i, s := range steps {
		stepBegin := r.Now()
		did, err := s.Run(ctx)
		if err != nil {
			if cause := context.Cause(ctx); cause != nil && errors.Is(err, context.DeadlineExceeded) {
				err = fmt.Errorf("%w (%w)", err, cause)
			}
		}
		r.Progress.Ended(release.Ended{
			Phase: r.Phase, Step: fmt.Sprintf("%d/%d %s", i+1, len(steps), s.Name), Did: did, Why: s.Why,
			Duration: r.since(stepBegin), Err: err,
		})
		if err != nil {
			return fmt.Errorf("%s: %s: %w", r.Phase, s.Name, err)
		}
	}
	r.Progress.Ended(release.Ended{Phase: r.Phase, Duration: r.since(begin)})
	return nil
}

func (r Runner) since(begin time.Time) time.Duration {
	return r.Now().Sub(begin).Round(time.Millisecond)
}
