package nodes

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

// WaitRegistry waits until the registry's Deployment is rolled out.
func (o *Observer) WaitRegistry(ctx context.Context, deployments Deployments) (string, error) {
	name := o.Settings.Name
	err := o.Wait(ctx, "the registry", func() (string, error) {
		d, err := deployments.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", fmt.Errorf("reading %s: %w", o.Object("Deployment", name), err)
		}
		missing := deploymentMissing(d, 0)
		if missing != "" && d.Status.AvailableReplicas > 0 {
			down, err := o.registryPodsDown(ctx)
			if err != nil {
				return "", err
			}
			missing = deploymentMissing(d, down)
		}
		if missing != "" {
			return o.Object("Deployment", name) + ": " + missing, nil
		}
		return "", nil
	}, names.ComponentRegistry)
	if err != nil {
		return "", err
	}
	return o.Object("Deployment", name) + " is rolled out", nil
}

// registryPodsDown counts the registry's pods on nodes that are not ready. Kubernetes replaces them
// only minutes later.
func (o *Observer) registryPodsDown(ctx context.Context) (int32, error) {
	nodes, err := o.NodesReady(ctx)
	if err != nil {
		return 0, err
	}
	pods, err := o.ListPods(ctx, names.ComponentRegistry)
	if err != nil {
		return 0, err
	}
	down := int32(0)
	for _, p := range pods {
		if ready, exists := nodes[p.Spec.NodeName]; exists && !ready && p.DeletionTimestamp == nil && !release.PodReady(p) {
			down++
		}
	}
	return down, nil
}

// deploymentMissing describes what a rollout is still waiting for, or returns "". Of several
// replicas, those on nodes that are down need not be available as long as one other is.
func deploymentMissing(d *appsv1.Deployment, down int32) string {
	want := ptr.Deref(d.Spec.Replicas, 1)
	switch s := d.Status; {
	case s.ObservedGeneration < d.Generation:
		return "the controller has not seen the last change"
	case s.UpdatedReplicas < want:
		return fmt.Sprintf("%d of %d pods are updated", s.UpdatedReplicas, want)
	case s.Replicas > want:
		return fmt.Sprintf("%d previous pods still exist", s.Replicas-want)
	case s.AvailableReplicas < want && (s.AvailableReplicas == 0 || s.AvailableReplicas+down < want):
		return fmt.Sprintf("%d of %d pods are available", s.AvailableReplicas, want)
	}
	return ""
}

// Deployments reads Deployments by name.
type Deployments interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*appsv1.Deployment, error)
}
