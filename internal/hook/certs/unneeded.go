package certs

import (
	"context"
	"strings"

	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

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
		deleted, err := m.CertManager.Delete(ctx)
		switch {
		case release.MissingPermission(err):
			did = append(did, "no permission to read cert-manager objects, so none were created")
		case err != nil:
			return "", err
		case len(deleted) > 0:
			did = append(did, "deleted "+strings.Join(deleted, ", "))
		}
	}
	if len(did) == 0 {
		return "nothing to delete", nil
	}
	return strings.Join(did, ", "), nil
}
