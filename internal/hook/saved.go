package hook

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/names"
	"github.com/zarf-dev/zarf-registry/internal/state"
	"github.com/zarf-dev/zarf-registry/internal/version"
)

// loadState returns the state's Secret and its content, nil where there is none.
func (h *Hook) loadState(ctx context.Context) (*corev1.Secret, *state.State, error) {
	name := h.Settings.Name + names.SuffixState
	secret, err := h.secret(ctx, name)
	if err != nil || secret == nil {
		return nil, nil, err
	}
	s, err := state.Decode(secret.Data[state.Key])
	if err != nil {
		return nil, nil, refuse("%s, key %s: %w", h.object("Secret", name), state.Key, err)
	}
	return secret, &s, nil
}

// saveState writes the state, and beside it the NodePort Service that a switch has
// removed; nil where none is to be put back any more.
func (h *Hook) saveState(ctx context.Context, old *corev1.Secret, s state.State, removedService []byte) error {
	s.UpdatedBy, s.UpdatedAt = version.Version, h.Now().UTC().Truncate(0)
	encoded, err := state.Encode(s)
	if err != nil {
		return err
	}
	data := map[string][]byte{state.Key: encoded}
	if removedService != nil {
		data[state.KeyRemovedService] = removedService
	}
	return h.writeSecret(ctx, old, h.Settings.Name+names.SuffixState, names.ComponentState, corev1.SecretTypeOpaque, data)
}

// removedService is the NodePort Service that stands in the state's Secret, nil
// where none does.
func removedService(secret *corev1.Secret) []byte {
	if secret == nil {
		return nil
	}
	return secret.Data[state.KeyRemovedService]
}

// updateState changes the saved state, or leaves it where change says that nothing
// did. It reads and changes it again where somebody else wrote in between.
func (h *Hook) updateState(ctx context.Context, change func(*state.State) bool) error {
	return h.updateStateSecret(ctx, func(secret *corev1.Secret, s *state.State) (bool, []byte) {
		return change(s), removedService(secret)
	})
}

// updateStateSecret is updateState where the NodePort Service beside the state changes too.
func (h *Hook) updateStateSecret(ctx context.Context, change func(*corev1.Secret, *state.State) (changed bool, removedService []byte)) error {
	return againOnConflict(ctx, func() error {
		secret, s, err := h.mustLoadState(ctx)
		if err != nil {
			return err
		}
		if changed, removed := change(secret, s); changed {
			return h.saveState(ctx, secret, *s, removed)
		}
		return nil
	})
}

// againOnConflict repeats what reads and then writes as long as somebody else
// writes in between: the CronJob and an upgrade may meet.
func againOnConflict(ctx context.Context, do func() error) error {
	for range maxConflicts {
		if err := do(); !conflict(err) {
			return err
		}
		if err := sleep(ctx, pollInterval); err != nil {
			return err
		}
	}
	return do()
}

// noState is the error of commands that go by what Prepare recorded.
func (h *Hook) noState() error {
	return refuse("%s is missing: run helm upgrade, init-hook install or init-hook prepare first", h.object("Secret", h.Settings.Name+names.SuffixState))
}

// mustLoadState is loadState for steps that come after Prepare.
func (h *Hook) mustLoadState(ctx context.Context) (*corev1.Secret, *state.State, error) {
	secret, s, err := h.loadState(ctx)
	if err == nil && s == nil {
		err = fmt.Errorf("%s is missing: run prepare again, by helm upgrade or init-hook prepare", h.object("Secret", h.Settings.Name+names.SuffixState))
	}
	return secret, s, err
}
