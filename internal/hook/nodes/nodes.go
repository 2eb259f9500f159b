// Package nodes waits for what runs on nodes and looks after the pods that write files there: the
// proxies, the node configuration, its removal, and the CA certificates that container runtimes
// read. It writes no file on any node itself; package hostfiles, which runs in those pods, does.
package nodes

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/release"
)

// Cluster holds the Kubernetes clients that an Observer needs. All but Nodes are scoped to the
// release's namespace. client-go's typed clients satisfy each interface.
type Cluster struct {
	Nodes      Nodes
	Pods       Pods
	Events     Events
	DaemonSets DaemonSets
}

// Nodes lists nodes.
type Nodes interface {
	List(ctx context.Context, opts metav1.ListOptions) (*corev1.NodeList, error)
}

// Pods lists and deletes pods.
type Pods interface {
	List(ctx context.Context, opts metav1.ListOptions) (*corev1.PodList, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// Events lists events.
type Events interface {
	List(ctx context.Context, opts metav1.ListOptions) (*corev1.EventList, error)
}

// DaemonSets lists and deletes DaemonSets.
type DaemonSets interface {
	List(ctx context.Context, opts metav1.ListOptions) (*appsv1.DaemonSetList, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// Observer watches the nodes and the pods of one release. Release and Cluster must be set.
type Observer struct {
	*release.Release
	Cluster Cluster
	// Excused maps each node for which nothing waits any more to the reason.
	Excused map[string]string

	failures int // how many of them maxFailedNodes allowed
}
