package workloads_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/zarf-dev/zarf-registry/internal/images/workloads"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// needed returns what the workloads need: "REFERENCE: USER, USER", in parentheses if it is only possible.
func needed(set *workloads.Set) (lines []string) {
	for _, n := range set.Needs(nil) {
		line := n.String() + ": " + strings.Join(n.By(), ", ")
		if n.Possible {
			line = "(" + line + ")"
		}
		lines = append(lines, line)
	}
	return lines
}

func TestNeedsOfACluster(t *testing.T) {
	zero := int32(0)
	running := corev1.Pod{ObjectMeta: meta("web-2-a", "web-2"), Spec: spec("web:2")}
	running.Status.ContainerStatuses = []corev1.ContainerStatus{{ImageID: "docker.io/library/web@sha256:" + strings.Repeat("1", 64)}}
	ended := corev1.Pod{ObjectMeta: meta("ended"), Spec: spec("ended:1")}
	ended.Status.Phase = corev1.PodSucceeded
	done := batchv1.Job{ObjectMeta: meta("done"), Spec: batchv1.JobSpec{Template: template("done:1")}}
	done.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue}}
	operator := appsv1.Deployment{ObjectMeta: meta("operator"), Spec: appsv1.DeploymentSpec{Template: template("operator:1")}}
	operator.Spec.Template.Spec.Containers[0].Env = []corev1.EnvVar{
		{Name: "RELATED_IMAGE_DB", Value: "postgres:16"}, {Name: "RELATED_IMAGE_NONE", Value: "Not One"},
		{Name: "SIDECAR", Value: "quay.io/team/sidecar:1"}, {Name: "SHELL", Value: "bash"},
	}
	operator.Spec.Template.Spec.Containers[0].Command = []string{"run", "--reloader=quay.io/team/reloader@sha256:" +
		strings.Repeat("2", 64), "--default=quay.io/team/untagged", "--probe", "https://quay.io/v2:1", "web:2", "quay.io/team/bare:1"}
	set, err := workloads.List(t.Context(), fake.NewClientset(&running, &ended, &done, &operator,
		&appsv1.Deployment{ObjectMeta: meta("web"), Spec: appsv1.DeploymentSpec{Template: template("docker.io/web:2", "Bad Name")}},
		&appsv1.ReplicaSet{ObjectMeta: meta("web-2", "web"), Spec: appsv1.ReplicaSetSpec{Template: template("web:2")}},
		&appsv1.ReplicaSet{ObjectMeta: meta("web-1", "web"), Spec: appsv1.ReplicaSetSpec{Replicas: &zero, Template: template("web:1")}},
		&appsv1.ReplicaSet{ObjectMeta: meta("scaled"), Spec: appsv1.ReplicaSetSpec{Replicas: &zero, Template: template("scaled:1")}},
	))
	require.NoError(t, err)
	want := []string{
		"docker.io/library/operator:1: Deployment shop/operator",
		"docker.io/library/postgres:16: Deployment shop/operator (RELATED_IMAGE_DB)",
		"docker.io/library/scaled:1: ReplicaSet shop/scaled",
		"docker.io/library/web:2: Deployment shop/web",
		"(quay.io/team/bare:1: Deployment shop/operator (argument))",
		"(quay.io/team/reloader@sha256:" + strings.Repeat("2", 64) + ": Deployment shop/operator (argument --reloader))",
		"(quay.io/team/sidecar:1: Deployment shop/operator (variable SIDECAR))",
	}
	if diff := cmp.Diff(want, needed(set)); diff != "" {
		t.Error(diff)
	}
	if found := set.Needs(func(namespace string, _ map[string]string) bool { return namespace != "shop" }); len(found) > 0 {
		t.Errorf("%d needs of other namespaces", len(found))
	}
	needs := set.Needs(nil)
	needs[0].Merge(needs[4])
	if by := needs[0].By(); needs[0].Possible || len(by) != 2 {
		t.Errorf("a merged need is possible: %t, needed by %q", needs[0].Possible, by)
	}
}

