package e2e

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// TestArgo behaves as Argo CD does with the chart: it renders without access to the cluster, runs
// hooks as PreSync, PostSync and PreDelete in waves, applies the rest in between, and prunes
// objects that have the release's label and are in no manifest.
func TestArgo(t *testing.T) {
	w := ownCluster(t, "e2e-argo", layout{open: true, args: []string{"--nodes", "1"}})
	client, err := dynamic.NewForConfig(w.config)
	if err != nil {
		t.Fatal(err)
	}
	a := &argo{world: w, client: client, values: []string{noRotation,
		"--set=ipFamily=IPv4", "--set=pki.mode=internal", "--set=proxy.tls=never", "--set=registry.architecture=amd64",
		"--set=injector.architectures={amd64}",
		"--set=injector.image=" + w.pauseImage(t),
	}}
	output(t, w.command(t, w.kubectl, "create", "namespace", namespace))
	must(t, "the first sync installs", func(t *testing.T) {
		a.sync(t, nodePortMode)
		w.isIn(t, state.ModeNodePort, state.SourceValue)
		w.pushHello(t)
		w.pushFresh(t)
		a.inSync(t, nodePortMode)
	})
	must(t, "the second sync changes nothing", func(t *testing.T) {
		w.restartsNothing(t, func() { a.sync(t, nodePortMode) })
		a.inSync(t, nodePortMode)
	})
	w.underLoop(t, "changing the mode in the manifests, with pruning", func(t *testing.T) {
		a.sync(t, proxyMode)
		w.isIn(t, state.ModeProxy, state.SourceValue)
		a.inSync(t, proxyMode)
	})
	if long() {
		w.underLoop(t, "and back", func(t *testing.T) {
			a.sync(t, nodePortMode)
			w.isIn(t, state.ModeNodePort, state.SourceValue)
			a.inSync(t, nodePortMode)
		})
		a.sync(t, proxyMode)
	} else {
		t.Log("SHORTENED: no change back to nodeport mode")
	}
	must(t, "a sync without the mode changes nothing and names the missing value", func(t *testing.T) {
		w.restartsNothing(t, func() {
			problem := a.phase(t, a.render(t), "PreSync")
			if problem == nil || !strings.Contains(w.jobLog(t, "prepare"),
				"name the mode, --set registryProxy=true to keep it") {
				t.Errorf("PreSync: %v: %s", problem, w.jobLog(t, "prepare"))
			}
			a.sync(t, proxyMode)
		})
	})
	must(t, "deleting the Application leaves only the volume", func(t *testing.T) {
		a.deleteApplication(t, proxyMode)
		w.nothingLeft(t, "persistentvolumeclaim/"+release)
	})
}

// argo stands in for Argo CD, none of which runs here. Its rules are those of gitops-engine's
// pkg/sync and of Argo CD's docs/user-guide/{helm,sync-waves,resource_tracking}.md.
type argo struct {
	*world
	client dynamic.Interface
	values []string
}

// render runs helm template as Argo CD does.
func (a *argo) render(t *testing.T, values ...string) []unstructured.Unstructured {
	t.Helper()
	args := []string{"template", built(t, "E2E_CHART"), "--name-template", release, "--namespace", namespace,
		"--kube-version", "1.36.0", "--api-versions", "apps/v1", "--include-crds"}
	reader := yaml.NewYAMLOrJSONDecoder(strings.NewReader(output(t,
		a.command(t, a.helm, slices.Concat(args, a.values, values)...))), 4096)
	var objects []unstructured.Unstructured
	for {
		var o unstructured.Unstructured
		if err := reader.Decode(&o.Object); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if len(o.Object) > 0 {
			objects = append(objects, o)
		}
	}
	if len(objects) < 15 {
		t.Fatalf("rendered only %d objects", len(objects))
	}
	return objects
}

// argoPhases maps Helm's hooks to Argo CD's phases. Argo CD ignores the other hooks.
var argoPhases = map[string]string{
	"pre-install": "PreSync", "pre-upgrade": "PreSync", "post-install": "PostSync", "post-upgrade": "PostSync",
	"pre-delete": "PreDelete", "post-delete": "PostDelete",
}

func isHook(o unstructured.Unstructured) bool { return o.GetAnnotations()["helm.sh/hook"] != "" }

