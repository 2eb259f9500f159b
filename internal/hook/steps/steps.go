// Package steps runs ordered steps and logs what each one did, why, and how long it took. It knows
// nothing about the content of the steps, and does not roll back.
package steps

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

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

// Runner runs the steps of a phase in a mode. Log and Now must be set.
type Runner struct {
	Phase string
	Mode  state.Mode
	Log   *slog.Logger
	Now   func() time.Time
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
		log := r.Log.With("phase", r.Phase, "step", fmt.Sprintf("%d/%d %s", i+1, len(steps), s.Name))
		stepBegin := r.Now()
		did, err := s.Run(ctx)
		if err != nil {
			if cause := context.Cause(ctx); cause != nil && errors.Is(err, context.DeadlineExceeded) {
				err = fmt.Errorf("%w (%w)", err, cause)
			}
			log.Error("step failed", "reason", s.Why, "duration", r.since(stepBegin), "error", err.Error())
			return fmt.Errorf("%s: %s: %w", r.Phase, s.Name, err)
		}
		log.Info("step done", "result", did, "reason", s.Why, "duration", r.since(stepBegin))
	}
	r.Log.Info("phase done", "phase", r.Phase, "duration", r.since(begin))
	return nil
}

func (r Runner) since(begin time.Time) string {
	return r.Now().Sub(begin).Round(time.Millisecond).String()
}
