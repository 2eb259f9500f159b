package certs

import (
	"context"
	"fmt"
	"reflect"

	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/state"
)

// Issue issues or copies the certificates for prepare, as far as possible at once. If that changes
// the trusted CAs, Rotate of finish completes it: only then do pods run that can report what they
// have loaded. fresh is the state to record with the rotation if none is saved; recorded tells that
// a saved state has PKI settings.
func (k *Keeper) Issue(ctx context.Context, p state.PKI, fresh state.State, recorded bool) (did string, err error) {
	r := &rotation{Keeper: k, pki: p, fresh: &fresh}
	if _, err := r.copies(ctx); err != nil {
		return "", err
	}
	if recorded {
		// From here on the CronJob must want the same.
		err := k.UpdateState(ctx, func(s *state.State) bool {
			same := s.PKI != nil && reflect.DeepEqual(*s.PKI, r.pki)
			s.PKI = &r.pki
			return !same
		})
		if err != nil {
			return "", err
		}
	}
	waiting, err := r.run(ctx)
	if err != nil {
		return "", err
	}
	if len(waiting) > 0 {
		return fmt.Sprintf("%s; finish continues the CA rotation, which waits for: %s", r.did(), release.List(waiting)), nil
	}
	return r.did(), nil
}

// FinishRotation continues a CA rotation where prepare had to stop. Pods that do not follow in time
// are no error: all of them keep working, and the CronJob continues the rotation.
func (k *Keeper) FinishRotation(ctx context.Context, p state.PKI) (finished bool, did string, err error) {
	r := &rotation{Keeper: k, pki: p, patience: patience(ctx, finishPatience)}
	waiting, err := r.run(ctx)
	if err != nil {
		return false, "", err
	}
	if len(waiting) > 0 {
		k.Log.Warn("the CA rotation is not finished; everything works, and init-hook certs renew, which the CronJob runs, continues it",
			"waiting", release.List(waiting))
		return false, fmt.Sprintf("%s; not finished, waiting for %d pods", r.did(), len(waiting)), nil
	}
	return true, r.did(), nil
}
