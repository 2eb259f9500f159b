package templates

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// Tests of options that are common to many charts: image registry, namespace, labels.

// every returns values with which the chart renders all kinds of pods.
func every(t *testing.T, sets ...string) map[string]any {
	t.Helper()
	return proxyMode(t, append([]string{"nodeConfig.mirrors=[docker.io]", "cache.replicas=1"}, sets...)...)
}

// resourcesOf are the paths of the values with the resources of each component's pods. Empty: they are fixed.
var resourcesOf = map[string]string{
	"registry": "registry", "proxy": "proxy", "cache": "cache", "init-hook": "initHook", "certificates": "initHook",
	"node-config": "", "node-restore": "", "healer": "",
}

func TestPodOptionsApplyToAllPods(t *testing.T) {
	t.Parallel()
	sets := []string{
		"commonLabels={zarf.dev/agent: mutate}", "podLabels={all: all, some: all, zarf.dev/agent: mutate}",
		"podAnnotations={all: all, some: all}", "priorityClassName=all",
		"extraEnv=[{name: ALL, value: all}, {name: SOME, value: all}]", "registry.extraEnv=[{name: SOME, value: registry}]",
	}
	for _, path := range []string{"registry", "proxy"} {
		sets = append(sets, path+".podLabels={some: "+path+", zarf.dev/agent: mutate}",
			path+".podAnnotations={some: "+path+"}")
	}
	for _, path := range []string{"registry", "proxy"} {
		sets = append(sets, path+".priorityClassName="+path)
	}
	for _, path := range resourcesOf {
		if path != "" {
			sets = append(sets, path+".resources={requests: {cpu: 7m, memory: 7Mi}, limits: {memory: 77Mi}}")
		}
	}
	found := map[string]bool{}
	for _, w := range workloads(rendering{values: every(t, sets...)}.render(t)) {
		component := w.component()
		if got := w.pod.Labels["zarf.dev/agent"]; got != "ignore" {
			t.Errorf("%s: the values override zarf.dev/agent: %q", w.object, got)
		}
		if component == "test" {
			continue // pods of helm test
		}
		if _, ok := resourcesOf[component]; !ok {
			t.Errorf("%s: resourcesOf lacks component %q", w.object, component)
			continue
		}
		found[component] = true
		// expected is what a component with the value has, and all others.
		expected := func(with ...string) string {
			if slices.Contains(with, component) {
				return component
			}
			return "all"
		}
		c := w.program()
		env := map[string]string{}
		if strings.HasPrefix(component, "node-") { // they have none
			env["ALL"], env["SOME"] = "all", "all"
		}
		for _, e := range c.Env {
			env[e.Name] = e.Value
		}
		got := []string{
			w.pod.Labels["all"], w.pod.Labels["some"], w.pod.Annotations["all"], w.pod.Annotations["some"], env["ALL"],
			env["SOME"], w.pod.Spec.PriorityClassName, c.Resources.Requests.Cpu().String(), c.Resources.Limits.Memory().String(),
		}
		priority, request, limit := expected("registry", "proxy"), "7m", "77Mi"
		switch {
		case component == "healer":
			priority, request, limit = "registry", "5m", "64Mi"
		case strings.HasPrefix(component, "node-"):
			request, limit = "1m", "64Mi"
		}
		if diff := cmp.Diff([]string{
			"all", expected("registry", "proxy"), "all", expected("registry", "proxy"), "all", expected("registry"),
			priority, request, limit,
		}, got); diff != "" {
			t.Errorf("%s, labels, annotations, environment, priority, requests and limits of the values (-), of the pod (+):\n%s",
				w.object, diff)
		}
	}
	if len(found) != len(resourcesOf) {
		t.Errorf("pods of %v only", found)
	}
}

func TestNameOverride(t *testing.T) {
	t.Parallel()
	out := rendering{release: "r", values: proxyMode(t, "nameOverride=images")}.render(t)
	find[*appsv1.Deployment](t, out, "r-images")
}

