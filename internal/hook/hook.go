// Package hook implements the chart's hook Jobs as ordered steps: Prepare before the chart is
// applied, Finish after it, Cleanup before it is deleted. Each can be killed at any point and run
// again. So are Renew, Rotate and RotateCredential, for the CronJob and for people. The package owns
// the order of the steps; the packages below it do most of the work. It touches no field of an object
// that the chart renders.
package hook

import (
	"context"
	"log/slog"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/hook/certs"
	"github.com/zarf-dev/zarf-registry/internal/hook/certs/certmanager"
	"github.com/zarf-dev/zarf-registry/internal/hook/credentials"
	"github.com/zarf-dev/zarf-registry/internal/hook/nodeport"
	"github.com/zarf-dev/zarf-registry/internal/hook/nodes"
	"github.com/zarf-dev/zarf-registry/internal/hook/payload"
	"github.com/zarf-dev/zarf-registry/internal/hook/preflight"
	"github.com/zarf-dev/zarf-registry/internal/hook/pulltest"
	"github.com/zarf-dev/zarf-registry/internal/hook/reload"
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
	// CronJob is true in the certificates CronJob, whose identity may neither annotate pods, nor change
	// cert-manager's objects, nor delete what other PKI modes left.
	CronJob bool
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
	CertManager certmanager.Cluster
	RefreshPods reload.Cluster
	Payload     payload.Cluster
	Preflight   preflight.Cluster
	VerifyPods  pulltest.Pods
	Deployments nodes.Deployments
	Jobs        Jobs
	NodePort    nodeport.Cluster
	// HostingConfigMaps is scoped to HostingNamespace.
	HostingConfigMaps ConfigMaps
}

// Jobs reads and deletes Jobs by name.
type Jobs interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*batchv1.Job, error)
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

// ours are the modes in which the release has a registry.
var ours = []state.Mode{state.ModeNodePort, state.ModeProxy}

type run struct {
	*nodes.Observer
	cluster     Cluster
	registry    Registry
	pods        *reload.Pods
	certs       *certs.Manager
	credentials *credentials.Manager
	port        *nodeport.Port
	payload     *payload.Seeder
	verifier    *pulltest.Verifier

	nodeConfigData map[string][]byte
	finishFollows  bool
	timeout        time.Duration
}

func (h *Hook) start() *run {
	r := &release.Release{Settings: h.Settings, Secrets: h.Cluster.Secrets, Log: h.Log, Progress: h.Progress,
		Now: h.Now}
	observer := &nodes.Observer{Release: r, Cluster: h.Cluster.Nodes}
	pods := &reload.Pods{Release: r, Cluster: h.Cluster.RefreshPods, Registry: h.Registry, ReadOnly: h.CronJob}
	return &run{
		Observer: observer,
		cluster:  h.Cluster,
		registry: h.Registry,
		pods:     pods,
		certs: &certs.Manager{Observer: observer, Pods: pods,
			CertManager: &certmanager.Client{Release: r, Cluster: h.Cluster.CertManager, ReadOnly: h.CronJob}},
		credentials: &credentials.Manager{Observer: observer, Pods: pods, Listener: h.Registry},
		port:        &nodeport.Port{Release: r, Cluster: h.Cluster.NodePort},
		payload:     &payload.Seeder{Release: r, Cluster: h.Cluster.Payload, Programs: h.Programs},
		verifier:    &pulltest.Verifier{Observer: observer, Pods: h.Cluster.VerifyPods, Images: h.Registry},

		nodeConfigData: h.NodeConfigData,
		finishFollows:  h.FinishFollows,
		timeout:        h.Timeout,
	}
}

func (r *run) inspection() *preflight.Inspection {
	return &preflight.Inspection{
		Observer: r.Observer, Cluster: r.cluster.Preflight, Certs: r.certs, Credentials: r.credentials, Payload: r.payload,
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
