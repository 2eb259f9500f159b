// Package certs issues, copies, renews and rotates the certificates and credentials of a release,
// and stores them in its Secrets. Certificates come from the release's own CA, from cert-manager,
// or from Secrets of the user. During a CA rotation the proxies and the registry trust each other
// at every step.
//
// It does not decide the order of a rotation; package pki does.
package certs

import (
	"context"
	"time"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/zarf-dev/zarf-registry/internal/api/reloadstatus"
	"github.com/zarf-dev/zarf-registry/internal/hook/nodes"
	"github.com/zarf-dev/zarf-registry/internal/hook/steps"
)

// Cluster is the Kubernetes API that a Keeper uses, limited to the namespace of the release. The
// typed clients of client-go and of cert-manager implement its parts. If cert-manager is not
// installed, its three clients return NotFound errors.
type Cluster struct {
	Pods                Pods
	Certificates        Certificates
	CertificateRequests CertificateRequests
	Issuers             Issuers
}

// Pods annotates pods, which makes their kubelets refresh mounted Secrets at once.
type Pods interface {
	Patch(
		ctx context.Context, name string, kind types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string,
	) (*corev1.Pod, error)
}

// Objects reads and writes objects of one kind.
type Objects[T any] interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*T, error)
	Create(ctx context.Context, object *T, opts metav1.CreateOptions) (*T, error)
	Update(ctx context.Context, object *T, opts metav1.UpdateOptions) (*T, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// Certificates reads and writes cert-manager's Certificates. UpdateStatus triggers a new issuance.
type Certificates interface {
	Objects[certmanagerv1.Certificate]
	UpdateStatus(
		ctx context.Context, certificate *certmanagerv1.Certificate, opts metav1.UpdateOptions,
	) (*certmanagerv1.Certificate, error)
}

// CertificateRequests lists the requests that tell why a Certificate is not issued.
type CertificateRequests interface {
	List(ctx context.Context, opts metav1.ListOptions) (*certmanagerv1.CertificateRequestList, error)
}

// Issuers reads and writes cert-manager's Issuers.
type Issuers = Objects[certmanagerv1.Issuer]

// Registry queries the registry pods and the proxy pods.
type Registry interface {
	// PlainOpen reports whether the plain listener of a registry pod accepts connections. An error
	// means that the state of the listener is unknown.
	PlainOpen(ctx context.Context, pod *corev1.Pod) (bool, error)
	// Loaded returns the certificates and credentials that a registry pod or a proxy pod has loaded.
	Loaded(ctx context.Context, pod *corev1.Pod) (*reloadstatus.Report, error)
}

// Manager manages the certificates and credentials of one release. Observer, Cluster and Registry
// must be set.
type Manager struct {
	*nodes.Observer
	Cluster  Cluster
	Registry Registry
	// Timeout limits a command. Zero means no limit.
	Timeout time.Duration
	// CronJob is set where the certificates CronJob runs, whose identity may neither annotate pods nor
	// delete what other PKI modes left.
	CronJob bool
}

func (m *Manager) run(ctx context.Context, phase string, list []steps.Step) error {
	return steps.Runner{Phase: phase, Progress: m.Progress, Now: m.Now, Timeout: m.Timeout}.Run(ctx, list)
}
