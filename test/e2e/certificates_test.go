package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/zarf-dev/zarf-registry/internal/cluster"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// TestCertificates replaces certificates, the CA and its source while the container runtime of every node pulls. No
// pull may fail, and no pod of the registry or of the proxies may be replaced or restarted.
//
// Claim (credentials rotate): The registry refuses a rotated password within seconds.
//
// Claim (certs rotate --ca): On a cluster, a certificate of a dropped CA is refused.
//
// Claim (pods listen on the documented ports only): Pods listen only on the [documented
// ports](security.md#ports).
//
// Claim (a strict client trusts the proxies only with our CA): A client that verifies certificates works only
// with the release's CA.
func TestCertificates(t *testing.T) {
	w := ownCluster(t, "e2e-certificates", layout{open: true})
	w.installForRotation(t)
	must(t, "pods listen on the documented ports only", func(t *testing.T) { testPorts(t, w) })
	underLoop := w.underLoopWithoutRestart(t)

	underLoop("certs rotate", func(t *testing.T) {
		before := w.certificates(t)
		w.certs(t, "rotate")
		w.changed(t, before, "server", "node", "push")
	})
	underLoop("certs rotate --ca", func(t *testing.T) {
		before := w.certificates(t)
		node := w.secret(t, "-node-tls")
		w.certs(t, "rotate", "--ca")
		w.changed(t, before, "ca", "server", "node", "push")
		w.isRefused(t, node.Data)
		w.isRefused(t, nil)
	})
	must(t, "certs show reports no problem", func(t *testing.T) {
		t.Logf("output:\n%s", w.certs(t, "show"))
		var report any
		if err := json.Unmarshal([]byte(w.certs(t, "show", "--output=json")), &report); err != nil {
			t.Error(err)
		}
	})
	underLoop("a deleted certificate is issued again", func(t *testing.T) {
		before := w.certificates(t)
		require.NoError(t, w.client.CoreV1().Secrets(namespace).Delete(t.Context(), release+"-node-tls",
			metav1.DeleteOptions{}))
		if out, _, err := try(w.command(t, w.hook, "certs", "show")); err == nil || !strings.Contains(out, "-node-tls") {
			t.Errorf("certs show does not report that it is missing: %s", out)
		}
		w.certs(t, "renew")
		w.changed(t, before, "node")
	})
	company := w.companyIssuer(t)
	underLoop("helm upgrade to certManager", func(t *testing.T) {
		before := w.certificates(t)
		w.helmChart(t, "upgrade", company...)
		w.changed(t, before, "server", "node", "push")
		w.comesFrom(t, state.PKICertManager)
	})

	must(t, "credentials rotate", func(t *testing.T) { testCredentials(t, w) })
	must(t, "a strict client trusts the proxies only with our CA", func(t *testing.T) { testStrictClient(t, w) })
}

