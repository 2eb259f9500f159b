package e2e

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pulls "github.com/zarf-dev/zarf-registry/internal/hook/pull"
	"github.com/zarf-dev/zarf-registry/internal/images"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// TestWarm makes nodes pull ahead of a rollout: with containerd, and in long runs also with CRI-O.
func TestWarm(t *testing.T) {
	args := []string{"--nodes", "2"}
	if long() {
		args = append(args, "--runtime", "n2=crio-1.34")
	}
	w := ownCluster(t, "e2e-warm", layout{open: true, args: args})
	must(t, "install in proxy mode", func(t *testing.T) {
		w.apply(t, proxyMode)
		w.isIn(t, state.ModeProxy, state.SourceValue)
		w.push(t, w.makeArchive(t, "example.com/team/shop:2", 8<<20))
		w.push(t, w.makeArchive(t, "example.com/team/web:1", 8<<20))
	})
	one, two := w.address+"/team/shop:2", w.address+"/team/web:1"
	must(t, "a node pulls", func(t *testing.T) {
		w.warm(t, 0, "team/shop:2", "--nodes=kubernetes.io/hostname=n1")
		w.noWarmPods(t)
		if !w.holds(t, "n1", one) || w.holds(t, "n2", one) {
			t.Error("not n1 alone has the image")
		}
	})
	must(t, "all nodes pull what they lack, and nothing runs", func(t *testing.T) {
		// What docs/reference/images.md shows.
		out := w.warm(t, 0, "team/shop:2", "team/web:1", "--all-nodes")
		for _, want := range []string{"n1 +" + one + " +0.0 +already there", "n1 +" + two + ` +\d+\.\d +pulled`,
			"n2 +" + one + ` +\d+\.\d +pulled`, "n2 +" + two + ` +\d+\.\d +pulled`} {
			if !regexp.MustCompile("(?m)^" + want + "$").MatchString(out) {
				t.Errorf("it does not print %q", want)
			}
		}
		w.noWarmPods(t)
		var got warmed
		decode(t, w.warm(t, 0, "example.com/team/shop:2", two, "--all-nodes", "--output=json"), &got)
		for _, node := range w.nodes {
			got.are(t, node, one, pulls.Present)
			got.are(t, node, two, pulls.Present)
		}
		for _, image := range []string{one, two} {
			if !w.holds(t, "n1", image) || !w.holds(t, "n2", image) {
				t.Errorf("not all nodes have %s", image)
			}
		}
		events, err := w.client.CoreV1().Events(w.namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		pulls := 0
		for _, e := range events.Items {
			if !strings.HasPrefix(e.InvolvedObject.Name, release+"-warm-") {
				continue
			}
			if e.Reason == "Pulled" {
				pulls++
			}
			if e.Reason == "Started" {
				t.Errorf("pod %s: %s", e.InvolvedObject.Name, e.Message)
			}
		}
		if pulls < 9 {
			t.Errorf("%d events of pulls, want 9", pulls)
		}
	})
	must(t, "what cannot be warmed is refused", func(t *testing.T) {
		for want, args := range map[string][]string{
			"the registry does not have " + w.address + "/team/web:2": {"team/web:2", "--all-nodes"},
			"set cache.replicas":                     {"team/shop:2"},
			"no Linux node matches --nodes gpu=none": {"team/shop:2", "--nodes=gpu=none"},
		} {
			if _, said := w.warms(t, 3, args...); !strings.Contains(said, want) {
				t.Errorf("images warm %v does not say %q", args, want)
			}
		}
		w.noWarmPods(t)
	})
	must(t, "an image for another architecture fails", func(t *testing.T) {
		w.provoked = append(w.provoked, "/warm/other:1")
		w.push(t, otherArchitecture(t, "example.com/warm/other:1"))
		var got warmed
		decode(t, w.warm(t, 1, "warm/other:1", "team/shop:2", "--nodes=kubernetes.io/hostname=n1", "-o", "json"), &got)
		got.are(t, "n1", w.address+"/warm/other:1", pulls.Failed)
		got.are(t, "n1", one, pulls.Present)
		if len(got.Nodes) > 0 && !strings.Contains(got.Nodes[0].Remedy, "platform") {
			t.Errorf("the remedy is %q", got.Nodes[0].Remedy)
		}
		w.noWarmPods(t)
	})
	// stop stops a run with a signal while it has pods, and returns how many it leaves.
	stop := func(t *testing.T, image string, signal syscall.Signal) int {
		t.Helper()
		w.push(t, w.makeArchive(t, "example.com/"+image, 4<<20))
		cmd := w.command(t, w.hook, "images", "warm", image, "--all-nodes")
		var said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &said, &said
		w.stopOnce(t, cmd, "pods", func() bool { return len(w.warmPods(t)) == 2 })
		if err := errors.Join(cmd.Process.Signal(signal), cmd.Process.Signal(syscall.SIGCONT)); err != nil {
			t.Fatal(err)
		}
		t.Logf("stopped by %s: %v\n%s", signal, cmd.Wait(), &said)
		return len(w.warmPods(t))
	}
	must(t, "a run that is interrupted deletes its pods", func(t *testing.T) {
		if left := stop(t, "warm/interrupted:1", syscall.SIGINT); left != 0 {
			t.Errorf("%d pods are left", left)
		}
	})
	must(t, "the next run deletes the pods of one that was killed", func(t *testing.T) {
		if left := stop(t, "warm/killed:1", syscall.SIGKILL); left != 2 {
			t.Errorf("%d pods are left, want 2: nothing is checked", left)
		}
		w.warm(t, 0, "team/shop:2", "--all-nodes")
		w.noWarmPods(t)
	})
	must(t, "nodes pull from the node port", func(t *testing.T) {
		w.apply(t, nodePortMode)
		w.isIn(t, state.ModeNodePort, state.SourceValue)
		w.push(t, w.makeArchive(t, "example.com/warm/port:1", 8))
		var got warmed
		decode(t, w.warm(t, 0, "warm/port:1", "--all-nodes", "--output=json"), &got)
		got.are(t, "n1", w.address+"/warm/port:1", pulls.Pulled)
		got.are(t, "n2", w.address+"/warm/port:1", pulls.Pulled)
	})
	must(t, "helm uninstall deletes the pods of a run that was killed", func(t *testing.T) {
		w.provoked = append(w.provoked, "/warm/killed:2") // nothing serves it any more
		stop(t, "warm/killed:2", syscall.SIGKILL)
		w.uninstall(t)
	})
}

// warmed is what images warm prints.
type warmed struct{ Caches, Nodes []pulls.Result }

// are fails unless a node has the result.
func (got warmed) are(t *testing.T, node, image string, want pulls.Outcome) {
	t.Helper()
	if !slices.ContainsFunc(got.Nodes, func(r pulls.Result) bool {
		return r.Name == node && r.Image == image && r.Outcome == want && (want != pulls.Pulled || r.Seconds > 0)
	}) {
		t.Errorf("%s on %s is not %s: %+v", image, node, want, got.Nodes)
	}
}

// warms runs zarf-registry images warm, which must exit with a code.
func (w *world) warms(t *testing.T, code int, args ...string) (out, said string) {
	t.Helper()
	out, said, err := try(w.command(t, w.hook, append([]string{"images", "warm"}, args...)...))
	got := 0
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		got = exit.ExitCode()
	}
	t.Logf("images warm %s:\n%s%s", strings.Join(args, " "), said, out)
	if got != code {
		t.Fatalf("images warm %q: exit code %d, want %d", args, got, code)
	}
	return out, said
}

