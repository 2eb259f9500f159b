package e2e

import (
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/test/golden"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// testMetrics scrapes every pod and compares the names of metrics and labels with the captured
// pages, which the tests of alerts, dashboard and docs/reference/monitoring.md use. Pages are captured from
// an exposed registry with a cache, which have more metrics.
func testMetrics(t *testing.T, w *world, exposed bool) {
	w.testClusterOnly(t)
	ports := map[string]string{"registry": "5090", "proxy": "9102", "healer": "9103"}
	if exposed {
		ports["cache"] = "9102"
	}
	for component, port := range ports {
		file := filepath.Join("../../templates-tests/testdata/metrics", component+".txt")
		pods := w.pods(t, component)
		if len(pods) == 0 {
			t.Fatalf("no pod of %s", component)
		}
		for i, p := range pods {
			page := w.scrape(t, p, port)
			if *golden.Update && exposed && i == 0 {
				require.NoError(t, os.WriteFile(file, []byte(withoutVersions(page)), 0o644))
			}
			captured, err := os.ReadFile(file)
			require.NoError(t, err, "go test ./test/e2e -run TestExpose -update captures it")
			want, got := metricNames(string(captured)), metricNames(page)
			for _, name := range slices.Sorted(maps.Keys(want)) {
				if !got[name] && !arbitrary.MatchString(name) && (exposed || !ofMore.MatchString(name)) {
					t.Errorf("%s lacks metric %s", p.Name, name)
				}
			}
			for _, name := range slices.Sorted(maps.Keys(got)) {
				if !want[name] && strings.HasPrefix(name, "zarf_registry_") {
					t.Errorf("%s has metric %s, which was not captured", p.Name, name)
				}
			}
		}
	}
}

// arbitrary matches metrics that depend on past events or on the Go version: not every pod has
// them.
var arbitrary = regexp.MustCompile(`^(go_|process_|promhttp_|registry_|zarf_registry_(proxy_requests_total|http_))`)

// ofMore matches metrics of an exposed registry, and of proxies with caches.
var ofMore = regexp.MustCompile(`^zarf_registry_(exposed|proxy_cache)_`)

// scrape returns a pod's metrics. It connects from the pod's node, which every NetworkPolicy
// allows.
func (w *world) scrape(t *testing.T, p corev1.Pod, port string) string {
	t.Helper()
	host := p.Status.PodIP
	if p.Spec.HostNetwork { // then they are on the loopback address only
		host = w.loopback()
	}
	page, err := w.onNode(t, p.Spec.NodeName, w.tool, "get", "http://"+net.JoinHostPort(host, port)+"/metrics")
	if err != nil || !strings.Contains(page, "zarf_registry_") {
		t.Fatalf("%s has no metrics: %v: %s", p.Name, err, page)
	}
	return page
}

// metricNames returns the metrics of a page with the names of their labels.
func metricNames(page string) map[string]bool {
	found := map[string]bool{}
	labels := regexp.MustCompile(`([a-zA-Z_]+)="(?:[^"\\]|\\.)*"`)
	for line := range strings.Lines(page) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, rest, _ := strings.Cut(line, "{")
		name, _, _ = strings.Cut(name, " ")
		var names []string
		for _, m := range labels.FindAllStringSubmatch(rest, -1) {
			names = append(names, m[1])
		}
		slices.Sort(names)
		found[name+"{"+strings.Join(names, ",")+"}"] = true
	}
	return found
}

// withoutVersions replaces version labels, which differ between builds.
func withoutVersions(page string) string {
	return regexp.MustCompile(`(version|goversion)="[^"]*"`).ReplaceAllString(page, `$1="dev"`)
}
