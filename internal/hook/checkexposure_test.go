package hook_test

import (
	"crypto/x509"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/release/settings"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/require"
)

func TestPreflightChecksExposure(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	issue := func(names ...string) pki.KeyPair {
		ca := require.Value(pki.NewCA("company", begin, 0))(t)
		pair, err := ca.Issue(pki.Leaf{CommonName: names[0], DNSNames: names,
			Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, Lifetime: time.Hour}, begin)
		require.NoError(t, err)
		return pair
	}
	good, other := issue("registry.example.com"), issue("other.example.com")
	tls := func(certificate, key []byte) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: foreignMeta("outside"), Type: corev1.SecretTypeTLS,
			Data: map[string][]byte{"tls.crt": certificate, "tls.key": key}}
	}
	exposed := func(o *settings.Settings) { o.Expose.TLSSecret = "outside" }
	findings(t, "expose", map[string]situation{
		"valid":                      {objects: objects{tls(good.Certificate, good.Key)}, settings: exposed},
		"no certificate":             {settings: exposed},
		"no certificate, external":   {settings: all(exposed, modeOf(state.ModeExternal), externalURL)},
		"not PEM":                    {objects: objects{tls([]byte("rubbish"), good.Key)}, settings: exposed},
		"key of another certificate": {objects: objects{tls(good.Certificate, other.Key)}, settings: exposed},
	})
}
