package release

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/internal/version"
)

// Secrets reads and writes Secrets by name.
type Secrets interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*corev1.Secret, error)
	Create(ctx context.Context, secret *corev1.Secret, opts metav1.CreateOptions) (*corev1.Secret, error)
	Update(ctx context.Context, secret *corev1.Secret, opts metav1.UpdateOptions) (*corev1.Secret, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// Secret returns a Secret, or nil if there is none. It returns an error for a Secret that init-hook
// did not create; such a Secret is never overwritten.
func (r *Release) Secret(ctx context.Context, name string) (*corev1.Secret, error) {
	s, err := r.Secrets.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading %s: %w", r.Object("Secret", name), err)
	case s.Labels[names.LabelManagedBy] != names.Manager:
		return nil, r.NotOurs("Secret", name)
	}
	return s, nil
}

// ReadSecret returns a Secret, no matter who created it, or nil if there is none.
func (r *Release) ReadSecret(ctx context.Context, name string) (*corev1.Secret, error) {
	s, err := r.Secrets.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading %s: %w", r.Object("Secret", name), RefuseForbidden(err))
	}
	return s, nil
}

// DeleteSecret deletes a Secret as it was read: not another one that has its name now. One that is gone is no error.
func (r *Release) DeleteSecret(ctx context.Context, secret *corev1.Secret) error {
	err := r.Secrets.Delete(ctx, secret.Name, *metav1.NewPreconditionDeleteOptions(string(secret.UID)))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting %s: %w", r.Object("Secret", secret.Name), err)
	}
	return nil
}

// NotOurs returns the error for an object that has one of our names but that init-hook did not
// create.
func (r *Release) NotOurs(kind, name string) error {
	return exitcode.Refuse("%s exists and was not created by zarf-registry: rename or delete it, or install under "+
		"another name (--set fullnameOverride=…)",
		r.Object(kind, name))
}

// WriteSecret creates the Secret, or updates the one that was read. It fails on a conflict and
// never overwrites another writer's change.
func (r *Release) WriteSecret(ctx context.Context, old *corev1.Secret, name, component string, kind corev1.SecretType,
	data map[string][]byte) error {
	if old == nil {
		_, err := r.Secrets.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: r.Settings.Namespace, Labels: r.Labels(component),
				Annotations: Annotations()},
			Type: kind,
			Data: data,
		}, metav1.CreateOptions{})
		if MissingPermission(err) {
			// The certificates CronJob may not create Secrets: one of type service-account-token would give it
			// the rights of any ServiceAccount of the namespace.
			return exitcode.Refuse("%s is missing, and this identity may not create it: run helm upgrade, which does: %w",
				r.Object("Secret", name), err)
		}
		if err != nil {
			return fmt.Errorf("creating %s: %w", r.Object("Secret", name), err)
		}
		return nil
	}
	changed := old.DeepCopy()
	changed.Data = data
	if changed.Annotations == nil {
		changed.Annotations = map[string]string{}
	}
	maps.Copy(changed.Annotations, Annotations())
	if _, err := r.Secrets.Update(ctx, changed, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("updating %s: %w", r.Object("Secret", name), err)
	}
	return nil
}

// LoadState returns the state Secret and its content, both nil if there is none.
func (r *Release) LoadState(ctx context.Context) (*corev1.Secret, *state.State, error) {
	name := r.Settings.Name + names.SuffixState
	secret, err := r.Secret(ctx, name)
	if err != nil || secret == nil {
		return nil, nil, err
	}
	s, err := state.Decode(secret.Data[state.Key])
	if err != nil {
		return nil, nil, exitcode.Refuse("%s, key %s: %w", r.Object("Secret", name), state.Key, err)
	}
	return secret, &s, nil
}

// RequireState is LoadState for steps that run after prepare. A missing state is an error.
func (r *Release) RequireState(ctx context.Context) (*corev1.Secret, *state.State, error) {
	secret, s, err := r.LoadState(ctx)
	if err == nil && s == nil {
		err = fmt.Errorf("%s is missing: run prepare again, by helm upgrade or zarf-registry prepare",
			r.Object("Secret", r.Settings.Name+names.SuffixState))
	}
	return secret, s, err
}

// NoState returns the error of commands that need the state that prepare saves.
func (r *Release) NoState() error {
	return exitcode.Refuse("%s is missing: run helm upgrade, zarf-registry install or zarf-registry prepare first",
		r.Object("Secret", r.Settings.Name+names.SuffixState))
}

// SaveState writes the state. Old is the Secret that was read, or nil.
func (r *Release) SaveState(ctx context.Context, old *corev1.Secret, s state.State) error {
	s.UpdatedBy, s.UpdatedAt = version.Version, r.Now().UTC().Truncate(0)
	var previous []byte
	if old != nil {
		previous = old.Data[state.Key]
	}
	data, err := state.Encode(s, previous)
	if err != nil {
		return err
	}
	return r.WriteSecret(ctx, old, r.Settings.Name+names.SuffixState, names.ComponentState, corev1.SecretTypeOpaque,
		map[string][]byte{state.Key: data})
}

// UpdateState changes the saved state, unless change returns false. After a conflict it reads and
// changes the state again.
func (r *Release) UpdateState(ctx context.Context, change func(*state.State) bool) error {
	return RetryOnConflict(ctx, func() error {
		secret, s, err := r.RequireState(ctx)
		if err != nil || !change(s) {
			return err
		}
		return r.SaveState(ctx, secret, *s)
	})
}
