package e2e

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/node/heal"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// shop is a Deployment as the charts of others write it: it names Docker Hub, quay.io, and images without a host.
const shop = `apiVersion: apps/v1
kind: Deployment
metadata:
  name: shop
spec:
  selector:
    matchLabels: {app: shop}
  template:
    metadata:
      labels: {app: shop}
    spec:
      terminationGracePeriodSeconds: 1
      initContainers:
        - name: mesh
          image: quay.io/acme/mesh:2
          restartPolicy: Always
      containers:
        - name: web
          image: docker.io/library/web:1
        - name: cache
          image: cache:1
        - name: cart
          image: acme/cart:3
`

// rewritten are the references of [shop] by the name of the container, and what they become.
var rewritten = map[string][2]string{
	"mesh": {"quay.io/acme/mesh:2", "acme/mesh:2"}, "web": {"docker.io/library/web:1", "library/web:1"},
	"cache": {"cache:1", "library/cache:1"}, "cart": {"acme/cart:3", "acme/cart:3"},
}

// TestRewrite runs unmodified manifests from the registry, on nodes that hold only pause, with a
// MutatingAdmissionPolicy.
func TestRewrite(t *testing.T) {
	w := ownCluster(t, "e2e-rewrite", layout{bare: true, open: true, args: []string{"--nodes", "1"}})
	pods := w.client.CoreV1().Pods(workloads)
	deployments := w.client.AppsV1().Deployments(workloads)
	manifest := filepath.Join(t.TempDir(), "shop.yaml")
	require.NoError(t, os.WriteFile(manifest, []byte(shop), 0o600))
	shown := func(t *testing.T, name string, args ...string) {
		t.Helper()
		t.Logf("$ %s %s\n%s", filepath.Base(name), strings.Join(args, " "), output(t, w.command(t, name, args...)))
	}
	podOfShop := func(t *testing.T) *corev1.Pod {
		t.Helper()
		var found *corev1.Pod
		eventually(t, "the Deployment to be available", func() error {
			list, err := pods.List(t.Context(), metav1.ListOptions{LabelSelector: "app=shop"})
			if err != nil {
				return err
			}
			list.Items = slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
			if len(list.Items) != 1 || !ready(list.Items[0]) {
				return fmt.Errorf("pods: %s", mustJSON(list.Items))
			}
			found = &list.Items[0]
			return nil
		})
		return found
	}
	// differs checks that the images of a pod of the Deployment are the registry's, and its template's are not.
	differs := func(t *testing.T, p *corev1.Pod, template corev1.PodTemplateSpec) {
		t.Helper()
		for i, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
			for j, c := range list {
				image := [][]corev1.Container{template.Spec.InitContainers, template.Spec.Containers}[i][j].Image
				if want := rewritten[c.Name]; c.Image != w.address+"/"+want[1] || image != want[0] ||
					p.Annotations["original-image.zarf-registry/"+c.Name] != want[0] {
					t.Errorf("container %s: image %s, in the template %s; annotations %v", c.Name, c.Image, image, p.Annotations)
				}
			}
		}
	}

	w.onlyPause(t, w.nodes[0])
	must(t, "zarf-registry install, and images push", func(t *testing.T) {
		w.mustInstall(t, "--set=registryProxy=false", "--set=rewrite.enabled=true", namedPause)
		w.isIn(t, state.ModeNodePort, state.SourceValue)
		program := require.Value(os.ReadFile(w.tool))(t)
		images := map[string][]byte{}
		for _, references := range rewritten {
			images[references[0]] = program
		}
		shown(t, w.hook, "images", "push", writeArchive(t, images))
		secret := w.pullSecret(t)
		secret.ObjectMeta = metav1.ObjectMeta{Name: secret.Name}
		require.Value(w.client.CoreV1().Secrets(workloads).Create(t.Context(), secret, metav1.CreateOptions{}))(t)
	})
	must(t, "a Deployment of other registries' images runs unmodified", func(t *testing.T) {
		shown(t, w.kubectl, "apply", "-f", manifest)
		p := podOfShop(t)
		shown(t, w.kubectl, "get", "pods", "-l", "app=shop", "-o",
			`jsonpath={range .items[*].spec.containers[*]}{.name}{"\t"}{.image}{"\n"}{end}`)
		deployment := require.Value(deployments.Get(t.Context(), "shop", metav1.GetOptions{}))(t)
		differs(t, p, deployment.Spec.Template)
		if got := p.Spec.ImagePullSecrets; !slices.Equal(got, []corev1.LocalObjectReference{{Name: release + "-pull"}}) {
			t.Errorf("the pod's pull Secrets are %v", got)
		}
		shown(t, w.kubectl, "diff", "-f", manifest) // fails if there is a difference
	})
	must(t, "a pod that is applied again gets its own reference back", func(t *testing.T) {
		text := "{apiVersion: v1, kind: Pod, metadata: {name: bare}, spec: {containers: [{name: a, image: cache:1}]}}"
		apply := func(args ...string) string {
			cmd := w.command(t, w.kubectl, append([]string{"apply", "-o", "jsonpath={.spec.containers[0].image}", "-f", "-"},
				args...)...)
			cmd.Stdin = strings.NewReader(text)
			return output(t, cmd)
		}
		if first, second := apply(), apply("--dry-run=server"); first != w.address+"/library/cache:1" || second != "cache:1" {
			t.Errorf("its image is %s, and when it is applied again %s", first, second)
		}
		output(t, w.command(t, w.kubectl, "delete", "pod", "bare", "--now"))
	})
	t.Run("pod creation takes hardly longer", func(t *testing.T) { w.timeCreation(t, "docker.io/library/nginx:1") })
	must(t, "an upgrade turns it off, and running pods stay", func(t *testing.T) {
		before := podOfShop(t)
		w.apply(t, nodePortMode, "--set=rewrite.enabled=false")
		w.isNotRewritten(t)
		if after := podOfShop(t); after.UID != before.UID || after.Status.ContainerStatuses[0].RestartCount > 0 {
			t.Error("the pod was restarted")
		}
	})
	must(t, "with mirrors, the same Deployment runs, and its pods have the images of its template", func(t *testing.T) {
		w.apply(t, proxyMode, "--set=rewrite.enabled=false", "--set=nodeConfig.mirrors={docker.io,quay.io}")
		output(t, w.command(t, w.kubectl, "delete", "pod", "--selector=app=shop", "--now"))
		for _, c := range podOfShop(t).Spec.Containers {
			if c.Image != rewritten[c.Name][0] {
				t.Errorf("the image of container %s is %s", c.Name, c.Image)
			}
		}
	})
	must(t, "an upgrade turns it on again in proxy mode, where pods need no Secret", func(t *testing.T) {
		w.apply(t, proxyMode, "--set=rewrite.enabled=true", namedPause)
		eventually(t, "the policy to take effect", func() error {
			if p := w.admitted(t, pod("trial", "", "nginx:1")); p.Spec.Containers[0].Image != w.address+"/library/nginx:1" ||
				len(p.Spec.ImagePullSecrets) > 0 {
				return fmt.Errorf("the pod becomes %s", mustJSON(p.Spec))
			}
			return nil
		})
	})
	must(t, "zarf-registry status says whether the policy takes effect", func(t *testing.T) {
		const policy = namespace + "." + release + "-rewrite"
		w.isHealthy(t)
		_, text := w.status(t)
		if !strings.Contains(text, policy+", takes effect\n") {
			t.Errorf("with the policy: %s", text)
		}
		// As if the API server did not evaluate it.
		output(t, w.command(t, w.kubectl, "delete", "mutatingadmissionpolicybinding", policy))
		eventually(t, "the policy not to take effect", func() error {
			report, text := w.status(t)
			if len(report.Next) != 1 ||
				!strings.HasPrefix(report.Next[0], "MutatingAdmissionPolicy "+policy+" does not take effect") {
				return fmt.Errorf("status: %s", text)
			}
			return nil
		})
	})
	must(t, "helm uninstall restores normal behaviour", func(t *testing.T) {
		output(t, w.command(t, w.kubectl, "delete", "-f", manifest, "--now"))
		w.helmUninstall(t)
		w.isNotRewritten(t)
	})
}

