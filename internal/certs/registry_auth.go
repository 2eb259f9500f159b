package certs

import (
	"bytes"
	"context"
	"maps"

	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/names"
	"github.com/zarf-dev/zarf-registry/internal/release"
)

// WriteRegistryAuth copies what the registry checks credentials with from the Secrets of the push and
// the pull credential into the one that its pods mount. A kubelet may read all keys of every Secret
// that its pods refer to, so that one has no passwords.
func (k *Keeper) WriteRegistryAuth(ctx context.Context) error {
	return k.copyRegistryAuth(ctx, true)
}

// copyRegistryAuth is WriteRegistryAuth. If pull is not set, it neither reads the pull credential,
// which the CronJob may not, nor changes its copy.
func (k *Keeper) copyRegistryAuth(ctx context.Context, pull bool) error {
	name := k.Settings.Name + names.SuffixRegistryAuth
	return release.RetryOnConflict(ctx, func() error {
		// First, so that a concurrent change of a source is a conflict.
		secret, err := k.Secret(ctx, name)
		if err != nil {
			return err
		}
		data, err := k.registryAuth(ctx, secret, pull)
		if err != nil {
			return err
		}
		if secret != nil && maps.EqualFunc(secret.Data, data, bytes.Equal) {
			return nil
		}
		return k.WriteSecret(ctx, secret, name, names.ComponentCredentials, corev1.SecretTypeOpaque, data)
	})
}

// registryAuth returns what the registry's Secret should hold.
func (k *Keeper) registryAuth(ctx context.Context, current *corev1.Secret, pull bool) (map[string][]byte, error) {
	push, err := k.Secret(ctx, k.Settings.Name+names.SuffixCredentials)
	if err != nil {
		return nil, err
	}
	if push == nil || current == nil && !pull {
		missing := names.SuffixRegistryAuth
		if push == nil {
			missing = names.SuffixCredentials
		}
		return nil, exitcode.Refuse("%s is missing: run helm upgrade, init-hook install or init-hook prepare to create it",
			k.Object("Secret", k.Settings.Name+missing))
	}
	data := map[string][]byte{
		names.KeyHtpasswd:     push.Data[names.KeyHtpasswd],
		names.KeyUploadSecret: push.Data[names.KeyUploadSecret],
	}
	from, key := current, names.KeyPullHtpasswd
	if pull {
		key = names.KeyHtpasswd
		if from, err = k.Secret(ctx, k.Settings.Name+names.SuffixPull); err != nil {
			return nil, err
		}
	}
	if from != nil && from.Data[key] != nil {
		data[names.KeyPullHtpasswd] = from.Data[key]
	}
	return data, nil
}
