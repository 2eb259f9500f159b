package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/e2e/scenarios"
)

// The versions of the cluster that kubeadm makes and upgrades.
const kubeadmFrom, kubeadmTo = "1.36", "1.37"

// TestKubeadm installs from this machine on a cluster that kubeadm makes, with the defaults of kubeadm and containerd:
// test/cluster/README.md lists what differs. n1 is the control plane, with kubeadm's taint.
func TestKubeadm(t *testing.T) {
	onlyInLongRuns(t)
	w := ownCluster(t, "e2e-kubeadm", layout{bare: true, open: true,
		args: []string{"--nodes", "3", "--kubeadm", "--kubernetes", kubeadmFrom}})
	w.logVersions(t)
	const mirror = "--set=nodeConfig.mirrors={docker.io}"
	var image string
	must(t, "the nodes hold only images of kubeadm and of the network", func(t *testing.T) {
		for _, node := range w.nodes {
			w.onlyPause(t, node, "registry.k8s.io/", "docker.io/cloudnativelabs/kube-router")
		}
	})
	must(t, "zarf-registry install --registry-proxy", func(t *testing.T) {
		w.mustInstall(t, "--registry-proxy", mirror)
		w.isIn(t, state.ModeProxy, state.SourceValue)
		w.isHealthy(t)
	})
	must(t, "push and pull", func(t *testing.T) {
		image = w.pushHello(t)
		w.pushFresh(t)
		w.pushSmallAndSlow(t)
		w.pullEverywhere(t, image)
		w.loopbackOnly(t)
	})
	must(t, "an image of docker.io comes from the mirror", func(t *testing.T) {
		w.push(t, w.makeArchive(t, "docker.io/library/mirrored:1", 8))
		w.runsEverywhere(t, "mirrored", "docker.io/library/mirrored:1")
	})
	if slices.Contains(scenarios.NodePorts, w.network) {
		must(t, "to node ports", func(t *testing.T) {
			w.helmChart(t, "upgrade", nodePortMode) // where mirrors need anonymous pulls
			w.isIn(t, state.ModeNodePort, state.SourceValue)
			w.pullEverywhere(t, image)
		})
		w.underLoop(t, "to proxies", func(t *testing.T) { w.helmChart(t, "upgrade", proxyMode, mirror) })
		w.isIn(t, state.ModeProxy, state.SourceValue)
	}
	w.underLoad(t, "kubeadm renews the certificates", nothingFails, w.renewsCertificates)
	must(t, "a node is reset and joins again", func(t *testing.T) {
		w.resets(t, "n3")
		w.pullEverywhere(t, image)
		w.isHealthy(t)
	})
	must(t, "the nodes get programs and images of the next version", func(t *testing.T) {
		for _, node := range w.nodes { // kubeadm upgrades kube-proxy on all nodes with the first
			run(t, w.testcluster, "install-kubernetes", "--name", w.name, node, "--kubernetes", kubeadmTo)
		}
	})
	for _, node := range w.nodes {
		accept := nothingFails
		if w.pods(t, "registry")[0].Spec.NodeName == node {
			accept = refusals // the drain moves the only registry, which may take longer than proxies wait for it
		}
		w.underLoad(t, "kubeadm upgrades "+node, accept, func(t *testing.T) { w.upgradesNode(t, node) })
	}
	must(t, "all nodes pull after the upgrade", func(t *testing.T) {
		w.logVersions(t)
		w.isHealthy(t)
		w.pullEverywhere(t, image)
		w.runsEverywhere(t, "mirrored-again", "docker.io/library/mirrored:1")
	})
	must(t, "uninstall", w.uninstall)
}

// renewsCertificates renews the certificates of the control plane and restarts it, as kubeadm's documentation says.
func (w *world) renewsCertificates(t *testing.T) {
	const fingerprint = `openssl x509 -noout -fingerprint -in /etc/kubernetes/pki/apiserver.crt`
	before := w.shell(t, "n1", fingerprint)
	w.shell(t, "n1", "kubeadm certs renew all")
	if after := w.shell(t, "n1", fingerprint); after == before {
		t.Errorf("the API server's certificate is the same: %s", after)
	}
	w.shell(t, "n1", "mkdir /etc/kubernetes/away && mv /etc/kubernetes/manifests/*.yaml /etc/kubernetes/away")
	eventually(t, "the control plane to stop", func() error {
		running := w.shell(t, "n1", "crictl ps")
		if strings.Contains(running, " etcd-n1 ") || strings.Contains(running, " kube-apiserver-n1 ") {
			return errors.New(running)
		}
		return nil
	})
	w.shell(t, "n1", "mv /etc/kubernetes/away/*.yaml /etc/kubernetes/manifests && rmdir /etc/kubernetes/away")
	w.controlPlaneWorks(t)
}

