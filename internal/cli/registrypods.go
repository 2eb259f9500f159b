package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/zarf-dev/zarf-registry/internal/hook"
)

// registryPods chooses one of the registry's pods to dial, and stays with it as long
// as it is ready and answers: what a pod has written on a shared volume, another may not
// see for as long as its node caches what it knew of a directory (on NFS up to a minute).
// Its methods may be called concurrently.
type registryPods struct {
	client             kubernetes.Interface
	namespace, release string

	mu     sync.Mutex
	chosen string
}

func (r *registryPods) list(ctx context.Context) ([]corev1.Pod, error) {
	list, err := r.client.CoreV1().Pods(r.namespace).List(ctx, hook.RegistryPods(r.release))
	if err != nil {
		return nil, fmt.Errorf("looking for the registry's pods in namespace %s: %w", r.namespace, err)
	}
	return list.Items, nil
}

// ready lists the pods that are ready, that which was dialled last first; at least one.
func (r *registryPods) ready(ctx context.Context) ([]corev1.Pod, error) {
	pods, err := r.list(ctx)
	if err != nil {
		return nil, err
	}
	pods = slices.DeleteFunc(pods, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil || !hook.PodReady(p) })
	if len(pods) == 0 {
		return nil, fmt.Errorf("release %s has no ready registry pod in namespace %s: look at kubectl -n %s get pods", r.release, r.namespace, r.namespace)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.SortFunc(pods, func(a, b corev1.Pod) int {
		switch {
		case a.Name == r.chosen:
			return -1
		case b.Name == r.chosen:
			return 1
		}
		return cmp.Compare(a.Name, b.Name)
	})
	return pods, nil
}

// errRevisions is of a rollout under way.
var errRevisions = errors.New("pods of the registry are being replaced by others, which may be of a release that knows nothing of garbage collection: run it again when the rollout is over")

// oneRevision returns nil where all pods that take requests, or are about to, were made
// from one template, and errRevisions where not. Those that end are among them: they drain.
func (r *registryPods) oneRevision(ctx context.Context) error {
	pods, err := r.list(ctx)
	if err != nil {
		return err
	}
	hashes := map[string]string{}
	for _, p := range pods {
		if p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			hashes[p.Labels[appsv1.DefaultDeploymentUniqueLabelKey]] = p.Name
		}
	}
	if len(hashes) > 1 {
		return fmt.Errorf("%w (%s)", errRevisions, strings.Join(slices.Sorted(maps.Values(hashes)), ", "))
	}
	return nil
}

// dial dials the first of the pods that can be dialled, and has it be the first from
// now on. The error is that of the first.
func (r *registryPods) dial(ctx context.Context, pods []corev1.Pod, dial func(*corev1.Pod) (net.Conn, error)) (net.Conn, error) {
	var first error
	for i := range pods {
		conn, err := dial(&pods[i])
		if err == nil {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.chosen = pods[i].Name
			return conn, nil
		}
		first = cmp.Or(first, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, first
}