// sync runs one sync with pruning.
func (a *argo) sync(t *testing.T, values ...string) {
	t.Helper()
	begin := time.Now()
	objects := a.render(t, values...)
	if err := a.phase(t, objects, "PreSync"); err != nil {
		t.Fatalf("PreSync: %v: %s", err, a.jobLog(t, "prepare"))
	}
	a.apply(t, slices.DeleteFunc(slices.Clone(objects), isHook))
	a.prune(t, objects)
	for _, kind := range []string{"deployment", "daemonset"} {
		for _, o := range objects {
			if strings.EqualFold(o.GetKind(), kind) && !isHook(o) {
				output(t, a.command(t, a.kubectl, "rollout", "status", kind+"/"+o.GetName(), "-n", namespace, "--timeout=3m"))
			}
		}
	}
	if err := a.phase(t, objects, "PostSync"); err != nil {
		t.Fatalf("PostSync: %v: %s", err, a.jobLog(t, "finish"))
	}
	a.deleteHooks(t, objects)
	t.Logf("figure: sync %v took %.1f s", values, time.Since(begin).Seconds())
}

// phase runs the hooks of a phase in waves and returns an error if a Job fails.
func (a *argo) phase(t *testing.T, objects []unstructured.Unstructured, phase string) error {
	t.Helper()
	waves := map[int][]unstructured.Unstructured{}
	for _, o := range objects {
		for hook := range strings.SplitSeq(o.GetAnnotations()["helm.sh/hook"], ",") {
			if argoPhases[strings.TrimSpace(hook)] != phase {
				continue
			}
			wave, err := strconv.Atoi(cmp.Or(o.GetAnnotations()["helm.sh/hook-weight"], "0"))
			if err != nil {
				t.Fatal(err)
			}
			waves[wave] = append(waves[wave], o)
			break
		}
	}
	if len(waves) == 0 {
		t.Fatalf("phase %s has no hooks", phase)
	}
	for _, wave := range slices.Sorted(maps.Keys(waves)) {
		a.delete(t, having(waves[wave], "before-hook-creation"))
		a.apply(t, waves[wave])
		for _, o := range waves[wave] {
			if o.GetKind() != "Job" {
				continue
			}
			if err := a.jobEnds(t, o.GetName()); err != nil {
				return err
			}
		}
	}
	return nil
}

func (a *argo) jobEnds(t *testing.T, name string) error {
	t.Helper()
	var failure error
	eventually(t, 5*time.Minute, "Job "+name, func() error {
		job, err := a.world.client.BatchV1().Jobs(namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range job.Status.Conditions {
			if c.Status == "True" && (c.Type == "Complete" || c.Type == "Failed") {
				if c.Type == "Failed" {
					failure = fmt.Errorf("Job %s: %s", name, c.Message)
				}
				return nil
			}
		}
		return fmt.Errorf("it runs")
	})
	return failure
}

// deleteHooks deletes the hooks whose policy says so after success.
func (a *argo) deleteHooks(t *testing.T, objects []unstructured.Unstructured) {
	t.Helper()
	a.delete(t, having(objects, "hook-succeeded"))
}

// having returns the hooks that are deleted at that time.
func having(hooks []unstructured.Unstructured, policy string) []unstructured.Unstructured {
	return slices.DeleteFunc(slices.Clone(hooks), func(o unstructured.Unstructured) bool {
		return !strings.Contains(o.GetAnnotations()["helm.sh/hook-delete-policy"], policy)
	})
}

// apply runs kubectl apply, as Argo CD does unless server-side apply is turned on. It tracks
// objects by a label that the chart sets too, which was Argo CD's default before 3.0.
func (a *argo) apply(t *testing.T, objects []unstructured.Unstructured) {
	t.Helper()
	cmd := a.command(t, a.kubectl, "apply", "-f", "-")
	cmd.Stdin = strings.NewReader(manifests(t, objects))
	output(t, cmd)
}

func manifests(t *testing.T, objects []unstructured.Unstructured) string {
	t.Helper()
	var all strings.Builder
	for _, o := range objects {
		data, err := sigsyaml.Marshal(o.Object)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&all, "---\n%s", data)
	}
	return all.String()
}

