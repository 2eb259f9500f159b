package e2e

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// The sockets of container runtimes on the nodes.
const (
	containerdSocket = "unix:///run/containerd/containerd.sock"
	crioSocket       = "unix:///run/crio/crio.sock"
)

// TestCRIONodes has kubelets on CRI-O: 1.34, and one that refuses plain HTTP on loopback as 1.35 does.
func TestCRIONodes(t *testing.T) {
	onlyInLongRuns(t)
	w := ownCluster(t, "e2e-crio-nodes", layout{open: true,
		args: []string{"--nodes", "3", "--runtime", "n2=crio-1.34", "--runtime", "n3=crio-1.35"}})
	w.logVersions(t)
	var image string
	runs := func(t *testing.T, node string) {
		t.Helper()
		eventually(t, "the proxy of "+node, func() error { return w.dial(t, node, w.address) })
		w.runPod(t, pod("on-"+node, node, image))
	}
	must(t, "install with the chart's defaults", func(t *testing.T) {
		w.helmChart(t, "install", proxyMode)
		w.isIn(t, state.ModeProxy, state.SourceValue)
		w.isHealthy(t)
	})
	must(t, "pods run a pushed image", func(t *testing.T) {
		image = w.pushHello(t)
		w.pushFresh(t)
		w.pullEverywhere(t, image)
		w.loopbackOnly(t)
	})
	w.underLoop(t, "certs rotate --ca", func(t *testing.T) {
		before := w.certificates(t)
		w.certs(t, "rotate", "--ca")
		w.changed(t, before, "ca", "server", "node", "push")
	})
	must(t, "a late node", func(t *testing.T) {
		w.addNode(t, "late", "--runtime", "crio-1.35")
		runs(t, "late")
		w.onlyPause(t, "late", "e2e/hello")
	})
	must(t, "a node reboots", func(t *testing.T) {
		run(t, w.testcluster, "reboot", "--name", w.name, "n3")
		runs(t, "n3")
	})
	must(t, "upgrade with a mirror", func(t *testing.T) {
		w.helmChart(t, "upgrade", "--set=nodeConfig.mirrors={example.com}")
		for _, node := range []string{"n2", "n3"} {
			run(t, w.testcluster, "restart", "--name", w.name, "crio."+node) // it reads registries.conf.d when it starts
			w.runPod(t, pod("mirrored-"+node, node, "example.com/e2e/hello:1"))
		}
	})
}

// crictlPull makes a container runtime of a node pull, and returns the output. Flags are those of crictl pull.
func (w *world) crictlPull(t *testing.T, node, socket, image string, flags ...string) (string, error) {
	t.Helper()
	args := append([]string{"crictl", "--runtime-endpoint", socket, "pull"}, flags...)
	return w.onNode(t, node, append(args, image)...)
}

// startCRIO runs a CRI-O with the socket crioSocket on a node until the test ends. It runs no pods.
// Images remain on the node.
func (w *world) startCRIO(t *testing.T, node string) {
	t.Helper()
	program := strings.TrimSpace(run(t, w.testcluster, "tool", "crio"))
	shim := strings.TrimSpace(run(t, w.testcluster, "tool", "containerd-shim-runc-v2"))
	w.shell(t, node, "mkdir -p /etc/crio")
	// It requires a runtime, and for all types but vm also conmon.
	w.writeOnNode(t, node, "/etc/crio/crio.conf", fmt.Appendf(nil, `
[crio]
storage_driver = "overlay"
[crio.api]
listen = %q
[crio.runtime]
default_runtime = "none"
cgroup_manager = "cgroupfs"
log_level = "warn"
pinns_path = "/bin/true"
irqbalance_config_restore_file = "disable"
[crio.runtime.runtimes.none]
runtime_path = %q
runtime_type = "vm"
[crio.nri]
enable_nri = false
`, strings.TrimPrefix(crioSocket, "unix://"), shim))
	w.daemon(t, node, program)
	w.succeedsOn(t, "CRI-O of "+node, node, "crictl", "--runtime-endpoint", crioSocket, "version")
}

// daemon runs a program on a node until the test ends. The log shows its output if the test fails.
func (w *world) daemon(t *testing.T, node string, command ...string) {
	t.Helper()
	cmd := exec.Command(w.testcluster, append([]string{"exec", "--name", w.name, node, "--"}, command...)...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
		if t.Failed() {
			t.Logf("log of %s on %s:\n%s", filepath.Base(command[0]), node, log.String())
		}
	})
}
