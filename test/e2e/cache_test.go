package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/api/loaded"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// TestCache puts caches between the proxies and the registry, and kills, replaces and rotates them while every node
// pulls. At the end the registry's node is lost, and the others pull what their caches know.
func TestCache(t *testing.T) {
	w := ownCluster(t, "e2e-cache", layout{args: []string{"--nodes", "3", "--runtime", "n2=crio-1.34"}})
	// The last node has the registry, and is lost at the end.
	pinned := "--set=registry.nodeSelector.kubernetes\\.io/hostname=n3"
	const two, stale = "--set=cache.replicas=2", "--set=cache.staleFor=1h"
	var image string
	must(t, "install with two caches", func(t *testing.T) {
		w.apply(t, proxyMode, pinned, two)
		w.isHealthy(t)
		w.caches(t, 2)
		image = w.pushHello(t)
		w.pullEverywhere(t, image)
		w.pushFresh(t)
		w.cachesServe(t)
	})
	w.underLoop(t, "both caches are killed, one after the other", func(t *testing.T) {
		for _, p := range w.caches(t, 2) {
			w.deletePod(t, p.Name, 0)
			w.caches(t, 2)
		}
	})
	w.underLoop(t, "certs rotate --ca, with caches", func(t *testing.T) {
		w.certs(t, "rotate", "--ca")
		w.isHealthy(t)
		w.caches(t, 2)
	})
	w.underLoop(t, "caches on selected nodes replace them", func(t *testing.T) {
		for _, node := range []string{"n1", "n2"} {
			w.kubectlRun(t, "label", "node", node, "e2e/cache=yes")
		}
		w.apply(t, proxyMode, pinned, stale, "--set=cache.nodeSelector.e2e/cache=yes")
		for _, p := range w.caches(t, 2) {
			if p.Spec.NodeName == "n3" {
				t.Errorf("%s runs on %s", p.Name, p.Spec.NodeName)
			}
		}
		w.isHealthy(t)
	})
	must(t, "the registry's node is lost: nodes pull what caches know", func(t *testing.T) { testStale(t, w, image) })
	w.underLoop(t, "caches are turned off", func(t *testing.T) {
		w.apply(t, proxyMode, pinned)
		w.caches(t, 0)
		w.isIn(t, state.ModeProxy, state.SourceValue)
		_, err := w.client.CoreV1().Secrets(w.namespace).Get(t.Context(), release+"-cache-tls", metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			t.Errorf("the certificate of caches is left: %v", err)
		}
		w.isHealthy(t)
	})
}

// testStale loses the registry's node, n3: at first connections get no answer, later Kubernetes notices.
func testStale(t *testing.T, w *world, image string) {
	left := w.without("n3")
	// The caches are new: they know an image once a node has pulled all of it.
	left.pullAgain(t, "n1", image)
	stop := left.pullLoop(t, "e2e/hello:1")
	begin := time.Now()
	run(t, w.testcluster, "unplug", "--name", w.name, "n3")
	plug := sync.OnceFunc(func() { run(t, w.testcluster, "plug", "--name", w.name, "n3") })
	defer plug()
	eventually(t, "the node to be not ready", func() error {
		n, err := w.client.CoreV1().Nodes().Get(t.Context(), "n3", metav1.GetOptions{})
		if err == nil && slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		}) {
			err = errors.New("it is ready")
		}
		return err
	})
	t.Logf("figure: the registry's node is not ready after %.1f s", time.Since(begin).Seconds())
	for i, node := range left.nodes {
		left.runPod(t, pod(fmt.Sprintf("without-registry-%d", i), node, image))
	}
	left.pullAgain(t, "n1", image)
	stop()
	var served uint64
	for _, p := range w.caches(t, 2) {
		served += w.use(t, p).Stale
	}
	if served == 0 {
		t.Error("caches served nothing that the registry could not confirm: the test checked nothing")
	}
	t.Logf("figure: caches served %d responses that the registry could not confirm", served)
	plug()
	w.becomesHealthy(t)
}

// pullAgain makes a node with containerd pull all content of an image.
func (w *world) pullAgain(t *testing.T, node, image string) {
	t.Helper()
	w.shell(t, node, "crictl --runtime-endpoint "+containerdSocket+` rmi "$1"`, image)
	if out, err := w.pull(t, node, image); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// caches waits until exactly n caches exist, all ready, and returns them.
func (w *world) caches(t *testing.T, n int) []corev1.Pod {
	t.Helper()
	return w.readyPods(t, "cache", n)
}

// cachesServe fails if nodes do not pull through caches, or if status does not tell.
func (w *world) cachesServe(t *testing.T) {
	t.Helper()
	report, text := w.status(t)
	t.Logf("figure: zarf-registry status:\n%s", text)
	if report.Caches == nil || report.Caches.Ready != 2 || report.Caches.Desired != 2 {
		t.Fatalf("status: %s", mustJSON(report.Caches))
	}
	var misses, hits uint64
	nodes := map[string]bool{}
	for _, p := range report.Caches.Pods {
		if p.Use == nil {
			t.Fatalf("status does not tell how %s is used", p.Name)
		}
		misses, hits = misses+p.Use.Misses, hits+p.Use.Hits
		nodes[p.Node] = true
	}
	if misses == 0 || hits == 0 || len(nodes) != 2 {
		t.Errorf("%d misses, %d hits, caches on %d nodes", misses, hits, len(nodes))
	}
	failed := 0
	for _, p := range w.pods(t, "proxy") {
		metrics := w.scrape(t, p, "9102")
		if !strings.Contains(metrics, `zarf_registry_proxy_cache_requests_total{result="served"}`) {
			t.Errorf("%s does not use caches", p.Name)
		}
		if !strings.Contains(metrics, `zarf_registry_proxy_cache_requests_total{result="failed"} 0`) {
			failed++
		}
	}
	if failed > 0 {
		t.Errorf("requests of %d proxies to caches failed", failed)
	}
}

// use returns what status tells about a cache.
func (w *world) use(t *testing.T, pod corev1.Pod) loaded.Cache {
	t.Helper()
	report, text := w.status(t)
	if report.Caches != nil {
		for _, p := range report.Caches.Pods {
			if p.Name == pod.Name && p.Use != nil {
				return *p.Use
			}
		}
	}
	t.Fatalf("status does not tell how %s is used:\n%s", pod.Name, text)
	return loaded.Cache{}
}
