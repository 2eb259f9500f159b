// Package reload asks pods what they have loaded, and makes kubelets refresh what pods mount. It does
// not decide what they should have loaded, nor how long to wait for that.
package reload

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/zarf-dev/zarf-registry/internal/api/loaded"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

const (
	// Poll is the interval at which pods are asked while waiting for them.
	Poll = time.Second
	// MaxQueries limits the number of open tunnels through the API server.
	MaxQueries = 16
	// queryTimeout limits one query of a pod.
	queryTimeout = 5 * time.Second
	// refreshInterval is the interval at which pods are annotated again while waiting: the kubelet may
	// have refreshed them before it saw the new Secret.
	refreshInterval = 10 * time.Second
	// reservedTime is the part of the time until the deadline that is left for the steps after
	// waiting.
	reservedTime = 20 * time.Second
)

// WaitTimeout returns the time until the deadline of ctx, minus a reserve for the steps after
// waiting, but at most limit.
func WaitTimeout(ctx context.Context, limit time.Duration) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return limit
	}
	rest := time.Until(deadline)
	return max(0, min(limit, rest-min(reservedTime, rest/2)))
}

// Cluster annotates pods, which makes their kubelets refresh what they mount at once.
type Cluster interface {
	Patch(
		ctx context.Context, name string, kind types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string,
	) (*corev1.Pod, error)
}

// Registry asks the registry pods and the proxy pods.
type Registry interface {
	// Loaded returns the certificates and credentials that a registry pod or a proxy pod has loaded.
	Loaded(ctx context.Context, pod *corev1.Pod) (*loaded.State, error)
}

// Pods asks and refreshes the pods of one release.
type Pods struct {
	*release.Release
	Cluster  Cluster
	Registry Registry
	// ReadOnly is set where the identity may not annotate pods: kubelets refresh them by themselves
	// within 90 seconds.
	ReadOnly bool
}

// Loaded asks a pod what it has loaded.
func (p *Pods) Loaded(ctx context.Context, pod *corev1.Pod) (*loaded.State, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	report, err := p.Registry.Loaded(ctx, pod)
	if err != nil {
		return nil, fmt.Errorf("cannot query what it has loaded: %w", err)
	}
	return report, nil
}

// Complaints formats what is wrong with pods, by name, for a message.
func (p *Pods) Complaints(byPod map[string]string) []string {
	var lines []string
	for _, pod := range slices.Sorted(maps.Keys(byPod)) {
		lines = append(lines, fmt.Sprintf("%s: %s", p.Object("pod", pod), byPod[pod]))
	}
	return lines
}

// Refresher refreshes pods during one wait for them.
type Refresher struct{ at time.Time }

// Started reports whether Refresh has refreshed pods.
func (r *Refresher) Started() bool { return !r.at.IsZero() }

// Due reports whether Refresh would refresh pods now.
func (r *Refresher) Due() bool { return time.Since(r.at) >= refreshInterval }

// Refresh makes kubelets refresh the Secrets and ConfigMaps that pods mount, unless they were asked to
// in the last seconds.
func (r *Refresher) Refresh(ctx context.Context, p *Pods, pods []string) error {
	if len(pods) == 0 || !r.Due() {
		return nil
	}
	r.at = time.Now()
	if p.ReadOnly {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"annotations": map[string]string{names.AnnotationRefreshed: p.Now().UTC().Format(time.RFC3339Nano)},
	}})
	if err != nil {
		return err
	}
	for _, pod := range pods {
		if _, err := p.Cluster.Patch(ctx, pod, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil &&
			!apierrors.IsNotFound(err) {
			return fmt.Errorf("annotating %s: %w", p.Object("pod", pod), err)
		}
	}
	return nil
}
