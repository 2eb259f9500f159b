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
)

// transport is how clients connect.
type transport int

const (
	plainHTTP transport = iota
	serverTLS           // with a certificate that clients trust
	mutualTLS           // and with one of the client
)

// entry is an entry point of the registry, as clients see it.
type entry struct {
	title     string // of its column in docs/reference/clients.md
	transport transport
	anonymous bool // clients without a credential may read
	readOnly  bool // for everyone
	short     bool // make e2e covers it, too
}

var (
	nodeProxy        = entry{title: "node, proxy mode", anonymous: true, readOnly: true, short: true}
	nodePort         = entry{title: "node, nodeport mode"}
	nodePortOpen     = entry{title: "node, nodeport mode, `auth.anonymousPull`", anonymous: true}
	withCertificate  = entry{title: "port 5000, push certificate", transport: mutualTLS, anonymous: true}
	throughForward   = entry{title: "port-forward"}
	exposedEntry     = entry{title: "port 5443", transport: serverTLS}
	exposedOpenEntry = entry{title: "port 5443, `expose.anonymousPull`", transport: serverTLS, anonymous: true, short: true}

	entries = []entry{nodeProxy, nodePort, nodePortOpen, throughForward, withCertificate, exposedEntry, exposedOpenEntry}
)

// operation is what a client does. Its first letter stands for it in docs/reference/clients.md.
type operation string

const (
	anonymousPull operation = "anonymous pull"
	pull          operation = "pull"
	push          operation = "write"
	list          operation = "list"
	remove        operation = "delete"
)

var operations = []operation{anonymousPull, pull, push, list, remove}

// allows reports whether clients with credentials may do that at an entry point, and, for an anonymous pull,
// those without.
func (e entry) allows(o operation) bool {
	switch o {
	case anonymousPull:
		return e.anonymous
	case push, remove:
		return !e.readOnly
	}
	return true
}

// program is a client. Its commands are shell scripts with the variables $HOST, $REPOSITORY, $USERNAME and
// $PASSWORD, which are empty without a credential, $TLS (false with plain HTTP), $CERTIFICATE and $KEY with
// mutual TLS, $ARCHIVE, a Docker archive of the image $LOADED, and $KEYS, cosign's. $HOME is a folder for each
// entry point.
type program struct {
	name string
	// setup comes before each command, by transport. Without one for mutual TLS, the client has no option
	// for a certificate.
	setup [3]string
	// login is empty if pull and push pass the credentials.
	login string
	// pull, push, list and remove are empty if the client cannot do it.
	pull, push, list, remove string
	// artifact means that the client pulls nothing but what it has pushed.
	artifact bool
	short    bool // make e2e covers it, too
}

// can reports whether the client has a command for it.
func (p program) can(o operation) bool { return p.script(o) != "" }

// file is the name in files and repositories.
func (p program) file() string { return strings.ToLower(strings.ReplaceAll(p.name, " ", "-")) }

func (p program) script(o operation) string {
	return map[operation]string{anonymousPull: p.pull, pull: p.pull, push: p.push, list: p.list, remove: p.remove}[o]
}

// connects reports whether the client can connect that way.
func (p program) connects(by transport) bool { return p.setup[by] != "" }

// same is a setup without commands, for clients that find certificates in files.
const same = ":"

