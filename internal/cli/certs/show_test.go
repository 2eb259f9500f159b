package certs

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/zarf-dev/zarf-registry/internal/api/loaded"
	"github.com/zarf-dev/zarf-registry/internal/cli/clitest"
	"github.com/zarf-dev/zarf-registry/internal/cli/render"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/release/settings"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/internal/status"
	files "github.com/zarf-dev/zarf-registry/test/golden"
	"github.com/zarf-dev/zarf-registry/test/require"
)

func TestCertificatesArePrintedForPeople(t *testing.T) {
	golden := files.Open(t, "certificates")
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	fingerprint := func(digit string) string { return strings.Repeat(digit, 64) }
	leaf := func(secret, role string) *status.SecretCertificate {
		return &status.SecretCertificate{
			Certificate: status.Certificate{Secret: secret, Subject: "CN=zarf-registry,O=" + role,
				NotAfter: now.Add(365 * 24 * time.Hour), DaysLeft: 365, Left: 365 * 24 * time.Hour, Valid: true},
			CommonName: "zarf-registry", Roles: []string{role}, Serial: "1f", SHA256: fingerprint("a"), Issuer: "CN=authority",
			NotBefore:  now.Add(-time.Hour),
			TrustedCAs: []string{fingerprint("c")},
		}
	}
	server, node := leaf("zarf-registry-server-tls", "zarf-registry:server"),
		leaf("zarf-registry-node-tls", "zarf-registry:node")
	server.DNSNames, server.RenewAt = []string{"zarf-registry", "zarf-registry.zarf.svc"}, now.Add(182*24*time.Hour)
	report := func(generation uint64) *loaded.State {
		return &loaded.State{Certificates: loaded.Certificates{Generation: generation, LoadedAt: now,
			Leaf: loaded.Certificate{SHA256: fingerprint("a")}}}
	}
	r := &status.CertificateReport{
		Namespace: "zarf", Release: "zarf-registry", Name: "zarf-registry", Healthy: true,
		PKI: &state.PKI{Mode: state.PKIInternal, LeafLifetime: state.Duration(8760 * time.Hour),
			CALifetime: state.Duration(43800 * time.Hour)},
		Secrets: []*status.SecretCertificate{server},
		Pods: []status.PodCertificates{{Pod: "zarf-registry-0", Node: "n1", Component: "registry", Loaded: report(12),
			Current: true, TrustCurrent: true}},
	}
	golden.Check(t, "healthy", clitest.Text(t, printCertificates, r))

	node.Valid, node.Message, node.Left, node.NotAfter = false, "it expired at 2026-11-21T11:30:00Z", -30*time.Minute,
		now.Add(-30*time.Minute)
	node.IPAddresses, node.Source = []string{"127.0.0.1"}, &status.Source{Secret: "mine", SHA256: fingerprint("e"),
		Message: "it holds another certificate"}
	missing := &status.SecretCertificate{Certificate: status.Certificate{Secret: "zarf-registry-push-tls",
		Message: "not found"}, Source: &status.Source{Secret: "my-push", Message: "not found"}}
	server.Source = &status.Source{Secret: "my-server", SHA256: fingerprint("a"), Copied: true}
	server.RenewAt, server.Roles = time.Time{}, nil
	r.Healthy, r.Secrets = false, []*status.SecretCertificate{server, node, missing}
	r.PKI = &state.PKI{Mode: state.PKIExistingSecret, Existing: &state.ExistingSecrets{Push: "my-push"}}
	r.Rotation = &state.Rotation{Phase: state.RotationReissue, Reason: "the authority was asked for", Since: now,
		Waiting: "pod a:\nits leaf"}
	r.Pods = append(r.Pods,
		status.PodCertificates{Pod: "proxy-a", Node: "n2",
			Loaded: &loaded.State{Certificates: loaded.Certificates{Generation: 1, LoadedAt: now,
				Leaf: loaded.Certificate{SHA256: fingerprint("b")}, ReloadErrors: 3}}, Message: "tls.key: broken"},
		status.PodCertificates{Pod: "proxy-b", Message: "not running yet"})
	r.Next = []string{"Do this."}
	golden.Check(t, "unhealthy", clitest.Text(t, printCertificates, r))
	clitest.JSON(t, render.Certificates, clitest.Data(t, render.Certificates, r))

	external := &status.CertificateReport{Namespace: "zarf", Healthy: true, External: "registry.example.com/team"}
	golden.Check(t, "external", clitest.Text(t, printCertificates, external))
}

func TestIssuersAreNamed(t *testing.T) {
	lines := pkiLines(&state.PKI{
		Mode: state.PKICertManager, Issuer: &state.Issuer{Name: "corp", Kind: "ClusterIssuer", Group: "cert-manager.io"},
		LeafLifetime: state.Duration(time.Hour), CALifetime: state.Duration(90 * time.Minute),
	}, nil)
	clitest.Same(t, "lines", fmt.Sprint(lines),
		"[[mode certManager, issuer ClusterIssuer corp of cert-manager.io] [lifetimes certificates 1h0m] "+
			"[rotation none in progress]]")
	clitest.Same(t, "unknown", fmt.Sprint(pkiLines(nil, nil)), "[[mode not recorded yet] [rotation none in progress]]")
}

func TestTheAuthoritiesArePrintedAsTheyAreTrusted(t *testing.T) {
	now := time.Now()
	var both []byte
	for _, name := range []string{"previous", "new"} {
		a := require.Value(pki.NewCA(name, now, 0))(t)
		both = append(both, a.KeyPair().Certificate...)
	}
	of := settings.Settings{Namespace: "zarf", Release: "zarf-registry", Name: "full"}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "zarf", Name: "full-node-tls"},
		Data: map[string][]byte{"ca.crt": both, "tls.key": []byte("secret")}}
	var out bytes.Buffer
	require.NoError(t, printCA(t.Context(), &out, fake.NewClientset(secret), of))
	clitest.Same(t, "bundle", out.String(), string(both))

	secret.Data["ca.crt"] = []byte("rubbish")
	for want, client := range map[string]*fake.Clientset{
		"Secret zarf/full-node-tls not found: either zarf-registry is not installed": fake.NewClientset(),
		"run zarf-registry certs renew --name full to repair it":                     fake.NewClientset(secret),
	} {
		out.Reset()
		if err := printCA(t.Context(), &out, client, of); err == nil || out.Len() > 0 || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want one with %q; output %q", err, want, &out)
		}
	}
}
