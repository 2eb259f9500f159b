package status

import (
	"context"
	"crypto/x509"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/hook"
	"github.com/zarf-dev/zarf-registry/internal/pki"
)

// Certificate is the one of a Secret.
type Certificate struct {
	Secret   string    `json:"secret"`
	Subject  string    `json:"subject,omitempty"`
	NotAfter time.Time `json:"notAfter,omitzero"`
	// DaysLeft are whole days until NotAfter, negative after it.
	DaysLeft int `json:"daysLeft"`
	// Valid says that it is in force and signed by the present authority; Why says
	// why not.
	Valid bool   `json:"valid"`
	Why   string `json:"why,omitempty"`
}

// expiring is when a certificate needs attention. Upgrades renew them when half of
// their life is left, so one that gets this old has seen none for months.
const expiring = 30 // days

func (c *collector) certificates(ctx context.Context) error {
	if c.external() {
		return nil
	}
	var authority *x509.Certificate
	for _, suffix := range []string{hook.SuffixAuthority, hook.SuffixServerTLS, hook.SuffixNodeTLS, hook.SuffixPushTLS} {
		name := c.Name + suffix
		secret, missing, err := c.secret(ctx, name)
		if err != nil {
			return err
		}
		if secret == nil && !missing {
			continue
		}
		found := Certificate{Secret: name, Why: "there is none"}
		if secret != nil {
			var parsed *x509.Certificate
			found, parsed = c.certificate(secret, authority)
			if suffix == hook.SuffixAuthority {
				authority = parsed
			}
		}
		c.report.Certificates = append(c.report.Certificates, found)
		switch {
		case !found.Valid:
			c.next("The certificate in Secret %s/%s is not usable (%s): %s makes a new one.", c.Namespace, name, found.Why, c.again())
		case found.DaysLeft < expiring:
			c.next("The certificate in Secret %s/%s ends in %d days: %s renews it.", c.Namespace, name, found.DaysLeft, c.again())
		}
	}
	return nil
}

// certificate judges the certificate of a Secret. Where the authority is nil, as
// for itself or where it could not be read, its signature is not looked at.
func (c *collector) certificate(secret *corev1.Secret, authority *x509.Certificate) (Certificate, *x509.Certificate) {
	found := Certificate{Secret: secret.Name}
	parsed, err := pki.ParseCertificate(secret.Data[corev1.TLSCertKey])
	if err != nil {
		found.Why = err.Error()
		return found, nil
	}
	now := c.Now()
	found.Subject, found.NotAfter = parsed.Subject.String(), parsed.NotAfter
	left := parsed.NotAfter.Sub(now)
	found.DaysLeft = int(left / (24 * time.Hour))
	if left < 0 {
		found.DaysLeft--
	}
	switch {
	case left <= 0:
		found.Why = "it has expired"
	case now.Before(parsed.NotBefore):
		found.Why = "it is not valid yet: is this machine's clock right?"
	case authority != nil && parsed.CheckSignatureFrom(authority) != nil:
		found.Why = "another authority than the present one has signed it"
	default:
		found.Valid = true
	}
	return found, parsed
}
