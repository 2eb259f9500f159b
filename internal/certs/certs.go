// Package certs keeps the certificates and credentials of a release in its Secrets: it issues them,
// copies them from the user's Secrets or from cert-manager, and replaces them in an order in which
// proxies and registry trust each other at every moment. Package pki decides that order.
package certs

import (
	"context"
	"time"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/zarf-dev/zarf-registry/internal/nodes"
	"github.com/zarf-dev/zarf-registry/internal/reloadstatus"
	"github.com/zarf-dev/zarf-registry/internal/steps"
)

// Cluster is what a Keeper needs of Kubernetes, in the release's namespace. client-go's typed
// clients and package certmanager satisfy the parts. Where cert-manager is not installed, its three
// answer NotFound.
type Cluster struct {
	Pods                Pods
	Certificates        Certificates
	CertificateRequests CertificateRequests
	Issuers             Issuers
}

// Pods annotates pods whose kubelets are to refresh mounted Secrets at once.
type Pods interface {
	Patch(ctx context.Context, name string, kind types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (*corev1.Pod, error)
}

// Certificates reads and writes Certificates of cert-manager; UpdateStatus requests a new issuance.
type Certificates interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*certmanagerv1.Certificate, error)
	Create(ctx context.Context, certificate *certmanagerv1.Certificate, opts metav1.CreateOptions) (*certmanagerv1.Certificate, error)
	Update(ctx context.Context, certificate *certmanagerv1.Certificate, opts metav1.UpdateOptions) (*certmanagerv1.Certificate, error)
	UpdateStatus(ctx context.Context, certificate *certmanagerv1.Certificate, opts metav1.UpdateOptions) (*certmanagerv1.Certificate, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// CertificateRequests lists what tells why a Certificate is not issued.
type CertificateRequests interface {
	List(ctx context.Context, opts metav1.ListOptions) (*certmanagerv1.CertificateRequestList, error)
}

// Issuers reads and writes Issuers of cert-manager.
type Issuers interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*certmanagerv1.Issuer, error)
	Create(ctx context.Context, issuer *certmanagerv1.Issuer, opts metav1.CreateOptions) (*certmanagerv1.Issuer, error)
	Update(ctx context.Context, issuer *certmanagerv1.Issuer, opts metav1.UpdateOptions) (*certmanagerv1.Issuer, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// Registry asks the pods of the registry and of the proxies.
type Registry interface {
	// PlainOpen reports whether the plain listener of a registry pod accepts connections. An error
	// means that nothing is known.
	PlainOpen(ctx context.Context, pod *corev1.Pod) (bool, error)
	// Loaded returns what a pod of the registry or of a proxy has loaded.
	Loaded(ctx context.Context, pod *corev1.Pod) (*reloadstatus.Report, error)
}

// Keeper keeps the certificates and credentials of one release. Its fields must be set.
type Keeper struct {
	*nodes.Observer
	Cluster  Cluster
	Registry Registry
	// Timeout bounds a command; 0 means no limit.
	Timeout time.Duration
}

func (k *Keeper) run(ctx context.Context, phase string, list []steps.Step) error {
	return steps.Runner{Phase: phase, Log: k.Log, Now: k.Now, Timeout: k.Timeout}.Run(ctx, list)
}