var clients = []program{{
	name:  "docker",
	short: true,
	setup: [3]string{same, same, same},
	login: `echo "$PASSWORD" | docker login --username "$USERNAME" --password-stdin "$HOST"`,
	pull:  `docker pull "$HOST/$REPOSITORY:1" && docker rmi "$HOST/$REPOSITORY:1"`,
	push: `docker load --input "$ARCHIVE" && docker tag "$LOADED" "$HOST/$REPOSITORY:1"
trap 'docker rmi "$LOADED" "$HOST/$REPOSITORY:1"' EXIT
docker push "$HOST/$REPOSITORY:1"`,
}, {
	name:  "docker build", // BuildKit
	setup: [3]string{same, same, same},
	login: `echo "$PASSWORD" | docker login --username "$USERNAME" --password-stdin "$HOST"`,
	pull:  `echo "FROM $HOST/$REPOSITORY:1" | DOCKER_BUILDKIT=1 docker build --pull --no-cache -`,
}, {
	name:  "podman",
	short: true,
	setup: [3]string{same, same, same},
	login: `echo "$PASSWORD" | podman login --tls-verify="$TLS" --username "$USERNAME" --password-stdin "$HOST"`,
	pull:  `podman pull --tls-verify="$TLS" "$HOST/$REPOSITORY:1" && podman rmi "$HOST/$REPOSITORY:1"`,
	push: `podman load --input "$ARCHIVE"
trap 'podman rmi "$LOADED"' EXIT
podman push --tls-verify="$TLS" "$LOADED" "docker://$HOST/$REPOSITORY:1"`,
	list: `podman search --tls-verify="$TLS" --list-tags "$HOST/$REPOSITORY" | grep ' 1$'`,
}, {
	name:  "buildah",
	setup: [3]string{same, same, same},
	login: `echo "$PASSWORD" | buildah login --tls-verify="$TLS" --username "$USERNAME" --password-stdin "$HOST"`,
	pull:  `buildah pull --tls-verify="$TLS" "$HOST/$REPOSITORY:1" && buildah rmi "$HOST/$REPOSITORY:1"`,
	push: `buildah pull "docker-archive:$ARCHIVE"
trap 'buildah rmi "$LOADED"' EXIT
buildah push --tls-verify="$TLS" "$LOADED" "docker://$HOST/$REPOSITORY:1"`,
}, {
	name:   "skopeo",
	short:  true,
	setup:  [3]string{same, same, same},
	login:  `echo "$PASSWORD" | skopeo login --tls-verify="$TLS" --username "$USERNAME" --password-stdin "$HOST"`,
	pull:   `skopeo copy --src-tls-verify="$TLS" "docker://$HOST/$REPOSITORY:1" "dir:$(mktemp --directory)"`,
	push:   `skopeo copy --dest-tls-verify="$TLS" "docker-archive:$ARCHIVE" "docker://$HOST/$REPOSITORY:1"`,
	list:   `skopeo list-tags --tls-verify="$TLS" "docker://$HOST/$REPOSITORY" | grep '"1"'`,
	remove: `skopeo delete --tls-verify="$TLS" "docker://$HOST/$REPOSITORY:1"`,
}, {
	name:  "ctr",
	setup: [3]string{`flags=--plain-http`, same, `flags="--tlscert=$CERTIFICATE --tlskey=$KEY"`},
	pull: `ctr -n clients images pull --local $flags ${USERNAME:+--user="$USERNAME:$PASSWORD"} "$HOST/$REPOSITORY:1"
ctr -n clients images rm --sync "$HOST/$REPOSITORY:1"`,
	push: `ctr -n clients images import "$ARCHIVE"
trap 'ctr -n clients images rm --sync "$LOADED"' EXIT
ctr -n clients images push --local $flags ${USERNAME:+--user="$USERNAME:$PASSWORD"} "$HOST/$REPOSITORY:1" "$LOADED"`,
}, {
	name:  "containerd",
	setup: [3]string{same, same, same},
	pull:  criPull(containerdSocket),
}, {
	name:  "CRI-O",
	setup: [3]string{same, same, same},
	pull:  criPull(crioSocket),
}, {
	name:  "crane",
	short: true,
	setup: [3]string{same, same},
	login: `echo "$PASSWORD" | crane auth login --username "$USERNAME" --password-stdin "$HOST"`,
	pull:  `crane pull "$HOST/$REPOSITORY:1" /dev/null`,
	push:  `crane push "$ARCHIVE" "$HOST/$REPOSITORY:1"`,
	list: `crane ls "$HOST/$REPOSITORY" | grep --line-regexp 1
crane catalog "$HOST" | grep --line-regexp "$REPOSITORY"`,
	remove: `crane delete "$HOST/$REPOSITORY:1"`,
}, {
	name: "regctl",
	setup: [3]string{`regctl registry set --skip-check --tls disabled "$HOST"`, same,
		`regctl registry set --skip-check --client-cert "$(cat "$CERTIFICATE")" --client-key "$(cat "$KEY")" "$HOST"`},
	login: `echo "$PASSWORD" | regctl registry login --user "$USERNAME" --pass-stdin "$HOST"`,
	pull:  `regctl image copy "$HOST/$REPOSITORY:1" "ocidir://$(mktemp --directory):1"`,
	push:  `regctl image import "$HOST/$REPOSITORY:1" "$ARCHIVE"`,
	list: `regctl tag ls "$HOST/$REPOSITORY" | grep --line-regexp 1
regctl repo ls "$HOST" | grep --line-regexp "$REPOSITORY"`,
	remove: `regctl tag delete "$HOST/$REPOSITORY:1"`,
}, {
	name:     "oras",
	artifact: true,
	setup:    [3]string{`flags=--plain-http`, same, `flags="--cert-file=$CERTIFICATE --key-file=$KEY"`},
	login:    `echo "$PASSWORD" | oras login $flags --username "$USERNAME" --password-stdin "$HOST"`,
	pull:     `oras pull $flags --output "$(mktemp --directory)" "$HOST/$REPOSITORY:1"`,
	push:     `cd "$HOME" && date >file && oras push $flags "$HOST/$REPOSITORY:1" file`,
	list: `oras repo tags $flags "$HOST/$REPOSITORY" | grep --line-regexp 1
oras repo ls $flags "$HOST" | grep --line-regexp "$REPOSITORY"`,
	remove: `oras manifest delete --force $flags "$HOST/$REPOSITORY:1"`,
}, {
	name:     "helm",
	artifact: true,
	setup:    [3]string{`flags=--plain-http`, same, `flags="--cert-file=$CERTIFICATE --key-file=$KEY"`},
	login:    `echo "$PASSWORD" | helm registry login $flags --username "$USERNAME" --password-stdin "$HOST"`,
	pull:     `helm pull $flags --destination "$(mktemp --directory)" "oci://$HOST/$REPOSITORY" --version 1.0.0`,
	push: `cd "$HOME" && mkdir -p chart
printf 'apiVersion: v2\nname: %s\nversion: 1.0.0\n' "${REPOSITORY##*/}" >chart/Chart.yaml
helm package chart && helm push $flags "${REPOSITORY##*/}-1.0.0.tgz" "oci://$HOST/${REPOSITORY%/*}"`,
}, {
	name:     "cosign",
	artifact: true,
	setup: [3]string{`flags=--allow-http-registry`, same,
		`flags="--registry-client-cert=$CERTIFICATE --registry-client-key=$KEY"`},
	login: `cosign login --username "$USERNAME" --password "$PASSWORD" "$HOST"`,
	pull:  `cosign verify $flags --key "$KEYS/cosign.pub" --insecure-ignore-tlog "$HOST/$REPOSITORY:1"`,
	push: `cosign copy $flags "$HOST/clients/signed:1" "$HOST/$REPOSITORY:1"
cosign sign $flags --yes --key "$KEYS/cosign.key" --use-signing-config=false --tlog-upload=false "$HOST/$REPOSITORY:1"`,
	list: `cosign tree $flags "$HOST/$REPOSITORY:1" | grep sha256:`,
	remove: `cosign clean $flags --force "$HOST/$REPOSITORY:1"
! cosign verify $flags --key "$KEYS/cosign.pub" --insecure-ignore-tlog "$HOST/$REPOSITORY:1"`, // clean ignores errors
}}

