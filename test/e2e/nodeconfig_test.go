package e2e

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/status"
	"github.com/zarf-dev/zarf-registry/test/require"
)

const (
	// certsDir is the first directory of containerd's default config_path, and listedDir what its transfer service reads.
	certsDir  = "/etc/containerd/certs.d"
	listedDir = certsDir + ":/etc/docker/certs.d"
	// corpHost is a registry that is not in DNS; corporateEndpoint is its loopback address on n1.
	corpHost          = "registry.corp.example"
	corporateEndpoint = "127.0.0.1:31998"
)

// TestNodeConfig configures the nodes' container runtimes for registries of the user. At the end,
// the files on the nodes must be as they were.
//
// Claim (a node that becomes a K3s server is left out, and keeps its files): A node that becomes a K3s server
// is left out.
//
// Claim (no log, event or object contains a secret): No log, event or object contains a password of
// `nodeConfig`.
//
// Claim (a support bundle contains no secret): A [support bundle](troubleshooting.md#support-bundle) of a
// cluster contains no secret.
//
// Claim (a file that is not ours is kept, and its node is named): By default, files of others on nodes are
// not replaced.
//
// Claim (helm uninstall restores the files): `helm uninstall` restores the files that the release replaced.
//
// Claim (clients that insist on TLS trust the proxies, also during a CA rotation): Nodes that verify
// certificates trust each one before it is used.
func TestNodeConfig(t *testing.T) {
	w := ownCluster(t, "e2e-node-config", layout{})
	w.corporateRegistry(t)
	v := nodeConfigValues{address: w.address, user: "corp-user-" + random(t), previous: "corp-previous-" + random(t),
		password: "corp-password-" + random(t)}
	w.corporateUsers(t, v.user, v.password)
	secrets := []string{v.user, v.previous, v.password}
	// A file that is not ours, on n2 only.
	const theirs = "# of the platform team\nserver = \"https://ghcr.io\"\n"
	w.shell(t, "n2", `mkdir -p "$1/ghcr.io" && printf %s "$2" >"$1/ghcr.io/hosts.toml"`, certsDir, theirs)
	before := map[string]string{}
	for _, node := range w.nodes {
		before[node] = w.nodeFiles(t, node)
	}
	restored := func(t *testing.T) {
		t.Helper()
		if left := w.shell(t, "n3",
			`find /etc/containerd /etc/containers /etc/rancher \( -name '*zarf-registry*' -o `+
				`-type f -exec grep -q 'Written by zarf-registry' {} \; \) -print`); left != "" {
			t.Errorf("n3 still has %s", left)
		}
		for _, node := range []string{"n1", "n2"} {
			if now := w.nodeFiles(t, node); now != before[node] {
				t.Errorf("the files of %s were\n%s\nand are now\n%s", node, before[node], now)
			}
		}
	}
	said := &strings.Builder{} // all output of commands, to be searched for secrets
	runtimes := w.runtimes(t)
	logs := w.keepLogs(t)

	const mirrored = "registryProxy: true\nproxy: {tls: always}\nnodeConfig: {mirrors: [docker.io]}\n"
	must(t, "install with a mirror", func(t *testing.T) {
		said.WriteString(w.helmValues(t, "install", mirrored))
		for _, image := range []string{"docker.io/library/hello:1", "ghcr.io/acme/app:1", "quay.io/acme/other:1"} {
			w.push(t, w.makeArchive(t, image, 8))
		}
	})
	must(t, "an image of docker.io is pulled through the proxy of its node", func(t *testing.T) {
		w.runsEverywhere(t, "mirrored", "docker.io/library/hello:1")
		if out, err := w.pull(t, "n1", "ghcr.io/acme/app:1"); err == nil || !strings.Contains(out, "ghcr.io") {
			t.Errorf("ghcr.io has no mirror, but the pull succeeded: %v: %s", err, out)
		}
		for _, node := range w.nodes {
			got := w.shell(t, node, `cat "$1/docker.io/hosts.toml"; stat -c %a "$1/docker.io/hosts.toml"`, certsDir)
			want := "# Written by zarf-registry, release zarf/zarf-registry. Changes are " +
				"overwritten.\n\n[host.\"http://" + w.address + "\"]\n  capabilities = [\"pull\", \"resolve\"]\n600\n"
			if got != want {
				t.Errorf("hosts.toml of %s is\n%s\nwant\n%s", node, got, want)
			}
		}
		w.isHealthy(t)
	})
	must(t, "status tells of each node whether it was seen to use the mirror", func(t *testing.T) {
		effects := func() map[string]status.Effect {
			found := map[string]status.Effect{}
			report, shown := w.status(t)
			for _, n := range report.NodeConfig {
				found[n.Node] = n.Effect
			}
			t.Logf("status:\n%s", shown)
			return found
		}
		want := map[string]status.Effect{}
		for _, node := range w.nodes {
			want[node] = status.EffectMirrors
		}
		if got := effects(); !maps.Equal(got, want) {
			t.Errorf("the effects are %v, want %v", got, want)
		}
		w.provoked = append(w.provoked, `"docker.io/zarf-registry/probe-proxy:`)
		w.shell(t, "n2", `rm "$1/docker.io/hosts.toml" "$2/docker.io/hosts.toml"`, certsDir, listedDir)
		said.WriteString(w.helmValues(t, "upgrade", mirrored))
		want["n2"] = status.EffectIgnored
		if got := effects(); !maps.Equal(got, want) {
			t.Errorf("without files on n2, the effects are %v, want %v", got, want)
		}
		for _, p := range w.pods(t, "node-config") {
			if p.Spec.NodeName == "n2" {
				w.deletePod(t, p.Name, 0) // the next one writes them
			}
		}
		said.WriteString(w.helmValues(t, "upgrade", mirrored))
		want["n2"] = status.EffectMirrors
		if got := effects(); !maps.Equal(got, want) {
			t.Errorf("with the files, the effects are %v, want %v", got, want)
		}
	})
	must(t, "a file that is not ours is kept, and its node is named", func(t *testing.T) {
		text := w.helmValuesFail(t, []string{"n2", certsDir + "/ghcr.io/hosts.toml", "nodeConfig.force"},
			"nodeConfig: {mirrors: [docker.io, ghcr.io]}\n")
		said.WriteString(text)
		if got := w.shell(t, "n2", `cat "$1/ghcr.io/hosts.toml"`, certsDir); got != theirs {
			t.Errorf("the file is now\n%s", got)
		}
		_, shown := w.status(t)
		said.WriteString(shown)
		t.Logf("status:\n%s", shown)
		if !strings.Contains(shown, "n2") || !strings.Contains(shown, "nodeConfig.force") {
			t.Error("status names neither the node nor the remedy")
		}
	})
	must(t, "a wildcard with an exception, credentials for another registry, K3s' file, and a file overwritten by force",
		func(t *testing.T) {
			said.WriteString(w.helmValues(t, "upgrade", v.inline(v.previous)))
			want := strings.ReplaceAll(v.registries(v.previous), `"`, "") // a map is written without needless quotes
			if got := w.shell(t, "n1", "cat /etc/rancher/k3s/registries.yaml"); !strings.HasSuffix(got, want) {
				t.Errorf("registries.yaml on n1 is\n%s\nwant\n%s", got, want)
			}
			if out, err := w.pull(t, "n1", corpHost+"/team/app:1"); err == nil {
				t.Errorf("a wrong password was accepted: %s", out)
			} else {
				said.WriteString(out)
			}
			w.runsEverywhere(t, "wildcard", "ghcr.io/acme/app:1")
			if out, err := w.pull(t, "n1", "quay.io/acme/other:1"); err == nil || !strings.Contains(out, "quay.io") {
				t.Errorf("quay.io is excepted, but the pull succeeded: %v: %s", err, out)
			}
			w.runsEverywhere(t, "own", w.pushHello(t)) // the registry is tried once, wildcard or not
		})
	must(t, "K3s' file from the user's Secret, and another password: reported as changed, not shown, and effective at once",
		func(t *testing.T) {
			w.putSecret(t, "corp-registries", map[string][]byte{"registries.yaml": []byte(v.registries(v.password))})
			said.WriteString(w.helmValues(t, "upgrade", v.existing()))
			took, event := w.runPod(t, pod("corporate", "n1", corpHost+"/team/app:1"))
			t.Logf("after %.1f s: %s", took.Seconds(), event)
			log := output(t, w.command(t, w.kubectl, "-n", namespace, "logs", "--prefix", "-l",
				"app.kubernetes.io/component=node-config", "-c", "configure", "--tail=-1"))
			t.Logf("log of configure:\n%s", log)
			for _, want := range []string{"/etc/rancher/k3s/registries.yaml: only masked values",
				"/" + corpHost + "/hosts.toml: only masked values"} {
				if !strings.Contains(log, want) {
					t.Errorf("the log lacks %q", want)
				}
			}
		})
	must(t, "status says that K3s' file takes effect after a restart", func(t *testing.T) {
		report, text := w.status(t)
		said.WriteString(text)
		t.Logf("status:\n%s", text)
		if !report.Healthy || !strings.Contains(text, "restart the K3s or RKE2 service; unless restarted since") {
			t.Error("status does not mention the restart")
		}
	})
	must(t, "a support bundle contains no secret", func(t *testing.T) { testSupportBundle(t, w, secrets) })
	if w.network.Family != "IPv6" { // Debian's skopeo does not accept [::1] in image references
		must(t, "clients that insist on TLS trust the proxies, also during a CA rotation",
			func(t *testing.T) { testStrictNodes(t, w) })
	}
	must(t, "a node that is added later is configured too", func(t *testing.T) {
		w.addNode(t, "n3")
		output(t, w.command(t, w.kubectl, "-n", namespace, "rollout", "status", "daemonset", "-l",
			"app.kubernetes.io/component=node-config", "--timeout="+patience.String()))
		took, event := w.runPod(t, pod("later", "n3", "docker.io/library/hello:1"))
		t.Logf("after %.1f s: %s", took.Seconds(), event)
	})
	must(t, "a node that becomes a K3s server is left out, and keeps its files", func(t *testing.T) {
		files := w.nodeFiles(t, "n2")
		const role = "node-role.kubernetes.io/control-plane"
		output(t, w.command(t, w.kubectl, "label", "node", "n2", role+"=true"))
		eventually(t, "the pod on n2 to end", func() error {
			left := output(t, w.command(t, w.kubectl, "-n", namespace, "get", "pods", "-o", "name", "-l",
				"app.kubernetes.io/component=node-config", "--field-selector=spec.nodeName=n2"))
			if left != "" {
				return fmt.Errorf("there is %s", left)
			}
			return nil
		})
		if now := w.nodeFiles(t, "n2"); now != files {
			t.Errorf("the files were\n%s\nand are now\n%s", files, now)
		}
		output(t, w.command(t, w.kubectl, "label", "node", "n2", role+"-"))
		output(t, w.command(t, w.kubectl, "-n", namespace, "rollout", "status", "daemonset", "-l",
			"app.kubernetes.io/component=node-config", "--timeout="+patience.String()))
	})
	must(t, "the container runtime was never restarted", func(t *testing.T) {
		if now := w.runtimes(t); !strings.HasPrefix(now, runtimes) { // n3 is new
			t.Errorf("the processes were %s, and are now %s", runtimes, now)
		}
	})
	must(t, "no log, event or object contains a secret", func(t *testing.T) {
		stored := output(t, w.command(t, w.kubectl, "-n", namespace, "get", "secret", "corp-registries", "-o", "json"))
		if !contains(stored, v.user) || !contains(stored, v.password) {
			t.Error("the search does not find what a Secret contains")
		}
		w.findNone(t, secrets, said.String(), logs, map[string]string{
			"zarf_" + release + "-prepare-": "step done", "zarf_" + release + "-finish-": "step done",
			"/configure/": "hosts.toml", "/registry/": "listening", "/proxy/": "listening"})
	})
	must(t, "helm uninstall restores the files", func(t *testing.T) {
		require.NoError(t, w.client.CoreV1().Secrets(namespace).Delete(t.Context(), "corp-registries",
			metav1.DeleteOptions{}))
		w.uninstall(t)
		restored(t)
		w.findNone(t, secrets, "", logs, map[string]string{"zarf_" + release + "-cleanup-": "step done"})
	})
	must(t, "zarf-registry uninstall restores the files", func(t *testing.T) {
		w.apply(t, proxyMode, "--set=nodeConfig.mirrors={docker.io}")
		if w.nodeFiles(t, "n1") == before["n1"] {
			t.Error("the installation wrote no files")
		}
		output(t, w.command(t, w.hook, "uninstall", "-n", w.namespace))
		restored(t)
		w.nothingLeft(t, "persistentvolumeclaim/"+release)
	})
}

