package e2e

import (
	"bytes"
	"encoding/json"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/zarf-dev/zarf-registry/internal/release/plan"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// TestHelm uses Helm 3 and Helm 4 in turn on one release, with their options to reuse values, wait
// and roll back on failure. It switches modes while every node pulls, and no pull may fail.
func TestHelm(t *testing.T) {
	// helm template cannot find out which nodes have the image: both do.
	w := ownCluster(t, "e2e-helm", layout{open: true,
		args: []string{"--load", "n2=" + filepath.Join(built(t, "E2E_IMAGES"), "init-hook.tar")}})
	helm3, helm4 := w.helm, strings.TrimSpace(run(t, w.testcluster, "tool", "helm4"))
	newer := newerChart(t)
	// A higher chart version changes a label of every object.
	with := func(helm, chart, verb string, args ...string) (string, error) {
		begin := time.Now()
		out, errOut, err := try(w.command(t, helm, append([]string{verb, release, chart, "-n", namespace,
			"--create-namespace", "--timeout", "4m", noRotation}, args...)...))
		t.Logf("figure: %s %s %s returned after %.1f s", filepath.Base(helm), verb, strings.Join(args, " "),
			time.Since(begin).Seconds())
		return out + errOut, err
	}
	mustWith := func(t *testing.T, helm, chart, verb string, args ...string) {
		t.Helper()
		if out, err := with(helm, chart, verb, args...); err != nil {
			t.Fatalf("%s %s %v: %v\n%s", filepath.Base(helm), verb, args, err, out)
		}
	}
	here := built(t, "E2E_CHART")
	refused := "--set=auth.existingSecret=missing-secret"
	// rollBack returns the options to roll back of both, or only of the one that is named.
	rollBack := func(only string) map[string]string {
		options := map[string]string{helm3: "--atomic", helm4: "--rollback-on-failure"}
		maps.DeleteFunc(options, func(helm, _ string) bool { return !long() && helm != only })
		return options
	}
	if !long() {
		t.Log("SHORTENED: Helm 3 rolls back a refused install, and Helm 4 an upgrade; no rollback to proxy mode")
	}

	must(t, "a refused installation is rolled back and leaves nothing", func(t *testing.T) {
		for helm, option := range rollBack(helm3) {
			out, err := with(helm, here, "install", option, "--wait", refused)
			if err == nil || !strings.Contains(out, "missing-secret") {
				t.Errorf("%s install %s: %v\n%s", helm, option, err, out)
			}
			w.nothingLeft(t)
		}
	})
	must(t, "installed by Helm 4 with --wait", func(t *testing.T) {
		mustWith(t, helm4, here, "install", "--wait", nodePortMode)
		w.isIn(t, state.ModeNodePort, state.SourceValue)
		w.fieldsAreHelms(t)
		w.pushHello(t)
		w.pushFresh(t)
	})
	must(t, "then the node port answers, and there are no proxies", w.onlyNodePortAnswers)
	must(t, "upgraded by Helm 3 to another version, reusing values", func(t *testing.T) {
		w.restartsNothing(t, func() { mustWith(t, helm3, newer, "upgrade", "--reuse-values", "--wait") })
		w.isIn(t, state.ModeNodePort, state.SourceValue)
		w.fieldsAreHelms(t)
	})
	inProxyMode := ""
	w.underLoop(t, "switched by Helm 4, reusing values over new defaults", func(t *testing.T) {
		mustWith(t, helm4, here, "upgrade", "--reset-then-reuse-values", "--wait", "--server-side=true", proxyMode)
		w.isIn(t, state.ModeProxy, state.SourceValue)
		w.fieldsAreHelms(t)
		inProxyMode = w.revision(t)
	})
	must(t, "then only the proxies answer", w.onlyProxiesAnswer)
	w.underLoop(t, "rolled back by Helm 3", func(t *testing.T) {
		w.rollback(t, "2", "--wait")
		w.isIn(t, state.ModeNodePort, state.SourceValue)
	})
	must(t, "then only the node port answers", w.onlyNodePortAnswers)
	mode := state.ModeNodePort
	if long() {
		w.underLoop(t, "rolled back by Helm 3 to proxy mode", func(t *testing.T) {
			w.rollback(t, inProxyMode)
			w.isIn(t, state.ModeProxy, state.SourceValue)
		})
		must(t, "then only the proxies answer again", w.onlyProxiesAnswer)
		mode = state.ModeProxy
	}
	w.underLoop(t, "an upgrade without a mode keeps the mode of the rollback", func(t *testing.T) {
		w.restartsNothing(t, func() { w.helmChart(t, "upgrade", noMode) })
		w.isIn(t, mode, state.SourceState)
	})
	if long() {
		w.underLoop(t, "switched by Helm 3 to nodeport mode", func(t *testing.T) {
			w.helmChart(t, "upgrade", nodePortMode)
			w.isIn(t, state.ModeNodePort, state.SourceValue)
		})
	}
	must(t, "after a switch whose verification fails, the node port is served again", func(t *testing.T) {
		unblock := w.blockOnce(t, false)
		out, err := with(helm4, here, "upgrade", "--server-side=true", proxyMode, "--set=initHook.timeout=2m")
		unblock()
		if err == nil || !strings.Contains(out, "serves the port again") {
			t.Fatalf("%v: %s", err, out)
		}
		w.fieldsAreHelms(t)
		mustWith(t, helm4, newer, "upgrade", "--server-side=true", nodePortMode)
		w.isIn(t, state.ModeNodePort, state.SourceValue)
		w.fieldsAreHelms(t)
	})
	must(t, "a refused upgrade is rolled back by Helm 3 and Helm 4", func(t *testing.T) {
		for helm, option := range rollBack(helm4) {
			w.restartsNothing(t, func() {
				out, err := with(helm, newer, "upgrade", "--reuse-values", option, "--wait", refused)
				if err == nil || !strings.Contains(out, "missing-secret") {
					t.Errorf("%s upgrade %s: %v\n%s", helm, option, err, out)
				}
			})
			w.isIn(t, state.ModeNodePort, state.SourceValue)
		}
	})
	w.underLoop(t, "upgraded by init-hook, and rolled back by Helm 4", func(t *testing.T) {
		before := w.revision(t)
		w.mustInstall(t, toProxy.flag)
		w.isIn(t, state.ModeProxy, state.SourceValue)
		w.fieldsAreHelms(t)
		mustWith(t, helm4, newer, "upgrade", "--reuse-values", "--server-side=true")
		w.fieldsAreHelms(t)
		output(t, w.command(t, helm4, "rollback", release, before, "-n", namespace, "--timeout", "4m"))
		w.isIn(t, state.ModeNodePort, state.SourceValue)
	})
	must(t, "uninstalled by Helm 4", func(t *testing.T) {
		w.helm = helm4
		w.uninstall(t)
		w.helm = helm3
	})
	must(t, "Helm 3 and Helm 4 reuse the retained volume with another chart version", func(t *testing.T) {
		if long() {
			mustWith(t, helm3, newer, "install")
			w.isIn(t, state.ModeNodePort, state.SourceCluster)
			w.pullEverywhere(t, w.address+"/e2e/hello:1")
			w.uninstall(t)
		}
		mustWith(t, helm4, newer, "install", proxyMode)
		w.isIn(t, state.ModeProxy, state.SourceValue)
		w.pullEverywhere(t, w.address+"/e2e/hello:1")
	})
	w.loopbackOnly(t)
	must(t, "helm uninstall in the middle of a switch leaves only the volume", func(t *testing.T) {
		w.killSwitch(t)
		w.uninstall(t)
	})
}

// TestTemplates installs with helm template and kubectl, as docs/reference/helm.md describes for users who have no
// more.
func TestTemplates(t *testing.T) {
	// helm template cannot find out which nodes have the image: both do.
	w := ownCluster(t, "e2e-templates", layout{open: true,
		args: []string{"--load", "n2=" + filepath.Join(built(t, "E2E_IMAGES"), "init-hook.tar")}})
	helm4 := strings.TrimSpace(run(t, w.testcluster, "tool", "helm4"))
	must(t, "helm install", func(t *testing.T) { w.helmChart(t, "install", nodePortMode) })
	must(t, "kubectl apply of the whole output of helm template deletes nothing", func(t *testing.T) {
		secrets := func() string {
			return output(t, w.command(t, w.kubectl, "get", "secrets", "-n", namespace, "-o",
				"jsonpath={range .items[*]}{.metadata.name} {.metadata.uid}\n{end}"))
		}
		before := secrets()
		all := output(t, w.command(t, w.helm, "template", release, built(t, "E2E_CHART"), "-n", namespace, "--skip-tests",
			"--kube-version=1.36.0", nodePortMode, noRotation, "--set=injector.image="+w.pauseImage(t),
			"--set=ipFamily="+w.network.Family))
		w.kubectlApply(t, all)
		w.waitForJob(t, "cleanup", false)
		w.waitForJob(t, "prepare", true)
		if after := secrets(); after != before {
			t.Errorf("Secrets were %s and are %s", before, after)
		}
		w.waitForJob(t, "finish", true)
		output(t, w.command(t, helm4, "upgrade", release, newerChart(t), "-n", namespace, "--timeout=4m", "--reuse-values",
			"--force-conflicts", "--server-side=true"))
		w.isIn(t, state.ModeNodePort, state.SourceValue)
	})
	must(t, "helm uninstall", func(t *testing.T) {
		w.helmUninstall(t)
		w.kubectlRun(t, "delete", "persistentvolumeclaim", "-n", namespace, release)
	})
	must(t, "helm template and kubectl, step by step", func(t *testing.T) { testTemplates(t, w) })
}

// killSwitch starts a switch to nodeport mode and kills Helm and its hook once prepare has
// succeeded.
func (w *world) killSwitch(t *testing.T) {
	t.Helper()
	upgrade := w.chart(t, "upgrade", nodePortMode)
	require.NoError(t, upgrade.Start())
	job := w.waitForJobPod(t, "finish")
	require.NoError(t, upgrade.Process.Kill())
	upgrade.Wait()
	foreground := metav1.DeletePropagationForeground
	require.NoError(t, w.client.BatchV1().Jobs(namespace).Delete(t.Context(), release+"-finish",
		metav1.DeleteOptions{PropagationPolicy: &foreground}))
	w.deletePod(t, job.Name, 0)
	if s := w.saved(t); s.Phase != state.PhasePrepared || s.Desired.Mode != state.ModeNodePort {
		t.Fatalf("the switch is not half done: %s", mustJSON(s))
	}
}

// rollback runs helm rollback to a revision.
func (w *world) rollback(t *testing.T, revision string, args ...string) {
	t.Helper()
	begin := time.Now()
	output(t, w.command(t, w.helm, append([]string{"rollback", release, revision, "-n", namespace, "--timeout", "5m"},
		args...)...))
	t.Logf("figure: helm rollback returned after %.1f s, including the verified pull on every node",
		time.Since(begin).Seconds())
}

// answers reports whether the registry answers on a node's own address, dialed from outside
// the nodes, and on its plain port, dialed from a pod.
func (w *world) answers(t *testing.T) (fromOutside, fromPod bool) {
	t.Helper()
	node := w.nodes[0]
	fromOutside = w.dial(t, "cp", net.JoinHostPort(w.nodeAddresses(t, node)[0], "31999")) == nil
	registry := w.waitForRegistry(t, "")
	fromPod = w.podReaches(t, "dials-the-plain-port", node, w.address+"/e2e/hello:1",
		net.JoinHostPort(registry.Status.PodIP, "5001"))
	return fromOutside, fromPod
}

func (w *world) onlyNodePortAnswers(t *testing.T) {
	w.noneIsLeft(t, "proxy")
	if fromOutside, fromPod := w.answers(t); !fromOutside || !fromPod {
		t.Errorf("the node port answers from outside: %t; the plain port from a pod: %t; want both", fromOutside, fromPod)
	}
}

func (w *world) onlyProxiesAnswer(t *testing.T) {
	services := require.Value(w.client.CoreV1().Services(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{}))(t)
	for _, s := range services.Items {
		if s.Spec.Type == corev1.ServiceTypeNodePort && s.Labels[plan.LabelProxyName] == "" {
			t.Errorf("Service %s/%s has a node port", s.Namespace, s.Name)
		}
	}
	if fromOutside, fromPod := w.answers(t); fromOutside || fromPod {
		t.Errorf("the node's address answers from outside: %t; the registry's plain port from a pod: %t; want neither",
			fromOutside, fromPod)
	}
}

// revision returns the release's current revision.
func (w *world) revision(t *testing.T) string {
	t.Helper()
	var list []struct{ Revision string }
	if err := json.Unmarshal([]byte(output(t, w.command(t, w.helm, "list", "-n", namespace, "-o", "json"))),
		&list); err != nil || len(list) != 1 {
		t.Fatalf("helm list: %v %v", list, err)
	}
	return list[0].Revision
}

// newerChart returns a copy of the chart with a higher version, which is a label of all objects.
func newerChart(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "zarf-registry")
	require.NoError(t, os.CopyFS(dir, os.DirFS(built(t, "E2E_CHART"))))
	file := filepath.Join(dir, "Chart.yaml")
	data := require.Value(os.ReadFile(file))(t)
	lines := bytes.Split(data, []byte("\n"))
	i := slices.IndexFunc(lines, func(line []byte) bool { return bytes.HasPrefix(line, []byte("version: ")) })
	lines[i] = []byte("version: 99.0.0")
	require.NoError(t, os.WriteFile(file, bytes.Join(lines, []byte("\n")), 0o600))
	return dir
}