// criPull makes a container runtime pull.
func criPull(socket string) string {
	return fmt.Sprintf(`export CONTAINER_RUNTIME_ENDPOINT=%s
crictl pull ${USERNAME:+--creds="$USERNAME:$PASSWORD"} "$HOST/$REPOSITORY:1" && crictl rmi "$HOST/$REPOSITORY:1"`, socket)
}

// matrix returns the table of docs/reference/clients.md.
func matrix() string {
	var table strings.Builder
	table.WriteString("|client")
	for _, e := range entries {
		table.WriteString("|" + e.title)
	}
	table.WriteString("|\n" + strings.Repeat("|-", len(entries)+1) + "|\n")
	for _, p := range clients {
		table.WriteString("|" + p.name)
		for _, e := range entries {
			var letters []string
			for _, o := range operations {
				if p.connects(e.transport) && p.can(o) && e.allows(o) {
					letters = append(letters, string(o[:1]))
				}
			}
			table.WriteString("|" + strings.Join(letters, " "))
		}
		table.WriteString("|\n")
	}
	return table.String()
}

func TestClientMatrixIsDocumented(t *testing.T) {
	const page = "../../docs/reference/clients.md"
	content, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(content), matrix()) {
		t.Errorf("%s lacks this table:\n%s", page, matrix())
	}
}