// random returns a unique word.
func random(t *testing.T) string {
	t.Helper()
	word := make([]byte, 12)
	require.Value(rand.Read(word))(t)
	return hex.EncodeToString(word)
}

// nodeConfigValues are the values of most of the test, with a password.
type nodeConfigValues struct{ address, user, previous, password string }

func (v nodeConfigValues) registries(password string) string {
	return fmt.Sprintf(`configs:
  %q:
    auth:
      password: %s
      username: %s
mirrors:
  ghcr.io:
    endpoint:
    - http://%s
  %s:
    endpoint:
    - http://%s
`, corporateEndpoint, password, v.user, v.address, corpHost, corporateEndpoint)
}

// inline has registries.yaml in the values, existing in the user's Secret.
func (v nodeConfigValues) inline(password string) string {
	return v.values(password, "registries:\n"+strings.ReplaceAll("\n"+strings.TrimSpace(v.registries(password)), "\n",
		"\n      ")+"\n")
}

func (v nodeConfigValues) existing() string {
	return v.values(v.password, "existingSecret: corp-registries\n")
}

// values has the credentials for containerd, whose nodes run no K3s.
func (v nodeConfigValues) values(password, k3s string) string {
	return fmt.Sprintf(`
nodeConfig:
  mirrors: [docker.io, ghcr.io, "*", "!quay.io"]
  force: true
  runtimes: [containerd, crio]
  crio: {ca: true}
  containerd:
    hosts:
      %[1]s: |
        [host."http://%[2]s"]
          capabilities = ["pull", "resolve"]
          [host."http://%[2]s".header]
            Authorization = "Basic %[3]s"
  k3s:
    %[4]s`, corpHost, corporateEndpoint, base64.StdEncoding.EncodeToString([]byte(v.user+":"+password)), k3s)
}