// Unexpected objects in the cluster do not affect the rendering.
func TestUnexpectedClusterObjectsAreIgnored(t *testing.T) {
	t.Parallel()
	docker := node("docker", "amd64", "registry.k8s.io/pause:3.10")
	docker.Status.NodeInfo.ContainerRuntimeVersion = "docker://28.0.0"
	unnamed := node("unnamed", "", hookImage)
	running := &appsv1.Deployment{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "zarf", Name: "zarf-registry"},
	}
	running.Spec.Template.Spec.Containers = []corev1.Container{{Name: "sidecar", Image: "example.com/sidecar:1"}}
	out := rendering{
		cluster: newCluster(kubernetes(corev1.IPv4Protocol), docker, unnamed, running), values: every(t),
	}.render(t)
	for _, w := range workloads(out) {
		if strings.Contains(w.program().Image, "sidecar") {
			t.Errorf("%s runs in %s", w.object, w.program().Image)
		}
	}
	if files := find[*corev1.Secret](t, out, "zarf-registry-node-config").Data["config.json"]; !strings.Contains(
		string(files), "/etc/containerd/certs.d",
	) {
		t.Errorf("node configuration: %s", files)
	}
}

// Cluster-scoped objects, and those in other namespaces, of releases whose namespace and name join to the same text.
func TestNamesOfTwoReleasesDiffer(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for namespace, name := range map[string]string{"zarf": "registry-x", "zarf-registry": "x"} {
		out := rendering{values: every(t, "fullnameOverride="+name, "namespaceOverride="+namespace,
			"localRegistryHosting=true")}.render(t)
		for _, o := range out.objects {
			key := o.GetNamespace() + " " + o.String()
			if other := seen[key]; other != "" && other != namespace {
				t.Errorf("both releases have %s", key)
			}
			seen[key] = namespace
		}
	}
}

func TestTheTimeoutOfJobsGrowsWithTheNodes(t *testing.T) {
	t.Parallel()
	for count, want := range map[int]string{0: "240s", 50: "240s", 51: "242s", 200: "540s"} {
		var nodes []runtime.Object
		for i := range count {
			nodes = append(nodes, node(fmt.Sprintf("n%d", i), "amd64"))
		}
		out := rendering{values: proxyMode(t), cluster: newCluster(nodes...)}.render(t)
		job := find[*batchv1.Job](t, out, "zarf-registry-finish")
		if args := job.Spec.Template.Spec.Containers[0].Args; !slices.Contains(args, "--timeout="+want) {
			t.Errorf("%d nodes: %q", count, args)
		}
	}
}

// By the annotation, another release finds that it has the same ports of the nodes.
func TestTheServiceNamesThePortsOfNodes(t *testing.T) {
	t.Parallel()
	for set, want := range map[string]string{
		"proxy.hostNetwork=true": "31999,9102", "proxy.hostNetwork=false": "", "registryProxy=false": "",
	} {
		out := rendering{values: proxyMode(t, set)}.render(t)
		got := find[*corev1.Service](t, out, "zarf-registry").Annotations[names.AnnotationNodePorts]
		ports := strings.Trim(strings.Join(strings.Fields(fmt.Sprint(decided(out).Proxy.NodePorts)), ","), "[]")
		if got != want || ports != want {
			t.Errorf("%s: the Service names %q, the settings %q", set, got, ports)
		}
	}
}

func TestExtraObjectsAreRenderedAsTemplates(t *testing.T) {
	t.Parallel()
	for name, values := range map[string]map[string]any{"proxy": proxyMode(t), "external": ciValues(t)["external"]} {
		out := rendering{values: with(t, values, `extraObjects=[
			{apiVersion: v1, kind: ConfigMap, metadata: {name: "{{ .Release.Name }}-mine"}, data: {a: b}},
			"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  {{- include \"zarf-registry.metadata\" (list . \"extra\" \"of-text\") | nindent 2 }}\n"]`)}.render(t)
		mine := find[*corev1.ConfigMap](t, out, "zarf-registry-mine")
		if mine.Data["a"] != "b" || mine.Namespace != "" || len(mine.Labels) > 0 {
			t.Errorf("%s: the user's object is %v", name, mine)
		}
		text := find[*corev1.ConfigMap](t, out, "of-text")
		if text.Namespace != "zarf" || text.Labels["app.kubernetes.io/component"] != "extra" {
			t.Errorf("%s: the object from a string is %v", name, text)
		}
	}
}