// extraneous returns the objects of all namespaces that have the label, are in no manifest and have
// no owner, except those whose annotation has that value.
func (a *argo) extraneous(t *testing.T, objects []unstructured.Unstructured, annotation,
	value string) []unstructured.Unstructured {
	t.Helper()
	rendered := map[string]bool{}
	for _, o := range objects {
		rendered[o.GetKind()+"/"+o.GetName()] = true
	}
	var found []unstructured.Unstructured
	for _, kind := range []string{
		"v1/services", "v1/configmaps", "v1/secrets", "v1/serviceaccounts", "v1/persistentvolumeclaims",
		"apps/v1/deployments", "apps/v1/daemonsets", "batch/v1/cronjobs",
		"networking.k8s.io/v1/networkpolicies", "rbac.authorization.k8s.io/v1/roles",
		"rbac.authorization.k8s.io/v1/rolebindings",
	} {
		list, err := a.client.Resource(resource(kind)).List(t.Context(),
			metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=" + release})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range list.Items {
			kept := slices.Contains(strings.Split(o.GetAnnotations()[annotation], ","), value)
			if !isHook(o) && !kept && len(o.GetOwnerReferences()) == 0 && !rendered[o.GetKind()+"/"+o.GetName()] {
				found = append(found, o)
			}
		}
	}
	return found
}

// prune deletes objects that are no longer in a manifest. Argo CD ignores Helm's resource-policy
// here: https://github.com/argoproj/argo-cd/issues/17819
func (a *argo) prune(t *testing.T, objects []unstructured.Unstructured) {
	t.Helper()
	extraneous := a.extraneous(t, objects, "argocd.argoproj.io/sync-options", "Prune=false")
	for _, o := range extraneous {
		t.Logf("pruning %s %s", o.GetKind(), o.GetName())
	}
	a.delete(t, extraneous)
}

// inSync fails where Argo CD would report the Application as OutOfSync.
func (a *argo) inSync(t *testing.T, values ...string) {
	t.Helper()
	objects := a.render(t, values...)
	for _, o := range a.extraneous(t, objects, "argocd.argoproj.io/compare-options", "IgnoreExtraneous") {
		t.Errorf("%s %s is in no manifest", o.GetKind(), o.GetName())
	}
	for _, arg := range []string{"--server-side=false", "--server-side=true"} {
		cmd := a.command(t, a.kubectl, "diff", arg, "--field-manager=kubectl-client-side-apply", "-f", "-")
		cmd.Stdin = strings.NewReader(manifests(t, slices.DeleteFunc(objects, isHook)))
		if out, errOut, err := try(cmd); err != nil {
			t.Errorf("kubectl diff %s: %v\n%s%s", arg, err, out, errOut)
		}
	}
}

// deleteApplication deletes an Application that has the finalizer.
func (a *argo) deleteApplication(t *testing.T, values ...string) {
	t.Helper()
	objects := a.render(t, values...)
	if err := a.phase(t, objects, "PreDelete"); err != nil {
		t.Fatalf("PreDelete: %v: %s", err, a.jobLog(t, "cleanup"))
	}
	a.delete(t, slices.DeleteFunc(slices.Clone(objects), func(o unstructured.Unstructured) bool {
		return isHook(o) || o.GetAnnotations()["helm.sh/resource-policy"] == "keep"
	}))
	a.deleteHooks(t, objects)
}

// delete deletes objects with a single kubectl, because each takes 0.2 s of CPU time.
func (a *argo) delete(t *testing.T, objects []unstructured.Unstructured) {
	t.Helper()
	if len(objects) == 0 {
		return
	}
	cmd := a.command(t, a.kubectl, "delete", "--ignore-not-found", "--cascade=foreground", "-f", "-")
	cmd.Stdin = strings.NewReader(manifests(t, objects))
	output(t, cmd)
}

// jobLog returns the logs of a Job's pods.
func (w *world) jobLog(t *testing.T, step string) string {
	t.Helper()
	out, errOut, err := try(w.command(t, w.kubectl, "logs", "-n", namespace, "-l",
		"batch.kubernetes.io/job-name="+release+"-"+step, "--tail=-1"))
	if err != nil && !apierrors.IsNotFound(err) {
		return errOut
	}
	return out
}

// resource parses group/version/plural.
func resource(name string) schema.GroupVersionResource {
	i := strings.LastIndex(name, "/")
	version, err := schema.ParseGroupVersion(name[:i])
	if err != nil {
		panic(err)
	}
	return version.WithResource(name[i+1:])
}
