package preflight

import (
	"context"
	"crypto/tls"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

// lookAtExposure checks the certificate and the listeners for clients outside the cluster. Without
// the certificate the registry's new pod would not start, after the previous pod is already gone.
func (i *Inspection) lookAtExposure(ctx context.Context) ([]Finding, error) {
	var found []Finding
	add := func(severity Severity, object, remedy, cause string, args ...any) {
		found = append(found, Finding{Check: checkExpose, Severity: severity, Object: object,
			Cause: fmt.Sprintf(cause, args...), Remedy: remedy})
	}
	if name := i.Settings.Expose.TLSSecret; name != "" {
		object := i.Object("Secret", name)
		secret, err := i.ReadSecret(ctx, name)
		switch {
		case err != nil:
			return nil, err
		case secret == nil:
			add(Blocker, object, fmt.Sprintf(
				"kubectl -n %s create secret tls %s --cert=FILE --key=FILE, or name another: --set expose.tls.existingSecret=…",
				i.Settings.Namespace, name),
				"does not exist, and the registry would not start without it")
		default:
			i.lookAtExposedCertificate(object, secret, add)
		}
	}
	if name := i.Settings.Expose.UsersSecret; name != "" {
		object := i.Object("Secret", name)
		remedy := fmt.Sprintf("htpasswd -Bbn USER PASSWORD > htpasswd; kubectl -n %s create secret generic %s "+
			"--from-file=htpasswd", i.Settings.Namespace, name)
		secret, err := i.ReadSecret(ctx, name)
		switch {
		case err != nil:
			return nil, err
		case secret == nil:
			add(Warning, object, remedy, "does not exist: until it exists, only the push credential can pull from outside")
		case len(secret.Data[names.KeyHtpasswd]) == 0:
			add(Warning, object, remedy, "has no key %s: until it has one, only the push credential can pull from outside",
				names.KeyHtpasswd)
		}
	}
	return found, nil
}

func (i *Inspection) lookAtExposedCertificate(object string, secret *corev1.Secret,
	add func(severity Severity, object, remedy, cause string, args ...any)) {
	const remedy = "put the certificate with its chain into tls.crt, and its key into tls.key"
	chain, err := pki.ParseChain(secret.Data[corev1.TLSCertKey])
	if err != nil {
		add(Blocker, object, remedy, "has a tls.crt that the registry would reject: %v", err)
		return
	}
	if _, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey]); err != nil {
		add(Blocker, object, remedy, "has a tls.crt and a tls.key that the registry would reject: %v", err)
		return
	}
	leaf := chain[0]
	if now := i.Now(); now.After(leaf.NotAfter) {
		add(Warning, object, "renew it; the registry follows the Secret",
			"its certificate expired at %s: clients outside will reject it", leaf.NotAfter.UTC().Format("2006-01-02 15:04 MST"))
	}
	for _, host := range i.Settings.Expose.Hosts {
		if err := leaf.VerifyHostname(host); err != nil {
			add(Warning, object, "have it issued for that name too, or correct expose.hosts",
				"its certificate is not for %s: clients outside that use that name will reject it", host)
		}
	}
}
