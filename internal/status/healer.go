package status

import (
	"context"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/zarf-dev/zarf-registry/internal/node/heal"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

// Healer describes the healer's Deployment.
type Healer struct {
	Ready   int `json:"ready"`
	Desired int `json:"desired"`
	// Message says why not all pods are ready.
	Message string `json:"message,omitempty"`
	// Waiting are the release's pods whose kubelet cannot get an image.
	Waiting []string `json:"waiting"`
}

func (c *collector) healer(ctx context.Context) error {
	list, err := c.Client.AppsV1().Deployments(c.Namespace).List(ctx, selector(c.Release, names.ComponentHealer))
	if err != nil {
		return c.unreadable("listing the Deployments in namespace "+c.Namespace, err)
	}
	if len(list.Items) == 0 {
		return nil
	}
	pods, err := c.Client.CoreV1().Pods(c.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: names.LabelName + "=" + names.Chart + "," + names.LabelInstance + "=" + c.Release,
	})
	if err != nil {
		return c.unreadable("listing the pods in namespace "+c.Namespace, err)
	}
	deployment := list.Items[0]
	h := &Healer{Desired: int(ptr.Deref(deployment.Spec.Replicas, 1)), Waiting: []string{}}
	c.report.Healer = h
	for _, p := range pods.Items {
		if p.DeletionTimestamp != nil {
			continue
		}
		if slices.ContainsFunc(slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses),
			func(s corev1.ContainerStatus) bool {
				return s.State.Waiting != nil && heal.PullFailed(s.State.Waiting.Reason)
			}) {
			h.Waiting = append(h.Waiting, p.Name)
		}
		if p.Labels[names.LabelComponent] != names.ComponentHealer {
			continue
		}
		if pod := c.pod(p); pod.Ready {
			h.Ready++
		} else if h.Message == "" {
			h.Message = pod.Message
		}
	}
	switch {
	case h.Desired == 0:
		h.Message = "scaled to 0 pods"
	case h.Ready >= h.Desired:
		h.Message = ""
	}
	if h.Ready == 0 && !rollingOut(deployment) { // one is enough
		c.next("No healer is ready (%s): kubectl --namespace %s describe deployment %s shows more; meanwhile, zarf-registry "+
			"heal does the same once.", orUnknown(h.Message), c.Namespace, deployment.Name)
	}
	return nil
}

// rollingOut reports whether a Deployment is being rolled out, without a timeout.
func rollingOut(d appsv1.Deployment) bool {
	return slices.ContainsFunc(d.Status.Conditions, func(c appsv1.DeploymentCondition) bool {
		return c.Type == appsv1.DeploymentProgressing &&
			(c.Reason == "NewReplicaSetCreated" || c.Reason == "ReplicaSetUpdated")
	})
}
