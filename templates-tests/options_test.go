package templates

import (
	"fmt"
	"maps"
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

func TestImagesFollowTheirValues(t *testing.T) {
	t.Parallel()
	const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for _, test := range []struct {
		common, own, want string
		policy            corev1.PullPolicy
	}{
		{
			"{registry: mirror.internal:5000/a, pullPolicy: Always}", "{repository: %s, tag: v1}", "mirror.internal:5000/a/%s:v1",
			corev1.PullAlways,
		},
		{
			"{registry: '', pullPolicy: Never}", "{repository: a/%s, tag: v1, digest: '" + digest + "'}", "a/%s@" + digest,
			corev1.PullNever,
		},
	} {
		out := rendering{values: proxyMode(t, "injector.enabled=false", "image="+test.common,
			"registry.image="+fmt.Sprintf(test.own, "registry"), "proxy.image="+fmt.Sprintf(test.own, "registry-node"))}.render(t)
		seen := 0
		for _, w := range workloads(out) {
			if c := w.program(); w.component() == "registry" || w.component() == "proxy" {
				seen++
				name := map[string]string{"registry": "registry", "proxy": "registry-node"}[w.component()]
				if c.Image != fmt.Sprintf(test.want, name) || c.ImagePullPolicy != test.policy {
					t.Errorf("%s: %s, %s", w.object, c.Image, c.ImagePullPolicy)
				}
			}
		}
		if seen < 2 {
			t.Errorf("%d programs", seen)
		}
	}
}

func TestNameOverride(t *testing.T) {
	t.Parallel()
	out := rendering{release: "r", values: proxyMode(t, "nameOverride=images")}.render(t)
	find[*appsv1.Deployment](t, out, "r-images")
}

func TestS3FollowsItsValues(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"encrypt", "forcePathStyle"} {
		out := rendering{values: with(t, ciValues(t)["s3"], "registry.storage.s3."+value+"=true")}.render(t)
		config := find[*corev1.ConfigMap](t, out, "zarf-registry-config").Data["config.yml"]
		if !strings.Contains(config, "    "+strings.ToLower(value)+": true\n") {
			t.Errorf("%s is not in\n%s", value, config)
		}
	}
}

func TestS3TrustsAPrivateCA(t *testing.T) {
	t.Parallel()
	out := rendering{values: with(t, ciValues(t)["s3"], "registry.storage.s3.caSecret=corporate")}.render(t)
	pod := find[*appsv1.Deployment](t, out, "zarf-registry").Spec.Template.Spec
	bundle := ""
	for _, e := range pod.Containers[0].Env {
		if e.Name == "AWS_CA_BUNDLE" {
			bundle = e.Value
		}
	}
	var mounted, exists bool
	for _, m := range pod.Containers[0].VolumeMounts {
		mounted = mounted || m.Name == "s3-ca" && m.MountPath+"/ca.crt" == bundle
	}
	for _, v := range pod.Volumes {
		exists = exists || v.Name == "s3-ca" && v.Secret.SecretName == "corporate"
	}
	if !mounted || !exists {
		t.Errorf("AWS_CA_BUNDLE is %q, mounted %t, volume %t", bundle, mounted, exists)
	}
}

func TestTolerationsCanBeEmpty(t *testing.T) {
	t.Parallel()
	out := rendering{values: proxyMode(t, "registry.garbageCollection.enabled=true", "proxy.tolerations=[]",
		"initHook.tolerations=[]")}.render(t)
	for _, w := range workloads(out) {
		switch w.component() {
		case "proxy", "certificates", "garbage-collection":
			if len(w.pod.Spec.Tolerations) > 0 {
				t.Errorf("%s tolerates %v", w.object, w.pod.Spec.Tolerations)
			}
		}
	}
}

