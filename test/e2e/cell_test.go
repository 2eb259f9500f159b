package e2e

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/e2e/scenarios"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// A cell is a configuration of make matrix, which passes it as JSON in E2E_CELL.
type cell struct {
	Cluster string
	Network string   // as in E2E_NETWORK
	Up      []string // arguments of testcluster up
	Helm    string   // the tool of testcluster
	Storage string   // a StorageClass, or s3
}

// TestCell runs the life of an installation on one configuration. Its subtests are the steps that
// docs/dev/compatibility.md lists.
func TestCell(t *testing.T) {
	text := os.Getenv("E2E_CELL")
	if text == "" {
		t.Skip("SKIPPED, NOTHING CHECKED: E2E_CELL is not set; run make matrix")
	}
	var c cell
	require.NoError(t, json.Unmarshal([]byte(text), &c), "E2E_CELL")
	family, kubeProxy, _ := strings.Cut(c.Network, "/")
	w := ownCluster(t, c.Cluster, layout{network: &network{Family: family, KubeProxy: kubeProxy}, args: c.Up})
	w.helm = strings.TrimSpace(run(t, w.testcluster, "tool", c.Helm))
	w.logVersions(t)
	runtimes := strings.Join(c.Up, " ")
	storage := storageOn(c.Storage)
	if c.Storage == "s3" {
		storage = w.installOnS3(t)
	}
	var image string

	must(t, "install", func(t *testing.T) {
		w.helmChart(t, "install", proxyMode, storage)
		w.isIn(t, state.ModeProxy, state.SourceValue)
		w.isHealthy(t)
	})
	must(t, "push", func(t *testing.T) {
		image = w.pushHello(t)
		w.pushFresh(t)
	})
	must(t, "pull", func(t *testing.T) {
		w.pullEverywhere(t, image)
		w.loopbackOnly(t)
	})
	must(t, "late node", func(t *testing.T) {
		w.firstPull(t, "late", image)
		w.runPod(t, pod("first-late", "late", image))
	})
	needsTLS, hasNodePorts := strings.Contains(runtimes, "crio-1.35"), slices.Contains(scenarios.NodePorts, w.network)
	switch {
	case needsTLS:
		must(t, "mode switch", func(t *testing.T) {
			w.helmChartFails(t, []string{"cri-o: ", "pulls with TLS only", "--set registryProxy=true"}, "upgrade",
				nodePortMode, storage)
			w.pullEverywhere(t, image)
		})
	case hasNodePorts:
		must(t, "mode switch", func(t *testing.T) {
			must(t, "to node ports", func(t *testing.T) {
				w.helmChart(t, "upgrade", nodePortMode, storage) // which needs a credential that pulls before did not have
				w.isIn(t, state.ModeNodePort, state.SourceValue)
				w.pullEverywhere(t, image)
			})
			w.underLoop(t, "to proxies", func(t *testing.T) { w.helmChart(t, "upgrade", proxyMode, storage) })
			w.isIn(t, state.ModeProxy, state.SourceValue)
			w.pullEverywhere(t, image)
		})
	}
	must(t, "upgrade", func(t *testing.T) {
		w.pushSmallAndSlow(t)
		tag := chartVersion(t, built(t, "E2E_CHART"))
		w.underLoad(t, "under load", nothingFails, func(t *testing.T) {
			w.restartsNothing(t, func() {
				output(t, w.command(t, w.helm, append([]string{"upgrade", release, otherVersion(t, built(t, "E2E_CHART")), "-n",
					namespace, "--timeout", "5m", proxyMode, storage, "--set=initHook.image.tag=" + tag}, w.sets...)...))
			})
		})
		w.isHealthy(t)
		w.pullEverywhere(t, image)
	})
	must(t, "uninstall", w.uninstall)
	if !needsTLS && !hasNodePorts {
		must(t, "mode switch", w.nodePortNeedsProxy)
	}
}

// logVersions logs what the nodes run, for make matrix.
func (w *world) logVersions(t *testing.T) {
	t.Helper()
	list := require.Value(w.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}))(t)
	for _, n := range list.Items {
		i := n.Status.NodeInfo
		t.Logf("versions: %s: kubelet %s, %s, %s, kernel %s", n.Name, i.KubeletVersion, i.ContainerRuntimeVersion, i.Architecture,
			i.KernelVersion)
	}
}