// testStrictNodes uses skopeo, which reads the same files as CRI-O and podman, for the registry's
// own address and for a mirrored registry.
func testStrictNodes(t *testing.T, w *world) {
	inspect := func(image string) (string, error) {
		return w.onNode(t, "n2", "skopeo", "inspect", "--raw", "docker://"+image)
	}
	for _, image := range []string{w.address + "/e2e/hello:1", "docker.io/library/hello:1"} {
		if out, err := inspect(image); err != nil {
			t.Errorf("%s: %v: %s", image, err, out)
		}
	}
	stop := make(chan struct{})
	var asked, failed int
	var first string
	var done sync.WaitGroup
	done.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(200 * time.Millisecond):
			}
			asked++
			if out, err := inspect(w.address + "/e2e/hello:1"); err != nil {
				if failed++; failed == 1 {
					first = out
				}
			}
		}
	})
	begin := time.Now()
	out, errOut, err := try(w.command(t, w.hook, "certs", "rotate", "--ca"))
	took := time.Since(begin)
	time.Sleep(2 * time.Second)
	close(stop)
	done.Wait()
	t.Logf("figure: certs rotate --ca with copies of the CA on %d nodes took %.1f s; meanwhile %d of skopeo's "+
		"requests, %d of them failed", len(w.nodes), took.Seconds(), asked, failed)
	if err != nil || failed > 0 || asked == 0 {
		t.Errorf("certs rotate: %v: %s%s; of %d requests %d failed, the first with %s", err, out, errOut, asked, failed,
			first)
	}
}