func TestNeedsOfManifests(t *testing.T) {
	const digest = "sha256:1111111111111111111111111111111111111111111111111111111111111111"
	for name, c := range map[string]struct {
		manifest string
		want     []string
	}{
		"all fields of a pod": {`
apiVersion: v1
kind: Pod
metadata: {name: p, namespace: shop}
spec:
  initContainers: [{image: init}]
  containers: [{image: "quay.io/a/b:1@` + digest + `"}, {image: ""}]
  ephemeralContainers: [{image: 127.0.0.1:31999/debug:1}]
  volumes: [{name: v, image: {reference: "ghcr.io/a/model:2"}}, {name: w, emptyDir: {}}]
`, []string{"127.0.0.1:31999/debug:1: Pod shop/p", "docker.io/library/init:latest: Pod shop/p", "ghcr.io/a/model:2: Pod shop/p",
			"quay.io/a/b@" + digest + ": Pod shop/p"}},
		"kinds with templates, also of old versions": {`
{apiVersion: extensions/v1beta1, kind: Deployment, metadata: {name: a}, spec: {template: {spec: {containers: [{image: a}]}}}}
--- # a comment
{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: b}, spec: {template: {spec: {containers: [{image: b}]}}}}
---
{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: c}, spec: {template: {spec: {containers: [{image: c}]}}}}
---
# nothing
---
{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: d}, spec: {template: {spec: {containers: [{image: d}]}}}}
---
{apiVersion: v1, kind: ReplicationController, metadata: {name: e}, spec: {template: {spec: {containers: [{image: e}]}}}}
---
{apiVersion: v1, kind: ReplicationController, metadata: {name: none}, spec: {}}
---
{apiVersion: batch/v1, kind: Job, metadata: {generateName: f-}, spec: {template: {spec: {containers: [{image: f}]}}}}
---
{apiVersion: batch/v1beta1, kind: CronJob, metadata: {name: g}, spec: {jobTemplate: {spec: {template: {spec: {containers: [{image: g}]}}}}}}
---
{apiVersion: v1, kind: PodTemplate, metadata: {name: h}, template: {spec: {containers: [{image: h}]}}}
`, []string{"docker.io/library/a:latest: Deployment a", "docker.io/library/b:latest: ReplicaSet b",
			"docker.io/library/c:latest: StatefulSet c", "docker.io/library/d:latest: DaemonSet d",
			"docker.io/library/e:latest: ReplicationController e", "docker.io/library/f:latest: Job f-",
			"docker.io/library/g:latest: CronJob g", "docker.io/library/h:latest: PodTemplate h"}},
		"lists, in JSON": {`{"apiVersion": "v1", "kind": "List", "items": [
	{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [{"image": "a"}]}},
	{"apiVersion": "v1", "kind": "PodList", "items": [{"metadata": {"name": "b"}, "spec": {"containers": [{"image": "b"}]}}]}]}
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "c"}, "spec": {"containers": [{"image": "c"}]}}`,
			[]string{"docker.io/library/a:latest: Pod a", "docker.io/library/b:latest: Pod b", "docker.io/library/c:latest: Pod c"}},
		"custom resources": {`
apiVersion: example.com/v1
kind: Deployment
metadata: {name: x, annotations: {image: metadata}}
spec:
  image: a
  images: b
  other: {image: {repository: c}}
  template: {spec: {containers: [{image: "d:1"}, {image: Bad Name}, {env: [{name: RELATED_IMAGE_E, value: e}, {name: F, value: f}]}]}}
status: {image: status}
`, []string{"docker.io/library/a:latest: Deployment x (spec.image)",
			"docker.io/library/d:1: Deployment x (spec.template.spec.containers[0].image)",
			"docker.io/library/e:latest: Deployment x (RELATED_IMAGE_E)"}},
		"objects without pods": {"{apiVersion: v1, kind: ConfigMap, metadata: {name: x}, data: {image: a}}", nil},
	} {
		t.Run(name, func(t *testing.T) {
			set := &workloads.Set{}
			if n, err := set.AddManifests(strings.NewReader(c.manifest), "test"); err != nil || n == 0 {
				t.Fatalf("%d objects, error %v", n, err)
			}
			if diff := cmp.Diff(c.want, needed(set)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestNeedsOfWellKnownCharts(t *testing.T) {
	for name, want := range map[string]string{
		"cert-manager": `
(quay.io/jetstack/cert-manager-acmesolver:v1.16.2: Deployment cert-manager/cert-manager (argument --acme-http01-solver-image))
quay.io/jetstack/cert-manager-cainjector:v1.16.2: Deployment cert-manager/cert-manager-cainjector
quay.io/jetstack/cert-manager-controller:v1.16.2: Deployment cert-manager/cert-manager
quay.io/jetstack/cert-manager-startupapicheck:v1.16.2: Job cert-manager/cert-manager-startupapicheck
quay.io/jetstack/cert-manager-webhook:v1.16.2: Deployment cert-manager/cert-manager-webhook
`,
		"ingress-nginx": `
registry.k8s.io/defaultbackend-amd64:1.5: Deployment ingress-nginx/ingress-nginx-defaultbackend
registry.k8s.io/ingress-nginx/controller@sha256:d56f135b6462cfc476447cfe564b83a45e8bb7da2774963b00d12161112270b7: Deployment ingress-nginx/ingress-nginx-controller
registry.k8s.io/ingress-nginx/kube-webhook-certgen:v1.4.4: Job ingress-nginx/ingress-nginx-admission-create, Job ingress-nginx/ingress-nginx-admission-patch
`,
		"kube-prometheus-stack": `
docker.io/bats/bats:v1.4.1: Pod monitoring/grafana-test
docker.io/grafana/grafana:11.3.1: Deployment monitoring/grafana
docker.io/library/busybox:1.31.1: Deployment monitoring/grafana, Prometheus monitoring/prometheus (spec.containers[0].image)
quay.io/kiwigrid/k8s-sidecar:1.28.0: Deployment monitoring/grafana
(quay.io/prometheus-operator/prometheus-config-reloader:v0.78.2: Deployment monitoring/prometheus-operator (argument --prometheus-config-reloader))
quay.io/prometheus-operator/prometheus-operator:v0.78.2: Deployment monitoring/prometheus-operator
quay.io/prometheus/alertmanager:v0.27.0: Alertmanager monitoring/alertmanager (spec.image)
quay.io/prometheus/node-exporter:v1.8.2: DaemonSet monitoring/prometheus-node-exporter
quay.io/prometheus/prometheus:v2.55.1: Prometheus monitoring/prometheus (spec.image)
(quay.io/thanos/thanos:v0.37.1: Deployment monitoring/prometheus-operator (argument --thanos-default-base-image))
registry.k8s.io/kube-state-metrics/kube-state-metrics:v2.14.0: Deployment monitoring/kube-state-metrics
`,
	} {
		t.Run(name, func(t *testing.T) {
			file := require.Value(os.Open(filepath.Join("testdata/charts", name+".yaml")))(t)
			defer file.Close()
			set := &workloads.Set{}
			require.Value(set.AddManifests(file, file.Name()))(t)
			if diff := cmp.Diff(strings.Split(strings.TrimSpace(want), "\n"), needed(set)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestInvalidManifestsAreErrors(t *testing.T) {
	const pod = "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{image: %s}]}}\n"
	for name, c := range map[string]struct{ manifest, want string }{
		"values":                  {"image:\n  repository: nginx\n", "f: document 1: not a Kubernetes manifest"},
		"text":                    {"hello", "f: document 1: not a Kubernetes manifest"},
		"a sequence":              {"[1, 2]", "f: document 1: not a Kubernetes manifest"},
		"not YAML":                {fmt.Sprintf(pod, "a") + "---\n{{ .Values.image }}: [\n", "f: document 2: "},
		"not JSON":                {`{"apiVersion": "v1"`, "f: document 1: "},
		"an item of a list":       {"{apiVersion: v1, kind: List, items: [{kind: Pod, apiVersion: v1}, 7]}", "f: document 1: item 2: not a Kub"},
		"a wrong type":            {"{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: 7}}", "f: document 1: Pod p: "},
		"a wrong version":         {"{apiVersion: a/b/c, kind: Pod}", "f: document 1: "},
		"a wrong reference":       {fmt.Sprintf(pod, "a") + "---\n" + fmt.Sprintf(pod, "Bad/Name"), "f: document 2: Pod p: image reference"},
		"a field of a wrong type": {"{apiVersion: v1, kind: Pod, metadata: 3}", "f: document 1: "},
	} {
		_, err := (&workloads.Set{}).AddManifests(strings.NewReader(c.manifest), "f")
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error is %v, want %q", name, err, c.want)
		}
	}
}

// FuzzManifests checks that all needs of what is accepted are references, and have a user.
func FuzzManifests(f *testing.F) {
	charts, err := filepath.Glob("testdata/charts/*.yaml")
	if err != nil || len(charts) != 3 {
		f.Fatalf("%q, %v", charts, err)
	}
	for _, name := range charts {
		content := require.Value(os.ReadFile(name))(f)
		f.Add(content)
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		set := &workloads.Set{}
		if _, err := set.AddManifests(strings.NewReader(string(content)), "f"); err != nil {
			return
		}
		var again []string
		for _, n := range set.Needs(nil) {
			if len(n.By()) == 0 || n.Path == "" || (n.Tag == "") == (n.Digest == "") {
				t.Errorf("%+v is needed by %q", n.Name, n.By())
			}
			again = append(again, n.String())
		}
		if !slices.IsSorted(again) || len(slices.Compact(again)) != len(set.Needs(nil)) {
			t.Errorf("not sorted, or twice: %q", again)
		}
	})
}
