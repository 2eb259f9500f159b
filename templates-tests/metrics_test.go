package templates

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// monitored returns values for proxy mode and a cache with all monitoring features and PodMonitors.
func monitored(t testing.TB, sets ...string) map[string]any {
	t.Helper()
	return proxyMode(
		t,
		append(
			[]string{
				"cache.replicas=1", "networkPolicy.metricsFrom=[{podSelector: {}}]",
				"metrics={podMonitor: {enabled: true}, prometheusRule: {enabled: true}, dashboard: {enabled: true}}",
			},
			sets...,
		)...,
	)
}

// Monitors must select existing Services, and pods with a port named metrics.
func TestMonitorsSelectTheirPods(t *testing.T) {
	t.Parallel()
	pods := func(out *output, selector map[string]string) (found []corev1.PodTemplateSpec) {
		for _, w := range workloads(out) {
			if labels.SelectorFromSet(selector).Matches(labels.Set(w.pod.Labels)) {
				found = append(found, w.pod)
			}
		}
		return found
	}
	hasPort := func(t *testing.T, out *output, what string, selector map[string]string) {
		t.Helper()
		found := pods(out, selector)
		if len(found) == 0 && (selector[names.LabelComponent] != names.ComponentProxy || decided(out).Mode == state.ModeProxy) {
			t.Errorf("%s selects no pods", what)
		}
		for _, pod := range found {
			if !slices.ContainsFunc(pod.Spec.Containers[0].Ports, func(p corev1.ContainerPort) bool {
				return p.Name == "metrics" && strconv.Itoa(int(p.ContainerPort)) == pod.Annotations["zarf-registry/metrics-port"]
			}) {
				t.Errorf("%s selects pods without a port called metrics: %v", what, pod.Labels)
			}
		}
	}
	endpoint := func(t *testing.T, what, port string, relabelings []monitoringv1.RelabelConfig) (job string) {
		t.Helper()
		if port != "metrics" {
			t.Errorf("%s: port %s", what, port)
		}
		node := false
		for _, r := range relabelings {
			if r.TargetLabel == "job" {
				job = *r.Replacement
			}
			node = node ||
				r.TargetLabel == "node" && slices.Equal(r.SourceLabels, []monitoringv1.LabelName{"__meta_kubernetes_pod_node_name"})
		}
		if !node {
			t.Errorf("%s does not name the node", what)
		}
		return job
	}
	for _, test := range []struct {
		name string
		sets []string
		jobs []string
	}{
		{
			"PodMonitors", []string{"metrics.podMonitor.enabled=true"},
			[]string{"zarf-registry", "zarf-registry-healer", "zarf-registry-proxy"},
		},
		{
			"hostNetwork", []string{"metrics.podMonitor.enabled=true", "proxy.hostNetwork=true"},
			[]string{"zarf-registry", "zarf-registry-healer"},
		},
		{
			"a cache", []string{"metrics.podMonitor.enabled=true", "cache.replicas=1"},
			[]string{"zarf-registry", "zarf-registry-cache", "zarf-registry-healer", "zarf-registry-proxy"},
		},
		{
			"caches on nodes",
			[]string{"metrics.podMonitor.enabled=true", "cache.nodeSelector={a: b}", "injector.architectures=[amd64]"},
			[]string{"zarf-registry", "zarf-registry-cache", "zarf-registry-healer", "zarf-registry-proxy"},
		},
		{
			"nodeport mode without a healer",
			[]string{"metrics.podMonitor.enabled=true", "registryProxy=false", "healer.enabled=false"},
			[]string{"zarf-registry", "zarf-registry-proxy"}, // for helm rollback of a switch that failed
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			out := rendering{
				values: proxyMode(t, append(test.sets, "networkPolicy.metricsFrom=[{podSelector: {}}]")...),
			}.render(t)
			var jobs []string
			for _, m := range all[*monitoringv1.PodMonitor](out) {
				hasPort(t, out, m.Name, m.Spec.Selector.MatchLabels)
				e := m.Spec.PodMetricsEndpoints[0]
				jobs = append(jobs, endpoint(t, m.Name, *e.Port, e.RelabelConfigs))
			}
			slices.Sort(jobs)
			if !slices.Equal(jobs, test.jobs) {
				t.Errorf("jobs %v, want %v", jobs, test.jobs)
			}
		})
	}
}

