package e2e

import (
	"strings"
	"testing"
)

// TestNoExec installs where the kubelet's directory is mounted noexec, as hardening guides ask for /var. Up to 1.1, runc
// mounts the volumes on disk noexec, too.
func TestNoExec(t *testing.T) {
	onlyInLongRuns(t)
	older := strings.TrimSpace(run(t, built(t, "E2E_TESTCLUSTER"), "tool", "runc-1.1"))
	w := ownCluster(t, "e2e-noexec", layout{})
	for _, node := range w.nodes {
		w.shell(t, node, "mount -o remount,bind,noexec /var/lib/kubelet")
	}
	w.shell(t, "n2", `mount --bind "$1" "$(command -v runc)"; runc --version | grep "version 1.1.14"`, older)
	must(t, "every node pulls, with the registry on a node with runc 1.1", func(t *testing.T) {
		w.mustInstall(t, proxyMode, `--set=registry.nodeSelector.kubernetes\.io/hostname=n2`)
		w.runsEverywhere(t, "noexec", w.pushHello(t))
	})
}