// fieldsAreHelms fails if a field that the chart renders is owned by anyone but Helm and
// Kubernetes' own controllers: with server-side apply only the owner may change it.
func (w *world) fieldsAreHelms(t *testing.T) {
	t.Helper()
	client := require.Value(dynamic.NewForConfig(w.config))(t)
	seen := 0
	for _, kind := range []string{"v1/services", "v1/configmaps", "v1/serviceaccounts", "v1/persistentvolumeclaims",
		"apps/v1/deployments", "apps/v1/daemonsets", "batch/v1/cronjobs", "networking.k8s.io/v1/networkpolicies",
		"rbac.authorization.k8s.io/v1/roles"} {
		list, err := client.Resource(resource(kind)).Namespace(namespace).List(t.Context(),
			metav1.ListOptions{LabelSelector: "app.kubernetes.io/managed-by=Helm"})
		require.NoError(t, err)
		for _, o := range list.Items {
			if o.GetName() == release+"-nodeport" {
				continue // the Jobs own it
			}
			for _, m := range o.GetManagedFields() {
				if m.Manager != "helm" && m.Manager != "kube-controller-manager" {
					t.Errorf("%s %s: fields belong to %s (%s): %s", o.GetKind(), o.GetName(), m.Manager, m.Operation,
						m.FieldsV1.GetRawString())
				}
			}
			seen++
		}
	}
	if seen < 8 {
		t.Errorf("Helm manages only %d objects", seen)
	}
}

