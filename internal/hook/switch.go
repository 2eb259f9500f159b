package hook

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/names"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/state"
)

const (
	// kubeProxyTime is how long kube-proxy gets to remove the rules of a deleted Service. It takes
	// less than a second after it sees the deletion.
	kubeProxyTime = 3 * time.Second
	// restoreTimeout bounds restoring the NodePort Service. The kubelet kills a Job's pod 30 seconds
	// after it asked the pod to terminate.
	restoreTimeout = 20 * time.Second
	// restoreListenerTimeout bounds the wait until the registry has reopened its plain listener.
	restoreListenerTimeout = 10 * time.Second
)

// nodePort returns the release's NodePort Service. It is nil if there is no Service with that name
// or the Service belongs to someone else.
func (r *run) nodePort(ctx context.Context) (*corev1.Service, error) {
	name := r.Settings.Name + names.SuffixNodePort
	s, err := r.cluster.Services.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading %s: %w", r.Object("Service", name), err)
	case s.Labels[names.LabelInstance] != r.Settings.Release:
		r.Log.Warn("keeping a Service with the name of this release's NodePort Service, because another owner created it",
			"service", name)
		return nil, nil
	}
	return s, nil
}

// nodePorts returns the node ports of a Service.
func nodePorts(s *corev1.Service) []int {
	var ports []int
	for _, p := range s.Spec.Ports {
		if p.NodePort != 0 {
			ports = append(ports, int(p.NodePort))
		}
	}
	return ports
}

func (f *finishing) checkService(ctx context.Context) (string, error) {
	s, err := f.nodePort(ctx)
	if err != nil {
		return "", err
	}
	object := f.Object("Service", f.Settings.Name+names.SuffixNodePort)
	if s == nil {
		return "", exitcode.Refuse("%s of release %s is missing: run helm upgrade, which creates it", object,
			f.Settings.Release)
	}
	if !slices.Contains(nodePorts(s), f.Settings.Port) {
		return "", exitcode.Refuse("%s has the node ports %v, not %d: run helm upgrade, which changes it", object,
			nodePorts(s), f.Settings.Port)
	}
	return fmt.Sprintf("%s has node port %d", object, f.Settings.Port), nil
}

// removeService deletes the NodePort Service. It keeps a copy in the state Secret until pulls
// through the proxies are verified.
func (f *finishing) removeService(ctx context.Context) (string, error) {
	service, err := f.nodePort(ctx)
	if err != nil {
		return "", err
	}
	secret, _, err := f.RequireState(ctx)
	if err != nil {
		return "", err
	}
	if service == nil {
		if release.RemovedService(secret) == nil {
			return "nothing: it does not exist", nil
		}
		f.switching = true
		return "nothing: an interrupted run deleted it", nil
	}
	f.switching = true
	copied, err := json.Marshal(&corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{
			Name: service.Name, Namespace: service.Namespace,
			Labels: service.Labels, Annotations: service.Annotations,
			ManagedFields: service.ManagedFields,
		},
		Spec: withoutClusterIP(service.Spec),
	})
	if err != nil {
		return "", fmt.Errorf("encoding %s: %w", f.Object("Service", service.Name), err)
	}
	err = f.UpdateStateSecret(ctx, func(secret *corev1.Secret, _ *state.State) (bool, []byte) {
		return !bytes.Equal(release.RemovedService(secret), copied), copied
	})
	if err != nil {
		return "", err
	}
	if err := f.deleteOneService(ctx, service); err != nil {
		return "", err
	}
	if err := release.Sleep(ctx, kubeProxyTime); err != nil {
		return "", err
	}
	return fmt.Sprintf("deleted %s; a copy is in %s until the proxies are verified", f.Object("Service", service.Name),
		f.Object("Secret", secret.Name)), nil
}

func withoutClusterIP(spec corev1.ServiceSpec) corev1.ServiceSpec {
	spec.ClusterIP, spec.ClusterIPs = "", nil
	return spec
}

