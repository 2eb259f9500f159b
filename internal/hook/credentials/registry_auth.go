package credentials

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
// that its pods refer to, so that one has no passwords. If the release replaces Zarf's registry, Zarf's push user
// follows the push credential in the htpasswd file.
func (m *Manager) WriteRegistryAuth(ctx context.Context) error {
	_, err := m.copyRegistryAuth(ctx, authChange{push: true, pull: true, zarf: true})
	return err
}

// authChange is what copyRegistryAuth reads again. The rest stays: the CronJob may not read credentials that it
// does not copy.
type authChange struct{ push, pull, zarf bool }

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
	main, zarf := splitUsers(current.Data[names.KeyHtpasswd])
	if change.push {
		push, err := m.requiredSecret(ctx, m.Settings.Name+names.SuffixCredentials)
		if err != nil {
			return nil, err
		}
		data[names.KeyUploadSecret], main = push.Data[names.KeyUploadSecret], push.Data[names.KeyHtpasswd]
	}
	if change.zarf {
		var err error
		if zarf, err = m.zarfLine(ctx, zarf); err != nil {
			return nil, err
		}
	}
	users, err := joinUsers(main, zarf)
	if err != nil {
		return nil, err
	}
	data[names.KeyHtpasswd] = users
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

// RefuseZarfsName refuses a push credential of the user with the name of Zarf's, before it is copied: the one Secret is
// for people, and another for the registry.
func (m *Manager) RefuseZarfsName(ctx context.Context, from string) error {
	auth, err := m.Secret(ctx, m.Settings.Name+names.SuffixRegistryAuth)
	if err != nil {
		return err
	}
	_, zarf := splitUsers(dataOf(auth)[names.KeyHtpasswd])
	if m.Settings.PKI.Zarf { // commands cannot tell, and need not read what has changed
		if zarf, err = m.zarfLine(ctx, zarf); err != nil {
			return err
		}
	}
	source, _, err := m.pushSource(ctx, from)
	if err != nil {
		return err
	}
	_, err = joinUsers(append(source[names.KeyUsername], ':'), zarf)
	return err
}

// splitUsers returns the line of the push credential, and that of Zarf, which may be empty.
func splitUsers(htpasswd []byte) (push, zarf []byte) {
	end := bytes.IndexByte(htpasswd, '\n') + 1
	if end == 0 {
		return htpasswd, nil
	}
	return htpasswd[:end], htpasswd[end:]
}

// joinUsers returns a file of both lines. It refuses one user name twice, as the registry would.
func joinUsers(push, zarf []byte) ([]byte, error) {
	if len(zarf) == 0 {
		return push, nil
	}
	name, _, _ := bytes.Cut(push, []byte(":"))
	if other, _, _ := bytes.Cut(zarf, []byte(":")); bytes.Equal(name, other) {
		return nil, exitcode.Refuse("the push credential and Zarf's have the same user name %q: change that in "+
			"auth.existingSecret", name)
	}
	return append(append(bytes.TrimSpace(bytes.Clone(push)), '\n'), zarf...), nil
}
