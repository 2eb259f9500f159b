package e2e

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/images"
	"github.com/zarf-dev/zarf-registry/internal/kube"
	"github.com/zarf-dev/zarf-registry/internal/pki"
)

// TestMainJob is the life of an installation in proxy mode on an IPv4 cluster
// whose nodes hold nothing but the pause image, and one node init-hook's. The
// subtests build on each other, in this order.
func TestMainJob(t *testing.T) {
	w := newWorld(t, "e2e")
	if len(w.nodes) < 2 {
		t.Fatalf("the cluster has the nodes %v; two are needed", w.nodes)
	}
	hookNode, otherNode := w.nodes[0], w.nodes[1]
	if w.name != "" {
		run(t, built(t, "E2E_TESTCLUSTER"), "load", "--name", w.name, "--nodes", hookNode, filepath.Join(built(t, "E2E_IMAGES"), "init-hook.tar"))
		w.waitForImage(t, hookNode, "init-hook")
	}

	must := func(name string, f func(t *testing.T)) {
		if !t.Run(name, f) {
			t.Fatalf("%q failed: what follows builds on it", name)
		}
	}
	must("nodes hold only pause, and one of them init-hook", func(t *testing.T) {
		w.testClusterOnly(t)
		for _, node := range w.nodes {
			got := w.nodeImages(t, node)
			t.Logf("before, %s holds %v", node, got)
			for _, image := range got {
				if !strings.Contains(image, "/pause") && (node != hookNode || !strings.Contains(image, "/init-hook")) {
					t.Errorf("%s holds %s", node, image)
				}
			}
		}
	})
	must("helm install comes up the first time", func(t *testing.T) {
		begin := time.Now()
		output(t, w.command(t, w.helm, installArgs(t, "install")...))
		t.Logf("figure: helm install returned after %.1f s, proof on every node included", time.Since(begin).Seconds())
		w.reportInstall(t)
	})
	archive := w.makeArchive(t, "example.com/e2e/hello:1", 3<<20)
	must("images push fills the registry", func(t *testing.T) {
		if got, want := w.push(t, archive), address+"/e2e/hello:1"; got != want {
			t.Errorf("push says %q, want %q", got, want)
		}
	})
	must("every node pulls through its loopback address", func(t *testing.T) {
		for _, node := range w.nodes {
			took, event := w.runPod(t, pod("hello-"+node, "default", node, address+"/e2e/hello:1"))
			t.Logf("on %s after %.1f s: %s", node, took.Seconds(), event)
			if !strings.Contains(event, address+"/e2e/hello:1") {
				t.Errorf("the event names no pull from %s: %s", address, event)
			}
		}
	})
	t.Run("the proxies are small", func(t *testing.T) {
		w.testClusterOnly(t)
		for _, p := range w.pods(t, "proxy") {
			metrics, err := w.onNode(t, p.Spec.NodeName, w.tool, "get", "http://"+p.Status.PodIP+":9102/metrics")
			if err != nil {
				t.Fatalf("metrics of %s: %s", p.Name, metrics)
			}
			_, after, found := strings.Cut(metrics, "\nprocess_resident_memory_bytes ")
			resident, _, _ := strings.Cut(after, "\n")
			if !found {
				t.Fatalf("metrics of %s do not tell its memory", p.Name)
			}
			t.Logf("figure: proxy on %s, after its first pulls: %s bytes resident", p.Spec.NodeName, resident)
		}
	})
	t.Run("an interrupted push goes on where it was", func(t *testing.T) { testInterruptedPush(t, w) })
	t.Run("an archive that is none is refused before anything is sent", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "rubbish.tar")
		if err := os.WriteFile(file, []byte("rubbish"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, errOut, err := try(w.command(t, built(t, "E2E_INIT_HOOK"), "images", "push", file))
		if err == nil || !strings.Contains(errOut, file) {
			t.Errorf("error is %v: %s", err, errOut)
		}
	})
	t.Run("the proxy is reachable on its node's loopback address only", func(t *testing.T) { testReach(t, w) })
	t.Run("the registry lets in who it must and nobody else", func(t *testing.T) { testDoor(t, w) })
	t.Run("a registry pod deleted under a pull loop costs no pull", func(t *testing.T) { testRegistryRestart(t, w) })
	t.Run("the registry moves to a node that never ran it", func(t *testing.T) { testRegistryMoves(t, w) })
	t.Run("a node added later pulls with nothing run again", func(t *testing.T) { testNodeAdded(t, w) })
	t.Run("helm upgrade without changes restarts nothing", func(t *testing.T) {
		before := w.restarts(t)
		output(t, w.command(t, w.helm, installArgs(t, "upgrade")...))
		time.Sleep(3 * time.Second) // a rollout would have begun by now
		if after := w.restarts(t); before != after {
			t.Errorf("pods before:\n%s\nafter:\n%s", before, after)
		}
	})
	t.Run("a second install is refused and changes nothing", func(t *testing.T) {
		before := w.restarts(t)
		_, errOut, err := try(w.command(t, w.helm, installArgs(t, "install")...))
		if err == nil || !strings.Contains(errOut, "cannot reuse a name that is still in use") && !strings.Contains(errOut, "cannot re-use a name that is still in use") {
			t.Errorf("error is %v: %s", err, errOut)
		}
		if after := w.restarts(t); before != after {
			t.Errorf("pods before:\n%s\nafter:\n%s", before, after)
		}
	})
	t.Run("a broken payload says what is wrong and recovers", func(t *testing.T) { testBrokenPayload(t, w) })
	t.Run("who may not is told which permission is missing", func(t *testing.T) { testPermissions(t, w) })
	must("helm uninstall leaves nothing but the volume", func(t *testing.T) { testUninstall(t, w, otherNode) })
}