// helmValues runs helm install or upgrade with exactly these values, and returns the output.
func (w *world) helmValues(t *testing.T, verb, values string) string {
	t.Helper()
	begin := time.Now()
	out, errOut, err := try(w.chart(t, verb, w.valuesFile(t, verb, values)...))
	require.NoError(t, err, "helm", verb, out, errOut)
	t.Logf("figure: helm %s with node configuration returned after %.1f s", verb, time.Since(begin).Seconds())
	return out + errOut
}

func (w *world) helmValuesFail(t *testing.T, words []string, values string) string {
	t.Helper()
	return w.helmChartFails(t, words, "upgrade", w.valuesFile(t, "upgrade", values)...)
}

// valuesFile writes a values file. The mode is kept by the release's state, all other values are
// replaced.
func (w *world) valuesFile(t *testing.T, verb, values string) []string {
	t.Helper()
	if verb == "upgrade" {
		values += "proxy: {tls: always}\n"
	}
	// Helm splits file names at commas, which test names have.
	dir := require.Value(os.MkdirTemp("", "zarf-registry-values-"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	file := filepath.Join(dir, "values.yaml")
	require.NoError(t, os.WriteFile(file, []byte(values), 0o600))
	return []string{"--values", file}
}

// corporateRegistry runs a registry on the loopback address of n1 with a random password and pushes
// an image to it.
func (w *world) corporateRegistry(t *testing.T) {
	t.Helper()
	program := filepath.Join(filepath.Dir(w.hook), "registry")
	config, users := w.corporateFile("config.yml"), w.corporateFile("users")
	w.shell(t, "n1", `mkdir -p "$(dirname "$1")" && printf '%s\n' 'version: 0.1' 'storage: {inmemory: {}}' >"$1"`, config)
	w.corporateUsers(t, "loader", "loader-password")
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, w.testcluster, "exec", "--name", w.name, "n1", "--",
		program, "serve", "--config="+config, "--listen=", "--health-listen=", "--metrics-listen=",
		"--plain-listen="+corporateEndpoint, "--htpasswd="+users)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		cancel()
		cmd.Wait()
	})
	eventually(t, "the other registry", func() error { return w.dial(t, "n1", corporateEndpoint) })
	archive := w.makeArchive(t, corpHost+"/team/app:1", 8)
	inside := w.corporateFile("app.tar")
	data := require.Value(os.ReadFile(archive))(t)
	w.writeOnNode(t, "n1", inside, data)
	if out, err := w.onNode(t, "n1", "skopeo", "--insecure-policy", "copy", "--dest-tls-verify=false",
		"--dest-creds=loader:loader-password",
		"oci-archive:"+inside, "docker://"+corporateEndpoint+"/team/app:1"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// corporateFile is a file of that registry on n1.
func (w *world) corporateFile(name string) string { return "/etc/corporate/" + name }

// corporateUsers sets the only user of that registry.
func (w *world) corporateUsers(t *testing.T, user, password string) {
	t.Helper()
	hash := require.Value(bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost))(t)
	w.writeOnNode(t, "n1", w.corporateFile("users"), fmt.Appendf(nil, "%s:%s\n", user, hash))
}

