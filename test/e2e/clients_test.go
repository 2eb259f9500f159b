package e2e

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/e2e/clients"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// access is an entry point of a running registry.
type access struct {
	clients.Entry
	host           string
	puller, pusher user
}

// user is a credential. The zero value stands for none.
type user struct{ name, password string }

// workbench is the node where clients run. Their files are in dir, outside of the node's own folders.
type workbench struct {
	*world
	node, dir string
}

// TestClients uses the registry with the programs that people use, at all entry points. make e2e covers some of them.
func TestClients(t *testing.T) {
	needsClients(t)
	w := ownCluster(t, "e2e-clients", layout{open: true, args: []string{"--nodes", "1"}})
	b := newWorkbench(t, w)
	host := w.nodeAddresses(t, b.node)[0]
	exposed := exposedAt(host)
	require.Value(w.client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}))(t)
	ca := require.Value(pki.NewCA("company", time.Now(), 0))(t)
	w.putSecret(t, "outside-tls", serverCertificate(t, ca, host))
	w.putSecret(t, "outside-users", htpasswd(t, "ci", "reads"))

	must(t, "install in proxy mode, with anonymous pulls from outside", func(t *testing.T) {
		w.apply(t, append(exposed, proxyMode, "--set=expose.anonymousPull=true")...)
		w.isIn(t, state.ModeProxy, state.SourceValue)
	})
	var pusher user
	pusher.name, pusher.password = w.credential(t, "-credentials")
	ci := user{"ci", "reads"}
	outside := net.JoinHostPort(host, "30443")
	b.trust(t, outside, ca.KeyPair().Certificate, nil)

	internal := release + "." + namespace + ".svc:5000"
	certificates := w.secret(t, "-push-tls").Data
	b.trust(t, internal, certificates["ca.crt"], &pki.KeyPair{Certificate: certificates["tls.crt"],
		Key: certificates["tls.key"]})
	service := require.Value(w.client.CoreV1().Services(namespace).Get(t.Context(), release, metav1.GetOptions{}))(t)
	w.shell(t, b.node, `echo "$1 $2" >>/etc/hosts`, service.Spec.ClusterIP, release+"."+namespace+".svc")
	b.startDaemons(t)

	must(t, "images, a chart, an artifact and a signature are pushed", func(t *testing.T) {
		forwarded := access{clients.ThroughForward, b.forward(t), pusher, pusher}
		b.seed(t, forwarded)
		if long() {
			b.matrix(t, forwarded)
		}
	})
	b.pushesFromDocker(t)
	b.matrix(t, access{clients.NodeProxy, w.address, pusher, pusher},
		access{clients.WithCertificate, internal, pusher, pusher}, access{clients.ExposedOpen, outside, ci, pusher})
	if !long() {
		t.Log("SHORTENED: make e2e-long covers all clients, and the other entry points")
		return
	}
	var puller user
	must(t, "upgrade to nodeport mode, without anonymous pulls from outside", func(t *testing.T) {
		w.apply(t, append(exposed, nodePortMode)...)
		w.isIn(t, state.ModeNodePort, state.SourceValue)
		puller.name, puller.password = w.credential(t, "-pull")
	})
	b.matrix(t, access{clients.NodePort, w.address, puller, pusher}, access{clients.Exposed, outside, ci, pusher})
	must(t, "upgrade to anonymous pulls from the node port", func(t *testing.T) {
		w.apply(t, append(exposed, nodePortMode, "--set=auth.anonymousPull=true")...)
	})
	b.matrix(t, access{clients.NodePortOpen, w.address, puller, pusher})
}

func newWorkbench(t *testing.T, w *world) *workbench {
	t.Helper()
	b := &workbench{w, w.nodes[0], t.TempDir()}
	bin := filepath.Join(b.dir, "bin")
	require.NoError(t, os.Mkdir(bin, 0o755))
	// Debian's docker is not the only one, and newer programs of docker come with the daemon's package.
	require.NoError(t, os.Symlink("/usr/bin/docker", filepath.Join(bin, "docker")))
	for _, name := range []string{"crane", "regctl", "oras", "helm", "cosign"} {
		if !long() && !slices.ContainsFunc(clients.All, func(p clients.Program) bool { return p.Name == name && p.Short }) {
			continue
		}
		path := w.helm
		if name != "helm" {
			path = strings.TrimSpace(run(t, w.testcluster, "tool", name))
		}
		require.NoError(t, os.Symlink(path, filepath.Join(bin, name)))
	}
	return b
}