// controlPlaneWorks waits until the API server answers, and the controllers and kubelets report.
func (w *world) controlPlaneWorks(t *testing.T) {
	t.Helper()
	for _, pod := range []string{"kube-apiserver-n1", "kube-controller-manager-n1", "kube-scheduler-n1", "etcd-n1"} {
		eventually(t, pod+" to be ready", func() error {
			p, err := w.client.CoreV1().Pods(metav1.NamespaceSystem).Get(t.Context(), pod, metav1.GetOptions{})
			if err == nil && !ready(*p) {
				err = errors.New("not ready")
			}
			return err
		})
	}
}

// controlPlaneStays waits until the API server has answered for a while: the kubelet of another version restarts the
// control plane, seconds after its node is ready, and an API server that starts forbids requests at first.
func (w *world) controlPlaneStays(t *testing.T) {
	t.Helper()
	begin := time.Now()
	eventually(t, "the API server to answer for 30 s", func() error {
		_, err := w.client.CoreV1().Pods(w.namespace).List(t.Context(), metav1.ListOptions{ResourceVersion: "0"})
		switch {
		case err != nil:
			begin = time.Now()
		case time.Since(begin) < 30*time.Second:
			err = fmt.Errorf("since %s", time.Since(begin))
		}
		return err
	})
	w.controlPlaneWorks(t)
}

// resets removes a node from the cluster and joins it again, as kubeadm's documentation says.
func (w *world) resets(t *testing.T, node string) {
	w.kubectlRun(t, "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=3m")
	w.shell(t, node, "kubeadm reset --force && rm /etc/cni/net.d/* && ip link delete kube-bridge")
	w.kubectlRun(t, "delete", "node", node)
	begin := time.Now().Truncate(time.Second)
	w.shell(t, node, "kubeadm join --config=/etc/kubeadm.yaml")
	w.nodeIs(t, node, kubeadmFrom)
	eventually(t, "kube-proxy and kube-router of "+node+" to start again", func() error { return w.startedSince(t, node, begin) })
	eventually(t, node+" to pull", func() error {
		out, err := w.onNode(t, node, "crictl", "pull", w.address+"/e2e/hello:1")
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	})
}

// startedSince returns an error unless all pods of the cluster on a node are ready and have started since then: pods may
// outlive their node's object. Until kube-proxy runs, connections to Services go where the rules of the previous one
// lead, or are refused.
func (w *world) startedSince(t *testing.T, node string, begin time.Time) error {
	pods, err := w.client.CoreV1().Pods(metav1.NamespaceSystem).List(t.Context(),
		metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return err
	}
	if len(pods.Items) < 2 {
		return fmt.Errorf("%d pods", len(pods.Items))
	}
	for _, p := range pods.Items {
		for _, c := range p.Status.ContainerStatuses {
			if !ready(p) || c.State.Running == nil || c.State.Running.StartedAt.Time.Before(begin) {
				return fmt.Errorf("pod %s: %s", p.Name, mustJSON(c))
			}
		}
	}
	return nil
}

// upgradesNode upgrades a node, as kubeadm's documentation says.
func (w *world) upgradesNode(t *testing.T, node string) {
	const ignored = "--ignore-preflight-errors=SystemVerification" // of cgroup version 1
	if node == "n1" {
		w.shell(t, node, `kubeadm upgrade apply --yes "$(kubeadm version --output=short)" "$1"`, ignored)
		w.controlPlaneWorks(t)
	} else {
		w.shell(t, node, `kubeadm upgrade node "$1"`, ignored)
	}
	w.kubectlRun(t, "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=3m")
	w.shell(t, node, "systemctl daemon-reload && systemctl restart kubelet")
	w.nodeIs(t, node, kubeadmTo)
	w.controlPlaneStays(t)
	w.kubectlRun(t, "uncordon", node)
	w.waitForRegistry(t, "")
}

// nodeIs waits until a node is ready, with a kubelet of a version.
func (w *world) nodeIs(t *testing.T, node, version string) {
	t.Helper()
	eventually(t, "node "+node+" to be ready", func() error {
		n, err := w.client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if got := n.Status.NodeInfo.KubeletVersion; !strings.HasPrefix(got, "v"+version+".") {
			return fmt.Errorf("its kubelet is %s", got)
		}
		return w.readiness(t, node, true)
	})
}