// TestCertificateSources does the same with the certificates' other sources, and with certificates that
// expire.
//
// Claim (an invalid certificate is refused, and the loaded one stays): An invalid certificate in a Secret of
// the user is refused, and the loaded one stays in use.
func TestCertificateSources(t *testing.T) {
	w := ownCluster(t, "e2e-certificate-sources", layout{open: true})
	w.installForRotation(t)
	underLoop := w.underLoopWithoutRestart(t)

	underLoop("zarf-registry install without a value renews certificates past half of their lifetime", func(t *testing.T) {
		w.age(t, 200*24*time.Hour, 365*24*time.Hour)
		before := w.certificates(t)
		w.apply(t, noMode)
		w.changed(t, before, "server", "node", "push")
	})

	must(t, "without cert-manager, mode certManager is refused before anything changes", func(t *testing.T) {
		before := w.certificates(t)
		w.helmChartFails(t, []string{"cert-manager"}, "upgrade", "--set=pki.mode=certManager",
			"--set=pki.certManager.issuerRef.name=company")
		w.changed(t, before)
	})
	company := w.companyIssuer(t)
	underLoop("zarf-registry install switches to certManager", func(t *testing.T) {
		before := w.certificates(t)
		w.apply(t, company...)
		w.changed(t, before, "server", "node", "push")
		w.comesFrom(t, state.PKICertManager)
	})
	underLoop("certs rotate with cert-manager", func(t *testing.T) {
		before := w.certificates(t)
		w.certs(t, "rotate")
		w.changed(t, before, "server", "node", "push")
	})

	theirs := newCorporate(t)
	w.putSecret(t, "corp-server", theirs.issue(t, "corp-server", time.Now(), []string{release + "." + namespace + ".svc"},
		"", x509.ExtKeyUsageServerAuth))
	w.putSecret(t, "corp-node", theirs.issue(t, "corp-node", time.Now(), nil, pki.OrganizationNode,
		x509.ExtKeyUsageClientAuth))
	existing := []string{"--set=pki.mode=existingSecret", "--set=pki.existingSecret.server=corp-server",
		"--set=pki.existingSecret.node=corp-node"}
	underLoop("helm upgrade to existingSecret", func(t *testing.T) {
		before := w.certificates(t)
		w.helmChart(t, "upgrade", existing...)
		w.changed(t, before, "server", "node", "push")
		w.comesFrom(t, state.PKIExistingSecret)
		if got, want := w.secret(t, "-server-tls").Data["tls.crt"],
			w.get(t, "corp-server").Data["tls.crt"]; !bytes.Equal(got, want) {
			t.Error("the registry's certificate differs from that of Secret corp-server")
		}
	})
	underLoop("a certificate renewed by its owner is loaded", func(t *testing.T) {
		before := w.certificates(t)
		w.putSecret(t, "corp-node", theirs.issue(t, "corp-node", time.Now(), nil, pki.OrganizationNode,
			x509.ExtKeyUsageClientAuth))
		w.certs(t, "renew")
		w.changed(t, before, "node")
	})
	underLoop("an invalid certificate is refused, and the loaded one stays", func(t *testing.T) {
		before := w.certificates(t)
		for what, bad := range map[string]struct {
			data map[string][]byte
			want string
		}{
			"expired": {theirs.issue(t, "old", time.Now().Add(-48*time.Hour), []string{release + "." + namespace + ".svc"},
				"", x509.ExtKeyUsageServerAuth), "expired"},
			"other name": {theirs.issue(t, "other", time.Now(), []string{"registry.example.com"}, "",
				x509.ExtKeyUsageServerAuth), "registry.example.com"},
			"without key": {map[string][]byte{"tls.crt": w.get(t, "corp-server").Data["tls.crt"], "ca.crt": theirs.pem},
				"tls.key"},
		} {
			good := w.get(t, "corp-server").Data
			w.putSecret(t, "corp-server", bad.data)
			if what == "expired" {
				// Without a value the mode stays, and the Secrets with it.
				w.helmChartFails(t, []string{"corp-server", bad.want}, "upgrade", noMode)
			}
			if _, errOut, err := try(w.command(t, w.hook, "certs", "renew")); err == nil ||
				!strings.Contains(errOut, bad.want) || !strings.Contains(errOut, "corp-server") {
				t.Errorf("%s: certs renew: %v: %s", what, err, errOut)
			}
			if now := w.certificates(t); !maps.Equal(now, before) {
				t.Errorf("%s: the certificates were %v, and are now %v", what, before, now)
			}
			w.putSecret(t, "corp-server", good)
		}
		w.certs(t, "renew") // until then, the failure is a problem
		w.changed(t, before)
	})
	underLoop("zarf-registry install switches back to internal", func(t *testing.T) {
		before := w.certificates(t)
		w.apply(t, "--set=pki.mode=internal")
		w.changed(t, before, "server", "node") // the internal CA had issued the push certificate already
		w.comesFrom(t, state.PKIInternal)
	})

}

// installForRotation installs in proxy mode, and pushes what loops pull.
func (w *world) installForRotation(t *testing.T) {
	t.Helper()
	must(t, "install in proxy mode", func(t *testing.T) {
		w.apply(t, proxyMode)
		w.pushHello(t)
		w.pushFresh(t)
	})
}

// underLoopWithoutRestart returns a function that runs a step under a loop, during which no pod may restart.
func (w *world) underLoopWithoutRestart(t *testing.T) func(name string, f func(t *testing.T)) {
	return func(name string, f func(t *testing.T)) {
		w.underLoop(t, name, func(t *testing.T) {
			before := w.restarts(t)
			f(t)
			if after := w.restarts(t); before != after {
				t.Errorf("pods before:\n%s\nafter:\n%s", before, after)
			}
		})
	}
}

// certs runs zarf-registry certs, which must succeed, and returns its output.
func (w *world) certs(t *testing.T, args ...string) string {
	t.Helper()
	return output(t, w.command(t, w.hook, append([]string{"certs"}, args...)...))
}