// Only Helm's release record stays in the release's namespace. All objects are in the other one, and
// the Jobs and the notes use it.
func TestNamespaceOverrideAppliesToAllObjects(t *testing.T) {
	t.Parallel()
	for name, values := range map[string]map[string]any{
		"proxy": every(t, "podSecurity.label=true"), "nodeport": {"registryProxy": false},
		"external": ciValues(t)["external"], "cert-manager": ciValues(t)["cert-manager"],
	} {
		before := rendering{values: values}.render(t).text()
		out := rendering{values: with(t, values, "namespaceOverride=images")}.render(t)
		for _, o := range out.objects {
			cluster := clusterScoped(o)
			if o.GetNamespace() == metav1.NamespacePublic {
				continue // where tools look for registries
			}
			if !cluster && o.GetNamespace() != "images" || cluster && !strings.HasPrefix(o.GetName(), "images.") {
				t.Errorf("%s: %s is in namespace %q", name, o, o.GetNamespace())
			}
		}
		for _, sign := range []string{
			"--namespace=zarf\n", "--namespace zarf ", "zarf-registry.zarf.svc", "\"zarf\"", " zarf\n",
		} {
			// Helm's record stays.
			text := strings.ReplaceAll(out.text(), "helm test zarf-registry --namespace zarf\n", "")
			if strings.Contains(text, sign) {
				t.Errorf("%s: it contains %q", name, sign)
			}
			// The expected text is the rendering without the override.
			if name == "proxy" && sign != " zarf\n" && sign != "--namespace zarf " && !strings.Contains(before, sign) {
				t.Errorf("%q was never rendered", sign)
			}
		}
		for name, check := range invariants {
			check(out, reporter(t, name))
		}
	}
}

func TestRejectsMovingToAnotherNamespace(t *testing.T) {
	t.Parallel()
	here := ready(settings(state.ModeProxy, state.IPv4))
	there := remembers(here)
	there.Namespace = "images"
	labelled := remembers(here)
	labelled.Labels = map[string]string{"app.kubernetes.io/instance": "zarf-registry"}
	others := remembers(here)
	others.Labels = map[string]string{"app.kubernetes.io/instance": "another"}
	for name, test := range map[string]struct {
		cluster *cluster
		sets    []string
		refused bool
	}{
		"no state": {newCluster(kubernetes(corev1.IPv4Protocol)), []string{"namespaceOverride=images"}, false},
		"the state is in the other namespace": {
			newCluster(kubernetes(corev1.IPv4Protocol), there), []string{"namespaceOverride=images"}, false,
		},
		"the state is in the release's namespace": {
			newCluster(kubernetes(corev1.IPv4Protocol), labelled), []string{"namespaceOverride=images"}, true,
		},
		"the state of another release": {
			newCluster(kubernetes(corev1.IPv4Protocol), others), []string{"namespaceOverride=images"}, false,
		},
		"the release's own namespace": {
			newCluster(kubernetes(corev1.IPv4Protocol), labelled), []string{"namespaceOverride=zarf"}, false,
		},
	} {
		out, err := rendering{cluster: test.cluster, values: with(t, nil, test.sets...), upgrade: true}.try(t)
		switch {
		case test.refused && (err == nil || !strings.Contains(err.Error(), ": zarf-registry: namespaceOverride: ")):
			t.Errorf("%s: %v", name, err)
		case !test.refused && err != nil:
			t.Errorf("%s: %v", name, err)
		case name == "the state is in the other namespace" && decidedMode(out) != "proxy":
			t.Errorf("%s: mode %s", name, decidedMode(out))
		}
	}
}

func TestRightsAreOptional(t *testing.T) {
	t.Parallel()
	count := func(sets ...string) (rights, others int) {
		sets = append(sets, "openshift.enabled=true", "registry.garbageCollection={enabled: true, prune: {untagged: true}}")
		for _, o := range (rendering{values: every(t, sets...)}).render(t).objects {
			if strings.HasPrefix(o.GetAPIVersion(), "rbac.authorization.k8s.io/") {
				rights++
			} else {
				others++
			}
		}
		return rights, others
	}
	with, all := count()
	without, others := count("rbac.create=false")
	if with < 20 || without != 0 || all != others {
		t.Errorf("%d rights and %d other objects; with rbac.create=false %d and %d", with, all, without, others)
	}
}