// access is an entry point of a running registry.
type access struct {
	entry
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
	if _, err := w.client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ca, err := pki.NewCA("company", time.Now(), 0)
	if err != nil {
		t.Fatal(err)
	}
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
	service, err := w.client.CoreV1().Services(namespace).Get(t.Context(), release, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.shell(t, b.node, `echo "$1 $2" >>/etc/hosts`, service.Spec.ClusterIP, release+"."+namespace+".svc")
	b.startDaemons(t)

	must(t, "images, a chart, an artifact and a signature are pushed", func(t *testing.T) {
		forwarded := access{throughForward, b.forward(t), pusher, pusher}
		b.seed(t, forwarded)
		if long() {
			b.matrix(t, forwarded)
		}
	})
	b.pushesFromDocker(t)
	b.matrix(t, access{nodeProxy, w.address, pusher, pusher}, access{withCertificate, internal, pusher, pusher},
		access{exposedOpenEntry, outside, ci, pusher})
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
	b.matrix(t, access{nodePort, w.address, puller, pusher}, access{exposedEntry, outside, ci, pusher})
	must(t, "upgrade to anonymous pulls from the node port", func(t *testing.T) {
		w.apply(t, append(exposed, nodePortMode, "--set=auth.anonymousPull=true")...)
	})
	b.matrix(t, access{nodePortOpen, w.address, puller, pusher})
}

func newWorkbench(t *testing.T, w *world) *workbench {
	t.Helper()
	b := &workbench{w, w.nodes[0], t.TempDir()}
	bin := filepath.Join(b.dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	// Debian's docker is not the only one, and newer programs of docker come with the daemon's package.
	if err := os.Symlink("/usr/bin/docker", filepath.Join(bin, "docker")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"crane", "regctl", "oras", "helm", "cosign"} {
		if !long() && !slices.ContainsFunc(clients, func(p program) bool { return p.name == name && p.short }) {
			continue
		}
		path := w.helm
		if name != "helm" {
			path = strings.TrimSpace(run(t, w.testcluster, "tool", name))
		}
		if err := os.Symlink(path, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// covered returns the clients that this run covers.
func covered() []program {
	return slices.DeleteFunc(slices.Clone(clients), func(p program) bool { return !p.short && !long() })
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
			if err := os.WriteFile(filepath.Join(b.dir, name), content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	files["hosts.toml"] = []byte(hosts)
	for _, dir := range []string{"/etc/docker/certs.d/", "/etc/containers/certs.d/", "/etc/containerd/certs.d/"} {
		b.shell(t, b.node, `mkdir -p "$1"`, dir+host)
		for name, content := range files {
			if name == "hosts.toml" && dir != "/etc/containerd/certs.d/" {
				continue // others reject names that they do not know
			}
			b.writeOnNode(t, b.node, dir+host+"/"+name, content)
		}
	}
	all, err := os.OpenFile(filepath.Join(b.dir, "ca.crt"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer all.Close()
	if _, err := all.Write(ca); err != nil {
		t.Fatal(err)
	}
}

// startDaemons starts docker's daemon and CRI-O on the node.
func (b *workbench) startDaemons(t *testing.T) {
	t.Helper()
	// Without rules and bridges: the node's network belongs to Kubernetes.
	b.daemon(t, b.node, "dockerd", "--iptables=false", "--ip6tables=false", "--bridge=none", "--storage-driver=vfs",
		"--log-level=warn", "--host=unix:///var/run/docker.sock", "--host="+b.dockerHost())
	eventually(t, "dockerd", func() error {
		if out, err := b.onNode(t, b.node, "/usr/bin/docker", "version"); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	if long() {
		b.startCRIO(t, b.node)
	}
}

// forward forwards a port of the node to the registry's pod until the test ends.
func (b *workbench) forward(t *testing.T) (address string) {
	t.Helper()
	kubeconfig, err := os.ReadFile(b.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	// The node cannot connect to the address of the API server that this machine uses.
	kubeconfig = regexp.MustCompile(`server: .*`).ReplaceAll(kubeconfig, []byte("server: https://172.30.0.1:6443"))
	path := filepath.Join(b.dir, "kubeconfig")
	if err := os.WriteFile(path, kubeconfig, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := b.longCommand(t, time.Hour, b.testcluster, "exec", "--name", b.name, b.node, "--", b.kubectl,
		"--kubeconfig="+path, "-n", namespace, "port-forward", b.pods(t, "registry")[0].Name, ":5001")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
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
		image := "example.com/clients/" + p.file() + ":1"
		archive := makeImage(t, image)
		run(t, "skopeo", "copy", "oci-archive:"+archive, "docker-archive:"+b.archive(p)+":"+image)
		if p.artifact {
			s := b.session(t, p, a)
			s.works(t, a.pusher, s.seeded, p.login+"\n"+p.push)
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

func (b *workbench) archive(p program) string {
	return filepath.Join(b.dir, p.file()+".tar")
}

// matrix uses entry points with all clients.
func (b *workbench) matrix(t *testing.T, all ...access) {
	for _, a := range all {
		if !a.short && !long() {
			continue
		}
		begin := time.Now()
		var lock sync.Mutex
		seen := map[string][]string{}
		t.Run(a.title, func(t *testing.T) {
			for _, p := range covered() {
				if !p.connects(a.transport) {
					continue
				}
				t.Run(p.name, func(t *testing.T) {
					t.Parallel()
					worked := b.session(t, p, a).operations(t)
					lock.Lock()
					defer lock.Unlock()
					seen[p.name] = worked
				})
			}
		})
		for _, p := range covered() {
			t.Logf("%s, %s: %s", a.title, p.name, strings.Join(seen[p.name], ", "))
		}
		t.Logf("figure: clients at %s took %.0f s", a.title, time.Since(begin).Seconds())
	}
}

// session is a client at an entry point.
type session struct {
	*workbench
	client program
	at     access
	home   string
	// Repositories: one for pulls, and one to which the client pushes.
	seeded, own string
}

func (b *workbench) session(t *testing.T, p program, a access) session {
	t.Helper()
	name := p.file()
	home, err := os.MkdirTemp(b.dir, name) // without the characters of the test's name
	if err != nil {
		t.Fatal(err)
	}
	s := session{b, p, a, home, "clients/" + name, fmt.Sprintf("clients-%d/%s", slices.Index(entries, a.entry), name)}
	for file, content := range map[string]string{
		"auth.json": "{}",
		// By default, podman's locks are in /dev/shm, which the node shares with this machine.
		"containers.conf": "[engine]\nlock_type = \"file\"\n",
		"storage.conf": fmt.Sprintf("[storage]\ndriver = \"vfs\"\nrunroot = %q\ngraphroot = %q\n", "/run/clients/"+name,
			"/var/lib/clients/"+name),
	} {
		if err := os.WriteFile(filepath.Join(s.home, file), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// operations does all that the client can do, and returns what worked. What the entry point does not allow must be
// refused.
func (s session) operations(t *testing.T) (worked []string) {
	t.Helper()
	try := func(o operation, as user, repository string) {
		t.Helper()
		switch {
		case !s.client.can(o):
		case s.at.allows(o):
			s.works(t, as, repository, s.client.script(o))
			worked = append(worked, string(o))
		default:
			s.refuses(t, as, repository, s.client.script(o))
		}
	}
	writes := s.client.can(push)
	try(anonymousPull, user{}, s.seeded)
	if writes {
		s.refuses(t, user{}, s.own, s.client.push)
		// With a name of its own, because the budget for failed logins is per user.
		s.refuses(t, user{"nobody-" + s.client.file(), "wrong"}, s.own, s.client.login+"\n"+s.client.push)
	} else if !s.at.anonymous {
		s.refuses(t, user{"nobody-" + s.client.file(), "wrong"}, s.seeded, s.client.login+"\n"+s.client.pull)
	}

	s.logIn(t, s.at.puller)
	try(pull, s.at.puller, s.seeded)
	if writes && s.at.puller != s.at.pusher {
		s.refuses(t, s.at.puller, s.own, s.client.push)
	}
	s.logIn(t, s.at.pusher)
	try(push, s.at.pusher, s.own)
	if !writes || s.at.readOnly {
		try(list, s.at.pusher, s.seeded)
		try(remove, s.at.pusher, s.seeded)
		return worked
	}
	s.works(t, s.at.pusher, s.own, s.client.pull) // what was pushed
	if !s.client.artifact {
		s.damage(t)
		s.works(t, s.at.pusher, s.own, s.client.push)
		s.works(t, s.at.pusher, s.own, s.client.pull) // what was repaired
	}
	try(list, s.at.pusher, s.own)
	if try(remove, s.at.pusher, s.own); s.client.can(remove) {
		if out, err := s.run(t, s.at.pusher, s.own, s.client.pull); err == nil {
			t.Errorf("what was deleted can be pulled: %s", out)
		}
	}
	return worked
}

// damage empties the stored config and layers of what the client has pushed.
func (s session) damage(t *testing.T) {
	t.Helper()
	api := s.workbench.client.CoreV1()
	claim, err := api.PersistentVolumeClaims(namespace).Get(t.Context(), release, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	volume, err := api.PersistentVolumes().Get(t.Context(), claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.shell(t, s.node, `cd "$1/docker/registry/v2"
for link in "repositories/$2/_layers/sha256"/*; do
  digest=${link##*/}
  data=blobs/sha256/$(echo "$digest" | cut -c 1-2)/$digest/data
  test -s "$data"
  : >"$data"
done`, volume.Spec.HostPath.Path, s.own)
}

func (s session) logIn(t *testing.T, as user) {
	t.Helper()
	if s.client.login != "" {
		s.works(t, as, "", s.client.login)
	}
}

// run runs a script of the client on the node.
func (s session) run(t *testing.T, as user, repository, script string) (string, error) {
	t.Helper()
	return s.onNode(t, s.node, "timeout", "120", "env", "HOME="+s.home, "XDG_RUNTIME_DIR="+s.home, "TMPDIR="+s.home,
		"DOCKER_CONFIG="+s.home, "REGISTRY_AUTH_FILE="+s.home+"/auth.json", "CONTAINERS_STORAGE_CONF="+s.home+"/storage.conf",
		"CONTAINERS_CONF="+s.home+"/containers.conf",
		"SSL_CERT_FILE="+s.dir+"/ca.crt", "HOST="+s.at.host, "REPOSITORY="+repository, "USERNAME="+as.name,
		"PASSWORD="+as.password, fmt.Sprintf("TLS=%t", s.at.transport != plainHTTP), "CERTIFICATE="+s.dir+"/certificate",
		"KEY="+s.dir+"/key", "KEYS="+s.dir, "COSIGN_PASSWORD=", "ARCHIVE="+s.archive(s.client),
		"LOADED=example.com/clients/"+s.client.file()+":1",
		"sh", "-ec", "PATH="+s.dir+"/bin:$PATH\nflags=\n"+s.client.setup[s.at.transport]+"\n"+script)
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
