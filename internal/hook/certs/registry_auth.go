package certs

import (
	"bytes"
	"context"
	"maps"

	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

// WriteRegistryAuth copies what the registry checks credentials with from the Secrets of the push and
// the pull credential into the one that its pods mount. A kubelet may read all keys of every Secret
// that its pods refer to, so that one has no passwords.
func (m *Manager) WriteRegistryAuth(ctx context.Context) error {
	_, err := m.copyRegistryAuth(ctx, authChange{push: true, pull: true, named: keepNamed})
	return err
}

// authChange is what copyRegistryAuth reads again. The rest stays: the CronJob may not read credentials that it
// does not copy.
type authChange struct {
	push, pull bool
	// named returns the lines of named push credentials, from those that the file has.
	named func(ctx context.Context, current []byte) ([]byte, error)
}

// copyRegistryAuth writes the registry's Secret, and returns the htpasswd file of push users.
func (m *Manager) copyRegistryAuth(ctx context.Context, change authChange) (htpasswd []byte, err error) {
	name := m.Settings.Name + names.SuffixRegistryAuth
	err = release.RetryOnConflict(ctx, func() error {
		// First, so that a concurrent change of a source is a conflict.
		secret, err := m.Secret(ctx, name)
		if err != nil {
			return err
		}
		data, err := m.registryAuth(ctx, secret, change)
		if err != nil {
			return err
		}
		htpasswd = data[names.KeyHtpasswd]
		if secret != nil && maps.EqualFunc(secret.Data, data, bytes.Equal) {
			return nil
		}
		return m.WriteSecret(ctx, secret, name, names.ComponentCredentials, corev1.SecretTypeOpaque, data)
	})
	return htpasswd, err
}

// registryAuth returns what the registry's Secret should hold.
func (m *Manager) registryAuth(
	ctx context.Context, current *corev1.Secret, change authChange,
) (map[string][]byte, error) {
	if current == nil {
		if !change.push || !change.pull {
			return nil, m.missingSecret(m.Settings.Name + names.SuffixRegistryAuth)
		}
		current = &corev1.Secret{}
	}
	data := map[string][]byte{names.KeyUploadSecret: current.Data[names.KeyUploadSecret]}
	main := pushLine(current.Data[names.KeyHtpasswd])
	if change.push {
		push, err := m.requiredSecret(ctx, m.Settings.Name+names.SuffixCredentials)
		if err != nil {
			return nil, err
		}
		data[names.KeyUploadSecret], main = push.Data[names.KeyUploadSecret], push.Data[names.KeyHtpasswd]
	}
	named, err := change.named(ctx, current.Data[names.KeyHtpasswd])
	if err != nil {
		return nil, err
	}
	if len(named) > 0 {
		main = append(bytes.TrimSpace(bytes.Clone(main)), '\n')
	}
	data[names.KeyHtpasswd] = append(bytes.Clone(main), named...)
	if err := uniqueUsers(data[names.KeyHtpasswd]); err != nil {
		return nil, err
	}
	pull := current.Data[names.KeyPullHtpasswd]
	if change.pull {
		secret, err := m.Secret(ctx, m.Settings.Name+names.SuffixPull)
		if err != nil {
			return nil, err
		}
		if pull = nil; secret != nil {
			pull = secret.Data[names.KeyHtpasswd]
		}
	}
	if pull != nil {
		data[names.KeyPullHtpasswd] = pull
	}
	return data, nil
}

func (m *Manager) missingSecret(name string) error {
	return exitcode.Refuse("%s is missing: run helm upgrade, zarf-registry install or zarf-registry prepare to create it",
		m.Object("Secret", name))
}

// requiredSecret returns a Secret that prepare has created, and refuses if it is missing.
func (m *Manager) requiredSecret(ctx context.Context, name string) (*corev1.Secret, error) {
	secret, err := m.Secret(ctx, name)
	if err == nil && secret == nil {
		err = m.missingSecret(name)
	}
	return secret, err
}

// pushLine returns the line of the push credential.
func pushLine(htpasswd []byte) []byte {
	for line := range bytes.Lines(htpasswd) {
		if bytes.Count(line, []byte(":")) == 1 {
			return line
		}
	}
	return nil
}