// kubectlApply applies manifests with server-side apply.
func (w *world) kubectlApply(t *testing.T, manifests string, args ...string) {
	t.Helper()
	cmd := w.command(t, w.kubectl, append([]string{"apply", "--server-side", "--force-conflicts", "-f", "-"}, args...)...)
	cmd.Stdin = strings.NewReader(manifests)
	output(t, cmd)
}

// waitForJob waits until a Job of the release has completed or, if ok is false, failed.
func (w *world) waitForJob(t *testing.T, step string, ok bool) {
	t.Helper()
	condition := map[bool]string{true: "complete", false: "failed"}[ok]
	output(t, w.command(t, w.kubectl, "wait", "-n", namespace, "job/"+release+"-"+step, "--for=condition="+condition,
		"--timeout=4m"))
}

// testTemplates follows docs/reference/helm.md for users who have only kubectl.
func testTemplates(t *testing.T, w *world) {
	r := rendering{w, []string{proxyMode, noRotation, "--set=injector.image=" + w.pauseImage(t)}}
	install := func() {
		r.apply(t)
		w.isIn(t, state.ModeProxy, state.SourceValue)
	}
	install()
	if long() {
		w.restartsNothing(t, install)
	}
	r.job(t, "cleanup")
	for _, manifests := range []string{r.template(t, "--no-hooks"), r.template(t, hookFiles(hookRights...)...),
		r.template(t, hookFiles("cleanup-job")...)} {
		cmd := w.command(t, w.kubectl, "delete", "--ignore-not-found", "-f", "-")
		cmd.Stdin = strings.NewReader(manifests)
		output(t, cmd)
	}
	w.nothingLeft(t)
}