// nodeImages are the names of the images that a node's container runtime holds.
func (w *world) nodeImages(t *testing.T, node string) []string {
	t.Helper()
	out, err := w.onNode(t, node, "ctr", "images", "list", "-q")
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	names := slices.DeleteFunc(strings.Fields(out), func(name string) bool { return strings.HasPrefix(name, "sha256:") })
	if len(names) == 0 {
		t.Fatalf("node %s lists no images: %s", node, out)
	}
	return names
}

// waitForImage waits until the kubelet reports an image: Helm sends the Jobs to
// the node that does.
func (w *world) waitForImage(t *testing.T, node, image string) {
	t.Helper()
	eventually(t, time.Minute, "node "+node+" to report "+image, func() error {
		n, err := w.client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, i := range n.Status.Images {
			if strings.Contains(strings.Join(i.Names, " "), image) {
				return nil
			}
		}
		return errors.New("not reported yet")
	})
}

// makeArchive makes an OCI archive of an image with the test program and, to be
// unlike any other, some bytes of noise.
func (w *world) makeArchive(t *testing.T, reference string, noise int) string {
	t.Helper()
	program, err := os.ReadFile(w.tool)
	if err != nil {
		t.Fatal(err)
	}
	x := uint64(time.Now().UnixNano())
	for range noise / 8 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		program = append(program, byte(x), byte(x>>8), byte(x>>16), byte(x>>24), byte(x>>32), byte(x>>40), byte(x>>48), byte(x>>56))
	}
	file := filepath.Join(t.TempDir(), "tool")
	if err := os.WriteFile(file, program, 0o755); err != nil {
		t.Fatal(err)
	}
	layer, err := images.FileLayer("tool", file)
	if err != nil {
		t.Fatal(err)
	}
	store := &images.Store{}
	image, err := store.Build(images.Spec{Reference: reference, Entrypoint: []string{"/tool"}}, images.Variant{Architecture: "amd64", Layer: layer})
	if err != nil {
		t.Fatal(err)
	}
	archive, err := os.Create(filepath.Join(t.TempDir(), "image.tar"))
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	if err := images.WriteArchive(t.Context(), archive, store, image); err != nil {
		t.Fatal(err)
	}
	return archive.Name()
}