// get returns a Secret of the release's namespace.
func (w *world) get(t *testing.T, name string) *corev1.Secret {
	t.Helper()
	return require.Value(w.client.CoreV1().Secrets(namespace).Get(t.Context(), name, metav1.GetOptions{}))(t)
}

// secret returns a Secret of the release by the suffix of its name.
func (w *world) secret(t *testing.T, suffix string) *corev1.Secret {
	t.Helper()
	return w.get(t, release+suffix)
}

// putSecret creates or replaces a Secret in the release's namespace.
func (w *world) putSecret(t *testing.T, name string, data map[string][]byte) {
	t.Helper()
	secrets := w.client.CoreV1().Secrets(namespace)
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, Data: data}
	_, err := secrets.Create(t.Context(), s, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = secrets.Update(t.Context(), s, metav1.UpdateOptions{})
	}
	require.NoError(t, err)
}

// held maps server, node, push and, if the CA is internal, ca to the fingerprints of the
// certificates in the Secrets.
type held map[string]string

func (w *world) certificates(t *testing.T) held {
	t.Helper()
	found := held{}
	for what, suffix := range map[string]string{"ca": "-ca", "server": "-server-tls", "node": "-node-tls",
		"push": "-push-tls"} {
		secret, err := w.client.CoreV1().Secrets(namespace).Get(t.Context(), release+suffix, metav1.GetOptions{})
		if what == "ca" && apierrors.IsNotFound(err) {
			continue
		}
		require.NoError(t, err)
		chain := require.Value(pki.ParseChain(secret.Data["tls.crt"]))(t)
		found[what] = pki.Fingerprint(chain[0])
	}
	return found
}

// changed fails unless exactly the named certificates differ from before, no CA rotation is in
// progress, and every pod has loaded what the Secrets hold.
func (w *world) changed(t *testing.T, before held, which ...string) {
	t.Helper()
	after := w.certificates(t)
	for _, what := range []string{"ca", "server", "node", "push"} {
		if before[what] == "" || after[what] == "" {
			continue // the mode has no internal CA
		}
		if got, want := before[what] != after[what], slices.Contains(which, what); got != want {
			t.Errorf("the certificate of %s changed: %t, want %t", what, got, want)
		}
	}
	if s := w.saved(t); s.Rotation != nil {
		t.Errorf("a CA rotation is in progress: %s", mustJSON(s.Rotation))
	}
	trust := w.secret(t, "-server-tls").Data["ca.crt"]
	for _, suffix := range []string{"-node-tls", "-push-tls"} {
		if !bytes.Equal(trust, w.secret(t, suffix).Data["ca.crt"]) {
			t.Errorf("Secrets %s-server-tls and %s%s trust different CAs", release, release, suffix)
		}
	}
	eventually(t, "certs show to report no problem", func() error {
		out, errOut, err := try(w.command(t, w.hook, "certs", "show"))
		if err != nil {
			return fmt.Errorf("%w: %s%s", err, out, errOut)
		}
		return nil
	})
}

func (w *world) comesFrom(t *testing.T, mode state.PKIMode) {
	t.Helper()
	if s := w.saved(t); s.PKI == nil || s.PKI.Mode != mode || s.Desired.PKIMode != mode {
		t.Errorf("the state is %s", mustJSON(s))
	}
}

// isRefused fails if the registry accepts a client with that certificate, or without one if data is
// nil.
func (w *world) isRefused(t *testing.T, data map[string][]byte) {
	t.Helper()
	registry := w.waitForRegistry(t, "")
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return cluster.PortForward(w.config, w.client)(ctx, &registry, 5000)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(w.secret(t, "-node-tls").Data["ca.crt"])
	config := &tls.Config{RootCAs: roots, ServerName: release + "." + namespace + ".svc"}
	if data != nil {
		pair := require.Value(tls.X509KeyPair(data["tls.crt"], data["tls.key"]))(t)
		// Sent even if the registry's list of acceptable CAs does not include the issuer.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	client := &http.Client{Transport: &http.Transport{DialContext: dial, TLSClientConfig: config},
		Timeout: 20 * time.Second}
	defer client.CloseIdleConnections()
	eventually(t, "a failed handshake", func() error {
		response, err := client.Get("https://registry/v2/")
		if err == nil {
			response.Body.Close()
			t.Fatalf("the registry accepted the connection: %s", response.Status)
		}
		if !strings.Contains(err.Error(), "remote error: tls: ") { // such as a write before the alert arrives
			return err
		}
		t.Logf("refused: %v", err)
		return nil
	})
}

