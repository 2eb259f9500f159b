package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// chart is what is asked about it.
type chart struct {
	schema    map[string]any
	templates string // all of them, joined
}

func (c chart) value(path string) func() bool {
	return func() bool { return hasValue(c.schema, c.schema, strings.Split(path, ".")) }
}

func (c chart) template(parts ...string) func() bool {
	return func() bool {
		for _, part := range parts {
			if strings.Contains(c.templates, part) {
				return true
			}
		}
		return false
	}
}

func file(pattern string) func() bool {
	return func() bool {
		found, err := filepath.Glob(filepath.Join(top, pattern))
		return err == nil && len(found) > 0
	}
}

func all(conditions ...func() bool) func() bool {
	return func() bool {
		for _, c := range conditions {
			if !c() {
				return false
			}
		}
		return true
	}
}

// golden says whether the default rendering in proxy mode has all of the parts.
func golden(t *testing.T, parts ...string) func() bool {
	return func() bool {
		content, err := os.ReadFile(filepath.Join(top, "templates-tests/testdata/golden/proxy.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range parts {
			if !strings.Contains(string(content), part) {
				return false
			}
		}
		return true
	}
}

// What docs/comparison.md says that our chart has, it has. What it has since, the
// test says, so that the page can say it too.
func TestFeatures(t *testing.T) {
	var c chart
	content, err := os.ReadFile(filepath.Join(top, "charts/zarf-registry/values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(content, &c.schema); err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(filepath.Join(top, "charts/zarf-registry/templates"), func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			content, err = os.ReadFile(name)
			c.templates += string(content)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	has := map[string]func() bool{
		"`values.schema.json`":                                  file("charts/zarf-registry/values.schema.json"),
		"table of values generated from `values.yaml`":          file("charts/zarf-registry/README.md.gotmpl"),
		"tests of its templates":                                file("templates-tests/*_test.go"),
		"values files for chart-testing":                        file("charts/zarf-registry/ci/*-values.yaml"),
		"`helm test` pods":                                      file("charts/zarf-registry/templates/tests/*.yaml"),
		"installed on a real cluster by its tests":              file("test/e2e/main_job_test.go"),
		"looks for obstacles before anything changes":           file("internal/hook/preflight.go"),
		"proves after an installation that it works":            file("internal/hook/prove.go"),
		"ServiceMonitor or PodMonitor":                          c.template("kind: ServiceMonitor", "kind: PodMonitor"),
		"PrometheusRule":                                        c.template("kind: PrometheusRule"),
		"Grafana dashboard":                                     c.value("metrics.dashboard.enabled"),
		"NetworkPolicy":                                         c.template("kind: NetworkPolicy"),
		"PodDisruptionBudget":                                   c.template("kind: PodDisruptionBudget"),
		"HorizontalPodAutoscaler":                               c.template("kind: HorizontalPodAutoscaler"),
		"topology spread constraints":                           c.value("registry.topologySpreadConstraints"),
		"priority class":                                        c.value("registry.priorityClassName"),
		"extra objects":                                         c.value("extraObjects"),
		"another namespace":                                     c.value("namespaceOverride"),
		"images by digest":                                      c.value("initHook.image.digest"),
		"labels for all objects":                                c.value("commonLabels"),
		"extra environment":                                     c.value("registry.extraEnv"),
		"not root, read-only root, no capabilities, by default": golden(t, "runAsNonRoot: true", "readOnlyRootFilesystem: true", "- ALL"),
		"seccomp `RuntimeDefault` by default":                   golden(t, "type: RuntimeDefault"),
		"memory requests by default":                            golden(t, "requests:"),
		"memory limits by default":                              golden(t, "limits:"),
		"Service accounts without a token where none is needed": golden(t, "automountServiceAccountToken: false"),
		"IPv6 and dual stack tested":                            file("test/e2e/kinds_test.go"),

		"existing claim, class, size, access mode": all(c.value("registry.persistence.existingClaim"), c.value("registry.persistence.storageClass"),
			c.value("registry.persistence.size"), c.value("registry.persistence.accessModes")),
		"S3 with keys from a Secret":                                c.value("registry.storage.s3.existingSecret"),
		"other object stores (Azure, GCS, Swift)":                   c.value("registry.storage.azure"),
		"pull-through cache":                                        c.value("registry.proxy"),
		"garbage collection on a schedule":                          c.value("registry.garbageCollection.enabled"),
		"certificates made, renewed and reloaded without a restart": c.value("pki.rotation.schedule"),
		"reading and writing are different rights":                  file("internal/pki/*.go"),
		"Ingress or Gateway route":                                  c.template("kind: Ingress", "kind: HTTPRoute"),
	}
	content, err = os.ReadFile("comparison.md")
	if err != nil {
		t.Fatal(err)
	}
	features, count := 0, 0
	for _, row := range strings.Split(string(content), "\n") {
		cells := strings.Split(row, "|")
		if len(cells) < 4 || strings.TrimSpace(cells[2]) != "●" && strings.TrimSpace(cells[2]) != "○" {
			continue
		}
		name, says := strings.TrimSpace(cells[1]), strings.TrimSpace(cells[2]) == "●"
		features++
		check, ok := has[name]
		switch {
		case !ok:
			t.Errorf("nothing counts the feature %q", name)
		case check():
			count++
			if !says {
				t.Logf("the chart has it now, the page may say so: %s", name)
			}
		case says:
			t.Errorf("the page says that the chart has it: %s", name)
		}
	}
	if features != len(has) {
		t.Errorf("%d features on the page, %d are counted", features, len(has))
	}
	t.Logf("ours: %d of %d", count, features)
}
