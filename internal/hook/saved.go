package hook

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/state"
	"github.com/zarf-dev/zarf-registry/internal/version"
)

// loadState returns the state's Secret and its content, nil where there is none.
func (h *Hook) loadState(ctx context.Context) (*corev1.Secret, *state.State, error) {
	name := h.Options.Name + SuffixState
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
	return h.writeSecret(ctx, old, h.Options.Name+SuffixState, componentState, corev1.SecretTypeOpaque, data)
}

// removedService is the NodePort Service that stands in the state's Secret, nil
// where none does.
func removedService(secret *corev1.Secret) []byte {
	if secret == nil {
		return nil
	}
	return secret.Data[state.KeyRemovedService]
}

// mustLoadState is loadState for steps that come after Prepare.
func (h *Hook) mustLoadState(ctx context.Context) (*corev1.Secret, *state.State, error) {
	secret, s, err := h.loadState(ctx)
	if err == nil && s == nil {
		err = fmt.Errorf("%s is missing: run prepare again, by helm upgrade or init-hook prepare", h.object("Secret", h.Options.Name+SuffixState))
	}
	return secret, s, err
}