// rendering is the chart's with those arguments of helm template.
type rendering struct {
	w    *world
	args []string
}

// hookRights are the templates of what the hook's Jobs need.
var hookRights = []string{"serviceaccount", "role", "rolebinding", "clusterrole", "clusterrolebinding", "hosting-role",
	"hosting-rolebinding", "networkpolicy"}

// hookFiles returns the arguments of helm template for only those of the hook's templates.
func hookFiles(names ...string) (args []string) {
	for _, name := range names {
		args = append(args, "--show-only=templates/init-hook/"+name+".yaml")
	}
	return args
}

func (r rendering) template(t *testing.T, args ...string) string {
	t.Helper()
	return output(t, r.w.command(t, r.w.helm, slices.Concat([]string{"template", release, built(t, "E2E_CHART"), "-n",
		namespace, "--kube-version=1.36.0"}, r.args, args)...))
}

func (r rendering) job(t *testing.T, step string) {
	t.Helper()
	output(t, r.w.command(t, r.w.kubectl, "delete", "job", release+"-"+step, "-n", namespace, "--ignore-not-found"))
	r.w.kubectlApply(t, r.template(t, hookFiles(step+"-job")...))
	r.w.waitForJob(t, step, true)
}

// apply installs or upgrades.
func (r rendering) apply(t *testing.T) {
	t.Helper()
	r.w.kubectlApply(t, r.template(t, hookFiles(hookRights...)...))
	r.job(t, "prepare")
	r.w.kubectlApply(t, r.template(t, "--no-hooks"))
	r.job(t, "finish")
}

// pauseImage returns a pause image that a node reports.
func (w *world) pauseImage(t *testing.T) string {
	t.Helper()
	nodes := require.Value(w.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}))(t)
	for _, image := range nodes.Items[0].Status.Images {
		if i := slices.IndexFunc(image.Names, func(name string) bool { return strings.Contains(name, "/pause:") }); i >= 0 {
			return image.Names[i]
		}
	}
	t.Fatalf("no node reports a pause image: %v", nodes.Items[0].Status.Images)
	return ""
}