// age replaces the certificates by ones that the current CA issued that long ago, and returns these. The
// CronJob may replace them at any time.
func (w *world) age(t *testing.T, ago, lifetime time.Duration) held {
	t.Helper()
	ca := w.secret(t, "-ca")
	authority := require.Value(tls.X509KeyPair(ca.Data["tls.crt"], ca.Data["tls.key"]))(t)
	aged := held{}
	for _, what := range []string{"server", "node", "push"} {
		require.NoError(t, retry.RetryOnConflict(retry.DefaultRetry, func() error {
			secret := w.secret(t, "-"+what+"-tls")
			pair, err := tls.X509KeyPair(secret.Data["tls.crt"], secret.Data["tls.key"])
			if err != nil {
				return err
			}
			issued := time.Now().Add(-ago)
			old := pair.Leaf
			old.SerialNumber = big.NewInt(time.Now().UnixNano())
			old.NotBefore, old.NotAfter = issued.Add(-pki.Backdate), issued.Add(lifetime)
			der, err := x509.CreateCertificate(rand.Reader, old, authority.Leaf, old.PublicKey, authority.PrivateKey)
			if err != nil {
				return err
			}
			secret.Data["tls.crt"] = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
			aged[what] = pki.Fingerprint(&x509.Certificate{Raw: der})
			_, err = w.client.CoreV1().Secrets(namespace).Update(t.Context(), secret, metav1.UpdateOptions{})
			return err
		}))
	}
	return aged
}

// companyIssuer runs cert-manager, with a ClusterIssuer of a company's CA. It returns the arguments that
// select that issuer.
func (w *world) companyIssuer(t *testing.T) []string {
	t.Helper()
	w.startCertManager(t)
	authority := require.Value(pki.NewCA("company", time.Now(), 20000*time.Hour))(t)
	pair := authority.KeyPair()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "company", Namespace: "cert-manager"},
		Data: map[string][]byte{"tls.crt": pair.Certificate, "tls.key": pair.Key}}
	require.Value(w.client.CoreV1().Secrets("cert-manager").Create(t.Context(), secret, metav1.CreateOptions{}))(t)
	apply := w.command(t, w.kubectl, "apply", "-f", "-")
	apply.Stdin = strings.NewReader(
		"apiVersion: cert-manager.io/v1\nkind: ClusterIssuer\nmetadata: {name: company}\nspec: {ca: {secretName: company}}\n")
	output(t, apply)
	return []string{"--set=pki.mode=certManager", "--set=pki.certManager.issuerRef.name=company",
		"--set=pki.certManager.issuerRef.kind=ClusterIssuer"}
}

// startCertManager runs cert-manager's controllers next to the cluster until the test ends.
func (w *world) startCertManager(t *testing.T) {
	t.Helper()
	// Without a time limit: it ends with the test, or with this process.
	cmd := exec.Command(built(t, "E2E_CERTMANAGER"), "--kubeconfig", w.kubeconfig, "--stop-on-stdin-eof")
	stdin := require.Value(cmd.StdinPipe())(t)
	stdout := require.Value(cmd.StdoutPipe())(t)
	log := require.Value(os.Create(filepath.Join(t.TempDir(), "cert-manager.log")))(t)
	cmd.Stderr = log
	begin := time.Now()
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		stdin.Close()
		cmd.Wait()
		log.Close()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("end of cert-manager's log: %s", text[max(0, len(text)-4000):])
		}
	})
	for scanner := bufio.NewScanner(stdout); scanner.Scan(); {
		if strings.TrimSpace(scanner.Text()) == "ready" {
			t.Logf("figure: cert-manager ready after %.1f s", time.Since(begin).Seconds())
			return
		}
	}
	text, _ := os.ReadFile(log.Name())
	t.Fatalf("cert-manager ended: %s", text)
}

// corporate is a user's own CA: RSA, with an intermediate, and with roles as URI SANs, because it
// does not let clients choose their subject.
type corporate struct {
	pem  []byte // of the root
	cert *x509.Certificate
	key  *rsa.PrivateKey
	// intermediate signs all leaves.
	intermediate []byte
}

