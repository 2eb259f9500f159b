package certs

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// finishTimeout is the wait timeout of finish for pods. It is longer than a kubelet takes to refresh
// the Secrets of its pods, once for each of the two waits of a CA rotation.
const finishTimeout = 2 * time.Minute

// Issue issues or copies the certificates for prepare, as far as possible without waiting for pods.
// If that changes the trusted CAs, FinishRotation completes the CA rotation: only then do pods run
// that can report what they have loaded. If no state is saved yet, fresh is saved together with the
// rotation. recorded reports whether the saved state has PKI settings.
func (m *Manager) Issue(ctx context.Context, p state.PKI, fresh state.State, recorded bool) (did string, err error) {
	r := &rotation{Manager: m, pki: p, fresh: &fresh}
	if _, err := r.copies(ctx); err != nil {
		return "", err
	}
	if p.Mode == state.PKICertManager && p.Issuer != nil {
		if err := m.deleteOwnIssuer(ctx); err != nil {
			return "", err
		}
	}
	if recorded {
		// From here on the CronJob must use the same settings.
		err := m.UpdateState(ctx, func(s *state.State) bool {
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
		if err := r.startCaches(ctx); err != nil {
			return "", err
		}
		return fmt.Sprintf("%s; finish continues the CA rotation, which waits for: %s", r.did(), release.List(waiting)), nil
	}
	return r.did(), nil
}

// FinishRotation continues a CA rotation where prepare had to stop. It is not an error if pods have
// not loaded the certificates in time: they keep working, and the CronJob continues the rotation.
func (m *Manager) FinishRotation(ctx context.Context, p state.PKI) (finished bool, did string, err error) {
	r := &rotation{Manager: m, pki: p, timeout: waitTimeout(ctx, finishTimeout)}
	waiting, err := r.run(ctx)
	if err != nil {
		return false, "", err
	}
	if len(waiting) > 0 {
		m.Log.Warn("the CA rotation is not finished; everything works, and zarf-registry certs renew, which the "+
			"CronJob runs, continues it",
			"waiting", release.List(waiting))
		return false, fmt.Sprintf("%s; not finished, waiting for %d pods", r.did(), len(waiting)), nil
	}
	return true, r.did(), nil
}

// DeleteUnneeded deletes the objects of PKI modes, and of caches, that are no longer in use. Call it only when nothing
// trusts their certificates any more.
func (m *Manager) DeleteUnneeded(ctx context.Context, p state.PKI) (string, error) {
	var did []string
	var unneeded []string
	if !p.OwnCA() {
		unneeded = append(unneeded, names.SuffixCA)
	}
	if !p.Cache { // with later caches, all pods would trust its CA again
		unneeded = append(unneeded, names.SuffixCacheTLS)
	}
	for _, suffix := range unneeded {
		name := m.Settings.Name + suffix
		secret, err := m.ReadSecret(ctx, name)
		if err != nil {
			return "", err
		}
		if secret == nil || secret.Labels[names.LabelManagedBy] != names.Manager {
			continue
		}
		if err := m.DeleteSecret(ctx, secret); err != nil {
			return "", err
		}
		did = append(did, "deleted "+m.Object("Secret", name))
	}
	if p.Mode != state.PKICertManager {
		deleted, err := m.DeleteCertManager(ctx)
		switch {
		case release.MissingPermission(err):
			did = append(did, "no permission to read cert-manager objects, so none were created")
		case err != nil:
			return "", err
		case deleted != "nothing":
			did = append(did, deleted)
		}
	}
	if len(did) == 0 {
		return "nothing to delete", nil
	}
	return strings.Join(did, ", "), nil
}