// writeOnNode replaces a file on a node.
func (w *world) writeOnNode(t *testing.T, node, path string, data []byte) {
	t.Helper()
	cmd := w.command(t, w.testcluster, "exec", "--name", w.name, node, "--", "sh", "-ec",
		`cat >"$1.new" && mv "$1.new" "$1"`, "sh", path)
	cmd.Stdin = strings.NewReader(string(data))
	output(t, cmd)
}

// shell runs a script on a node, which must succeed.
func (w *world) shell(t *testing.T, node, script string, args ...string) string {
	t.Helper()
	return output(t, w.command(t, w.testcluster, append([]string{"exec", "--name", w.name, node, "--", "sh", "-ec", script,
		"sh"}, args...)...))
}

// runsEverywhere runs a pod on every node and checks that its image was pulled.
func (w *world) runsEverywhere(t *testing.T, name, image string) {
	t.Helper()
	for _, node := range w.nodes {
		took, event := w.runPod(t, pod(name+"-"+node, node, image))
		t.Logf("on %s after %.1f s: %s", node, took.Seconds(), event)
		if !strings.Contains(event, image) {
			t.Errorf("the event is not about a pull of %s: %s", image, event)
		}
	}
}

// pull makes the container runtime of a node pull, and returns the output.
func (w *world) pull(t *testing.T, node, image string) (string, error) {
	t.Helper()
	return w.crictlPull(t, node, containerdSocket, image)
}

// nodeFiles lists the files of all folders that are written to: name, mode, owner, inode,
// modification time, and a checksum.
func (w *world) nodeFiles(t *testing.T, node string) string {
	t.Helper()
	return w.shell(t, node, `for directory in /etc/containerd /etc/containers /etc/rancher; do
  [ ! -d "$directory" ] || find "$directory" -type f -printf '%p %m %U:%G %i %T@ ' -exec sha256sum {} \;
done | sed 's/ [^ ]*$//' | sort`)
}

// runtimes returns the processes of the nodes' container runtimes.
func (w *world) runtimes(t *testing.T) string {
	t.Helper()
	// The exit code also covers other problems, such as a node that is not ready for a moment.
	out, errOut, _ := try(w.command(t, w.testcluster, "status", "--name", w.name))
	found := regexp.MustCompile(`(?m)^containerd\.n\d+ +running +\d+$`).FindAllString(out, -1)
	if len(found) != len(w.nodes) {
		t.Fatalf("not every node has a running container runtime: %s%s", out, errOut)
	}
	return strings.Join(found, "\n")
}