// covered returns the clients that this run covers.
func covered() []clients.Program {
	return slices.DeleteFunc(slices.Clone(clients.All), func(p clients.Program) bool { return !p.Short && !long() })
}

// trust makes clients on the node trust a CA for a registry, and present a certificate there.
func (b *workbench) trust(t *testing.T, host string, ca []byte, certificate *pki.KeyPair) {
	t.Helper()
	hosts := fmt.Sprintf("server = \"https://%[1]s\"\n[host.\"https://%[1]s\"]\nca = \"ca.crt\"\n", host)
	files := map[string][]byte{"ca.crt": ca}
	if certificate != nil {
		hosts += "client = [[\"client.cert\", \"client.key\"]]\n"
		files["client.cert"], files["client.key"] = certificate.Certificate, certificate.Key
		for name, content := range map[string][]byte{"certificate": certificate.Certificate, "key": certificate.Key} {
			require.NoError(t, os.WriteFile(filepath.Join(b.dir, name), content, 0o600))
		}
	}
	files["hosts.toml"] = []byte(hosts)
	const containerd = "/etc/containerd/certs.d"
	for _, dir := range []string{"/etc/docker/certs.d/", "/etc/containers/certs.d/", containerd + "/",
		containerd + ":/etc/docker/certs.d/"} { // the last one is a name for containerd without config_path
		b.shell(t, b.node, `mkdir -p "$1"`, dir+host)
		for name, content := range files {
			if name == "hosts.toml" && !strings.HasPrefix(dir, containerd) {
				continue // others reject names that they do not know
			}
			b.writeOnNode(t, b.node, dir+host+"/"+name, content)
		}
	}
	all := require.Value(os.OpenFile(filepath.Join(b.dir, "ca.crt"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600))(t)
	defer all.Close()
	require.Value(all.Write(ca))(t)
}

// startDaemons starts docker's daemon and CRI-O on the node.
func (b *workbench) startDaemons(t *testing.T) {
	t.Helper()
	// Without rules and bridges: the node's network belongs to Kubernetes.
	b.daemon(t, b.node, "dockerd", "--iptables=false", "--ip6tables=false", "--bridge=none", "--storage-driver=vfs",
		"--log-level=warn", "--host=unix:///var/run/docker.sock", "--host="+b.dockerHost())
	b.succeedsOn(t, "dockerd", b.node, "/usr/bin/docker", "version")
	if long() {
		b.startCRIO(t, b.node)
	}
}

// forward forwards a port of the node to the registry's pod until the test ends.
func (b *workbench) forward(t *testing.T) (address string) {
	t.Helper()
	kubeconfig := require.Value(os.ReadFile(b.kubeconfig))(t)
	// The node cannot connect to the address of the API server that this machine uses.
	kubeconfig = regexp.MustCompile(`server: .*`).ReplaceAll(kubeconfig, []byte("server: https://172.30.0.1:6443"))
	path := filepath.Join(b.dir, "kubeconfig")
	require.NoError(t, os.WriteFile(path, kubeconfig, 0o600))
	cmd := b.longCommand(t, time.Hour, b.testcluster, "exec", "--name", b.name, b.node, "--", b.kubectl,
		"--kubeconfig="+path, "-n", namespace, "port-forward", b.pods(t, "registry")[0].Name, ":5001")
	stdout := require.Value(cmd.StdoutPipe())(t)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	address, found := strings.CutPrefix(line, "Forwarding from ")
	if address, _, _ = strings.Cut(address, " "); err != nil || !found {
		t.Fatalf("kubectl port-forward printed %q (%v)", line, err)
	}
	return address
}

// seed pushes what the clients pull.
func (b *workbench) seed(t *testing.T, a access) {
	t.Helper()
	if long() {
		b.push(t, makeImage(t, "example.com/clients/signed:1"))
		b.shell(t, b.node, `cd "$1" && COSIGN_PASSWORD= bin/cosign generate-key-pair`, b.dir)
	}
	for _, p := range covered() {
		image := "example.com/clients/" + p.File() + ":1"
		archive := makeImage(t, image)
		run(t, "skopeo", "copy", "oci-archive:"+archive, "docker-archive:"+b.archive(p)+":"+image)
		if p.Artifact {
			s := b.session(t, p, a)
			s.works(t, a.pusher, s.seeded, p.Login+"\n"+p.Push)
			continue
		}
		b.push(t, archive)
	}
}

// makeImage writes an OCI archive of an image that is like no other.
func makeImage(t *testing.T, reference string) string {
	t.Helper()
	return writeArchive(t, map[string][]byte{reference: fmt.Appendf(nil, "%s %d", reference, time.Now().UnixNano())})
}

func (b *workbench) archive(p clients.Program) string { return filepath.Join(b.dir, p.File()+".tar") }

// matrix uses entry points with all clients.
func (b *workbench) matrix(t *testing.T, all ...access) {
	for _, a := range all {
		if !a.Short && !long() {
			continue
		}
		begin := time.Now()
		var lock sync.Mutex
		seen := map[string][]string{}
		t.Run(a.Title, func(t *testing.T) {
			for _, p := range covered() {
				if !p.Connects(a.Transport) {
					continue
				}
				t.Run(p.Name, func(t *testing.T) {
					t.Parallel()
					worked := b.session(t, p, a).operations(t)
					lock.Lock()
					defer lock.Unlock()
					seen[p.Name] = worked
				})
			}
		})
		for _, p := range covered() {
			t.Logf("%s, %s: %s", a.Title, p.Name, strings.Join(seen[p.Name], ", "))
		}
		t.Logf("figure: clients at %s took %.0f s", a.Title, time.Since(begin).Seconds())
	}
}

// session is a client at an entry point.
type session struct {
	*workbench
	client clients.Program
	at     access
	home   string
	// Repositories: one for pulls, and one to which the client pushes.
	seeded, own string
}

func (b *workbench) session(t *testing.T, p clients.Program, a access) session {
	t.Helper()
	name := p.File()
	home, err := os.MkdirTemp(b.dir, name) // without the characters of the test's name
	require.NoError(t, err)
	own := fmt.Sprintf("clients-%d/%s", slices.Index(clients.Entries, a.Entry), name)
	s := session{b, p, a, home, "clients/" + name, own}
	for file, content := range map[string]string{
		"auth.json": "{}",
		// By default, podman's locks are in /dev/shm, which the node shares with this machine.
		"containers.conf": "[engine]\nlock_type = \"file\"\n",
		"storage.conf": fmt.Sprintf("[storage]\ndriver = \"vfs\"\nrunroot = %q\ngraphroot = %q\n", "/run/clients/"+name,
			"/var/lib/clients/"+name),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(s.home, file), []byte(content), 0o600))
	}
	return s
}