func (w *world) warm(t *testing.T, code int, args ...string) string {
	t.Helper()
	out, _ := w.warms(t, code, args...)
	return out
}

// warmPods returns the pods that make nodes pull and are not being deleted.
func (w *world) warmPods(t *testing.T) []corev1.Pod {
	t.Helper()
	pods, err := w.client.CoreV1().Pods(w.namespace).List(t.Context(),
		metav1.ListOptions{LabelSelector: names.Selector(release, names.ComponentWarm)})
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
}

func (w *world) noWarmPods(t *testing.T) {
	t.Helper()
	if left := len(w.warmPods(t)); left > 0 {
		t.Errorf("%d pods are left", left)
	}
}

// holds reports whether a node's container runtime has an image under a reference.
func (w *world) holds(t *testing.T, node, image string) bool {
	t.Helper()
	return slices.Contains(w.nodeImages(t, node), image)
}

// otherArchitecture writes an archive with an image that no node can run.
func otherArchitecture(t *testing.T, reference string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tool")
	if err := os.WriteFile(file, []byte(reference), 0o755); err != nil {
		t.Fatal(err)
	}
	layer, err := images.FileLayer("tool", file)
	if err != nil {
		t.Fatal(err)
	}
	store := &images.Store{}
	image, err := store.Build(images.Spec{Reference: reference, Entrypoint: []string{"/tool"}},
		images.Variant{Architecture: "s390x", Layers: []images.Layer{layer}})
	if err != nil {
		t.Fatal(err)
	}
	return writeImages(t, store, image)
}