// podLogs are the log files of all pods of the nodes, which it keeps open: the kubelet deletes them together with
// their pods, such as those of hook Jobs that succeed.
type podLogs struct {
	pattern string
	mu      sync.Mutex
	files   map[string]*os.File // by NAMESPACE_POD_UID/CONTAINER/NUMBER.log
}

// keepLogs opens the log files of all containers until the test ends.
func (w *world) keepLogs(t *testing.T) *podLogs {
	t.Helper()
	l := &podLogs{pattern: w.stateOf("nodes/*/log/pods/*/*/*.log"), files: map[string]*os.File{}}
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		for ctx.Err() == nil {
			l.open()
			time.Sleep(100 * time.Millisecond)
		}
	})
	t.Cleanup(func() {
		cancel()
		done.Wait()
		for _, file := range l.files {
			file.Close()
		}
	})
	return l
}

func (l *podLogs) open() {
	l.mu.Lock()
	defer l.mu.Unlock()
	paths, _ := filepath.Glob(l.pattern) // its pattern is valid
	for _, path := range paths {
		_, name, _ := strings.Cut(path, "/log/pods/")
		if l.files[name] != nil {
			continue
		}
		if file, err := os.Open(path); err == nil { // it may be gone already
			l.files[name] = file
		}
	}
}

// read returns what containers have written, by the names of their files.
func (l *podLogs) read(t *testing.T) map[string]string {
	t.Helper()
	l.open()
	l.mu.Lock()
	defer l.mu.Unlock()
	texts := map[string]string{}
	for name, file := range l.files {
		info := require.Value(file.Stat())(t)
		data := require.Value(io.ReadAll(io.NewSectionReader(file, 0, info.Size())))(t)
		var text strings.Builder
		for line := range strings.Lines(string(data)) {
			fields := strings.SplitN(line, " ", 4) // time, stream, tag, text
			if len(fields) < 4 {
				t.Fatalf("%s has the line %q", name, line)
			}
			if fields[2] == "P" { // the next line continues it
				fields[3] = strings.TrimSuffix(fields[3], "\n")
			}
			text.WriteString(fields[3])
		}
		texts[name] = text.String()
	}
	return texts
}

// findNone fails if a secret, as it is or in base64, appears in the output of commands, in a log of a container
// or of the cluster's components, in events, or in any object except Secrets. logged maps parts of names of
// log files to what one of these files contains, which shows that they have been searched.
func (w *world) findNone(t *testing.T, secrets []string, said string, logs *podLogs, logged map[string]string) {
	t.Helper()
	places := logs.read(t)
	for part, want := range logged {
		found := false
		for name, text := range places {
			found = found || strings.Contains(name, part) && strings.Contains(text, want)
		}
		if !found {
			t.Errorf("no log of %s has %q", part, want)
		}
	}
	places["the output of commands"] = said
	for what, args := range map[string][]string{
		"events": {"get", "events", "-A", "-o", "json"},
		"objects": {"get", "pods,daemonsets,deployments,configmaps,jobs,cronjobs,controllerrevisions,nodes", "-A", "-o",
			"json"},
	} {
		places[what] = output(t, w.command(t, w.kubectl, args...))
	}
	err := filepath.WalkDir(w.stateOf("log"),
		func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() {
				return err
			}
			data, err := os.ReadFile(path)
			places[path] = string(data)
			return err
		})
	require.NoError(t, err)
	size := 0
	for place, text := range places {
		size += len(text)
		for i, secret := range secrets {
			if contains(text, secret) {
				t.Errorf("secret %d appears in %s", i, place)
			}
		}
	}
	t.Logf("searched %d bytes in %d places for %d secrets", size, len(places), len(secrets))
}

// contains reports whether a text contains a secret, or base64 of a text that contains it.
func contains(text, secret string) bool {
	if strings.Contains(text, secret) {
		return true
	}
	for before := range 3 { // how many bytes of a group of three precede the secret
		encoded := base64.RawStdEncoding.EncodeToString([]byte("ab"[:before] + secret))
		encoded = encoded[(before*8+5)/6 : (before+len(secret))*8/6]
		if strings.Contains(text, encoded) {
			return true
		}
	}
	return false
}