func TestEmptyAlertGroupsAreOmitted(t *testing.T) {
	t.Parallel()
	text := rendering{
		values: with(
			t, ciValues(t)["monitoring"],
			"metrics.prometheusRule.disabled=[ZarfRegistryProxyMissing, ZarfRegistryPortNotReserved, ZarfRegistryJobFailing]",
		),
	}.render(t).text()
	if strings.Contains(text, "zarf-registry-kube-state-metrics") || !strings.Contains(text, "ZarfRegistryDown") {
		t.Errorf("the rules are\n%s", text)
	}
}

func TestAlertsNeedWhatTheyWatch(t *testing.T) {
	t.Parallel()
	for set, test := range map[string]struct {
		alerts []string
		want   bool
	}{
		"reservePort=true":     {[]string{"ZarfRegistryPortNotReserved"}, true},
		"reservePort=false":    {[]string{"ZarfRegistryPortNotReserved"}, false},
		"cache.replicas=1":     {[]string{"ZarfRegistryCacheDown", "ZarfRegistryCacheStale"}, true},
		"cache.replicas=0":     {[]string{"ZarfRegistryCacheDown", "ZarfRegistryCacheStale"}, false},
		"healer.enabled=null":  {[]string{"ZarfRegistryHealerDown", "ZarfRegistryHealerStuck"}, true},
		"healer.enabled=false": {[]string{"ZarfRegistryHealerDown", "ZarfRegistryHealerStuck"}, false},
	} {
		text := rendering{values: monitored(t, set)}.render(t).text()
		for _, alert := range test.alerts {
			if strings.Contains(text, "alert: "+alert) != test.want {
				t.Errorf("%s: %s is there: %t", set, alert, !test.want)
			}
		}
		if strings.Contains(text, `"unreservedPort":true`) != (set == "reservePort=false") {
			t.Errorf("%s: the Jobs get the opposite", set)
		}
	}
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

func TestTopologySpreadConstraints(t *testing.T) {
	t.Parallel()
	own := &metav1.LabelSelector{
		MatchLabels: map[string]string{
			"app.kubernetes.io/name": "zarf-registry", "app.kubernetes.io/instance": "zarf-registry",
			"app.kubernetes.io/component": "registry",
		},
	}
	out := rendering{values: proxyMode(t, `registry.topologySpreadConstraints=[
		{maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: ScheduleAnyway},
		{maxSkew: 2, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {a: b}}}]`)}.render(t)
	want := []corev1.TopologySpreadConstraint{
		{MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: own},
		{
			MaxSkew: 2, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
		},
	}
	if diff := cmp.Diff(
		want, find[*appsv1.Deployment](t, out, "zarf-registry").Spec.Template.Spec.TopologySpreadConstraints,
	); diff != "" {
		t.Error(diff)
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

// The registry of a node that is lost is replaced soon, unless its images are lost with the pod.
func TestTheRegistryOfALostNodeIsReplaced(t *testing.T) {
	t.Parallel()
	const notReady, unreachable = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"
	for description, c := range map[string]struct {
		sets []string
		want map[string]int64 // seconds by taint; -1: forever
	}{
		"a claim":            {nil, map[string]int64{notReady: 30, unreachable: 30}},
		"S3":                 {[]string{"registry.storage={type: s3, s3: {bucket: b, region: r}}"}, map[string]int64{notReady: 30, unreachable: 30}},
		"on the node's disk": {[]string{"registry.persistence.enabled=false"}, nil},
		"one taint has its own": {
			[]string{"registry.tolerations=[{key: " + unreachable + ", operator: Exists, effect: NoExecute, tolerationSeconds: 5}]"},
			map[string]int64{notReady: 30, unreachable: 5},
		},
		"all taints are tolerated": {[]string{"registry.tolerations=[{operator: Exists}]"}, map[string]int64{"": -1}},
		"the node itself is tolerated, not its lack": {
			[]string{"registry.tolerations=[{operator: Exists, effect: NoSchedule}]"},
			map[string]int64{"": -1, notReady: 30, unreachable: 30},
		},
	} {
		got := map[string]int64{}
		for _, toleration := range registryOf(t, rendering{values: proxyMode(t, c.sets...)}.render(t)).Spec.Template.Spec.Tolerations {
			got[toleration.Key] = -1
			if toleration.TolerationSeconds != nil {
				got[toleration.Key] = *toleration.TolerationSeconds
			}
		}
		if !maps.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", description, got, c.want)
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

func TestGlobalImageRegistry(t *testing.T) {
	t.Parallel()
	sets := []string{
		"global.imageRegistry=mirror.internal:5000", "injector.enabled=false", "image.registry=elsewhere.example.com",
	}
	images := map[string]bool{}
	for _, w := range workloads(rendering{values: every(t, sets...)}.render(t)) {
		for _, c := range containers(w.pod.Spec) {
			if strings.Contains(c.Image, "pause") || strings.HasPrefix(c.Image, "127.0.0.1:") {
				continue // the node's own image, or one from this registry
			}
			images[c.Image[:strings.LastIndex(c.Image, ":")]] = true
		}
	}
	const prefix = "mirror.internal:5000/zarf-dev/zarf-registry/"
	if diff := cmp.Diff(
		map[string]bool{prefix + "init-hook": true, prefix + "registry": true, prefix + "registry-node": true}, images,
	); diff != "" {
		t.Error(diff)
	}
}

func TestGlobalPullSecretsPrecedeTheChartsOwn(t *testing.T) {
	t.Parallel()
	out := rendering{
		values: every(
			t, "global.imagePullSecrets=[a, {name: b}]", "imagePullSecrets=[{name: b}, {name: c}]", "image.pullPolicy=Never",
		),
	}.render(t)
	want := []corev1.LocalObjectReference{{Name: "a"}, {Name: "b"}, {Name: "c"}}
	for _, w := range workloads(out) {
		if diff := cmp.Diff(want, w.pod.Spec.ImagePullSecrets); diff != "" {
			t.Errorf("%s: %s", w.object, diff)
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
			for _, wrong := range check(out) {
				t.Errorf("%s: %s", name, wrong)
			}
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

// What the chart renders of these values elsewhere, TestPodOptionsApplyToAllPods and the golden files have.
func TestRegistryPodCanBeAdapted(t *testing.T) {
	t.Parallel()
	out := rendering{values: proxyMode(t, "registry.serviceAccount={create: false, name: mine}",
		"registry.podSecurityContext={fsGroup: 2000, supplementalGroups: [3000]}",
		"registry.extraVolumes=[{name: ca, configMap: {name: company-ca}}]",
		"registry.extraVolumeMounts=[{name: ca, mountPath: /etc/ssl/company, readOnly: true, subPath: ca}]")}.render(t)
	spec := find[*appsv1.Deployment](t, out, "zarf-registry").Spec.Template.Spec
	if spec.ServiceAccountName != "mine" {
		t.Errorf("the ServiceAccount is %s", spec.ServiceAccountName)
	}
	for _, o := range out.objects {
		if o.GetKind() == "ServiceAccount" && (o.GetName() == "mine" || o.GetName() == "zarf-registry") {
			t.Errorf("the chart creates %s", o)
		}
	}
	security := spec.SecurityContext
	if *security.FSGroup != 2000 || *security.RunAsUser != 65532 || !slices.Equal(security.SupplementalGroups, []int64{3000}) {
		t.Errorf("the pod's security context is %s", mustYAML(t, security))
	}
	container := spec.Containers[0]
	mount := corev1.VolumeMount{Name: "ca", MountPath: "/etc/ssl/company", ReadOnly: true, SubPath: "ca"}
	if got := container.VolumeMounts[len(container.VolumeMounts)-1]; !cmp.Equal(got, mount) ||
		spec.Volumes[len(spec.Volumes)-1].ConfigMap.Name != "company-ca" {
		t.Errorf("mounts %v of %v", container.VolumeMounts, spec.Volumes)
	}
	// The loader refuses mounts that it is not told.
	if !slices.Contains(container.Command, "--mount=/etc/ssl/company") {
		t.Errorf("the command is %v", container.Command)
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
