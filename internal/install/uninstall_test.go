package install_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"helm.sh/helm/v3/pkg/kube"
	kubefake "helm.sh/helm/v3/pkg/kube/fake"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/install"
	"github.com/zarf-dev/zarf-registry/test/require"
)

const cleanupJob = `
apiVersion: batch/v1
kind: Job
metadata:
  name: zarf-registry-cleanup
  annotations: {helm.sh/hook: pre-delete}
spec: {template: {spec: {containers: [{name: init-hook, args: [cleanup, --port=31001]}]}}}
`

func TestUninstallDoesTheWorkOfTheJobFirst(t *testing.T) {
	failure := errors.New("a node does not answer")
	for name, c := range map[string]struct {
		job     bool
		cleanup error
		events  []string // the arguments of cleanup, and the releases that it finds
		left    int
	}{
		"with the Job's arguments":    {true, nil, []string{"cleanup --port=31001", "1 releases"}, 0},
		"a failure keeps the release": {true, failure, []string{"cleanup --port=31001", "1 releases"}, 1},
		"without it, with those of another Job": {false, nil,
			[]string{"prepare --name=zarf-registry --mode=nodeport --port=31001", "1 releases"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, namespace())
			if c.job {
				b.template("cleanup.yaml", cleanupJob)
			}
			b.mustRun()
			var events []string
			found, err := install.Uninstall(t.Context(), b.Helm, "zarf-registry", time.Minute,
				func(_ context.Context, args []string) error {
					events = append(events, strings.Join(args, " "), fmt.Sprintf("%d releases", len(b.history())))
					return c.cleanup
				})
			if !found || !errors.Is(err, c.cleanup) || !slices.Equal(events, c.events) {
				t.Errorf("found %t, error %v, events %q", found, err, events)
			}
			if left := len(b.history()); left != c.left {
				t.Errorf("%d revisions remain", left)
			}
		})
	}
}

const restorers = `
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: zarf-registry-node-restore-amd64
  annotations: {helm.sh/hook: pre-delete}
`

// noting notes what a fake client is asked to do with DaemonSets.
type noting struct {
	*kubefake.PrintingKubeClient
	events *[]string
}

func (n noting) Build(manifest io.Reader, validate bool) (kube.ResourceList, error) {
	content, err := io.ReadAll(manifest)
	if err != nil || !strings.Contains(string(content), "kind: DaemonSet") {
		return nil, err
	}
	return kube.ResourceList{{Name: "set"}}, nil
}

func (n noting) note(what string, objects kube.ResourceList) {
	if len(objects) > 0 {
		*n.events = append(*n.events, what)
	}
}

func (n noting) Create(objects kube.ResourceList) (*kube.Result, error) {
	n.note("create", objects)
	return &kube.Result{}, nil
}

func (n noting) Delete(objects kube.ResourceList) (*kube.Result, []error) {
	n.note("delete", objects)
	return &kube.Result{}, nil
}

func (n noting) WaitForDelete(objects kube.ResourceList, _ time.Duration) error {
	n.note("wait", objects)
	return nil
}

// The pods that give nodes their files back are hooks, which Helm does not create here.
func TestUninstallCreatesThePodsThatRestoreFiles(t *testing.T) {
	b := newBench(t, namespace())
	b.template("restore.yaml", restorers)
	b.mustRun()
	var events []string
	b.Helm.KubeClient = noting{&kubefake.PrintingKubeClient{Out: io.Discard}, &events}
	require.Value(install.Uninstall(t.Context(), b.Helm, "zarf-registry", time.Minute,
		func(context.Context, []string) error { events = append(events, "cleanup"); return nil }))(t)
	if want := []string{"delete", "wait", "create", "cleanup"}; !slices.Equal(events, want) {
		t.Errorf("events %q, want %q", events, want)
	}
}

func TestUninstallWithoutAReleaseCleansUp(t *testing.T) {
	b := newBench(t, namespace())
	called := false
	found, err := install.Uninstall(t.Context(), b.Helm, "zarf-registry", time.Minute,
		func(_ context.Context, args []string) error {
			called = args == nil
			return nil
		})
	if found || err != nil || !called {
		t.Errorf("found %t, error %v, cleanup without arguments: %t", found, err, called)
	}
}

func TestTheObjectsOfARelease(t *testing.T) {
	b := newBench(t, namespace())
	b.template("objects.yaml", `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: kept, namespace: zarf, annotations: {helm.sh/resource-policy: keep}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: deleted, namespace: zarf}
---
apiVersion: apps/v1
kind: DaemonSet # uninstall deletes proxies, which Helm keeps
metadata: {name: proxy, namespace: zarf, annotations: {helm.sh/resource-policy: keep}}
`)
	b.mustRun()
	rel := require.Value(install.Installed(b.Helm, "zarf-registry"))(t)
	objects := require.Value(install.Objects(rel))(t)
	var got []string
	for _, o := range objects {
		got = append(got, fmt.Sprintf("%s kept=%t", o, o.Kept))
	}
	want := []string{"ConfigMap a kept=false", "PersistentVolumeClaim zarf/deleted kept=false",
		"PersistentVolumeClaim zarf/kept kept=true", "DaemonSet zarf/proxy kept=false"}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("objects %q, want %q", got, want)
	}
	if rel, err := install.Installed(b.Helm, "another"); rel != nil || err != nil {
		t.Errorf("a release that does not exist: %v, %v", rel, err)
	}
}

func TestUninstallLeavesOtherChartsAlone(t *testing.T) {
	b := newBench(t, namespace())
	b.mustRun()
	last := b.last()
	last.Chart.Metadata.Name = "nginx"
	require.NoError(t, b.Helm.Releases.Update(last))
	_, err := install.Uninstall(t.Context(), b.Helm, "zarf-registry", time.Minute,
		func(context.Context, []string) error { t.Error("it cleaned up"); return nil })
	if !exitcode.IsRefusal(err) {
		t.Errorf("error %v", err)
	}
}