func (r *run) deleteOneService(ctx context.Context, s *corev1.Service) error {
	err := r.cluster.Services.Delete(ctx, s.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &s.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting %s: %w", r.Object("Service", s.Name), err)
	}
	return nil
}

// deleteService deletes the NodePort Service permanently.
func (r *run) deleteService(ctx context.Context) (string, error) {
	service, err := r.nodePort(ctx)
	if err != nil {
		return "", err
	}
	if service == nil {
		return "nothing: it does not exist", nil
	}
	if err := r.deleteOneService(ctx, service); err != nil {
		return "", err
	}
	return "deleted " + r.Object("Service", service.Name), nil
}

// restoreService recreates the NodePort Service that this run, or one that was killed, deleted. It
// returns the error that made this necessary together with the outcome.
func (f *finishing) restoreService(failure error) error {
	ctx, cancel := context.WithTimeout(context.Background(), restoreTimeout) // the run's context may have ended
	defer cancel()
	name := f.Object("Service", f.Settings.Name+names.SuffixNodePort)
	for {
		put, err := f.tryRestoreService(ctx)
		switch {
		case err == nil && put:
			f.Log.Info("restored the NodePort Service", "service", name)
			return fmt.Errorf("%w; %s was restored: nodes pull as before", failure, name)
		case err == nil:
			return failure
		}
		if sleepErr := release.Sleep(ctx, release.PollInterval); sleepErr != nil {
			f.Log.Error("cannot restore the NodePort Service, or cannot tell whether it is needed", "service", name, "error",
				err.Error())
			if !f.switching {
				return failure
			}
			return fmt.Errorf("%w; %s could not be restored (%w): run "+
				"helm upgrade --set registryProxy=false, which recreates it",
				failure, name, err)
		}
	}
}

// tryRestoreService reports whether it recreated the Service. It does nothing if no Service was
// deleted or one exists.
func (f *finishing) tryRestoreService(ctx context.Context) (bool, error) {
	secret, _, err := f.LoadState(ctx)
	if err != nil {
		return false, err
	}
	copied := release.RemovedService(secret)
	if copied == nil {
		return false, nil
	}
	if present, err := f.nodePort(ctx); err != nil || present != nil {
		return false, err
	}
	var service corev1.Service
	if err := json.Unmarshal(copied, &service); err != nil {
		return false, fmt.Errorf("%s, key %s: %w", f.Object("Secret", secret.Name), state.KeyRemovedService, err)
	}
	// A run that was killed may have closed the listener already. It reopens within moments; the
	// Service is restored either way.
	if _, err := f.certs.WritePull(ctx); err != nil {
		return false, err
	}
	listener, cancel := context.WithTimeout(ctx, restoreListenerTimeout)
	defer cancel()
	if _, err := f.certs.AwaitPlain(listener, true); err != nil {
		f.Log.Warn("the listener of the node port did not open", "error", err.Error())
	}
	owners := service.ManagedFields
	service.ManagedFields = nil
	if _, err := f.cluster.Services.Create(ctx, &service, metav1.CreateOptions{}); err != nil &&
		!apierrors.IsAlreadyExists(err) {
		return false, fmt.Errorf("creating %s: %w", f.Object("Service", service.Name), err)
	}
	f.restoreFieldOwners(ctx, service.Name, owners)
	return true, nil
}

// restoreFieldOwners restores the managed fields of a Service. Without them, server-side apply
// (Helm 4, Argo CD, Flux) could not change those fields.
func (f *finishing) restoreFieldOwners(ctx context.Context, name string, owners []metav1.ManagedFieldsEntry) {
	if len(owners) == 0 {
		return
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"managedFields": owners}})
	if err == nil {
		_, err = f.cluster.Services.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil {
		f.Log.Warn("init-hook now owns the fields of the restored Service; helm upgrade may need --force-conflicts",
			"service", name, "error", err.Error())
	}
}