// operations does all that the client can do, and returns what worked. What the entry point does not allow must be
// refused.
func (s session) operations(t *testing.T) (worked []string) {
	t.Helper()
	try := func(o clients.Operation, as user, repository string) {
		t.Helper()
		switch {
		case !s.client.Can(o):
		case s.at.Allows(o):
			s.works(t, as, repository, s.client.Script(o))
			worked = append(worked, string(o))
		default:
			s.refuses(t, as, repository, s.client.Script(o))
		}
	}
	writes := s.client.Can(clients.Push)
	try(clients.AnonymousPull, user{}, s.seeded)
	if writes {
		s.refuses(t, user{}, s.own, s.client.Push)
		// With a name of its own, because the budget for failed logins is per user.
		s.refuses(t, user{"nobody-" + s.client.File(), "wrong"}, s.own, s.client.Login+"\n"+s.client.Push)
	} else if !s.at.Anonymous {
		s.refuses(t, user{"nobody-" + s.client.File(), "wrong"}, s.seeded, s.client.Login+"\n"+s.client.Pull)
	}

	s.logIn(t, s.at.puller)
	try(clients.Pull, s.at.puller, s.seeded)
	if writes && s.at.puller != s.at.pusher {
		s.refuses(t, s.at.puller, s.own, s.client.Push)
	}
	s.logIn(t, s.at.pusher)
	try(clients.Push, s.at.pusher, s.own)
	if !writes || s.at.ReadOnly {
		try(clients.List, s.at.pusher, s.seeded)
		try(clients.Remove, s.at.pusher, s.seeded)
		return worked
	}
	s.works(t, s.at.pusher, s.own, s.client.Pull) // what was pushed
	if !s.client.Artifact {
		s.damage(t)
		s.works(t, s.at.pusher, s.own, s.client.Push)
		s.works(t, s.at.pusher, s.own, s.client.Pull) // what was repaired
	}
	try(clients.List, s.at.pusher, s.own)
	if try(clients.Remove, s.at.pusher, s.own); s.client.Can(clients.Remove) {
		if out, err := s.run(t, s.at.pusher, s.own, s.client.Pull); err == nil {
			t.Errorf("what was deleted can be pulled: %s", out)
		}
	}
	return worked
}

