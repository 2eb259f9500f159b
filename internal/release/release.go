// Package release holds what all steps of a hook share: the settings of one release, its Secrets
// and saved state, errors that must not be retried, and retries for errors that may be. It decides
// nothing about certificates, nodes or modes.
package release

import (
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/settings"
)

// Release is one release in a cluster. All fields must be set.
type Release struct {
	Settings settings.Settings
	// Secrets is scoped to Settings.Namespace.
	Secrets Secrets
	Log     *slog.Logger
	// Progress observes what the steps of a hook do.
	Progress Progress
	Now      func() time.Time
}

// Object formats a namespaced object for messages.
func (r *Release) Object(kind, name string) string {
	return fmt.Sprintf("%s %s/%s", kind, r.Settings.Namespace, name)
}

// Selector selects this release's objects of a component. It does not depend on what created them.
func (r *Release) Selector(component string) metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: names.Selector(r.Settings.Release, component)}
}

// Labels returns the labels of an object that a hook creates.
func (r *Release) Labels(component string) map[string]string {
	return names.Labels(r.Settings.Release, component)
}

// PodLabels returns the labels of a pod that a hook creates.
func (r *Release) PodLabels(component string) map[string]string {
	return names.PodLabels(r.Settings.Release, component)
}

// ServerName returns the DNS name that every client of the registry verifies.
func (r *Release) ServerName() string { return ServerName(r.Settings.Name, r.Settings.Namespace) }

// ServerName returns the DNS name that every client of a release's registry verifies.
func ServerName(name, namespace string) string { return name + "." + namespace + ".svc" }

// CacheName returns the DNS name of a release's caches that the proxies verify.
func CacheName(name, namespace string) string { return ServerName(name+names.SuffixCache, namespace) }

// Annotations returns the annotations of objects that hooks create and keep. They stop Argo CD from
// pruning these objects: before 3.0 it tracks an Application's objects by default with a label that
// ours have too, and ours are in no manifest.
func Annotations() map[string]string {
	return map[string]string{
		"argocd.argoproj.io/sync-options":    "Prune=false",
		"argocd.argoproj.io/compare-options": "IgnoreExtraneous",
	}
}

// RestrictedPod and RestrictedContainer return the security contexts of the project's pods. They
// pass the Pod Security level "restricted".
func (r *Release) RestrictedPod() *corev1.PodSecurityContext {
	id := int64(65532) // the conventional non-root user of images built from scratch
	context := &corev1.PodSecurityContext{
		RunAsNonRoot: new(true), RunAsUser: &id, RunAsGroup: &id,
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	if r.Settings.OpenShift {
		context.RunAsUser, context.RunAsGroup = nil, nil
	}
	return context
}

// RestrictedContainer is the container's part; see RestrictedPod.
func RestrictedContainer() *corev1.SecurityContext {
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false),
		ReadOnlyRootFilesystem:   new(true),
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
}

// PodReady reports whether a pod's status says that it is ready.
func PodReady(p corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// PodServes reports whether a pod serves clients: it is ready and is not being deleted.
func PodServes(p corev1.Pod) bool { return p.DeletionTimestamp == nil && PodReady(p) }

// PodEnded reports whether a pod no longer serves requests, and never will: it is being deleted, or its containers
// have ended, as those of an evicted pod.
func PodEnded(p corev1.Pod) bool {
	return p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}