func newCorporate(t *testing.T) *corporate {
	t.Helper()
	sign := func(name string, parent *x509.Certificate, parentKey *rsa.PrivateKey) (*x509.Certificate, *rsa.PrivateKey) {
		key := require.Value(rsa.GenerateKey(rand.Reader, 2048))(t)
		template := &x509.Certificate{
			SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name,
				Organization: []string{"Example Corp"}},
			NotBefore: time.Now().Add(-100 * 24 * time.Hour), NotAfter: time.Now().Add(1000 * 24 * time.Hour),
			IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		}
		if parent == nil {
			parent, parentKey = template, key
		}
		der := require.Value(x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey))(t)
		return require.Value(x509.ParseCertificate(der))(t), key
	}
	encode := func(cert *x509.Certificate) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})
	}
	root, rootKey := sign("Example Corp Root", nil, nil)
	intermediate, key := sign("Example Corp Issuing", root, rootKey)
	return &corporate{pem: encode(root), cert: intermediate, key: key, intermediate: encode(intermediate)}
}

// issue returns the data of a TLS Secret. The certificate is valid for a day.
func (c *corporate) issue(t *testing.T, name string, from time.Time, dns []string, role string,
	usages ...x509.ExtKeyUsage) map[string][]byte {
	t.Helper()
	key := require.Value(rsa.GenerateKey(rand.Reader, 2048))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name,
			Organization: []string{"Example Corp"}},
		NotBefore: from.Add(-time.Minute), NotAfter: from.Add(24 * time.Hour), DNSNames: dns,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: usages,
	}
	if role != "" {
		uri := require.Value(url.Parse(role))(t)
		template.URIs = []*url.URL{uri}
	}
	der := require.Value(x509.CreateCertificate(rand.Reader, template, c.cert, &key.PublicKey, c.key))(t)
	chain := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), c.intermediate...)
	return map[string][]byte{
		"tls.crt": chain,
		"tls.key": pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}),
		"ca.crt":  c.pem,
	}
}

// testPorts compares the ports that the pods listen on with those in docs/reference/security.md.
func testPorts(t *testing.T, w *world) {
	w.healersReady(t)
	want := map[string]string{"registry": "127.0.0.1:5001 5000 5080 5090", "proxy": "5000 9102", "healer": "9103"}
	for component, ports := range want {
		pods := w.pods(t, component)
		if len(pods) == 0 {
			t.Errorf("no pod of component %s", component)
		}
		for _, p := range pods {
			out, err := w.onNode(t, p.Spec.NodeName, "crictl", "inspect", "--output", "go-template", "--template",
				"{{.info.pid}}", containerID(p))
			require.NoError(t, err, out)
			out, err = w.onNode(t, p.Spec.NodeName, "nsenter", "--net", "--target", strings.TrimSpace(out), "ss", "-Hlntu")
			require.NoError(t, err, out)
			var found []string
			for line := range strings.Lines(out) {
				fields := strings.Fields(line)
				if len(fields) < 5 {
					t.Fatalf("ss printed %q", line)
				}
				// ss writes all addresses as *, 0.0.0.0 or [::].
				port := strings.TrimLeft(fields[4], "*0.:[]")
				if !slices.Contains(found, port) {
					found = append(found, port)
				}
			}
			slices.Sort(found)
			if got := strings.Join(found, " "); got != ports {
				t.Errorf("pod %s listens on %s, want %s:\n%s", p.Name, got, ports, out)
			}
		}
	}
}

// testCredentials rotates the push credential: the old one must stop working at once.
func testCredentials(t *testing.T, w *world) {
	before := w.secret(t, "-credentials")
	begin := time.Now()
	output(t, w.command(t, w.hook, "credentials", "rotate"))
	t.Logf("figure: the previous password is refused after %.1f s", time.Since(begin).Seconds())
	after := w.secret(t, "-credentials")
	if bytes.Equal(before.Data["password"], after.Data["password"]) {
		t.Error("the password did not change")
	}
	client := w.pushClient(t, w.waitForRegistry(t, ""))
	client.uploads(t, before, "e2e/hello", http.StatusUnauthorized)
	client.uploads(t, after, "e2e/hello", http.StatusAccepted)
	w.pushHello(t)
}

