package hook

import (
	"context"
	"fmt"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/hook/steps"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

const (
	// switchBackTimeout bounds switching back. The kubelet kills a Job's pod 30 seconds after it asked
	// the pod to terminate.
	switchBackTimeout = 20 * time.Second
	// switchBackWait bounds each wait for the registry or the endpoints while switching back.
	switchBackWait = 8 * time.Second
)

// orSwitchBack wraps each step so that its failure lets the previous mode serve the port again, even if
// the run timed out or was interrupted: nothing of that mode is deleted until pulls are verified.
func (f *finishRun) orSwitchBack(list []steps.Step) []steps.Step {
	for i, s := range list {
		if s.Run == nil {
			continue
		}
		list[i].Run = func(ctx context.Context) (string, error) {
			did, err := s.Run(ctx)
			if err != nil {
				err = f.switchBack(err)
			}
			return did, err
		}
	}
	return list
}

// switchBack undoes the switch of this run, or of one that was killed. It returns the error that made
// this necessary together with the outcome.
func (f *finishRun) switchBack(failure error) error {
	ctx, cancel := context.WithTimeout(context.Background(), switchBackTimeout) // the run's context may have ended
	defer cancel()
	var cause error
	for {
		outcome, err := f.trySwitchBack(ctx)
		if cause == nil || ctx.Err() == nil {
			cause = err // otherwise the try before says more
		}
		switch {
		case err == nil && outcome != "":
			f.Log.Info("switched back", "outcome", outcome)
			return fmt.Errorf("%w; %s: nodes pull as before; without a mode, the next run keeps it: to switch, name the mode "+
				"again", failure, outcome)
		case err == nil:
			return failure
		}
		if sleepErr := release.Sleep(ctx, release.PollInterval); sleepErr != nil {
			f.Log.Error("cannot switch back, or cannot tell whether that is needed", "error", cause.Error())
			if !f.switching {
				return failure
			}
			return fmt.Errorf("%w; switching back failed (%w): run helm rollback, or helm upgrade with the previous mode",
				failure, cause)
		}
	}
}

// trySwitchBack returns what it changed, or "" if nothing had to be changed.
func (f *finishRun) trySwitchBack(ctx context.Context) (outcome string, err error) {
	_, saved, err := f.LoadState(ctx)
	if err != nil || saved == nil || !f.switches(saved) {
		return "", err
	}
	if saved.Current.Mode == state.ModeProxy {
		return f.port.ReserveAgain(ctx)
	}
	return f.port.ServeAgain(ctx, switchBackWait, func(ctx context.Context) {
		// A run that was killed may have closed the listener already.
		if _, err := f.credentials.OpenPlain(ctx); err != nil {
			f.Log.Warn("the listener of the node port did not open", "error", err.Error())
		}
	})
}

// switches reports whether this run switches between the modes that share the port.
func (f *finishRun) switches(saved *state.State) bool {
	return saved.Current != nil && saved.Current.Mode != f.Settings.Mode &&
		saved.Current.Mode != state.ModeExternal && f.Settings.Mode != state.ModeExternal
}
