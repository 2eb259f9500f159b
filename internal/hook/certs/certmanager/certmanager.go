// Package certmanager has cert-manager issue the certificates of a release, by the user's issuer. It
// applies Certificates, waits until they are issued, says why they are not, and deletes them. It does
// not copy what cert-manager writes, and creates no issuer.
package certmanager

import (
	"context"
	"fmt"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	applyv1 "github.com/cert-manager/cert-manager/pkg/client/applyconfigurations/certmanager/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// Cluster is cert-manager's API in the namespace of the release. The typed clients of cert-manager
// implement its parts. If cert-manager is not installed, they return NotFound errors.
type Cluster struct {
	Certificates        Certificates
	CertificateRequests CertificateRequests
	Issuers             Issuers
}

// Certificates reads and writes Certificates. UpdateStatus triggers a new issuance.
type Certificates interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*certmanagerv1.Certificate, error)
	Apply(
		ctx context.Context, certificate *applyv1.CertificateApplyConfiguration, opts metav1.ApplyOptions,
	) (*certmanagerv1.Certificate, error)
	UpdateStatus(
		ctx context.Context, certificate *certmanagerv1.Certificate, opts metav1.UpdateOptions,
	) (*certmanagerv1.Certificate, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// CertificateRequests lists the requests that tell why a Certificate is not issued.
type CertificateRequests interface {
	List(ctx context.Context, opts metav1.ListOptions) (*certmanagerv1.CertificateRequestList, error)
}

// Issuers reads Issuers.
type Issuers interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*certmanagerv1.Issuer, error)
}

// Suffixes of the names of Certificates, after Settings.Name. The Secret of a Certificate has the name
// of the Certificate plus names.SuffixIssued.
const (
	SuffixServer = "-server"
	SuffixNode   = "-node"
	SuffixPush   = "-push"
	SuffixCache  = names.SuffixCache
)

// Secrets returns the names of the Secrets that cert-manager writes for a release with this name of
// its objects.
func Secrets(name string) state.ExistingSecrets {
	return state.ExistingSecrets{
		Server: name + SuffixServer + names.SuffixIssued, Node: name + SuffixNode + names.SuffixIssued,
		Push: name + SuffixPush + names.SuffixIssued, Cache: name + SuffixCache + names.SuffixIssued,
	}
}

// Leaf is a certificate to issue, and the suffix of the name of its Certificate.
type Leaf struct {
	Suffix string
	pki.Leaf
}

// Client manages the Certificates of one release.
type Client struct {
	*release.Release
	Cluster Cluster
	// ReadOnly is set where the identity may neither apply nor delete Certificates.
	ReadOnly bool
}

// Issue applies the Certificates and waits until all of them are issued.
func (c *Client) Issue(ctx context.Context, issuer state.Issuer, leaves []Leaf) error {
	seen := map[string]bool{}
	return c.await(ctx, issuer, leaves, func(ctx context.Context, i issued) (why string, failed bool, err error) {
		why, failure := i.notReady(), i.failure()
		first := !seen[i.Name]
		switch {
		case failure == "":
		case why != "" && first:
			// The failure is from an earlier run. Its cause may be fixed by now, but cert-manager's backoff
			// can take hours.
			why, err = failure, c.issueAgain(ctx, i)
		case why != "":
			why, failed = failure, true
		case first:
			c.Log.Warn("cert-manager cannot renew a certificate; the current one stays in use",
				"object", c.Object("Certificate", i.Name), "reason", failure, "until", i.Status.NotAfter.String(),
				"remedy", fmt.Sprintf("kubectl --namespace %s describe certificate %s", c.Settings.Namespace, i.Name))
		}
		seen[i.Name] = !first || err == nil
		return why, failed, err
	})
}

// Renew triggers a new issuance of all certificates, whether due or not, and waits for it.
func (c *Client) Renew(ctx context.Context, issuer state.Issuer, leaves []Leaf) error {
	previous := map[string]string{} // the certificates before the new issuance
	return c.await(ctx, issuer, leaves, func(ctx context.Context, i issued) (why string, failed bool, err error) {
		before, requested := previous[i.Name]
		issuing := i.condition(certmanagerv1.CertificateConditionIssuing)
		switch why = i.notReady(); {
		case i.DeletionTimestamp != nil:
		case !requested:
			if err := c.issueAgain(ctx, i); err != nil {
				return "", false, err
			}
			previous[i.Name], why = i.certificatePEM(), "a new certificate was requested"
		case i.failure() != "":
			return i.failure(), true, nil
		case issuing != nil && issuing.Status == cmmeta.ConditionTrue:
			why = fmt.Sprintf("%s: %s", issuing.Reason, issuing.Message)
		case why == "" && i.certificatePEM() == before:
			why = "its Secret " + i.Spec.SecretName + " still has the previous certificate"
		}
		return why, false, nil
	})
}

// Delete deletes the Certificates, and then the Secrets that cert-manager wrote for them: it would write
// them again while their Certificates exist. It returns what it deleted.
func (c *Client) Delete(ctx context.Context) ([]string, error) {
	var deleted []string
	suffixes := []string{SuffixServer, SuffixNode, SuffixPush, SuffixCache}
	for _, suffix := range suffixes {
		name := c.Settings.Name + suffix
		have, err := c.certificate(ctx, name)
		if err != nil {
			return deleted, err
		}
		if have == nil || !c.deletes(have, certmanagerv1.CertificateKind) {
			continue
		}
		err = c.Cluster.Certificates.Delete(ctx, name, *metav1.NewPreconditionDeleteOptions(string(have.UID)))
		if err != nil && !apierrors.IsNotFound(err) {
			return deleted, fmt.Errorf("deleting %s: %w", c.Object("Certificate", name), release.RefuseForbidden(err))
		}
		deleted = append(deleted, "Certificate "+name)
	}
	for _, suffix := range suffixes {
		secret, err := c.ReadSecret(ctx, c.Settings.Name+suffix+names.SuffixIssued)
		if err != nil {
			return deleted, err
		}
		if secret == nil || !c.deletes(secret, "Secret") {
			continue
		}
		if err := c.DeleteSecret(ctx, secret); err != nil {
			return deleted, release.RefuseForbidden(err)
		}
		deleted = append(deleted, "Secret "+secret.Name)
	}
	return deleted, nil
}

// ours reports whether init-hook created an object.
func ours(o metav1.Object) bool { return o.GetLabels()[names.LabelManagedBy] == names.Manager }

// deletes reports whether an object is ours to delete, and logs those that are not.
func (c *Client) deletes(o metav1.Object, kind string) bool {
	if !ours(o) {
		c.Log.Warn("keeping an object that zarf-registry did not create", "object", c.Object(kind, o.GetName()))
	}
	return ours(o)
}

// certificate returns a Certificate, nil if it does not exist.
func (c *Client) certificate(ctx context.Context, name string) (*certmanagerv1.Certificate, error) {
	have, err := c.Cluster.Certificates.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", c.Object("Certificate", name), release.RefuseForbidden(err))
	}
	return have, nil
}