// reportInstall prints the figures of the installation.
func (w *world) reportInstall(t *testing.T) {
	t.Helper()
	cms, err := w.client.CoreV1().ConfigMaps(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=payload"})
	if err != nil {
		t.Fatal(err)
	}
	total, node := 0, 0
	for _, cm := range cms.Items {
		for key, data := range cm.BinaryData {
			total += len(data)
			if strings.Contains(cm.Name, "-registry-node-") {
				node += len(data)
			}
			if key == "loader" {
				t.Logf("figure: loader %d bytes in %s", len(data), cm.Name)
			}
		}
	}
	t.Logf("figure: payload %d bytes in etcd in %d ConfigMaps, of which a node fetches %d (the registry's node %d)", total, len(cms.Items), node, total)
	jobs, err := w.client.CoreV1().Events(namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=Pod,reason=Started"})
	if err != nil {
		t.Fatal(err)
	}
	var prepared time.Time
	for _, e := range jobs.Items {
		if strings.Contains(e.InvolvedObject.Name, "-prepare-") {
			prepared = e.FirstTimestamp.Time
		}
	}
	for _, p := range w.pods(t, "registry") {
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodReady && !prepared.IsZero() {
				t.Logf("figure: registry ready %.0f s after the prepare Job's pod started (events have whole seconds)", c.LastTransitionTime.Sub(prepared).Seconds())
			}
		}
	}
}

func testInterruptedPush(t *testing.T, w *world) {
	archive := w.makeArchive(t, "example.com/e2e/big:1", 150<<20)
	push := w.command(t, built(t, "E2E_INIT_HOOK"), "images", "push", archive)
	if err := push.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(700 * time.Millisecond)
	if err := push.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := push.Wait(); err == nil {
		t.Skip("SKIPPED, NOTHING CHECKED: the push was done before it could be interrupted")
	}
	if got, want := w.push(t, archive), address+"/e2e/big:1"; got != want {
		t.Errorf("push says %q, want %q", got, want)
	}
	var again []struct {
		BytesSent, BytesSkipped int64
	}
	if err := json.Unmarshal([]byte(output(t, w.command(t, built(t, "E2E_INIT_HOOK"), "images", "push", "-o", "json", archive))), &again); err != nil {
		t.Fatal(err)
	}
	if len(again) != 1 || again[0].BytesSent != 0 || again[0].BytesSkipped < 150<<20 {
		t.Errorf("pushing what is there sent %+v", again)
	}
}

func testReach(t *testing.T, w *world) {
	node := w.nodes[1]
	n, err := w.client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := strings.Cut(address, ":")
	if w.name != "" {
		if out, err := w.onNode(t, node, w.tool, "dial", address); err != nil {
			t.Errorf("%s on its own node: %s", address, out)
		}
		for _, a := range n.Status.Addresses {
			if a.Type != corev1.NodeInternalIP {
				continue
			}
			for _, from := range w.nodes {
				if out, err := w.onNode(t, from, w.tool, "dial", a.Address+":"+port); err == nil {
					t.Errorf("the proxy's port is open on %s from node %s: %s", a.Address, from, out)
				}
			}
		}
	}
	// A pod of another namespace, on the same node and on another, may reach
	// neither the proxies nor the registry by their pod addresses.
	targets := map[string]string{}
	for _, component := range []string{"proxy", "registry"} {
		for _, p := range w.pods(t, component) {
			if p.Spec.HostNetwork || p.Status.PodIP == "" {
				t.Errorf("pod %s has no address of its own", p.Name)
			}
			targets[component+" on "+p.Spec.NodeName] = p.Status.PodIP + ":5000"
		}
	}
	if len(targets) < 3 {
		t.Fatalf("targets are only %v", targets)
	}
	for what, target := range targets {
		name := "reach-" + strings.ReplaceAll(what, " ", "-")
		w.runPod(t, pod(name, "default", node, address+"/e2e/hello:1", "dial", target))
		eventually(t, 30*time.Second, name+" to end", func() error {
			p, err := w.client.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			switch p.Status.Phase {
			case corev1.PodSucceeded:
				t.Errorf("a pod of another namespace reached the %s at %s", what, target)
				return nil
			case corev1.PodFailed:
				return nil
			}
			return errors.New("still running")
		})
	}
	// And the check can fail: what is allowed to everybody is reached.
	out, err := w.client.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.runPod(t, pod("reach-allowed", "default", node, address+"/e2e/hello:1", "dial", out.Spec.ClusterIP+":443"))
	eventually(t, 30*time.Second, "reach-allowed to succeed", func() error {
		p, err := w.client.CoreV1().Pods("default").Get(t.Context(), "reach-allowed", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if p.Status.Phase != corev1.PodSucceeded {
			return fmt.Errorf("phase %s", p.Status.Phase)
		}
		return nil
	})
}

// testDoor talks to the registry itself, through a tunnel to its pod.
func testDoor(t *testing.T, w *world) {
	registry := w.pods(t, "registry")
	if len(registry) != 1 {
		t.Fatalf("there are %d registry pods", len(registry))
	}
	tunnel, err := kube.NewTunnel(w.config, w.client, &registry[0], 5000)
	if err != nil {
		t.Fatal(err)
	}
	secret := func(name string) map[string][]byte {
		s, err := w.client.CoreV1().Secrets(namespace).Get(t.Context(), release+name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return s.Data
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(secret("-node-tls")["ca.crt"])
	certificate := func(data map[string][]byte) []tls.Certificate {
		c, err := tls.X509KeyPair(data["tls.crt"], data["tls.key"])
		if err != nil {
			t.Fatal(err)
		}
		return []tls.Certificate{c}
	}
	foreign, err := pki.NewAuthority("foreign", time.Now(), 0)
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := foreign.Issue(pki.Leaf{CommonName: "stranger", Organization: pki.OrganizationPush, Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	node, push := certificate(secret("-node-tls")), certificate(secret("-push-tls"))
	password := string(secret("-credentials")["password"])
	const manifest, upload = "/v2/e2e/hello/manifests/1", "/v2/e2e/hello/blobs/uploads/"
	for name, c := range map[string]struct {
		certificates []tls.Certificate
		method, path string
		password     string
		status       int // 0: the handshake is refused
	}{
		"no certificate":                         {nil, "GET", manifest, "", 0},
		"a foreign authority's certificate":      {certificate(map[string][]byte{"tls.crt": stranger.Certificate, "tls.key": stranger.Key}), "GET", manifest, "", 0},
		"a node reads":                           {node, "GET", manifest, "", 200},
		"a node cannot push":                     {node, "POST", upload, "", 403},
		"a node cannot push with the credential": {node, "POST", upload, password, 403},
		"a push without the credential":          {push, "POST", upload, "", 401},
		"a push with a wrong credential":         {push, "POST", upload, "wrong", 401},
		"a push with the credential":             {push, "POST", upload, password, 202},
		"a deletion without the credential":      {push, "DELETE", manifest, "", 401},
	} {
		t.Run(name, func(t *testing.T) {
			client := &http.Client{Transport: &http.Transport{
				DialContext:     tunnel.DialContext,
				TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: release + "." + namespace + ".svc", Certificates: c.certificates},
			}, Timeout: 20 * time.Second}
			defer client.CloseIdleConnections()
			request, err := http.NewRequest(c.method, "https://registry"+c.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			if c.password != "" {
				request.SetBasicAuth("zarf-push", c.password)
			}
			response, err := client.Do(request)
			if c.status == 0 {
				if err == nil {
					t.Errorf("it was let in: %s", response.Status)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			response.Body.Close()
			if response.StatusCode != c.status {
				t.Errorf("status is %d, want %d", response.StatusCode, c.status)
			}
		})
	}
}

// report is what the test program's pull loop says at its end.
type report struct {
	Pulls, Failures int
	First           string
	Longest, Gap    time.Duration
	Bytes           int64
}

// pullLoop pulls on every node, several times a second, until the returned
// function is called, which fails the test if any pull failed.
func (w *world) pullLoop(t *testing.T, image string) (stop func()) {
	t.Helper()
	w.testClusterOnly(t)
	stopFile := filepath.Join(t.TempDir(), "stop")
	outs := make([]string, len(w.nodes))
	errs := make([]error, len(w.nodes))
	var wait sync.WaitGroup
	for i, node := range w.nodes {
		cmd := exec.Command(built(t, "E2E_TESTCLUSTER"), "exec", "--name", w.name, node, "--", w.tool, "pull", "http://"+address, image, stopFile, "100ms")
		wait.Go(func() { outs[i], _, errs[i] = try(cmd) })
	}
	return func() {
		t.Helper()
		if err := os.WriteFile(stopFile, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		wait.Wait()
		for i, node := range w.nodes {
			var r report
			if err := errors.Join(errs[i], json.Unmarshal([]byte(outs[i]), &r)); err != nil {
				t.Errorf("pull loop on %s: %v: %s", node, err, outs[i])
				continue
			}
			t.Logf("figure: pull loop on %s: %d pulls, %d failed, slowest %.2f s, longest gap %.2f s", node, r.Pulls, r.Failures, r.Longest.Seconds(), r.Gap.Seconds())
			if r.Failures > 0 {
				t.Errorf("pull loop on %s: %d of %d failed, first: %s", node, r.Failures, r.Pulls, r.First)
			}
			if r.Pulls < 5 {
				t.Errorf("pull loop on %s made only %d pulls", node, r.Pulls)
			}
		}
	}
}

func testRegistryRestart(t *testing.T, w *world) {
	stop := w.pullLoop(t, "e2e/hello:1")
	time.Sleep(2 * time.Second)
	for _, grace := range []int64{30, 0} { // politely, and killed
		old := w.pods(t, "registry")[0]
		begin := time.Now()
		if err := w.client.CoreV1().Pods(namespace).Delete(t.Context(), old.Name, metav1.DeleteOptions{GracePeriodSeconds: &grace}); err != nil {
			t.Fatal(err)
		}
		w.waitForRegistry(t, old.Name)
		t.Logf("figure: registry deleted with grace %d s, ready again after %.1f s", grace, time.Since(begin).Seconds())
		time.Sleep(2 * time.Second)
	}
	stop()
}

// waitForRegistry waits for a ready registry pod that is not the former one.
func (w *world) waitForRegistry(t *testing.T, former string) corev1.Pod {
	t.Helper()
	var found corev1.Pod
	eventually(t, 2*time.Minute, "another registry pod to be ready", func() error {
		for _, p := range w.pods(t, "registry") {
			if p.Name != former && p.DeletionTimestamp == nil && ready(p) {
				found = p
				return nil
			}
		}
		return errors.New("none yet")
	})
	return found
}

func testRegistryMoves(t *testing.T, w *world) {
	old := w.pods(t, "registry")[0]
	cordon := func(on bool) {
		patch := fmt.Sprintf(`{"spec":{"unschedulable":%t}}`, on)
		if _, err := w.client.CoreV1().Nodes().Patch(t.Context(), old.Spec.NodeName, "application/merge-patch+json", []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	cordon(true)
	defer cordon(false)
	begin := time.Now()
	if err := w.client.CoreV1().Pods(namespace).Delete(t.Context(), old.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	moved := w.waitForRegistry(t, old.Name)
	if moved.Spec.NodeName == old.Spec.NodeName {
		t.Fatalf("it is on %s again", moved.Spec.NodeName)
	}
	t.Logf("figure: registry moved from %s to %s in %.1f s", old.Spec.NodeName, moved.Spec.NodeName, time.Since(begin).Seconds())
	w.runPod(t, pod("after-move", "default", old.Spec.NodeName, address+"/e2e/hello:1"))
}

func testNodeAdded(t *testing.T, w *world) {
	w.testClusterOnly(t)
	run(t, built(t, "E2E_TESTCLUSTER"), "add-node", "--name", w.name, "late")
	begin := time.Now()
	eventually(t, time.Minute, "node late to be ready", func() error {
		n, err := w.client.CoreV1().Nodes().Get(t.Context(), "late", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				begin = c.LastTransitionTime.Time
				return nil
			}
		}
		return errors.New("not ready yet")
	})
	// Straight through the proxy: a kubelet whose first try came too early waits 10 s for the next.
	eventually(t, time.Minute, "the loopback address of node late to answer", func() error {
		out, err := w.onNode(t, "late", w.tool, "dial", address)
		if err != nil {
			return errors.New(out)
		}
		return nil
	})
	_, event := w.runPod(t, pod("first-on-late", "default", "late", address+"/e2e/hello:1"))
	t.Logf("figure: node added, Ready -> first pod with a pulled image running in %.1f s (Ready has whole seconds): %s", time.Since(begin).Seconds(), event)
	w.nodes = append(w.nodes, "late")
	t.Logf("after, late holds %v", w.nodeImages(t, "late"))
}

// restarts describes the pods of the release so that any restart shows.
func (w *world) restarts(t *testing.T) string {
	t.Helper()
	var lines []string
	for _, component := range []string{"registry", "proxy"} {
		for _, p := range w.pods(t, component) {
			for _, c := range p.Status.ContainerStatuses {
				lines = append(lines, fmt.Sprintf("%s %s %d", p.Name, p.UID, c.RestartCount))
			}
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// testBrokenPayload breaks the payload, starts a proxy anew and puts it right: a
// missing chunk under a new node, an altered one under a node that has run from
// the right one.
func testBrokenPayload(t *testing.T, w *world) {
	w.testClusterOnly(t)
	cms := w.client.CoreV1().ConfigMaps(namespace)
	list, err := cms.List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=payload"})
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(list.Items, func(cm corev1.ConfigMap) bool { return strings.HasSuffix(cm.Name, "-registry-node-amd64-01") })
	if i < 0 {
		t.Fatal("there is no chunk 01 of registry-node")
	}
	good := list.Items[i]
	remove := func(t *testing.T) {
		if err := cms.Delete(t.Context(), good.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	create := func(t *testing.T, change func(chunk []byte)) {
		cm := good.DeepCopy()
		cm.ResourceVersion, cm.UID = "", ""
		change(cm.BinaryData["chunk-01"])
		if _, err := cms.Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	complains := func(t *testing.T, node, former string) {
		t.Helper()
		eventually(t, 2*time.Minute, "the proxy on node "+node+" to say what is wrong", func() error {
			for _, p := range w.pods(t, "proxy") {
				if p.Spec.NodeName != node || p.Name == former {
					continue
				}
				if ready(p) {
					t.Fatal("it started from a broken payload")
				}
				for _, s := range p.Status.ContainerStatuses {
					if end := cmp.Or(s.State.Terminated, s.LastTerminationState.Terminated); end != nil && strings.Contains(end.Message, "chunk 01") {
						t.Logf("it says, with exit code %d: %s", end.ExitCode, strings.TrimSpace(end.Message))
						return nil
					}
				}
			}
			return errors.New("it does not say so yet")
		})
	}
	recovers := func(t *testing.T, node string) {
		t.Helper()
		begin := time.Now()
		eventually(t, 3*time.Minute, "the proxy to be ready", func() error {
			for _, p := range w.pods(t, "proxy") {
				if p.Spec.NodeName == node && p.DeletionTimestamp == nil && ready(p) {
					return nil
				}
			}
			return errors.New("not ready yet")
		})
		t.Logf("figure: proxy ready %.1f s after its payload was put right", time.Since(begin).Seconds())
	}

	t.Run("missing, under a new node, put right by hand", func(t *testing.T) {
		const node = "unlucky"
		remove(t)
		run(t, built(t, "E2E_TESTCLUSTER"), "add-node", "--name", w.name, node)
		defer run(t, built(t, "E2E_TESTCLUSTER"), "remove-node", "--name", w.name, node)
		complains(t, node, "")
		create(t, func([]byte) {})
		recovers(t, node)
	})
	t.Run("altered, under a node that knew it right, put right by helm upgrade", func(t *testing.T) {
		node := w.nodes[1]
		remove(t)
		create(t, func(chunk []byte) { chunk[100] ^= 1 })
		former := ""
		for _, p := range w.pods(t, "proxy") {
			if p.Spec.NodeName == node {
				former = p.Name
			}
		}
		if err := w.client.CoreV1().Pods(namespace).Delete(t.Context(), former, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		complains(t, node, former)
		begin := time.Now()
		output(t, w.command(t, w.helm, installArgs(t, "upgrade")...))
		t.Logf("figure: helm upgrade put it right in %.1f s, proof on every node included", time.Since(begin).Seconds())
		recovers(t, node)
	})
}

func testPermissions(t *testing.T, w *world) {
	hook := built(t, "E2E_INIT_HOOK")
	archive := w.makeArchive(t, "example.com/e2e/none:1", 8)
	without := w.command(t, hook, "images", "push", archive)
	without.Env = append(slices.DeleteFunc(os.Environ(), func(e string) bool {
		return strings.HasPrefix(e, "KUBECONFIG=") || strings.HasPrefix(e, "HOME=") || strings.HasPrefix(e, "KUBERNETES_")
	}), "HOME="+t.TempDir())
	for name, c := range map[string]struct {
		cmd  *exec.Cmd
		want []string
	}{
		"no kubeconfig":   {without, []string{"--kubeconfig"}},
		"no such file":    {w.command(t, hook, "images", "push", "--kubeconfig", "/nonexistent", archive), []string{"/nonexistent", "--kubeconfig"}},
		"wrong namespace": {w.command(t, hook, "images", "push", "-n", "elsewhere", archive), []string{"elsewhere/zarf-registry-state", "--namespace"}},
		"no permission":   {w.command(t, hook, "images", "push", "--kubeconfig", w.kubeconfigOfNobody(t), archive), []string{"cannot get resource", "secrets", "zarf", "ask for that permission"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, errOut, err := try(c.cmd)
			if err == nil {
				t.Fatal("it succeeded")
			}
			t.Log(strings.TrimSpace(errOut))
			for _, want := range c.want {
				if !strings.Contains(errOut, want) {
					t.Errorf("the error does not say %q", want)
				}
			}
		})
	}
}

// kubeconfigOfNobody is the default service account's, which may do nothing.
func (w *world) kubeconfigOfNobody(t *testing.T) string {
	t.Helper()
	token := strings.TrimSpace(output(t, w.command(t, "kubectl", "create", "token", "default", "-n", "default")))
	file := filepath.Join(t.TempDir(), "kubeconfig")
	ca := filepath.Join(t.TempDir(), "ca.crt")
	authority := w.config.CAData
	if len(authority) == 0 {
		var err error
		if authority, err = os.ReadFile(w.config.CAFile); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(ca, authority, 0o600); err != nil {
		t.Fatal(err)
	}
	content := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: %q, certificate-authority: %q}}]\nusers: [{name: u, user: {token: %q}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n", w.config.Host, ca, token)
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func testUninstall(t *testing.T, w *world, node string) {
	output(t, w.command(t, w.helm, "uninstall", release, "-n", namespace, "--timeout", "3m", "--wait"))
	kinds := strings.Fields(output(t, w.command(t, "kubectl", "api-resources", "--verbs=list,delete", "-o", "name")))
	if len(kinds) < 20 {
		t.Fatalf("the cluster lists only %d kinds", len(kinds))
	}
	// What Kubernetes itself puts into every namespace, and the record of what was.
	ignored := func(object string) bool {
		for _, prefix := range []string{"event", "serviceaccount/default", "configmap/kube-root-ca.crt", "lease", "podmetrics"} {
			if strings.HasPrefix(object, prefix) {
				return true
			}
		}
		return false
	}
	var left []string
	eventually(t, time.Minute, "everything to be gone", func() error {
		left = left[:0]
		for line := range strings.SplitSeq(output(t, w.command(t, "kubectl", "get", strings.Join(kinds, ","), "-n", namespace, "-o", "name", "--ignore-not-found")), "\n") {
			line = strings.TrimSpace(line)
			namespaced := line != "" && !ignored(line)
			if namespaced && (strings.Contains(line, release) || !clusterScoped(line)) {
				left = append(left, line)
			}
		}
		if want := []string{"persistentvolumeclaim/" + release}; !slices.Equal(left, want) {
			return fmt.Errorf("left are %v, want %v", left, want)
		}
		return nil
	})
	t.Logf("left: %v", left)
	if w.name != "" {
		if out, err := w.onNode(t, node, w.tool, "dial", address); err == nil {
			t.Errorf("something still answers on %s: %s", address, out)
		}
	}
	if _, err := w.client.CoreV1().Secrets(namespace).Get(t.Context(), release+"-state", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the state is still there: %v", err)
	}
}

// clusterScoped says whether a name that kubectl printed is of an object outside
// namespaces, which belong to the cluster unless they carry the release's name.
func clusterScoped(object string) bool {
	for _, kind := range []string{"namespace/", "node/", "persistentvolume/", "storageclass", "clusterrole", "priorityclass", "flowschema", "prioritylevelconfiguration",
		"apiservice", "csinode", "csidriver", "mutatingwebhook", "validatingwebhook", "validatingadmission", "mutatingadmission", "customresourcedefinition", "certificatesigningrequest",
		"runtimeclass", "ingressclass", "volumeattach", "servicecidr", "ipaddress", "deviceclass", "resourceslice", "volumeattributesclass", "clustertrustbundle", "storageversion", "component"} {
		if strings.HasPrefix(object, kind) {
			return true
		}
	}
	return false
}
