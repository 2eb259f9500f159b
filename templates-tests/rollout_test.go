package templates

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// podTemplates returns the pod templates by workload. A changed template replaces its pods.
func podTemplates(t testing.TB, out *output) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, w := range workloads(out) {
		if w.selector != nil {
			found[w.object.String()] = mustYAML(t, w.pod)
		}
	}
	if len(found) < 3 {
		t.Fatalf("%d workloads", len(found))
	}
	return found
}

func TestUpgradeWithoutChangesRestartsNothing(t *testing.T) {
	t.Parallel()
	// Only where a decision comes from may differ, because the state now records the decision.
	sources := regexp.MustCompile(`"(\w*[sS]ource)":"(cluster|default)"`)
	reason := regexp.MustCompile(`"modeReason":"[^"]*",|  reason for the mode: .*\n`)
	upgrades := 0
	for _, installed := range matrix(t) {
		cluster := clusters()[installed.cluster]()
		if cluster == nil {
			continue
		}
		upgrades++
		// objects are in the cluster after the installation.
		objects := slices.Concat(listed(t, cluster, "Node"), listed(t, cluster, "Service"), listed(t, cluster, "Secret"))
		var hookImage *state.HookImage
		remembered := strings.Contains(installed.cluster, "remembers")
		if !remembered {
			told := decided(installed.output)
			s := settings(told.Mode, told.IPFamily)
			if s.Mode == state.ModeExternal {
				s.Address = told.RegistryURL
			}
			secret := remembers(ready(s, func(s *state.State) {
				if inUse := told.NodeConfig.DirectoriesInUse; len(inUse) > 0 {
					s.NodeConfig = s.NodeConfig.Remember(inUse...)
				}
			}))
			secret.Name = told.Name + names.SuffixState
			objects = append(objects, secret)
			// If no node has the configured image, the Jobs use the one that they pushed. So the Jobs are
			// compared without a pushed image, everything else with it.
			hookImage = pushedHookImage
		}
		for _, d := range all[*appsv1.Deployment](installed.output) {
			objects = append(objects, d)
		}
		for _, s := range all[*corev1.Service](installed.output) {
			objects = append(objects, s)
		}
		for _, s := range all[*corev1.Secret](installed.output) { // with the salt of checksums
			if strings.HasSuffix(s.Name, names.SuffixNodeConfig) {
				objects = append(objects, s)
			}
		}
		compare := func(objects []runtime.Object, which func(file string) bool) {
			t.Helper()
			upgraded := rendering{values: ciValues(t)[installed.file], cluster: newCluster(objects...), upgrade: true}.render(t)
			normal := func(out *output) string {
				chosen := &output{files: map[string]string{}}
				for name, text := range out.files {
					if which(name) {
						chosen.files[name] = text
					}
				}
				return reason.ReplaceAllString(sources.ReplaceAllString(chosen.text(), `"$1":"state"`), "")
			}
			if diff := cmp.Diff(normal(installed.output), normal(upgraded)); diff != "" {
				t.Errorf("%s:\n%s", installed.name, diff)
			}
		}
		job := func(file string) bool { return strings.HasSuffix(file, "-job.yaml") }
		// helm test creates new pods for each run.
		which := func(file string) bool { return !strings.HasPrefix(file, "tests/") }
		if hookImage != nil {
			compare(objects, job)
			which = func(file string) bool { return !job(file) && !strings.HasPrefix(file, "tests/") }
			for i, o := range objects {
				if secret, ok := o.(*corev1.Secret); ok && strings.HasSuffix(secret.Name, names.SuffixState) {
					s := require.Value(state.Decode(secret.Data[state.Key]))(t)
					pushed := *hookImage
					for _, c := range all[*batchv1.CronJob](installed.output) {
						if architecture := c.Spec.JobTemplate.Spec.Template.Spec.NodeSelector["kubernetes.io/arch"]; architecture != "" {
							pushed.Architecture = architecture
						}
					}
					s.HookImage = &pushed
					replaced := remembers(s)
					replaced.Name = secret.Name
					objects[i] = replaced
				}
			}
		}
		compare(objects, which)
	}
	if upgrades == 0 {
		t.Fatal("nothing was upgraded")
	}
}

