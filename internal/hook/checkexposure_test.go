package hook_test

import (
	"crypto/x509"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/hook/preflight"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

func TestPreflightChecksExposure(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	issue := func(names ...string) pki.KeyPair {
		ca, err := pki.NewCA("company", begin, 0)
		if err != nil {
			t.Fatal(err)
		}
		pair, err := ca.Issue(pki.Leaf{CommonName: names[0], DNSNames: names,
			Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, Lifetime: time.Hour}, begin)
		if err != nil {
			t.Fatal(err)
		}
		return pair
	}
	good, other := issue("registry.example.com"), issue("other.example.com")
	tls := func(certificate, key []byte) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: foreignMeta("outside"), Type: corev1.SecretTypeTLS,
			Data: map[string][]byte{"tls.crt": certificate, "tls.key": key}}
	}
	for name, c := range map[string]struct {
		tls  *corev1.Secret
		want []string // of the one finding; nil: no finding
	}{
		"valid": {tls(good.Certificate, good.Key), nil},
		"no certificate": {nil,
			[]string{"Secret zarf/outside", "does not exist", "kubectl -n zarf create secret tls outside"}},
		"not PEM": {tls([]byte("rubbish"), good.Key),
			[]string{"Secret zarf/outside", "a tls.crt that the registry would reject"}},
		"key of another certificate": {tls(good.Certificate, other.Key),
			[]string{"tls.crt and a tls.key", "private key does not match"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.add(kubernetesService("10.96.0.1"))
			b.now = begin
			o := &b.hook.Settings
			o.Expose.TLSSecret = "outside"
			if c.tls != nil {
				b.add(c.tls)
			}
			if c.want == nil {
				b.mustFindNothing()
				return
			}
			b.mustFind("expose", preflight.Blocker, c.want...)
			b.mode(state.ModeExternal)
			b.mustFindNothing()
		})
	}
}
