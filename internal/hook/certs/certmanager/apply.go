package certmanager

import (
	"context"
	"crypto/x509"
	"fmt"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	applyv1 "github.com/cert-manager/cert-manager/pkg/client/applyconfigurations/certmanager/v1"
	applymeta "github.com/cert-manager/cert-manager/pkg/client/applyconfigurations/meta/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

const notInstalled = "cert-manager is not installed: install it first, see " +
	"https://cert-manager.io/docs/installation/, or use --set pki.mode=internal"

var keyUsages = map[x509.ExtKeyUsage]certmanagerv1.KeyUsage{
	x509.ExtKeyUsageClientAuth: certmanagerv1.UsageClientAuth,
	x509.ExtKeyUsageServerAuth: certmanagerv1.UsageServerAuth,
}

// wanted returns the Certificate of a leaf. Fields that it does not set keep what others set.
func (c *Client) wanted(issuer state.Issuer, leaf Leaf) *applyv1.CertificateApplyConfiguration {
	name, labels, annotations := c.Settings.Name+leaf.Suffix, c.Labels(names.ComponentCertificates), release.Annotations()
	spec := applyv1.CertificateSpec().
		WithCommonName(leaf.CommonName).
		WithDNSNames(leaf.DNSNames...).
		WithIsCA(false).
		WithIssuerRef(applymeta.IssuerReference().WithName(issuer.Name).WithKind(issuer.Kind).WithGroup(issuer.Group)).
		WithSubject(applyv1.X509Subject().WithOrganizations(leaf.Organization)).
		WithURIs(leaf.Organization). // some issuers ignore the requested subject
		WithUsages(certmanagerv1.UsageDigitalSignature).
		WithSecretName(name + names.SuffixIssued).
		WithSecretTemplate(applyv1.CertificateSecretTemplate().WithLabels(labels).WithAnnotations(annotations)).
		WithDuration(metav1.Duration{Duration: leaf.Lifetime}).
		WithRenewBefore(metav1.Duration{Duration: leaf.Lifetime / 2}). // as in internal mode
		WithPrivateKey(applyv1.CertificatePrivateKey().
						WithAlgorithm(certmanagerv1.ECDSAKeyAlgorithm).WithSize(256).WithEncoding(certmanagerv1.PKCS8).
						WithRotationPolicy(certmanagerv1.RotationPolicyAlways)). // cert-manager before 1.18 reuses the key by default
		WithRevisionHistoryLimit(1) // previous CertificateRequests are not needed
	for _, ip := range leaf.IPAddresses {
		spec.WithIPAddresses(ip.String())
	}
	for _, usage := range leaf.Usages {
		spec.WithUsages(keyUsages[usage])
	}
	return applyv1.Certificate(name, c.Settings.Namespace).WithLabels(labels).WithAnnotations(annotations).WithSpec(spec)
}

// issued is a Certificate and its Secret. The Secret is nil if it does not exist.
type issued struct {
	*certmanagerv1.Certificate
	secret *corev1.Secret
}

// read returns a Certificate and its Secret, nil if they do not exist, and those of them that others
// created, as kind and name.
func (c *Client) read(ctx context.Context, name string) (i issued, foreign [][2]string, err error) {
	if i.Certificate, err = c.certificate(ctx, name); err != nil {
		return i, nil, err
	}
	if i.secret, err = c.ReadSecret(ctx, name+names.SuffixIssued); err != nil {
		return i, nil, err
	}
	if i.Certificate != nil && !ours(i.Certificate) {
		foreign = append(foreign, [2]string{certmanagerv1.CertificateKind, name})
	}
	if i.secret != nil && !ours(i.secret) && !writtenFor(i.secret, i.Certificate) {
		foreign = append(foreign, [2]string{"Secret", i.secret.Name})
	}
	return i, foreign, nil
}

// writtenFor reports whether cert-manager wrote a Secret for a Certificate of ours. Its labels may have
// been changed, and cert-manager is about to restore them.
func writtenFor(secret *corev1.Secret, of *certmanagerv1.Certificate) bool {
	return of != nil && ours(of) && secret.Annotations[certmanagerv1.CertificateNameKey] == of.Name
}

// apply creates a Certificate, or sets the fields that this package decides on.
func (c *Client) apply(
	ctx context.Context, want *applyv1.CertificateApplyConfiguration,
) (*certmanagerv1.Certificate, error) {
	name := c.Object("Certificate", *want.GetName())
	applied, err := c.Cluster.Certificates.Apply(ctx, want, metav1.ApplyOptions{FieldManager: names.Manager, Force: true})
	switch {
	case apierrors.IsNotFound(err):
		return nil, exitcode.Refuse("applying %s: %w; %s", name, err, notInstalled)
	case err != nil:
		return nil, fmt.Errorf("applying %s: %w", name, release.RefuseForbidden(err))
	}
	return applied, nil
}