// TestRewriteBeta rewrites with the beta version of the API, and with an API server that accepts the policy without
// evaluating it.
func TestRewriteBeta(t *testing.T) {
	onlyInLongRuns(t)
	const disabled = "--disable-admission-plugins=MutatingAdmissionPolicy"
	for name, flags := range map[string][]string{"e2e-rewrite-beta": nil, "e2e-rewrite-off": {disabled}} {
		t.Run(name, func(t *testing.T) {
			args := []string{"--nodes", "1", "--kubernetes", "1.34"}
			for _, flag := range append(flags, "--feature-gates=MutatingAdmissionPolicy=true",
				"--runtime-config=admissionregistration.k8s.io/v1beta1=true") {
				args = append(args, "--api-server-flag="+flag)
			}
			w := ownCluster(t, name, layout{open: true, args: args})
			w.helmChart(t, "install", proxyMode, "--set=rewrite.enabled=true", namedPause)
			report, text := w.status(t)
			evaluated := flags == nil
			if report.Healthy != evaluated || report.Rewriting == nil || report.Rewriting.Effective == nil ||
				*report.Rewriting.Effective != evaluated {
				t.Errorf("status: %s", text)
			}
			want := "nginx:1"
			if evaluated {
				want = w.address + "/library/nginx:1"
			}
			if got := w.admitted(t, pod("trial", "", "nginx:1")).Spec.Containers[0].Image; got != want {
				t.Errorf("the image of a pod becomes %s, want %s", got, want)
			}
			w.uninstall(t)
		})
	}
}

