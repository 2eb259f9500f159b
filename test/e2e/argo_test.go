package e2e

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// TestArgo installs and switches the chart with Argo CD's engine, which runs hooks in phases and waves, applies the rest
// and prunes what it applied before. The test renders and deletes as Argo CD does.
func TestArgo(t *testing.T) {
	w := ownCluster(t, "e2e-argo", layout{open: true, args: []string{"--nodes", "1"}})
	a := &argo{world: w, values: []string{noRotation, "--values=" + argoValues(t, w)}}
	a.program = strings.TrimSpace(run(t, w.testcluster, "tool", "argosync"))
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
			out, err := a.run(t, "sync", a.render(t))
			if err == nil || !strings.Contains(out, "Job/"+namespace+"/"+release+"-prepare Synced Failed") ||
				!strings.Contains(w.jobLog(t, "prepare"), "name the mode, --set registryProxy=true to keep it") {
				t.Errorf("%v: %s%s", err, out, w.jobLog(t, "prepare"))
			}
			a.sync(t, proxyMode)
		})
	})
	must(t, "deleting the Application leaves only the volume", func(t *testing.T) {
		a.deleteApplication(t, proxyMode)
		w.nothingLeft(t, "persistentvolumeclaim/"+release)
	})
}

// argoValues writes the values of the Application in docs/reference/helm.md to a file, with a node of this cluster and
// its pause image in place of those of the page, and without the mode, which each sync names.
func argoValues(t *testing.T, w *world) string {
	t.Helper()
	page := require.Value(os.ReadFile("../../docs/reference/helm.md"))(t)
	_, values, found := strings.Cut(string(page), "      valuesObject:\n")
	values, _, ended := strings.Cut(values, "  syncPolicy:\n")
	for previous, replacement := range map[string]string{
		"registry.k8s.io/pause:3.10.1": w.pauseImage(t), "node-1": w.nodes[0], "registryProxy: true\n": "\n",
	} {
		if !found || !ended || !strings.Contains(values, previous) {
			t.Fatalf("the values of docs/reference/helm.md for Argo CD lack %s", previous)
		}
		values = strings.ReplaceAll(values, previous, replacement)
	}
	file := filepath.Join(t.TempDir(), "values.yaml")
	require.NoError(t, os.WriteFile(file, []byte(values), 0o600))
	return file
}

// argo stands in for Argo CD's repo-server and application-controller. Its own rules are those of Argo CD's
// docs/user-guide/{helm,sync-waves,resource_tracking}.md.
type argo struct {
	*world
	values  []string
	program string // testcluster's tool argosync
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

func isHook(o unstructured.Unstructured) bool { return o.GetAnnotations()["helm.sh/hook"] != "" }

// run runs a command of argosync.
func (a *argo) run(t *testing.T, command string, objects []unstructured.Unstructured) (string, error) {
	t.Helper()
	cmd := a.command(t, a.program, command, namespace, "app.kubernetes.io/instance="+release)
	cmd.Stdin = strings.NewReader(manifests(t, objects))
	out, errOut, err := try(cmd)
	return out + errOut, err
}

// sync runs one sync with pruning.
func (a *argo) sync(t *testing.T, values ...string) {
	t.Helper()
	begin := time.Now()
	if out, err := a.run(t, "sync", a.render(t, values...)); err != nil {
		t.Fatalf("%v: %s%s%s", err, out, a.jobLog(t, "prepare"), a.jobLog(t, "finish"))
	}
	t.Logf("figure: sync %v took %.1f s", values, time.Since(begin).Seconds())
}

// having returns the hooks that are deleted at that time.
func having(hooks []unstructured.Unstructured, policy string) []unstructured.Unstructured {
	return slices.DeleteFunc(slices.Clone(hooks), func(o unstructured.Unstructured) bool {
		return !strings.Contains(o.GetAnnotations()["helm.sh/hook-delete-policy"], policy)
	})
}

func manifests(t *testing.T, objects []unstructured.Unstructured) string {
	t.Helper()
	var all strings.Builder
	for _, o := range objects {
		data := require.Value(sigsyaml.Marshal(o.Object))(t)
		fmt.Fprintf(&all, "---\n%s", data)
	}
	return all.String()
}

// inSync fails where Argo CD would report the Application as OutOfSync.
func (a *argo) inSync(t *testing.T, values ...string) {
	t.Helper()
	objects := a.render(t, values...)
	if out, err := a.run(t, "diff", objects); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	// With the sync option ServerSideApply.
	cmd := a.command(t, a.kubectl, "diff", "--server-side=true", "--field-manager=argocd-controller", "-f", "-")
	cmd.Stdin = strings.NewReader(manifests(t, slices.DeleteFunc(objects, isHook)))
	if out, errOut, err := try(cmd); err != nil {
		t.Errorf("kubectl diff: %v\n%s%s", err, out, errOut)
	}
}

// deleteApplication deletes an Application that has the finalizer.
func (a *argo) deleteApplication(t *testing.T, values ...string) {
	t.Helper()
	objects := a.render(t, values...)
	hooks := slices.DeleteFunc(slices.Clone(objects), func(o unstructured.Unstructured) bool {
		return !strings.Contains(o.GetAnnotations()["helm.sh/hook"], "pre-delete")
	})
	if len(hooks) == 0 {
		t.Fatal("PreDelete has no hooks")
	}
	weight := func(o unstructured.Unstructured) int {
		return require.Value(strconv.Atoi(cmp.Or(o.GetAnnotations()["helm.sh/hook-weight"], "0")))(t)
	}
	slices.SortStableFunc(hooks, func(a, b unstructured.Unstructured) int { return cmp.Compare(weight(a), weight(b)) })
	a.delete(t, having(hooks, "before-hook-creation"))
	for _, hook := range hooks {
		cmd := a.command(t, a.kubectl, "apply", "-f", "-")
		cmd.Stdin = strings.NewReader(manifests(t, []unstructured.Unstructured{hook}))
		output(t, cmd)
		if hook.GetKind() == "Job" {
			output(t, a.command(t, a.kubectl, "wait", "-n", namespace, "--for=condition=complete", "job/"+hook.GetName(),
				"--timeout=5m"))
		}
	}
	a.delete(t, slices.DeleteFunc(slices.Clone(objects), func(o unstructured.Unstructured) bool {
		return isHook(o) || o.GetAnnotations()["helm.sh/resource-policy"] == "keep"
	}))
	a.delete(t, having(objects, "hook-succeeded"))
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