// alerts returns the rules of the chart with default values.
func alerts(t testing.TB) []monitoringv1.Rule {
	t.Helper()
	var rules []monitoringv1.Rule
	for _, group := range find[*monitoringv1.PrometheusRule](
		t, rendering{values: monitored(t)}.render(t), "zarf-registry",
	).Spec.Groups {
		rules = append(rules, group.Rules...)
	}
	return rules
}

// panels returns the queries of the dashboard by panel, as Grafana sends them for this release.
func panels(t testing.TB) map[string]string {
	t.Helper()
	config := find[*corev1.ConfigMap](t, rendering{values: monitored(t)}.render(t), "zarf-registry-dashboard")
	var dashboard struct {
		UID    string
		Panels []struct {
			ID      int
			Title   string
			Type    string
			Targets []struct{ Expr, RefID string }
		}
	}
	require.NoError(t, json.Unmarshal([]byte(config.Data["zarf-registry.json"]), &dashboard), "the dashboard")
	found := map[string]string{}
	for _, panel := range dashboard.Panels {
		if panel.Type == "row" {
			continue
		}
		if len(panel.Targets) == 0 {
			t.Errorf("panel %q asks for nothing", panel.Title)
		}
		for _, target := range panel.Targets {
			found[fmt.Sprintf("%s, %d %s", panel.Title, panel.ID, target.RefID)] = strings.NewReplacer(
				"$namespace", "zarf", "$release", "zarf-registry", "$__rate_interval", "5m",
			).Replace(target.Expr)
		}
	}
	if len(found) < 20 || dashboard.UID == "" {
		t.Fatalf("the dashboard has %d queries", len(found))
	}
	return found
}

// sample is one line of a metrics page.
type sample struct {
	name, value string
	labels      map[string]string
}

// captured reads a metrics page. test/e2e captures the pages from real pods, and compares them.
func captured(t testing.TB, file string) []sample {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "metrics", file))
	require.NoError(t, err, "make e2e E2E_RUN=TestExpose, with -update, captures it: see docs/reference/monitoring.md")
	var found []sample
	line := regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$`)
	pair := regexp.MustCompile(`([a-zA-Z_]+)="((?:[^"\\]|\\.)*)"`)
	for text := range strings.Lines(string(b)) {
		text = strings.TrimSpace(text)
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		m := line.FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("%s: %q is no sample", file, text)
		}
		s := sample{name: m[1], value: m[3], labels: map[string]string{}}
		for _, p := range pair.FindAllStringSubmatch(m[2], -1) {
			s.labels[p[1]] = p[2]
		}
		found = append(found, s)
	}
	if len(found) == 0 {
		t.Fatalf("%s has no samples", file)
	}
	return found
}

// pages returns the captured pages with the target labels that Prometheus adds.
var pages = map[string]map[string]string{
	"registry.txt": {"namespace": "zarf", "job": "zarf-registry", "pod": "zarf-registry-1", "node": "n1"},
	"proxy.txt": {
		"namespace": "zarf", "job": "zarf-registry-proxy", "pod": "zarf-registry-proxy-amd64-1", "node": "n1",
	},
	"cache.txt":              {"namespace": "zarf", "job": "zarf-registry-cache", "pod": "zarf-registry-cache-1", "node": "n1"},
	"healer.txt":             {"namespace": "zarf", "job": "zarf-registry-healer", "pod": "zarf-registry-healer-1", "node": "n1"},
	"kube-state-metrics.txt": {"job": "kube-state-metrics"},
}

var selector = regexp.MustCompile(`\b([a-z][a-z0-9_]*_[a-z0-9_]*|up)\{`)

// Every metric in alerts and panels must be exported by a real pod, and be selected by namespace and
// job, so that several registries do not mix.
func TestAlertsAndPanelsUseExistingMetrics(t *testing.T) {
	t.Parallel()
	exist := map[string]bool{"up": true} // Prometheus adds it for each target
	for file := range pages {
		for _, s := range captured(t, file) {
			exist[s.name] = true
		}
	}
	expressions := panels(t)
	for _, rule := range alerts(t) {
		expressions[rule.Alert] = rule.Expr.String()
	}
	for name, expression := range expressions {
		found := selector.FindAllStringSubmatch(expression, -1)
		if len(found) == 0 {
			t.Errorf("%s names no metric: %s", name, expression)
		}
		for _, match := range found {
			if !exist[match[1]] {
				t.Errorf("%s: no pod tells %s", name, match[1])
			}
		}
		for _, bare := range regexp.MustCompile(
			`\b(zarf_registry|registry_|kube_|go_|process_)[a-z0-9_]+\b[^{a-z0-9_]`,
		).FindAllString(expression, -1) {
			t.Errorf("%s: %s has no selector", name, bare)
		}
		if n := strings.Count(expression, `namespace="zarf"`); n != len(found) {
			t.Errorf("%s: %d of %d selectors name the namespace: %s", name, n, len(found), expression)
		}
	}
}