// TestRewriteMissing rewrites only references to repositories that the registry has, and then refuses pods with others.
func TestRewriteMissing(t *testing.T) {
	w := ownCluster(t, "e2e-missing", layout{args: []string{"--nodes", "1"}})
	configMaps := w.client.CoreV1().ConfigMaps(w.namespace)
	const repositories = release + "-repositories"
	program := require.Value(os.ReadFile(w.tool))(t)
	rewrite := func(missing string) []string {
		return []string{proxyMode, "--set=rewrite.enabled=true", "--set=rewrite.missing=" + missing, namedPause}
	}
	image := func(t *testing.T, ref string) string {
		t.Helper()
		return w.admitted(t, pod("trial", "", ref)).Spec.Containers[0].Image
	}
	pushed := 0
	// push pushes an image that the registry lacked, and waits until references to it are rewritten.
	push := func(t *testing.T) time.Duration {
		t.Helper()
		pushed++
		name := fmt.Sprintf("acme/pushed-%d:1", pushed)
		w.push(t, writeArchive(t, map[string][]byte{"quay.io/" + name: program}))
		begin := time.Now()
		eventually(t, "references to be rewritten", func() error {
			p, err := w.client.CoreV1().Pods(workloads).Create(t.Context(), pod("trial", "", "quay.io/"+name),
				metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if err != nil {
				return err
			}
			if got := p.Spec.Containers[0].Image; got != w.address+"/"+name {
				return fmt.Errorf("the image is %s", got)
			}
			return nil
		})
		return time.Since(begin)
	}

	must(t, "what the registry lacks stays", func(t *testing.T) {
		w.apply(t, rewrite("keep")...)
		if got := image(t, "quay.io/acme/absent:1"); got != "quay.io/acme/absent:1" {
			t.Errorf("it becomes %s", got)
		}
	})
	must(t, "what is pushed is rewritten soon", func(t *testing.T) {
		var delays []time.Duration
		for range 6 {
			delays = append(delays, push(t).Round(10*time.Millisecond))
		}
		t.Logf("figure: new pods are rewritten after a push by %v", delays)
		if got := image(t, "quay.io/acme/absent:1"); got != "quay.io/acme/absent:1" {
			t.Errorf("another image becomes %s", got)
		}
	})
	must(t, "a rewritten pod runs", func(t *testing.T) {
		p := pod("runs", "", "quay.io/acme/pushed-1:1", "--help")
		require.Value(w.client.CoreV1().Pods(workloads).Create(t.Context(), p, metav1.CreateOptions{}))(t)
		eventually(t, "the pod to have its image", func() error {
			p, err := w.client.CoreV1().Pods(workloads).Get(t.Context(), "runs", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if s := p.Status.ContainerStatuses; len(s) != 1 || s[0].ImageID == "" ||
				p.Annotations["original-image.zarf-registry/main"] != "quay.io/acme/pushed-1:1" {
				return fmt.Errorf("the pod is %s", mustJSON(p))
			}
			return nil
		})
	})
	must(t, "helm upgrade keeps the names, and then other pods are refused", func(t *testing.T) {
		before, err := configMaps.Get(t.Context(), repositories, metav1.GetOptions{})
		if err != nil || len(before.Data) == 0 {
			t.Fatalf("data %v: %v", before.Data, err)
		}
		changes, err := configMaps.Watch(t.Context(), metav1.ListOptions{
			FieldSelector: "metadata.name=" + repositories, ResourceVersion: before.ResourceVersion,
		})
		require.NoError(t, err)
		changed := 0
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for e := range changes.ResultChan() {
				c, ok := e.Object.(*corev1.ConfigMap)
				if !ok {
					continue // the end of the watch
				}
				if changed++; !maps.Equal(c.Data, before.Data) {
					t.Errorf("the upgrade changes the data: %s", mustJSON(c))
				}
			}
		}()
		w.apply(t, append(rewrite("deny"), "--set=commonAnnotations.example\\.com/upgrade=second")...)
		changes.Stop()
		<-ended
		if changed == 0 {
			t.Error("the upgrade did not change the ConfigMap")
		}
		run := []string{"run", "absent", "--image", "quay.io/acme/absent:1"}
		eventually(t, "the policy to take effect", func() error {
			_, errOut, err := try(w.command(t, w.kubectl, append(run, "--dry-run=server")...))
			if err == nil {
				return errors.New("the pod is accepted")
			}
			if !strings.Contains(errOut, "the registry lacks the repository of quay.io/acme/absent:1: push it") {
				t.Fatal(errOut)
			}
			t.Logf("$ kubectl %s\n%s", strings.Join(run, " "), errOut)
			return nil
		})
		if got := image(t, "quay.io/acme/pushed-1:1"); got != w.address+"/acme/pushed-1:1" {
			t.Errorf("what the registry has becomes %s", got)
		}
		output(t, w.command(t, w.kubectl, append(run, "--dry-run=server", "--labels=zarf-registry/rewrite=disabled")...))
		t.Logf("figure: new pods are accepted after a push by %v", push(t).Round(10*time.Millisecond))
	})
	t.Run("pod creation with 10,000 repositories", func(t *testing.T) {
		w.rewriteNamespaces(t)
		// Without healers, the ConfigMap stays as it is.
		output(t, w.command(t, w.kubectl, "-n", w.namespace, "scale", "deployment", release+"-healer", "--replicas=0"))
		w.noneIsLeft(t, "healer")
		var names []string
		for i := range 10_000 {
			names = append(names, fmt.Sprintf("department-%d/a-team/component-%05d", i%30, i))
		}
		c := require.Value(configMaps.Get(t.Context(), repositories, metav1.GetOptions{}))(t)
		left := 0
		if c.Data, left = heal.EncodeRepositories(names); left > 0 {
			t.Fatalf("%d names do not fit", left)
		}
		require.Value(configMaps.Update(t.Context(), c, metav1.UpdateOptions{}))(t)
		const known = "quay.io/department-9/a-team/component-00009:1"
		eventually(t, "the policy to take effect", func() error {
			p, err := w.client.CoreV1().Pods(workloads).Create(t.Context(), pod("trial", "", known),
				metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if err == nil && !strings.HasPrefix(p.Spec.Containers[0].Image, w.address) {
				err = fmt.Errorf("the image is %s", p.Spec.Containers[0].Image)
			}
			return err
		})
		w.timeCreation(t, known)
	})
	must(t, "an upgrade brings the healers back, in nodeport mode", func(t *testing.T) {
		w.apply(t, append([]string{nodePortMode}, rewrite("keep")[1:]...)...)
		t.Logf("figure: new pods are rewritten after a push by %v", push(t).Round(10*time.Millisecond))
		if got := image(t, "quay.io/department-9/a-team/component-00009:1"); !strings.HasPrefix(got, "quay.io/") {
			t.Errorf("the healer has left a name that the registry lacks: it becomes %s", got)
		}
	})
}

// isNotRewritten waits until the API server, which reloads policies every second, leaves references as they are.
func (w *world) isNotRewritten(t *testing.T) {
	t.Helper()
	eventually(t, "references to stay as they are", func() error {
		p := w.admitted(t, pod("trial", "", "nginx:1"))
		if p.Spec.Containers[0].Image != "nginx:1" || len(p.Annotations) > 0 || len(p.Spec.ImagePullSecrets) > 0 {
			return fmt.Errorf("the pod becomes %s", mustJSON(p))
		}
		return nil
	})
}

// admitted returns what a new pod becomes, without creating it.
func (w *world) admitted(t *testing.T, p *corev1.Pod) *corev1.Pod {
	t.Helper()
	p, err := w.client.CoreV1().Pods(p.Namespace).Create(t.Context(), p,
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	require.NoError(t, err)
	return p
}

// timeCreation logs how long it takes to create pods in namespace team, and in namespace apart, where no policy is
// evaluated.
func (w *world) timeCreation(t *testing.T, image string) {
	times := map[string][]time.Duration{}
	for range 200 {
		for _, namespace := range []string{"apart", "team"} {
			p := pod("trial", "", image)
			p.Namespace = namespace
			begin := time.Now()
			w.admitted(t, p)
			times[namespace] = append(times[namespace], time.Since(begin))
		}
	}
	at := func(namespace string, percent int) float64 {
		slices.Sort(times[namespace])
		return float64(times[namespace][len(times[namespace])*percent/100].Microseconds()) / 1000
	}
	t.Logf("figure: 200 pods (dry run): median %.1f ms, p99 %.1f ms; where nothing is rewritten %.1f ms, %.1f ms",
		at("team", 50), at("team", 99), at("apart", 50), at("apart", 99))
	metrics := output(t, w.command(t, w.kubectl, "get", "--raw", "/metrics"))
	for line := range strings.Lines(metrics) { // evaluations that took at most le seconds
		const metric = "apiserver_mutating_admission_policy_check_duration_seconds_bucket"
		if strings.HasPrefix(line, metric) {
			t.Log("figure: evaluations: " + strings.TrimSpace(line[strings.Index(line, "le="):]))
		}
	}
}

// rewriteNamespaces creates the namespaces team and apart. Nothing is rewritten in the latter.
func (w *world) rewriteNamespaces(t *testing.T) {
	for _, name := range []string{"apart", "team"} {
		require.Value(w.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: name}}, metav1.CreateOptions{}))(t)
		eventually(t, "the namespace's service account", func() error {
			_, err := w.client.CoreV1().ServiceAccounts(name).Get(t.Context(), "default", metav1.GetOptions{})
			return err
		})
	}
	output(t, w.command(t, w.kubectl, "label", "namespace", "apart", "zarf-registry/rewrite=disabled"))
}
