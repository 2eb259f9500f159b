package certs

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

	"github.com/zarf-dev/zarf-registry/internal/api/reloadstatus"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

const (
	// queryTimeout limits one query of a pod.
	queryTimeout = 5 * time.Second
	// RefreshInterval is the interval at which pods are annotated again while waiting: the kubelet may
	// have refreshed them before it saw the new Secret.
	RefreshInterval = 10 * time.Second
	// reservedTime is the part of the time until the deadline that is left for the steps after
	// waiting.
	reservedTime = 20 * time.Second
)

// waitTimeout returns the time until the deadline of ctx, minus a reserve for the steps after
// waiting, but at most limit.
func waitTimeout(ctx context.Context, limit time.Duration) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return limit
	}
	rest := time.Until(deadline)
	return max(0, min(limit, rest-min(reservedTime, rest/2)))
}

// QueryPod asks a pod what it has loaded.
func (m *Manager) QueryPod(ctx context.Context, pod *corev1.Pod) (*reloadstatus.Report, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	report, err := m.Registry.Loaded(ctx, pod)
	if err != nil {
		return nil, fmt.Errorf("cannot query what it has loaded: %w", err)
	}
	return report, nil
}

// RefreshPods annotates pods, which makes their kubelets refresh mounted Secrets and ConfigMaps at once.
// For the CronJob it does nothing: they refresh them by themselves within 90 seconds.
func (m *Manager) RefreshPods(ctx context.Context, pods []string) error {
	if m.CronJob {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"annotations": map[string]string{names.AnnotationRefreshed: m.Now().UTC().Format(time.RFC3339Nano)},
	}})
	if err != nil {
		return err
	}
	for _, pod := range pods {
		if _, err := m.Cluster.Pods.Patch(ctx, pod, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil &&
			!apierrors.IsNotFound(err) {
			return fmt.Errorf("annotating %s: %w", m.Object("pod", pod), err)
		}
	}
	return nil
}

// complaints formats what is wrong with pods, by name, for a message.
func (m *Manager) complaints(byPod map[string]string) []string {
	var lines []string
	for _, pod := range slices.Sorted(maps.Keys(byPod)) {
		lines = append(lines, fmt.Sprintf("%s: %s", m.Object("pod", pod), byPod[pod]))
	}
	return lines
}