// podsOf returns the kind of an object with pods, "Healer" for that of the healer, "Proxies" for those of proxies.
func podsOf(object string) string {
	kind, name, _ := strings.Cut(object, " ")
	switch {
	case strings.HasSuffix(name, "-healer"):
		return "Healer"
	case strings.Contains(name, "-proxy"):
		return "Proxies"
	}
	return kind
}

func TestNewReleaseReplacesOnlyPodsWhosePayloadChanges(t *testing.T) {
	t.Parallel()
	const old, other = "1", "2"
	pods := func(version, registry, node string, set ...string) map[string]string {
		c := loadChart(t)
		c.Metadata.Version, c.Metadata.AppVersion = version, version
		digests := map[string]string{"registry-amd64": registry, "registry-arm64": registry, "registry-node-amd64": node,
			"registry-node-arm64": node}
		for name, digest := range digests {
			digests[name] = strings.Repeat(digest, 64)
		}
		set = append(set, "nodeConfig.mirrors=[docker.io]")
		return podTemplates(t, rendering{values: proxyMode(t, set...), chart: c, digests: digests}.render(t))
	}
	before := pods("0.1.0", old, old)
	for name, c := range map[string]struct {
		after   map[string]string
		changed []string
	}{
		"only the version":   {pods("0.2.0", old, old), nil},
		"only the hook":      {pods("0.2.0", old, old, "initHook.image.tag=0.2.0"), nil},
		"registry-node":      {pods("0.2.0", old, other), []string{"DaemonSet", "Healer"}},
		"registry":           {pods("0.2.0", other, old), []string{"Deployment"}},
		"both":               {pods("0.2.0", other, other), []string{"DaemonSet", "Deployment", "Healer"}},
		"both, same version": {pods("0.1.0", other, other), []string{"DaemonSet", "Deployment", "Healer"}},
	} {
		for object := range before {
			kind := podsOf(object)
			if changed := before[object] != c.after[object]; changed != slices.Contains(c.changed, kind) {
				t.Errorf("%s: pod template of %s changed: %t\n%s", name, object, changed, cmp.Diff(before[object], c.after[object]))
			}
		}
	}
}

func TestChangedValuesReplaceOnlyAffectedPods(t *testing.T) {
	t.Parallel()
	before := podTemplates(t, renderedFile(t, "proxy"))
	for set, want := range map[string]string{
		"registry.storage.type=inmemory":     "Deployment",
		"logLevel=debug":                     "Deployment Healer Proxies",
		"registry.podAnnotations={a: b}":     "Deployment",
		"proxy.tls=always":                   "Proxies",
		"auth.anonymousPull=true":            "Deployment",
		"podSecurity.label=true":             "",
		"initHook.ignorePreflight=[port]":    "",
		"proxy.retryTimeout=5s":              "Proxies",
		"port=32000":                         "Proxies",
		"initHook.image.tag=0.2.0":           "Deployment Healer", // another payload, which proxies hand over to
		"injector.image=example.com/pause:1": "Deployment Healer Proxies",
		"injector.enabled=false":             "Deployment Healer Proxies",
		"initHook.timeout=3m":                "",
		"pki={mode: certManager, certManager: {issuerRef: {name: i}}}":     "",
		"pki={mode: existingSecret, existingSecret: {server: a, node: b}}": "",
		"pki.lifetime={certificate: 10m, ca: 1h}":                          "",
		"pki.rotation.schedule=''":                                         "",
		"auth.existingSecret=mine":                                         "",
		"networkPolicy.enabled=false":                                      "",
		"nodeConfig.mirrors=[docker.io]":                                   "",
		"registry.persistence.size=40Gi":                                   "",
		"commonAnnotations={a: b}":                                         "",
		"registry.serviceAccount.annotations={a: b}":                       "",
		"proxy.updateStrategy.maxUnavailable=2":                            "",
		"registry.persistence.accessModes=[ReadWriteMany]":                 "Deployment", // it gets a shutdown delay
	} {
		after := podTemplates(t, rendering{values: proxyMode(t, set)}.render(t))
		for object := range before {
			kind := podsOf(object)
			if changed := before[object] != after[object]; changed != strings.Contains(want, kind) {
				t.Errorf("%s: pod template of %s changed: %t", set, object, changed)
			}
		}
	}
}