// The name of a CronJob is shorter than that of a release with a long name.
func TestTheAlertOfJobsNamesTheCronJobs(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"images", strings.Repeat("a", 42)} {
		out := rendering{values: monitored(t, "fullnameOverride="+name, "registry.garbageCollection.enabled=true")}.render(t)
		rules := find[*monitoringv1.PrometheusRule](t, out, name).Spec.Groups
		expression := ""
		for _, group := range rules {
			for _, rule := range group.Rules {
				if rule.Alert == "ZarfRegistryJobFailing" {
					expression = rule.Expr.String()
				}
			}
		}
		if job := `job="` + name; strings.Count(mustYAML(t, rules), job) < 10 {
			t.Errorf("few rules select %s", job)
		}
		selector := regexp.MustCompile(`cronjob=~"(.*?)"`).FindStringSubmatch(expression)
		if selector == nil {
			t.Fatalf("%s selects no CronJobs", expression)
		}
		selected := regexp.MustCompile("^(" + selector[1] + ")$")
		jobs := all[*batchv1.CronJob](out)
		if len(jobs) != 2 || selected.MatchString(name+"-b-certificates") {
			t.Errorf("%s selects those of another release, or there are not two but %d", selector[1], len(jobs))
		}
		for _, job := range jobs {
			if !selected.MatchString(job.Name) {
				t.Errorf("%s does not select %s", selector[1], job.Name)
			}
		}
	}
}

func TestEveryAlertIsDocumented(t *testing.T) {
	t.Parallel()
	b := require.Value(os.ReadFile("../docs/reference/monitoring.md"))(t)
	var names []string
	for _, rule := range alerts(t) {
		names = append(names, rule.Alert)
		if !regexp.MustCompile(`(?m)^### ` + rule.Alert + `$`).Match(b) {
			t.Errorf("docs/reference/monitoring.md does not say what to do about %s", rule.Alert)
		}
		if rule.For == nil || rule.Labels["severity"] == "" || rule.Annotations["summary"] == "" ||
			rule.Annotations["description"] == "" ||
			!strings.HasSuffix(rule.Annotations["runbook_url"], "#"+strings.ToLower(rule.Alert)) {
			t.Errorf("%s: %+v", rule.Alert, rule)
		}
	}
	for _, heading := range regexp.MustCompile(`(?m)^### (ZarfRegistry\w+)$`).FindAllStringSubmatch(string(b), -1) {
		if !slices.Contains(names, heading[1]) {
			t.Errorf("docs/reference/monitoring.md documents %s, which does not exist", heading[1])
		}
	}
}

// The table of docs/reference/metrics.md lists exactly the project's own metrics.
func TestEveryMetricIsDocumented(t *testing.T) {
	t.Parallel()
	b := require.Value(os.ReadFile("../docs/reference/metrics.md"))(t)
	documented := map[string]bool{}
	for _, row := range regexp.MustCompile(
		"(?m)^\\|`(zarf_registry_[a-z_]+)`\\|([^|]*)\\|[^|]+\\|$",
	).FindAllStringSubmatch(string(b), -1) {
		documented[row[1]+" "+strings.ReplaceAll(strings.TrimSpace(row[2]), "`", "")] = true
	}
	told := map[string]bool{}
	for _, file := range []string{"registry.txt", "proxy.txt", "cache.txt", "healer.txt"} {
		for _, s := range captured(t, file) {
			if !strings.HasPrefix(s.name, "zarf_registry_") {
				continue
			}
			name := s.name
			if base := regexp.MustCompile("_(bucket|sum|count)$").ReplaceAllString(name, ""); base != name &&
				strings.HasSuffix(base, "_seconds") {
				name = base
			}
			names := slices.Sorted(maps.Keys(s.labels))
			if strings.HasSuffix(s.name, "_bucket") || name == s.name {
				told[name+" "+strings.Join(slices.DeleteFunc(names, func(l string) bool { return l == "le" }), ", ")] = true
			}
		}
	}
	for metric := range told {
		if !documented[metric] {
			t.Errorf("docs/reference/metrics.md does not have %s", metric)
		}
	}
	for metric := range documented {
		if !told[metric] {
			t.Errorf("docs/reference/metrics.md has %s, which no pod tells", metric)
		}
	}
}

