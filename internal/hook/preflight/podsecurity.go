package preflight

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

const (
	// labelEnforce is the label that sets a namespace's Pod Security level.
	labelEnforce = "pod-security.kubernetes.io/enforce"
	// levelPrivileged is the only level that admits a host port or a hostPath volume.
	levelPrivileged = "privileged"
	// labelTime bounds how long the API servers may take to see a change of the label.
	labelTime = 10 * time.Second
)

// LabelNamespace sets the namespace's Pod Security level if it rejects the pods that run on nodes.
func (i *Inspection) LabelNamespace(ctx context.Context) (string, error) {
	violation, err := i.podSecurityViolation(ctx)
	if err != nil {
		return "", err
	}
	if violation == "" {
		return "nothing: Pod Security admits all pods already", nil
	}
	name := i.Settings.Namespace
	namespace, err := i.Cluster.Namespaces.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("reading namespace %s: %w", name, release.RefuseForbidden(err))
	}
	before := namespace.Labels[labelEnforce]
	if before == levelPrivileged {
		return "", exitcode.Refuse(
			"namespace %s has the label %s=%s already, and Pod Security still rejects pods of the release: %s", name,
			labelEnforce, levelPrivileged, violation)
	}
	if err := i.patchNamespace(ctx, namespace, levelPrivileged, before); err != nil {
		return "", err
	}
	for deadline := time.Now().Add(labelTime); ; {
		violation, err := i.podSecurityViolation(ctx)
		if err != nil {
			return "", err
		}
		if violation == "" {
			return fmt.Sprintf("namespace %s has %s=%s, before %q", name, labelEnforce, levelPrivileged, before), nil
		}
		if time.Now().After(deadline) {
			return "", exitcode.Refuse(
				"namespace %s has the label %s=%s now, and Pod Security still rejects pods of the release: %s", name, labelEnforce,
				levelPrivileged, violation)
		}
		if err := release.Sleep(ctx, release.PollInterval); err != nil {
			return "", err
		}
	}
}

// podSecurityViolation returns the first Pod Security violation of a pod that runs on nodes, or ""
// if all are admitted.
func (i *Inspection) podSecurityViolation(ctx context.Context) (string, error) {
	for _, pod := range i.privilegedPods() {
		_, err := i.tryPod(ctx, pod)
		if violation, violated := podSecurity(err); violated {
			return violation, nil
		}
		if constrained(err) && grantedByChart(pod) || noDryRun(err) {
			continue // Pod Security has not been asked, and preflight has judged this error
		}
		if err != nil {
			return "", err
		}
	}
	return "", nil
}

// RestoreLabel restores the label that the namespace had before LabelNamespace, unless someone has
// changed it since.
func (i *Inspection) RestoreLabel(ctx context.Context) (string, error) {
	name := i.Settings.Namespace
	namespace, err := i.Cluster.Namespaces.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("reading namespace %s: %w", name, release.RefuseForbidden(err))
	}
	before, changed := namespace.Annotations[names.AnnotationPreviousEnforce]
	if !changed {
		return "nothing: it was never changed", nil
	}
	level := namespace.Labels[labelEnforce]
	if level == levelPrivileged {
		level = before
	}
	if err := i.patchNamespace(ctx, namespace, level, nil); err != nil {
		return "", err
	}
	return fmt.Sprintf("namespace %s has %s=%q", name, labelEnforce, level), nil
}

// patchNamespace sets the namespace's Pod Security level ("" deletes it) and the annotation with
// the previous level (nil deletes it). A concurrent change is an error; the Job then runs again.
func (i *Inspection) patchNamespace(ctx context.Context, namespace *corev1.Namespace, level string, before any) error {
	var label any
	if level != "" {
		label = level
	}
	meta := map[string]any{
		"labels":      map[string]any{labelEnforce: label},
		"annotations": map[string]any{names.AnnotationPreviousEnforce: before},
	}
	if namespace.ResourceVersion != "" {
		meta["resourceVersion"] = namespace.ResourceVersion
	}
	patch, err := json.Marshal(map[string]any{"metadata": meta})
	if err != nil {
		return err
	}
	if _, err := i.Cluster.Namespaces.Patch(ctx, namespace.Name, types.MergePatchType, patch,
		metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("labelling namespace %s: %w", namespace.Name, release.RefuseForbidden(err))
	}
	return nil
}
