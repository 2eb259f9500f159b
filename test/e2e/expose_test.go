package e2e

import (
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/e2e/scenarios"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// outside is a machine outside the cluster that reaches a node port.
type outside struct {
	*world
	address  string // HOST:PORT
	ca, home string
	crane    string
}

// run runs a program on that machine. Its home holds the logins.
func (o outside) run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return o.onNode(t, "cp", append([]string{"env", "HOME=" + o.home, "DOCKER_CONFIG=" + o.home, "SSL_CERT_FILE=" + o.ca},
		args...)...)
}

func (o outside) must(t *testing.T, args ...string) string {
	t.Helper()
	out, err := o.run(t, args...)
	require.NoError(t, err, strings.Join(args, " "), out)
	return out
}

// status returns the status code that curl prints, or curl's error.
func (o outside) status(t *testing.T, args ...string) string {
	t.Helper()
	out, err := o.run(t, append([]string{"curl", "--silent", "--show-error", "--max-time", "20", "--output", "/dev/null",
		"--write-out", "%{http_code}", "--cacert", o.ca}, args...)...)
	if err != nil {
		return out
	}
	return strings.TrimSpace(out)
}

// TestExpose accesses the registry from outside the cluster, through a node port of its own with
// TLS and passwords, in both modes.
func TestExpose(t *testing.T) {
	w := ownCluster(t, "e2e-expose", layout{args: []string{"--nodes", "1"}})
	hosts := w.nodeAddresses(t, w.nodes[0]) // the values accept the first one only, which is IPv4
	host := hosts[0]
	authority := require.Value(pki.NewCA("company", time.Now(), 0))(t)
	o := outside{world: w, address: net.JoinHostPort(host, "30443"), home: t.TempDir(),
		crane: strings.TrimSpace(run(t, w.testcluster, "tool", "crane"))}
	o.ca = filepath.Join(o.home, "ca.crt")
	require.NoError(t, os.WriteFile(o.ca, authority.KeyPair().Certificate, 0o600))
	image := o.address + "/e2e/hello:1"
	// A cache for its metrics.
	exposed := append(exposedAt(host), "--set=cache.replicas=1", "--set=localRegistryHosting=true")

	require.Value(w.client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}))(t)
	w.putSecret(t, "outside-tls", serverCertificate(t, authority, hosts...))
	w.putSecret(t, "outside-users", htpasswd(t, "ci", "reads"))
	must(t, "helm install exposes the registry", func(t *testing.T) {
		w.helmChart(t, "install", append(exposed, proxyMode)...)
		w.isIn(t, state.ModeProxy, state.SourceValue)
	})
	t.Run("the hosting ConfigMap names the registry's addresses", func(t *testing.T) {
		said := output(t, w.command(t, w.kubectl, "-n", "kube-public", "get", "configmap", "local-registry-hosting", "-o",
			`jsonpath={.data.localRegistryHosting\.v1}`))
		for _, want := range []string{`host: "` + o.address + `"`, `hostFromContainerRuntime: "` + w.address + `"`,
			`hostFromClusterNetwork: "zarf-registry.zarf.svc.cluster.local:5000"`} {
			if !strings.Contains(said, want+"\n") {
				t.Errorf("%s is not in %s", want, said)
			}
		}
	})
	password := string(w.secret(t, "-credentials").Data["password"])
	t.Run("every address of the node answers", func(t *testing.T) {
		for _, h := range hosts {
			if got := o.status(t, "--user", "ci:reads", "https://"+net.JoinHostPort(h, "30443")+"/v2/"); got != "200" {
				t.Errorf("%s: %s", h, got)
			}
		}
	})
	must(t, "an image is pushed from outside, and the nodes pull it", func(t *testing.T) {
		o.must(t, o.crane, "auth", "login", o.address, "-u", "zarf-push", "-p", password)
		archive := w.makeArchive(t, "example.com/e2e/hello:1", 1<<20)
		if got := o.must(t, w.hook, "images", "push", archive, "--to", o.address, "--ca-file", o.ca); !strings.Contains(got,
			image) {
			t.Errorf("images push printed %s", got)
		}
		o.must(t, o.crane, "copy", image, o.address+"/e2e/copied:1")
		w.pullEverywhere(t, w.address+"/e2e/hello:1")
		if out, err := w.pull(t, w.nodes[0], w.address+"/e2e/copied:1"); err != nil {
			t.Errorf("pulling the copy: %v: %s", err, out)
		}
	})
	t.Run("the pods expose the metrics that alerts and dashboard use", func(t *testing.T) { testMetrics(t, w, true) })
	t.Run("a pull user can only pull", func(t *testing.T) {
		o := o
		o.home = t.TempDir()
		o.must(t, o.crane, "auth", "login", o.address, "-u", "ci", "-p", "reads")
		o.must(t, o.crane, "pull", image, filepath.Join(o.home, "pulled.tar"))
		for _, args := range [][]string{{"copy", image, o.address + "/e2e/mine:1"}, {"delete", image}} {
			if out, err := o.run(t, append([]string{o.crane}, args...)...); err == nil || !strings.Contains(out, "DENIED") {
				t.Errorf("crane %s: %v: %s", args[0], err, out)
			}
		}
	})
	t.Run("other clients are refused", func(t *testing.T) {
		url := "https://" + o.address + "/v2/e2e/hello/manifests/1"
		for name, test := range map[string]struct {
			want string
			args []string
		}{
			"no password":      {"401", []string{url}},
			"a wrong password": {"401", []string{"--user", "zarf-push:wrong", url}},
			"the nodes' probes": {"403", []string{"--user", "zarf-push:" + password,
				"https://" + o.address + "/v2/zarf-registry/probe-proxy/tags/list"}},
			"plain HTTP":                      {"400", []string{"--user", "zarf-push:" + password, "http://" + o.address + "/v2/"}},
			"TLS 1.1":                         {"curl: (35)", []string{"--tls-max", "1.1", "--ciphers", "ALL:@SECLEVEL=0", url}},
			"a client that trusts another CA": {"curl: (60)", []string{"--cacert", "/etc/ssl/certs/ca-certificates.crt", url}},
			"the port of the nodes":           {"curl: (7)", []string{"http://" + net.JoinHostPort(host, "31999") + "/v2/"}},
		} {
			if got := o.status(t, test.args...); !strings.HasPrefix(got, test.want) && !strings.Contains(got, test.want) {
				t.Errorf("%s: %s, want %s", name, got, test.want)
			}
		}
	})
	t.Run("certificate and users are reloaded without a restart", func(t *testing.T) {
		w.restartsNothing(t, func() {
			replaced := serverCertificate(t, authority, hosts...)
			w.putSecret(t, "outside-tls", replaced)
			w.putSecret(t, "outside-users", htpasswd(t, "second", "reads too"))
			// A kubelet may take 90 s to update a volume, but updates at once when the pod is annotated.
			for _, p := range w.pods(t, "registry") {
				output(t, w.command(t, w.kubectl, "-n", namespace, "annotate", "--overwrite", "pod", p.Name,
					fmt.Sprintf("example.com/look=%d", time.Now().Unix())))
			}
			eventually(t, "the new user", func() error {
				if got := o.status(t, "--user", "second:reads too", "https://"+o.address+"/v2/"); got != "200" {
					return fmt.Errorf("status %s", got)
				}
				if got := o.status(t, "--user", "ci:reads", "https://"+o.address+"/v2/"); got != "401" {
					return fmt.Errorf("the previous user gets %s", got)
				}
				return nil
			})
		})
	})
	t.Run("a missing certificate is refused before anything changes", func(t *testing.T) {
		w.restartsNothing(t, func() {
			w.helmChartFails(t, nil, "upgrade", append(exposed, "--set=expose.tls.existingSecret=nowhere")...)
		})
		log := output(t, w.command(t, w.kubectl, "-n", namespace, "logs", "job/"+release+"-prepare"))
		if !strings.Contains(log, "Secret zarf/nowhere") || !strings.Contains(log,
			"kubectl -n zarf create secret tls nowhere") {
			t.Errorf("log of prepare: %s", log)
		}
	})
	mode := state.ModeProxy
	if slices.Contains(scenarios.NodePorts, w.network) {
		must(t, "the exposed port is the same in nodeport mode", func(t *testing.T) {
			w.apply(t, append(exposed, nodePortMode)...)
			o.must(t, o.crane, "digest", image)
			// The pull credential of the node port works here too.
			pull := w.secret(t, "-pull").Data
			if got := o.status(t, "--user", string(pull["username"])+":"+string(pull["password"]),
				"https://"+o.address+"/v2/"); got != "200" {
				t.Errorf("the pull credential gets %s", got)
			}
		})
		mode = state.ModeNodePort
	}
	must(t, "without the values the port is closed", func(t *testing.T) {
		w.apply(t)
		if got := o.status(t, "https://"+o.address+"/v2/"); !strings.Contains(got, "curl: (") {
			t.Errorf("the port still answers: %s", got)
		}
		w.isIn(t, mode, state.SourceState) // verified by a pull on the node
	})
	must(t, "helm uninstall leaves the user's Secrets", func(t *testing.T) {
		w.helmUninstall(t)
		w.nothingLeft(t, "persistentvolumeclaim/"+release, "secret/outside-tls", "secret/outside-users")
	})
}

// exposedAt returns the values that expose the registry at the node port 30443.
func exposedAt(host string) []string {
	return []string{"--set=expose.hosts={" + host + "}", "--set=expose.service.enabled=true",
		"--set=expose.service.type=NodePort", "--set=expose.service.nodePort=30443",
		"--set=expose.tls.existingSecret=outside-tls", "--set=expose.pullUsersSecret=outside-users"}
}

// serverCertificate returns the data of a Secret with a certificate for addresses.
func serverCertificate(t *testing.T, authority *pki.CA, addresses ...string) map[string][]byte {
	t.Helper()
	leaf := pki.Leaf{CommonName: "registry", Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	for _, address := range addresses {
		leaf.IPAddresses = append(leaf.IPAddresses, net.ParseIP(address))
	}
	pair := require.Value(authority.Issue(leaf, time.Now()))(t)
	return map[string][]byte{corev1.TLSCertKey: pair.Certificate, corev1.TLSPrivateKeyKey: pair.Key}
}

// htpasswd returns the data of a Secret with one user.
func htpasswd(t *testing.T, user, password string) map[string][]byte {
	t.Helper()
	hash := require.Value(bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost))(t)
	return map[string][]byte{"htpasswd": []byte(user + ":" + string(hash) + "\n")}
}