// promtool returns the path of promtool, which make alerts sets.
func promtool(t *testing.T, args ...string) (string, error) {
	t.Helper()
	program := os.Getenv("PROMTOOL")
	if program == "" {
		t.Skip("needs promtool: run make alerts")
	}
	out, err := exec.Command(program, args...).CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(out), err
}

// change modifies the captured pages, for somewhat more than an hour. Without values it removes the
// matching samples. With values, in promtool's notation with one sample a minute, it replaces those of
// matching series or adds a series.
type change struct {
	name   string // of a metric; empty matches all of the job
	labels map[string]string
	values string
}

// always returns a constant series.
func always(value float64) string { return strconv.FormatFloat(value, 'f', -1, 64) + "+0x65" }

// series returns the captured pages with changes, for promtool. Time 0 is the time of the capture.
func series(t *testing.T, changes []change) []map[string]string {
	t.Helper()
	var found []sample
	epoch := 0.0
	for _, file := range slices.Sorted(maps.Keys(pages)) {
		samples := captured(t, file)
		for _, s := range samples {
			if value, err := strconv.ParseFloat(s.value, 64); err == nil && s.name == "process_start_time_seconds" {
				epoch = max(epoch, value)
			}
			maps.Copy(s.labels, pages[file])
			found = append(found, s)
		}
		if file != "kube-state-metrics.txt" {
			found = append(found, sample{"up", "1", maps.Clone(pages[file])})
		}
	}
	if epoch == 0 {
		t.Fatal("the pages do not tell when they were captured")
	}
	size := ""
	for _, s := range found {
		if s.name == "zarf_registry_storage_limit_bytes" {
			size = s.value
		}
	}
	for i, s := range found {
		value, err := strconv.ParseFloat(s.value, 64)
		require.NoError(t, err)
		if s.name == "zarf_registry_storage_used_bytes" {
			// The disk of the capturing machine may have been nearly full.
			value = require.Value(strconv.ParseFloat(size, 64))(t)
			value /= 2
		}
		if strings.HasSuffix(s.name, "_timestamp_seconds") && value != 0 { // 0 means never
			value -= epoch
		}
		found[i].value = always(value)
	}
	for _, c := range changes {
		matched := 0
		found = slices.DeleteFunc(found, func(s sample) bool {
			for name, value := range c.labels {
				if s.labels[name] != value {
					return false
				}
			}
			if c.name != "" && s.name != c.name {
				return false
			}
			matched++
			return true
		})
		if matched == 0 && c.values == "" {
			t.Fatalf("%+v changes nothing", c)
		}
		if c.values != "" {
			found = append(found, sample{c.name, c.values, c.labels})
		}
	}
	var all []map[string]string
	for _, s := range found {
		var pairs []string
		for _, name := range slices.Sorted(maps.Keys(s.labels)) {
			pairs = append(pairs, fmt.Sprintf(`%s="%s"`, name, s.labels[name]))
		}
		all = append(all, map[string]string{"series": s.name + "{" + strings.Join(pairs, ",") + "}", "values": s.value})
	}
	return all
}

// alertCase is a change of the captured pages, with the alerts that must fire within the hour.
type alertCase struct {
	changes []change
	fires   []string
}

func promtoolTests(t *testing.T, groups any, cases map[string]alertCase, more ...map[string]any) {
	t.Helper()
	dir := t.TempDir()
	write := func(name string, v any) string {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, []byte(mustYAML(t, v)), 0o600))
		return file
	}
	rules := write("rules.yaml", map[string]any{"groups": groups})
	if out, err := promtool(t, "check", "rules", "--lint=all", "--lint-fatal", rules); err != nil {
		t.Fatalf("promtool check rules: %v\n%s", err, out)
	}
	tests := []any{}
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		samples := []any{}
		for _, alert := range cases[name].fires {
			samples = append(samples, map[string]any{"labels": fmt.Sprintf("{alertname=%q}", alert), "value": 1})
		}
		tests = append(tests, map[string]any{"name": name, "interval": "1m", "input_series": series(t, cases[name].changes),
			"promql_expr_test": []any{
				map[string]any{
					"expr": `group by (alertname) (count_over_time(ALERTS{alertstate="firing"}[66m]))`, "eval_time": "65m",
					"exp_samples": samples,
				},
			}})
	}
	for _, test := range more {
		tests = append(tests, test)
	}
	file := write("tests.yaml", map[string]any{"rule_files": []string{rules}, "evaluation_interval": "1m", "tests": tests})
	if out, err := promtool(t, "test", "rules", file); err != nil {
		t.Errorf("promtool test rules: %v\n%s", err, out)
	}
}

