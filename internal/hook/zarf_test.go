package hook_test

import (
	"bytes"
	"crypto/x509"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/bcrypt"
	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/hook/credentials"
	"github.com/zarf-dev/zarf-registry/internal/pki"
)

const (
	zarfSecret = "zarf-registry-client-tls"
	zarfUsers  = "zarf-registry-zarf-users"
)

// asZarf makes the release replace Zarf's registry in a cluster that Zarf has initialized.
func asZarf(b *bench) {
	b.Helper()
	b.hook.Settings.PKI.Zarf = true
	b.zarfIssues()
	b.zarfSets("first")
}

// zarfIssues writes what zarf init and zarf tools update-creds do: a certificate of another CA.
func (b *bench) zarfIssues() {
	b.Helper()
	ca, err := pki.NewCA("ca.private.zarf.dev", b.now, 0)
	b.must(err)
	pair, err := ca.Issue(pki.Leaf{CommonName: "zarf", Organization: "Zarf Cluster",
		Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, b.now)
	b.must(err)
	s := &corev1.Secret{ObjectMeta: foreignMeta(zarfSecret), Type: corev1.SecretTypeTLS, Data: map[string][]byte{
		"ca.crt": ca.KeyPair().Certificate, "tls.crt": pair.Certificate, "tls.key": pair.Key}}
	s.Labels = map[string]string{"app.kubernetes.io/managed-by": "zarf"}
	b.putSecret(s)
}

// zarfSets writes the chart's Secret, with a push password.
func (b *bench) zarfSets(password string) {
	b.Helper()
	var lines []string
	for user, password := range map[string]string{"zarf-push": password, "zarf-pull": "unused"} {
		hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
		b.must(err)
		lines = append(lines, user+":"+string(hash))
	}
	slices.Sort(lines)
	slices.Reverse(lines) // the push user's first
	b.putSecret(&corev1.Secret{ObjectMeta: foreignMeta(zarfUsers),
		Data: map[string][]byte{"htpasswd": []byte(strings.Join(lines, "\n"))}})
}

// checkZarf checks what Zarf's clients need: a certificate of their own role, and the registry's, which is valid
// at the end of a port-forward.
func (b *bench) checkZarf() {
	b.Helper()
	client, server := filesOf(b.secret(zarfSecret)), filesOf(b.secret("zarf-registry-server-tls"))
	chain, err := pki.ParseChain(client.certificate)
	b.must(err)
	if roles := pki.Roles(chain[0]); !slices.Equal(roles, []string{pki.OrganizationClient}) {
		b.Errorf("the client's roles are %q", roles)
	}
	if err := server.verifies(client, x509.ExtKeyUsageClientAuth, "", b.now); err != nil {
		b.Errorf("the registry rejects the client: %v", err)
	}
	for _, name := range []string{"127.0.0.1", "[::1]", "zarf-registry.zarf.svc.cluster.local"} {
		if err := client.verifies(server, x509.ExtKeyUsageServerAuth, name, b.now); err != nil {
			b.Errorf("the client rejects the registry: %v", err)
		}
	}
	if label := b.secret(zarfSecret).Labels["app.kubernetes.io/managed-by"]; label != "zarf" {
		b.Errorf("the Secret is managed by %q", label)
	}
}

func TestZarfsClientsGetACertificate(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := installed(t, asZarf)
		b.checkZarf()
		b.checkConverged()
		b.must(b.prepareAndFinish())
		if w := strings.Join(b.writes(), " "); strings.Contains(w, "-tls") || strings.Contains(w, "-auth") {
			t.Errorf("nothing has changed, and these were written: %s", w)
		}

		b.zarfIssues()
		b.forget()
		b.must(b.prepareAndFinish())
		b.checkZarf()
		if w := b.writes(); slices.ContainsFunc(w, func(w string) bool {
			return strings.Contains(w, "-tls") && !strings.Contains(w, zarfSecret)
		}) {
			t.Errorf("the CA of Zarf began a rotation: %q", w)
		}

		// Every hour the CronJob does the same.
		b.asTheCronJobDoes()
		b.zarfIssues()
		b.must(b.renew())
		b.checkZarf()
		b.must(b.rotate())
		b.checkZarf()
		b.checkConverged()
	})
}

// accepts returns what the registry's file says, with the passwords that match: USER/PASSWORD.
func (b *bench) accepts(passwords ...[]byte) (lines []string) {
	b.Helper()
	for line := range bytes.Lines(b.secret("zarf-registry-auth").Data["htpasswd"]) {
		user, hash, _ := bytes.Cut(bytes.TrimSpace(line), []byte(":"))
		found := "?"
		for _, password := range passwords {
			if bcrypt.CompareHashAndPassword(hash, password) == nil {
				found = string(password)
			}
		}
		lines = append(lines, string(user)+"/"+found)
	}
	return lines
}

func (b *bench) password(secret string) []byte { return b.secret(secret).Data["password"] }

func TestZarfsPushUserWrites(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := installed(t, asZarf)
		check := func(password string) {
			t.Helper()
			push := b.password("zarf-registry-credentials")
			want := []string{"zarf-registry-push/" + string(push), "zarf-push/" + password}
			if diff := cmp.Diff(want, b.accepts(push, []byte(password))); diff != "" {
				t.Errorf("the registry accepts (-want +got):\n%s", diff)
			}
		}
		check("first")

		// Helm changes the Secret after prepare has run.
		b.must(b.hook.Prepare(t.Context()))
		check("first")
		b.zarfSets("second")
		b.mustFinish()
		check("second")
		b.must(b.hook.RotateCredential(t.Context(), credentials.Push))
		check("second")

		b.changeSecret(zarfUsers, func(s *corev1.Secret) { s.Data["htpasswd"] = []byte("zarf-push") })
		b.mustFail(b.prepareAndFinish(), true, "Secret zarf/"+zarfUsers+
			", key htpasswd: the first line is not USER:HASH: correct the value secrets.htpasswd")

		b.zarfSets("third")
		b.give("zarf-push", "correct horse")
		b.mustFail(b.hook.Prepare(t.Context()), true,
			`the push credential and Zarf's have the same user name "zarf-push": change that in auth.existingSecret`)
		if user := b.secret("zarf-registry-credentials").Data["username"]; string(user) != "zarf-registry-push" {
			t.Errorf("it was copied: %s", user)
		}
		b.hook.Settings.Push.Secret = ""

		// The release no longer replaces Zarf's registry.
		b.hook.Settings.PKI.Zarf = false
		b.remove("secrets", zarfUsers)
		b.must(b.prepareAndFinish())
		push := b.password("zarf-registry-credentials")
		if got := b.accepts(push); !slices.Equal(got, []string{"zarf-push/" + string(push)}) {
			t.Errorf("the registry accepts %q", got)
		}
	})
}