// uploads begins an upload with a credential, and fails if the status is another one.
func (c pushClient) uploads(t *testing.T, credential *corev1.Secret, repository string, want int) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
		"https://registry/v2/"+repository+"/blobs/uploads/", nil)
	require.NoError(t, err)
	request.SetBasicAuth(string(credential.Data["username"]), string(credential.Data["password"]))
	response := require.Value(c.Do(request))(t)
	response.Body.Close()
	if response.StatusCode != want {
		t.Errorf("an upload to %s with the credential of %s: status %d, want %d", repository, credential.Name,
			response.StatusCode, want)
	}
}

// testStrictClient pulls with Debian's skopeo, which accepts neither plain HTTP nor an untrusted
// certificate, and then with containerd, which has no configuration for this registry.
func testStrictClient(t *testing.T, w *world) {
	const script = `
mkdir -p /etc/containers && mount -t tmpfs none /etc/containers
directory="/etc/containers/certs.d/$1" && mkdir -p "$directory"
[ -z "$2" ] || printf %s "$2" >"$directory/ca.crt"
mkdir /etc/containers/got
exec skopeo --insecure-policy copy "docker://$1/e2e/hello:1" dir:/etc/containers/got`
	skopeo := func(ca string) (string, error) {
		return w.onNode(t, w.nodes[1], "unshare", "--mount", "sh", "-ec", script, "sh", w.address, ca)
	}
	ca := w.certs(t, "ca")
	if out, err := skopeo(ca); err == nil {
		t.Errorf("without proxy.tls, with containerd, the proxy serves TLS: %s", out)
	}
	w.apply(t, "--set=proxy.tls=always")
	out, err := skopeo(ca)
	if err != nil {
		t.Errorf("with our CA: %v: %s", err, out)
	}
	t.Logf("with our CA: %s", strings.TrimSpace(out))
	out, err = skopeo("")
	if err == nil || !strings.Contains(out, "certificate") {
		t.Errorf("without our CA: %v: %s", err, out)
	}
	t.Logf("without: %s", strings.TrimSpace(out))
	w.pullEverywhere(t, w.address+"/e2e/hello:1")
}

// TestUnattended leaves a cluster alone with certificates that live 10 minutes and CAs that live
// 20. The CronJob must keep the nodes pulling.
func TestUnattended(t *testing.T) {
	w := ownCluster(t, "e2e-unattended", layout{aside: true})
	w.provoked = []string{w.address + "/zarf-registry/init-hook"} // the CronJob's, before the installation is complete
	const lifetime = 10 * time.Minute
	must(t, "install", func(t *testing.T) {
		w.apply(t, proxyMode, "--set=pki.lifetime.certificate=10m", "--set=pki.lifetime.ca=20m",
			"--set=pki.rotation.schedule=* * * * *")
		w.pushFresh(t)
	})
	must(t, "left alone", func(t *testing.T) {
		before, restarts := w.certificates(t), w.restarts(t)
		minutes := 20
		if !long() {
			// Pretend that 6.5 minutes have passed: the certificates expire in 3.5.
			before, minutes = w.age(t, 6*time.Minute+30*time.Second, lifetime), 4
			t.Logf("SHORTENED: %d minutes instead of 20, without a CA rotation; make e2e-long runs all", minutes)
		}
		for end := time.Now().Add(time.Duration(minutes) * time.Minute); time.Now().Before(end); {
			stop := w.freshLoop(t, nothingFails)
			time.Sleep(min(time.Until(end), 4*time.Minute))
			stop()
		}
		after := w.certificates(t)
		for _, what := range []string{"server", "node"} {
			if before[what] == after[what] {
				t.Errorf("the certificate of %s was not renewed", what)
			}
		}
		if minutes == 20 && before["ca"] == after["ca"] {
			t.Error("the CA was not rotated")
		}
		if r := w.restarts(t); r != restarts {
			t.Errorf("pods before:\n%s\nafter:\n%s", restarts, r)
		}
		jobs := require.Value(w.client.BatchV1().Jobs(namespace).List(t.Context(), metav1.ListOptions{}))(t)
		for _, j := range jobs.Items {
			if j.Status.Failed > 0 {
				t.Errorf("Job %s failed %d times", j.Name, j.Status.Failed)
			}
		}
		cronJob, err := w.client.BatchV1().CronJobs(namespace).Get(t.Context(), release+"-certificates", metav1.GetOptions{})
		if err != nil || cronJob.Status.LastSuccessfulTime == nil {
			t.Errorf("the CronJob has not succeeded: %v", err)
		}
	})
}