// Each alert fires for its own cause, and for no other.
func TestPromtoolAlerts(t *testing.T) {
	t.Parallel()
	const lifetime = 1000000.0
	of := func(page string) func(more map[string]string) map[string]string {
		return func(more map[string]string) map[string]string {
			labels := maps.Clone(pages[page])
			maps.Copy(labels, more)
			return labels
		}
	}
	registry, proxy := of("registry.txt"), of("proxy.txt")
	// left sets the remaining lifetime of a certificate at the end of the series.
	left := func(part float64) []change {
		return []change{
			{"zarf_registry_tls_certificate_lifetime_seconds", registry(nil), always(lifetime)},
			{"zarf_registry_tls_certificate_expiry_timestamp_seconds", registry(nil), always(3600 + part*lifetime)},
		}
	}
	used := func(bytes string) []change {
		return []change{
			{"zarf_registry_storage_limit_bytes", registry(nil), always(1e9)},
			{"zarf_registry_storage_used_bytes", registry(nil), bytes},
		}
	}
	volume := func(free float64) []change { return used(always((1 - free) * 1e9)) }
	answers := func(good, bad int) []change {
		request := map[string]string{"listener": "tls", "method": "GET", "code": "200"}
		failed := map[string]string{"listener": "tls", "method": "GET", "code": "500"}
		return []change{
			{"zarf_registry_http_requests_total", registry(request), fmt.Sprintf("0+%dx65", good)},
			{"zarf_registry_http_requests_total", registry(failed), fmt.Sprintf("0+%dx65", bad)},
		}
	}
	daemonset := map[string]string{
		"job": "kube-state-metrics", "namespace": "zarf", "daemonset": "zarf-registry-proxy-amd64",
	}
	cronjob := map[string]string{"job": "kube-state-metrics", "namespace": "zarf", "cronjob": "zarf-registry-certificates"}
	reservation := map[string]string{"job": "kube-state-metrics", "namespace": "zarf", "service": "zarf-registry-nodeport"}
	elsewhere := registry(map[string]string{"namespace": "another distribution"})

	cases := map[string]alertCase{
		"as captured":               {nil, nil},
		"no registry pod":           {[]change{{"", map[string]string{"job": "zarf-registry"}, ""}}, []string{"ZarfRegistryDown"}},
		"no proxy in nodeport mode": {[]change{{"", map[string]string{"job": "zarf-registry-proxy"}, ""}}, nil},
		"unavailable storage": {
			[]change{{"zarf_registry_storage_healthy", registry(nil), always(0)}}, []string{"ZarfRegistryStorageUnhealthy"},
		},
		"16 % of the volume is free":                 {volume(.16), nil},
		"14 % of the volume is free":                 {volume(.14), []string{"ZarfRegistryVolumeNearlyFull"}},
		"4 % of the volume is free":                  {volume(.04), []string{"ZarfRegistryVolumeFull", "ZarfRegistryVolumeNearlyFull"}},
		"a volume that is full in 6 hours":           {used("550000000+1000000x65"), []string{"ZarfRegistryVolumeFilling"}},
		"a volume that is full in 30 hours":          {used("550000000+200000x65"), nil},
		"a volume that is less than half full":       {used("350000000+2000000x65"), nil},
		"a volume that others have cleaned up":       {used("700000000-1000000x65"), nil},
		"a small push to a volume that is half full": {used("550000000x5 555000000+0x60"), nil},
		"a volume that is full in less than hour":    {used("550000000+4000000x65"), []string{"ZarfRegistryVolumeFilling"}},
		"storage without a size": {[]change{
			{"zarf_registry_storage_limit_bytes", registry(nil), always(0)},
			{"zarf_registry_storage_used_bytes", registry(nil), always(0)},
		}, nil},
		"4 % errors": {answers(96, 4), nil},
		"6 % errors": {answers(94, 6), []string{"ZarfRegistryErrors"}},
		"a failed garbage collection": {
			[]change{{"zarf_registry_gc_last_failed", registry(nil), always(1)}},
			[]string{"ZarfRegistryGarbageCollectionFailing"},
		},
		"damaged content": {
			[]change{{"zarf_registry_scrub_problems", registry(nil), always(2)}}, []string{"ZarfRegistryContentDamaged"},
		},
		"9 % of the exposed certificate's lifetime is left": {[]change{
			{"zarf_registry_exposed_tls_certificate_lifetime_seconds", registry(nil), always(lifetime)},
			{"zarf_registry_exposed_tls_certificate_expiry_timestamp_seconds", registry(nil), always(3600 + .09*lifetime)},
		}, []string{"ZarfRegistryCertificateExpiring", "ZarfRegistryCertificateOverdue"}},
		"exposed certificates that cannot be loaded": {[]change{
			{"zarf_registry_exposed_tls_reload_errors_total", registry(nil), "0+1x65"},
		}, []string{"ZarfRegistryReloadFailing"}},
		"half of a certificate's lifetime is left": {left(.5), nil},
		"29 % of a certificate's lifetime is left": {left(.29), []string{"ZarfRegistryCertificateOverdue"}},
		"9 % of a certificate's lifetime is left": {
			left(.09), []string{"ZarfRegistryCertificateExpiring", "ZarfRegistryCertificateOverdue"},
		},
		"a proxy kept its old certificate": {[]change{
			{"zarf_registry_proxy_certificate_lifetime_seconds", proxy(nil), always(lifetime)},
			{"zarf_registry_proxy_certificate_expiry_timestamp_seconds", proxy(nil), always(3600 + .2*lifetime)},
		}, []string{"ZarfRegistryCertificateOverdue"}},
		"an expiring CA": {[]change{
			{"zarf_registry_tls_certificate_lifetime_seconds", registry(nil), always(lifetime)},
			{"zarf_registry_tls_certificate_expiry_timestamp_seconds", registry(nil), always(3600 + .9*lifetime)},
			{"zarf_registry_tls_ca_expiry_timestamp_seconds", registry(nil), always(3600 + .2*lifetime)},
		}, []string{"ZarfRegistryCAExpiring"}},
		"certificates that cannot be loaded": {
			[]change{{"zarf_registry_tls_reload_errors_total", registry(nil), "0+1x65"}}, []string{"ZarfRegistryReloadFailing"},
		},
		"a proxy's certificates that cannot be loaded": {[]change{
			{"zarf_registry_proxy_certificate_reload_errors_total", proxy(nil), "0+1x65"},
		}, []string{"ZarfRegistryReloadFailing"}},
		"a single failed reload": {[]change{{"zarf_registry_tls_reload_errors_total", registry(nil), "0x30 1x30"}}, nil},
		"credentials that cannot be loaded": {[]change{
			{"zarf_registry_credential_reload_errors_total", registry(nil), "0+1x65"},
		}, []string{"ZarfRegistryCredentialsFailing"}},
		"a proxy that is down": {[]change{
			{"", map[string]string{"job": "zarf-registry-proxy"}, ""}, {"up", proxy(nil), always(0)},
		}, []string{"ZarfRegistryProxyDown"}},
		"a proxy that cannot reach the registry": {[]change{
			{"zarf_registry_proxy_requests_total", proxy(map[string]string{"method": "GET", "code": "503"}), "0+1x65"},
		}, []string{"ZarfRegistryProxyErrors"}},
		"a registry that was away for 3 minutes": {[]change{
			{"zarf_registry_proxy_requests_total", proxy(map[string]string{"method": "GET", "code": "503"}), "0x20 0+5x3 15x40"},
		}, nil},
		"no cache": {
			[]change{{"", map[string]string{"job": "zarf-registry-cache"}, ""}}, []string{"ZarfRegistryCacheDown"},
		},
		"a cache that is down": {[]change{
			{"", map[string]string{"job": "zarf-registry-cache"}, ""}, {"up", pages["cache.txt"], always(0)},
		}, []string{"ZarfRegistryCacheDown"}},
		"a cache that restarts": {[]change{{"up", pages["cache.txt"], "1x20 0x5 1x40"}}, nil},
		"a stale tag": {
			[]change{{"zarf_registry_cache_stale_responses_total", pages["cache.txt"], "0x50 1x15"}},
			[]string{"ZarfRegistryCacheStale"},
		},
		"no healer": {
			[]change{{"", map[string]string{"job": "zarf-registry-healer"}, ""}}, []string{"ZarfRegistryHealerDown"},
		},
		"a pod that cannot be healed": {[]change{
			{"zarf_registry_healer_pods_waiting", pages["healer.txt"], always(1)},
		}, []string{"ZarfRegistryHealerStuck"}},
		"a pod that is healed": {[]change{{"zarf_registry_healer_pods_waiting", pages["healer.txt"], "0x5 1x2 0x60"}}, nil},
		"no reservation":       {[]change{{"kube_service_info", reservation, ""}}, []string{"ZarfRegistryPortNotReserved"}},
		"a node without a proxy": {
			[]change{{"kube_daemonset_status_number_ready", daemonset, always(1)}}, []string{"ZarfRegistryProxyMissing"},
		},
		"a failed renewal": {
			[]change{{"kube_cronjob_status_last_successful_time", cronjob, always(300)}},
			[]string{"ZarfRegistryJobFailing"},
		},
		"a failed renewal between two others": {[]change{
			{"kube_cronjob_status_last_successful_time", cronjob, always(300)},
			{"kube_cronjob_status_active", cronjob, "0x53 1x3 0x60"},
		}, []string{"ZarfRegistryJobFailing"}},
		"a renewal that runs": {[]change{
			{"kube_cronjob_status_last_successful_time", cronjob, always(300)},
			{"kube_cronjob_status_active", cronjob, always(1)},
		}, nil},
		"a renewal that has never succeeded": {
			[]change{{"kube_cronjob_status_last_successful_time", cronjob, ""}}, []string{"ZarfRegistryJobFailing"},
		},
		"a full volume of another release": {[]change{
			{"zarf_registry_storage_limit_bytes", elsewhere, always(1e9)},
			{"zarf_registry_storage_used_bytes", elsewhere, always(1e9)},
		}, nil},
		"a full registry refuses pushes": {[]change{
			{
				"zarf_registry_http_requests_total", registry(map[string]string{"listener": "tls", "method": "POST", "code": "507"}),
				"0+50x65",
			},
			{
				"zarf_registry_http_requests_total", registry(map[string]string{"listener": "tls", "method": "GET", "code": "200"}),
				"0+50x65",
			},
		}, nil},
	}
	fired := map[string]bool{}
	for _, c := range cases {
		for _, alert := range c.fires {
			fired[alert] = true
		}
	}
	for _, rule := range alerts(t) {
		if !fired[rule.Alert] {
			t.Errorf("no case fires %s", rule.Alert)
		}
	}
	// The text of a notification.
	message := map[string]any{"name": "the message", "interval": "1m", "input_series": series(t, volume(.08)),
		"alert_rule_test": []any{map[string]any{
			"alertname": "ZarfRegistryVolumeNearlyFull", "eval_time": "30m", "exp_alerts": []any{map[string]any{
				"exp_labels": map[string]string{"severity": "warning", "namespace": "zarf", "job": "zarf-registry", "limit": "volume"},
				"exp_annotations": map[string]string{
					"summary":     "The volume of registry zarf/zarf-registry is nearly full.",
					"description": "8.0 % is free, less than 15 %. Pushes are refused from 95 %; pulls still work.",
					"runbook_url": "https://github.com/zarf-dev/zarf-registry/blob/main/docs/reference/monitoring.md#zarfregistryvolumenearlyfull",
				}}}}}}
	groups := find[*monitoringv1.PrometheusRule](t, rendering{values: monitored(t)}.render(t), "zarf-registry").Spec.Groups
	promtoolTests(t, groups, cases, message)
}

// Every query of the dashboard has a result on the captured series.
func TestPromtoolDashboardQueries(t *testing.T) {
	t.Parallel()
	var rules []any
	var want []string
	for name, expression := range panels(t) {
		rules = append(rules, map[string]any{"alert": name, "expr": "vector(1) and on () (" + expression + ")"})
		want = append(want, name)
	}
	slices.Sort(want)
	groups := []any{map[string]any{"name": "panels", "rules": rules}}
	promtoolTests(t, groups, map[string]alertCase{"after a garbage collection": {[]change{
		{"zarf_registry_gc_last_success_timestamp_seconds", pages["registry.txt"], always(60)},
	}, want}})
}
