package e2e

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestProxyModeOnOtherClusters is the main job in short on clusters whose node
// ports do not answer on loopback, which is why there is a proxy mode: kube-proxy
// with nftables, and IPv6 alone, where the proxy needs its node's network.
func TestProxyModeOnOtherClusters(t *testing.T) {
	for name, c := range map[string]struct {
		args    []string
		address string
	}{
		"ipv6": {[]string{"--ip-family", "IPv6", "--kube-proxy", "nftables"}, "[::1]:31999"},
		// Without network policies: kube-router 2.1.0 stops enforcing new ones on a
		// dual-stack cluster, its ip6tables rules name sets without their prefix
		// ("Set KUBE-SRC-… doesn't exist", there is only inet6:KUBE-SRC-…).
		"dual": {[]string{"--ip-family", "DualStack", "--kube-proxy", "nftables", "--network-policy=false"}, "127.0.0.1:31999"},
	} {
		t.Run(name, func(t *testing.T) {
			images := built(t, "E2E_IMAGES")
			w := newWorld(t, "e2e-"+name, append(c.args, "--load", "n1="+filepath.Join(images, "init-hook.tar"))...)
			w.testClusterOnly(t)
			w.waitForImage(t, w.nodes[0], "init-hook")
			begin := time.Now()
			output(t, w.command(t, w.helm, installArgs(t, "install")...))
			t.Logf("figure: helm install on %s returned after %.1f s, proof on every node included", name, time.Since(begin).Seconds())
			image := c.address + "/e2e/hello:1"
			if got := w.push(t, w.makeArchive(t, "example.com/e2e/hello:1", 8)); got != image {
				t.Errorf("push says %q, want %q", got, image)
			}
			for _, node := range w.nodes {
				took, event := w.runPod(t, pod("hello-"+node, "default", node, image))
				t.Logf("on %s after %.1f s: %s", node, took.Seconds(), event)
			}
			// Nothing but loopback answers, in whichever way the proxy got there.
			out, err := exec.Command(built(t, "E2E_TESTCLUSTER"), "exec", "--name", w.name, w.nodes[1], "--", "ss", "-Hltn", "sport = :31999").CombinedOutput()
			if err != nil {
				t.Fatalf("ss: %v: %s", err, out)
			}
			for line := range strings.Lines(string(out)) {
				if local := strings.Fields(line)[3]; local != "[::1]:31999" && local != "127.0.0.1:31999" {
					t.Errorf("node %s listens on %s", w.nodes[1], local)
				}
			}
			output(t, w.command(t, w.helm, "uninstall", release, "-n", namespace, "--timeout", "3m", "--wait"))
		})
	}
}
