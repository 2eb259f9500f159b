// Package hook implements the chart's hook Jobs as ordered steps: Prepare before the chart is
// applied, Finish after it, Cleanup before it is deleted. Each can be killed at any point and run
// again. The package owns the order of the steps; the packages preflight, certs, payload, nodes and
// pull do most of the work. It touches no field of an object that the chart renders.
package hook

import (
	"context"
	"log/slog"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/zarf-dev/zarf-registry/internal/hook/certs"
	"github.com/zarf-dev/zarf-registry/internal/hook/nodes"
	"github.com/zarf-dev/zarf-registry/internal/hook/payload"
	"github.com/zarf-dev/zarf-registry/internal/hook/preflight"
	"github.com/zarf-dev/zarf-registry/internal/hook/pull"
	"github.com/zarf-dev/zarf-registry/internal/hook/steps"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/settings"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// Hook runs the phases. All fields must be set unless documented otherwise. A Hook keeps no state
// between phases.
type Hook struct {
	Settings settings.Settings
	// NodeConfigData is the data of the rendered Secret with the node configuration, which may be
	// confidential. If nil, Prepare reads it from the Secret that the chart creates for it.
	NodeConfigData map[string][]byte
	// FinishFollows is true if the process that runs Prepare also applies the chart and runs Finish.
	// If images are pushed, Prepare then records init-hook's image, which Finish will push, because
	// the chart's Jobs refer to it.
	FinishFollows bool
	// Again are the arguments that repeat an installation with another program, for a warning. Empty: "install".
	Again string
	// Timeout bounds a phase; 0 means no limit.
	Timeout time.Duration

	Cluster  Cluster
	Programs payload.Programs
	Registry Registry
	Log      *slog.Logger
	Progress release.Progress
	Now      func() time.Time
}

// Cluster holds the Kubernetes clients that the steps need. Unless noted otherwise, they are scoped
// to Settings.Namespace. client-go's typed clients satisfy each interface.
type Cluster struct {
	Secrets     release.Secrets
	Nodes       nodes.Cluster
	Certs       certs.Cluster
	Payload     payload.Cluster
	Preflight   preflight.Cluster
	VerifyPods  pull.Pods
	Deployments nodes.Deployments
	Jobs        Jobs
	Services    Services
	// EndpointSlices are those of the NodePort Service.
	EndpointSlices EndpointSlices
	// HostingConfigMaps is scoped to HostingNamespace.
	HostingConfigMaps ConfigMaps
}

// Jobs reads and deletes Jobs by name.
type Jobs interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*batchv1.Job, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// EndpointSlices lists and changes those of the NodePort Service.
type EndpointSlices interface {
	List(ctx context.Context, opts metav1.ListOptions) (*discoveryv1.EndpointSliceList, error)
	Patch(ctx context.Context, name string, kind types.PatchType, data []byte, opts metav1.PatchOptions,
		subresources ...string) (*discoveryv1.EndpointSlice, error)
}

// Services creates, changes and deletes the NodePort Service.
type Services interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*corev1.Service, error)
	Create(ctx context.Context, service *corev1.Service, opts metav1.CreateOptions) (*corev1.Service, error)
	Patch(ctx context.Context, name string, kind types.PatchType, data []byte, opts metav1.PatchOptions,
		subresources ...string) (*corev1.Service, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// ConfigMaps reads and writes one ConfigMap by name.
type ConfigMaps interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*corev1.ConfigMap, error)
	Create(ctx context.Context, configMap *corev1.ConfigMap, opts metav1.CreateOptions) (*corev1.ConfigMap, error)
	Update(ctx context.Context, configMap *corev1.ConfigMap, opts metav1.UpdateOptions) (*corev1.ConfigMap, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// Preflight looks for everything that would prevent Prepare and Finish from succeeding, and changes
// nothing. It returns all findings, blockers first.
func (h *Hook) Preflight(ctx context.Context) ([]preflight.Finding, error) {
	if h.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, h.Timeout)
		defer cancel()
	}
	return h.start().inspection().Run(ctx)
}

// Certs returns the manager of the release's certificates and credentials.
func (h *Hook) Certs() *certs.Manager { return h.start().certs }

// ours are the modes in which the release has a registry.
var ours = []state.Mode{state.ModeNodePort, state.ModeProxy}

// run is one run of a phase.
type run struct {
	*nodes.Observer
	cluster  Cluster
	registry Registry
	certs    *certs.Manager
	payload  *payload.Seeder
	verifier *pull.Verifier

	nodeConfigData map[string][]byte
	finishFollows  bool
	timeout        time.Duration
}

func (h *Hook) start() *run {
	r := &release.Release{Settings: h.Settings, Secrets: h.Cluster.Secrets, Log: h.Log, Progress: h.Progress,
		Now: h.Now}
	observer := &nodes.Observer{Release: r, Cluster: h.Cluster.Nodes}
	return &run{
		Observer: observer,
		cluster:  h.Cluster,
		registry: h.Registry,
		certs:    &certs.Manager{Observer: observer, Cluster: h.Cluster.Certs, Registry: h.Registry, Timeout: h.Timeout},
		payload:  &payload.Seeder{Release: r, Cluster: h.Cluster.Payload, Programs: h.Programs},
		verifier: &pull.Verifier{Observer: observer, Pods: h.Cluster.VerifyPods, Images: h.Registry},

		nodeConfigData: h.NodeConfigData,
		finishFollows:  h.FinishFollows,
		timeout:        h.Timeout,
	}
}

func (r *run) inspection() *preflight.Inspection {
	return &preflight.Inspection{
		Observer: r.Observer, Cluster: r.cluster.Preflight, Certs: r.certs, Payload: r.payload,
		NodeConfigData: r.nodeConfigData,
	}
}

// injects reports whether the release has pods that start from the payload.
func (r *run) injects() bool {
	return r.Settings.Mode != state.ModeExternal || r.Settings.ConfiguresNodes()
}

func (r *run) phase(ctx context.Context, name string, list []steps.Step) error {
	return steps.Runner{
		Phase: name, Mode: r.Settings.Mode, Progress: r.Progress, Now: r.Now, Timeout: r.timeout,
	}.Run(ctx, list)
}
