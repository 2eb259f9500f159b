package certs

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/names"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/state"
)

// finishTimeout is the wait timeout of finish for pods. It is longer than a kubelet takes to refresh
// the Secrets of its pods, once for each of the two waits of a CA rotation.
const finishTimeout = 2 * time.Minute

// Issue issues or copies the certificates for prepare, as far as possible without waiting for pods.
// If that changes the trusted CAs, FinishRotation completes the CA rotation: only then do pods run
// that can report what they have loaded. If no state is saved yet, fresh is saved together with the
// rotation. recorded reports whether the saved state has PKI settings.
func (k *Keeper) Issue(ctx context.Context, p state.PKI, fresh state.State, recorded bool) (did string, err error) {
	r := &rotation{Keeper: k, pki: p, fresh: &fresh}
	if _, err := r.copies(ctx); err != nil {
		return "", err
	}
	if p.Mode == state.PKICertManager && p.Issuer != nil {
		if err := k.deleteOwnIssuer(ctx); err != nil {
			return "", err
		}
	}
	if recorded {
		// From here on the CronJob must use the same settings.
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
		if err := r.startCaches(ctx); err != nil {
			return "", err
		}
		return fmt.Sprintf("%s; finish continues the CA rotation, which waits for: %s", r.did(), release.List(waiting)), nil
	}
	return r.did(), nil
}

// FinishRotation continues a CA rotation where prepare had to stop. It is not an error if pods have
// not loaded the certificates in time: they keep working, and the CronJob continues the rotation.
func (k *Keeper) FinishRotation(ctx context.Context, p state.PKI) (finished bool, did string, err error) {
	r := &rotation{Keeper: k, pki: p, timeout: waitTimeout(ctx, finishTimeout)}
	waiting, err := r.run(ctx)
	if err != nil {
		return false, "", err
	}
	if len(waiting) > 0 {
		k.Log.Warn("the CA rotation is not finished; everything works, and zarf-registry certs renew, which the CronJob runs, "+
			"continues it",
			"waiting", release.List(waiting))
		return false, fmt.Sprintf("%s; not finished, waiting for %d pods", r.did(), len(waiting)), nil
	}
	return true, r.did(), nil
}

// cacheTimeout is how long DeleteUnneeded waits for caches that the chart no longer renders: Kubernetes marks
// them a moment after what runs them is deleted.
const cacheTimeout = 20 * time.Second

// DeleteUnneeded deletes the objects of PKI modes that are no longer in use, and the certificate of caches
// that are disabled. Call it only when nothing trusts their certificates any more.
func (k *Keeper) DeleteUnneeded(ctx context.Context, p state.PKI) (string, error) {
	var did []string
	if name := k.Settings.Name + names.SuffixCA; !p.OwnCA() {
		secret, err := k.Secret(ctx, name)
		if err != nil {
			return "", err
		}
		if secret != nil {
			err := k.Secrets.Delete(ctx, name, *metav1.NewPreconditionDeleteOptions(string(secret.UID)))
			if err != nil && !apierrors.IsNotFound(err) {
				return "", fmt.Errorf("deleting %s: %w", k.Object("Secret", name), err)
			}
			did = append(did, "deleted "+k.Object("Secret", name))
		}
	}
	if p.Mode != state.PKICertManager {
		deleted, err := k.DeleteCertManager(ctx)
		switch {
		case release.MissingPermission(err):
			did = append(did, "no permission to read cert-manager objects, so none were created")
		case err != nil:
			return "", err
		case deleted != "nothing":
			did = append(did, deleted)
		}
	}
	if !p.Cache {
		deleted, err := k.deleteCache(ctx, p)
		if err != nil {
			return "", err
		}
		did = append(did, deleted...)
	}
	if len(did) == 0 {
		return "nothing to delete", nil
	}
	return strings.Join(did, ", "), nil
}

// deleteCache deletes the certificate of the caches, unless one of them still runs. Without its Secret, such a
// pod could not restart.
func (k *Keeper) deleteCache(ctx context.Context, p state.PKI) ([]string, error) {
	name := k.Settings.Name + names.SuffixCacheTLS
	secret, _, err := find[corev1.Secret](ctx, k, "Secret", k.Secrets, name)
	if err != nil {
		return nil, err
	}
	if secret != nil {
		pod, err := k.awaitNoCache(ctx)
		if err != nil {
			return nil, err
		}
		if pod != "" {
			k.Log.Warn("keeping the certificate of the caches, because one still runs; the next upgrade deletes it",
				"secret", name, "pod", pod)
			return []string{"kept " + k.Object("Secret", name) + ", which " + pod + " mounts"}, nil
		}
	}
	var deleted []string
	if p.Mode == state.PKICertManager {
		if deleted, err = remove(ctx, k, certmanagerv1.CertificateKind, k.Cluster.Certificates,
			[]string{names.SuffixCache}); err != nil {
			return nil, err
		}
	}
	secrets, err := remove(ctx, k, "Secret", k.Secrets,
		[]string{names.SuffixCacheTLS, names.SuffixCache + names.SuffixIssued})
	deleted = append(deleted, secrets...)
	if len(deleted) == 0 || err != nil {
		return nil, err
	}
	return []string{"deleted " + strings.Join(deleted, ", ")}, nil
}

// awaitNoCache waits until no cache runs, and returns the name of one that still does.
func (k *Keeper) awaitNoCache(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, waitTimeout(ctx, cacheTimeout))
	defer cancel()
	for {
		pods, err := k.ListPods(ctx, names.ComponentCache)
		if err != nil {
			return "", err
		}
		i := slices.IndexFunc(pods, func(pod corev1.Pod) bool { return !release.PodEnded(pod) })
		if i < 0 {
			return "", nil
		}
		if release.Sleep(ctx, release.PollInterval) != nil {
			return k.Object("pod", pods[i].Name), nil
		}
	}
}
