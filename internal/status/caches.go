package status

import (
	"cmp"
	"context"
	"slices"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/zarf-dev/zarf-registry/internal/api/loaded"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

// Caches describes the pods that keep copies of what proxies pull.
type Caches struct {
	// Ready counts the ready pods of the Desired. Message says why not all are ready.
	Ready   int     `json:"ready"`
	Desired int     `json:"desired"`
	Message string  `json:"message,omitempty"`
	Pods    []Cache `json:"pods"`
}

// Cache describes one of the pods.
type Cache struct {
	Pod
	// Use is the pod's own report. It is nil if it did not respond.
	Use *loaded.Cache `json:"use,omitempty"`
}

// caches reports the caches. Those that are not ready are worth a next step, although no pull fails.
func (c *collector) caches(ctx context.Context) error {
	of := selector(c.Release, names.ComponentCache)
	deployments, err := c.Client.AppsV1().Deployments(c.Namespace).List(ctx, of)
	if err != nil {
		return c.unreadable("listing the Deployments in namespace "+c.Namespace, err)
	}
	sets, err := c.Client.AppsV1().DaemonSets(c.Namespace).List(ctx, of)
	if err != nil {
		return c.unreadable("listing the DaemonSets in namespace "+c.Namespace, err)
	}
	if len(deployments.Items)+len(sets.Items) == 0 {
		if c.pki().Cache {
			c.next("The caches are missing, and proxies pull from the registry: run %s.", c.installCommand())
		}
		return nil
	}
	pods, err := c.Client.CoreV1().Pods(c.Namespace).List(ctx, of)
	if err != nil {
		return c.unreadable("listing the caches' pods in namespace "+c.Namespace, err)
	}
	r := &Caches{Pods: []Cache{}}
	c.report.Caches = r
	changing := false
	for _, d := range deployments.Items {
		changing = changing || rollingOut(d)
		r.Desired += int(ptr.Deref(d.Spec.Replicas, 1))
	}
	for _, d := range sets.Items {
		r.Desired += int(d.Status.DesiredNumberScheduled)
	}
	running := slices.DeleteFunc(pods.Items, release.PodEnded)
	for _, p := range running {
		pod := c.pod(p)
		r.Pods = append(r.Pods, Cache{Pod: pod})
		if pod.Ready {
			r.Ready++
		} else {
			r.Message = cmp.Or(r.Message, pod.Message)
		}
	}
	c.askCaches(ctx, running)
	switch {
	case r.Desired == 0:
		r.Message = "none is wanted: scaled to 0 pods, or cache.nodeSelector selects no node"
	case r.Ready >= r.Desired:
		r.Message = ""
		return nil
	case changing:
		return nil
	}
	c.next("%d of %d caches are ready (%s), and proxies pull from the registry instead: kubectl --namespace %s describe "+
		"pods --selector %s shows more.", r.Ready, r.Desired, orUnknown(r.Message), c.Namespace, of.LabelSelector)
	return nil
}

// askCaches queries the ready pods. That requires a permission that the rest of the report does not, so no response
// is not a problem.
func (c *collector) askCaches(ctx context.Context, pods []corev1.Pod) {
	var group errgroup.Group
	group.SetLimit(maxConcurrentPods)
	for i := range pods {
		cache := &c.report.Caches.Pods[i]
		if !cache.Ready {
			continue
		}
		group.Go(func() error {
			if report, err := c.Loaded(ctx, &pods[i]); err == nil {
				cache.Use = report.Cache
			}
			return nil
		})
	}
	_ = group.Wait() // never fails
}
