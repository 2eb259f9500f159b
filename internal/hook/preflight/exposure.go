package preflight

import (
	"context"
	"crypto/tls"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/pki"
)

// lookAtExposure checks the certificate for clients outside the cluster. Without it the registry's new pod would not
// start, after the previous pod is already gone.
func (i *Inspection) lookAtExposure(ctx context.Context) ([]Finding, error) {
	name := i.Settings.Expose.TLSSecret
	if name == "" {
		return nil, nil
	}
	f := Finding{Check: checkExpose, Severity: Blocker, Object: i.Object("Secret", name),
		Remedy: "put the certificate with its chain into tls.crt, and its key into tls.key"}
	secret, err := i.ReadSecret(ctx, name)
	switch {
	case err != nil:
		return nil, err
	case secret == nil:
		f.Cause = "does not exist, and the registry would not start without it"
		f.Remedy = fmt.Sprintf(
			"kubectl -n %s create secret tls %s --cert=FILE --key=FILE, or name another: --set expose.tls.existingSecret=…",
			i.Settings.Namespace, name)
		return []Finding{f}, nil
	}
	if _, err := pki.ParseChain(secret.Data[corev1.TLSCertKey]); err != nil {
		f.Cause = fmt.Sprintf("has a tls.crt that the registry would reject: %v", err)
		return []Finding{f}, nil
	}
	if _, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey]); err != nil {
		f.Cause = fmt.Sprintf("has a tls.crt and a tls.key that the registry would reject: %v", err)
		return []Finding{f}, nil
	}
	return nil, nil
}