// damage empties the stored config and layers of what the client has pushed, apart from those of the seeded image:
// clients that know its layers mount them, and compress others anew when they repair.
func (s session) damage(t *testing.T) {
	t.Helper()
	api := s.workbench.client.CoreV1()
	claim := require.Value(api.PersistentVolumeClaims(namespace).Get(t.Context(), release, metav1.GetOptions{}))(t)
	volume := require.Value(api.PersistentVolumes().Get(t.Context(), claim.Spec.VolumeName, metav1.GetOptions{}))(t)
	s.shell(t, s.node, `cd "$1/docker/registry/v2"
for link in "repositories/$2/_layers/sha256"/*; do
  digest=${link##*/}
  if [ -e "repositories/$3/_layers/sha256/$digest" ]; then continue; fi
  data=blobs/sha256/$(echo "$digest" | cut -c 1-2)/$digest/data
  test -s "$data"
  : >"$data"
done`, volume.Spec.HostPath.Path, s.own, s.seeded)
}

func (s session) logIn(t *testing.T, as user) {
	t.Helper()
	if s.client.Login != "" {
		s.works(t, as, "", s.client.Login)
	}
}

// run runs a script of the client on the node.
func (s session) run(t *testing.T, as user, repository, script string) (string, error) {
	t.Helper()
	return s.onNode(t, s.node, "timeout", "120", "env", "HOME="+s.home, "XDG_RUNTIME_DIR="+s.home, "TMPDIR="+s.home,
		"DOCKER_CONFIG="+s.home, "REGISTRY_AUTH_FILE="+s.home+"/auth.json", "CONTAINERS_STORAGE_CONF="+s.home+"/storage.conf",
		"CONTAINERS_CONF="+s.home+"/containers.conf",
		"SSL_CERT_FILE="+s.dir+"/ca.crt", "HOST="+s.at.host, "REPOSITORY="+repository, "USERNAME="+as.name,
		"PASSWORD="+as.password, fmt.Sprintf("TLS=%t", s.at.Transport != clients.PlainHTTP), "CERTIFICATE="+s.dir+"/certificate",
		"KEY="+s.dir+"/key", "KEYS="+s.dir, "COSIGN_PASSWORD=", "ARCHIVE="+s.archive(s.client),
		"LOADED=example.com/clients/"+s.client.File()+":1",
		"sh", "-ec", "PATH="+s.dir+"/bin:$PATH\nflags=\n"+s.client.Setup[s.at.Transport]+"\n"+script)
}

func (s session) works(t *testing.T, as user, repository, script string) {
	t.Helper()
	if out, err := s.run(t, as, repository, script); err != nil {
		t.Fatalf("as %q: %s\n%v: %s", as.name, script, err, out)
	}
}

// refusal matches how clients report 401, 403, and 405 of the proxies.
var refusal = regexp.MustCompile(`(?i)unauthorized|forbidden|denied|authentication required|read-only|` +
	`basic auth credentials|basic credential not found|invalid username/password|method not allowed`)

func (s session) refuses(t *testing.T, as user, repository, script string) {
	t.Helper()
	if out, err := s.run(t, as, repository, script); err == nil || !refusal.MatchString(out) {
		t.Errorf("as %q: %s\n%v, want a refusal: %s", as.name, script, err, out)
	}
}
