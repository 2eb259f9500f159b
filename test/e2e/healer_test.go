package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/e2e/scenarios"
	"github.com/zarf-dev/zarf-registry/test/require"
)

const (
	knownPause = "registry.k8s.io/pause:3.10.1"
	otherPause = "k8s.gcr.io/pause:3.9"
)

// TestHealer replaces all nodes, one by one, by nodes with a pause image that the chart does not
// know, while pods are pulled.
//
// Claim (the policies refuse every other patch): The token of the healer can patch nothing except the images
// of the release's own pods.
func TestHealer(t *testing.T) {
	w := ownCluster(t, "e2e-healer", layout{args: []string{"--pause-image", knownPause}})
	image := ""
	must(t, "installed with healers", func(t *testing.T) {
		w.helmChart(t, "install", "--wait", proxyMode)
		w.isIn(t, state.ModeProxy, state.SourceValue)
		image = w.pushHello(t)
		w.healersReady(t)
		w.healersAreSmall(t)
	})
	must(t, "a node with a known pause image joins", func(t *testing.T) {
		w.firstPull(t, "known", image)
		if pods := w.healedPods(t); len(pods) > 0 {
			t.Errorf("healed without need: %v", pods)
		}
	})
	must(t, "a node with an unknown pause image joins", func(t *testing.T) {
		w.firstPull(t, "new1", image, "--pause-image", otherPause)
		w.eventSays(t, "new1")
		eventually(t, "zarf-registry status to report a healthy cluster", func() error {
			out, _, err := try(w.command(t, w.hook, "status"))
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		})
	})
	must(t, "the policies refuse every other patch", w.healerIsLimited)
	must(t, "both healers are killed at once", func(t *testing.T) {
		for _, p := range w.pods(t, "healer") {
			w.deletePod(t, p.Name, 0)
		}
		begin := time.Now()
		w.healersReady(t)
		t.Logf("figure: both healers ready again after %.1f s", time.Since(begin).Seconds())
	})
	must(t, "the nodes are replaced one by one while pods are pulled", func(t *testing.T) {
		for _, step := range []struct{ leaves, joins string }{{"n1", "new2"}, {"n2", "new3"}, {"known", ""}} {
			if step.joins != "" {
				w.firstPull(t, step.joins, image, "--pause-image", otherPause)
			}
			stop := w.without(step.leaves).pullLoop(t, "e2e/hello:1")
			output(t, w.command(t, w.kubectl, "drain", step.leaves, "--ignore-daemonsets", "--delete-emptydir-data",
				"--timeout=2m"))
			w.removeNode(t, step.leaves)
			w.waitForRegistry(t, "")
			w.healersReady(t)
			stop()
		}
		for _, node := range w.nodes {
			w.waitForImage(t, node, otherPause)
		}
		w.pullEverywhere(t, image)
	})
	must(t, "without a healer, zarf-registry heal brings registry and healers back", func(t *testing.T) {
		w.scaleHealer(t, 0)
		before := w.waitForRegistry(t, "")
		w.deletePod(t, before.Name, 0)
		eventually(t, "the registry to need another image", func() error {
			h, err := w.tryHeal(t, "--dry-run")
			if err == nil && (len(h.Pods) != 1 || h.Pods[0].Action != "replace" || h.Pods[0].Image != otherPause) {
				err = errors.New(mustJSON(h))
			}
			return err
		})
		h := w.heal(t)
		if len(h.Pods) != 1 || h.Pods[0].PreviousImage != w.chosenPause(t) {
			t.Errorf("healed %s", mustJSON(h.Pods))
		}
		w.waitForRegistry(t, before.Name)
		w.scaleHealer(t, 2)
		eventually(t, "the healers to be healed", func() error {
			_, err := w.tryHeal(t)
			if n := w.readyHealers(t); n < 2 {
				return errors.Join(fmt.Errorf("%d healers are ready", n), err)
			}
			return err
		})
		w.pullEverywhere(t, image)
	})
	must(t, "helm upgrade after healing, with Jobs that run from the registry", func(t *testing.T) {
		w.helmChart(t, "upgrade", "--wait", noMode)
		w.isIn(t, state.ModeProxy, state.SourceState)
		w.healersReady(t)
		w.pullEverywhere(t, image)
		w.isHealthy(t)
	})
	if slices.Contains(scenarios.NodePorts, w.network) {
		must(t, "healers in nodeport mode", func(t *testing.T) {
			w.helmChart(t, "upgrade", "--wait", nodePortMode)
			w.isIn(t, state.ModeNodePort, state.SourceValue)
			w.healersReady(t)
			w.isHealthy(t)
		})
	}
}

// firstPull adds a node and fails unless it pulls in time after it has become ready.
func (w *world) firstPull(t *testing.T, node, image string, args ...string) {
	t.Helper()
	w.addNode(t, node, args...)
	added := time.Now()
	w.succeedsOn(t, "node "+node+" to pull", node, "crictl", "pull", image)
	pulled := time.Now()
	n := require.Value(w.client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{}))(t)
	for _, c := range n.Status.Conditions {
		if c.Type != corev1.NodeReady {
			continue
		}
		took := pulled.Sub(c.LastTransitionTime.Time) // which has whole seconds
		t.Logf("figure: %s pulled %.1f s after it had become ready (to a second), %.1f s after that was seen", node,
			took.Seconds(), pulled.Sub(added).Seconds())
	}
}

func (w *world) readyHealers(t *testing.T) int {
	t.Helper()
	n := 0
	for _, p := range w.pods(t, "healer") {
		if p.DeletionTimestamp == nil && ready(p) {
			n++
		}
	}
	return n
}

func (w *world) healersReady(t *testing.T) {
	t.Helper()
	eventually(t, "two ready healers", func() error {
		if n := w.readyHealers(t); n != 2 {
			return fmt.Errorf("%d are ready", n)
		}
		return nil
	})
}

// healersAreSmall fails if a healer uses more than half of its memory limit while it has nothing to do.
func (w *world) healersAreSmall(t *testing.T) {
	t.Helper()
	found := 0
	for _, node := range w.nodes {
		out, err := w.onNode(t, node, "ps", "-eo", "rss=,args=")
		require.NoError(t, err, out)
		for line := range strings.Lines(out) {
			kilobytes, args, _ := strings.Cut(strings.TrimSpace(line), " ")
			if !strings.HasPrefix(strings.TrimSpace(args), "/program/registry-node heal ") {
				continue
			}
			found++
			t.Logf("figure: a healer on %s uses %s kB", node, kilobytes)
			if n, err := strconv.Atoi(kilobytes); err != nil || n > 32<<10 {
				t.Errorf("a healer uses %s kB (%v)", kilobytes, err)
			}
		}
	}
	if found == 0 {
		t.Error("no healer found")
	}
}

func (w *world) scaleHealer(t *testing.T, replicas int32) {
	t.Helper()
	require.Value(w.client.AppsV1().Deployments(namespace).UpdateScale(t.Context(), release+"-healer", &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{Name: release + "-healer", Namespace: namespace},
		Spec:       autoscalingv1.ScaleSpec{Replicas: replicas},
	}, metav1.UpdateOptions{}))(t)
	if replicas > 0 {
		return
	}
	w.noneIsLeft(t, "healer")
}

// healedPods returns the release's pods with the annotation of a replaced image.
func (w *world) healedPods(t *testing.T) (names []string) {
	t.Helper()
	for _, component := range []string{"registry", "proxy", "healer"} {
		for _, p := range w.pods(t, component) {
			if p.Annotations["zarf-registry/previous-images"] != "" {
				names = append(names, p.Name)
			}
		}
	}
	return names
}

// eventSays fails unless an event says which image of the node's proxy was replaced, and the
// annotation keeps it.
func (w *world) eventSays(t *testing.T, node string) {
	t.Helper()
	p := w.proxyOn(t, node)
	if got := p.Annotations["zarf-registry/previous-images"]; got != w.chosenPause(t) {
		t.Errorf("the annotation of %s is %q", p.Name, got)
	}
	eventually(t, "an event", func() error {
		list, err := w.client.CoreV1().Events(namespace).List(t.Context(),
			metav1.ListOptions{FieldSelector: "reason=ImageReplaced,involvedObject.name=" + p.Name})
		if err != nil {
			return err
		}
		if len(list.Items) != 1 || !strings.Contains(list.Items[0].Message, node) ||
			!strings.Contains(list.Items[0].Message, w.chosenPause(t)) || !strings.Contains(list.Items[0].Message, otherPause) {
			return errors.New(mustJSON(list.Items))
		}
		t.Logf("the event of %s: %s", p.Name, list.Items[0].Message)
		return nil
	})
}

// chosenPause returns the image that the chart has chosen, which the DaemonSet names by its digest.
func (w *world) chosenPause(t *testing.T) string {
	t.Helper()
	set, err := w.client.AppsV1().DaemonSets(namespace).Get(t.Context(), "zarf-registry-proxy-"+runtime.GOARCH,
		metav1.GetOptions{})
	require.NoError(t, err)
	return set.Spec.Template.Spec.Containers[0].Image
}

// healed is the output of zarf-registry heal.
type healed struct {
	Pods []struct{ Pod, Node, Action, PreviousImage, Image, Reason string }
}

func (w *world) heal(t *testing.T, args ...string) healed {
	t.Helper()
	return require.Value(w.tryHeal(t, args...))(t)
}

// tryHeal returns an error while a pod or node waits.
func (w *world) tryHeal(t *testing.T, args ...string) (h healed, err error) {
	t.Helper()
	out, _, err := try(w.command(t, w.hook, append([]string{"heal", "--output", "json"}, args...)...))
	if err != nil {
		return h, fmt.Errorf("%w: %s", err, out)
	}
	return h, json.Unmarshal([]byte(out), &h)
}

// healerIsLimited uses the healer's token.
func (w *world) healerIsLimited(t *testing.T) {
	token, err := w.client.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), release+"-healer",
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	require.NoError(t, err)
	config := rest.AnonymousClientConfig(w.config)
	config.BearerToken = token.Status.Token
	healer := require.Value(kubernetes.NewForConfig(config))(t)
	policy, err := w.client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(t.Context(),
		namespace+"-"+release+"-healer", metav1.GetOptions{})
	require.NoError(t, err)
	if checked := policy.Status.TypeChecking; checked == nil || len(checked.ExpressionWarnings) > 0 {
		t.Errorf("the API server warns about policy %s: %s", policy.Name, mustJSON(checked))
	}
	other := pod("not-the-charts", "", "example.com/none:1")
	w.provoked = append(w.provoked, other.Spec.Containers[0].Image)
	other.Namespace = namespace
	other.Spec.InitContainers = slices.Clone(other.Spec.Containers)
	other.Spec.InitContainers[0].Name = "init"
	require.Value(w.client.CoreV1().Pods(namespace).Create(t.Context(), other, metav1.CreateOptions{}))(t)
	defer w.deletePod(t, other.Name, 0)
	proxy := w.pods(t, "proxy")[0].Name
	dry := metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}
	for description, c := range map[string]struct{ pod, patch, refused string }{
		"the image of a container with the loader": {proxy,
			`{"spec":{"containers":[{"name":"proxy","image":"registry.k8s.io/pause:3.9"}]}}`, ""},
		"an image that is only called pause": {proxy,
			`{"spec":{"containers":[{"name":"proxy","image":"localhost:31999/tenant/pause:999.0"}]}}`, "trusted pause images"},
		"its own annotation": {proxy, `{"metadata":{"annotations":{"zarf-registry/previous-images":"a.example/b:1"}}}`, ""},
		"the image of another container": {other.Name, `{"spec":{"containers":[{"name":"main","image":"a.example/b:1"}]}}`,
			"images"},
		"the image of another init container": {other.Name,
			`{"spec":{"initContainers":[{"name":"init","image":"a.example/b:1"}]}}`, "images"},
		"another annotation":    {proxy, `{"metadata":{"annotations":{"a":"b"}}}`, "annotation"},
		"an annotation removed": {proxy, `{"metadata":{"annotations":{"zarf-registry/metrics-port":null}}}`, "annotation"},
		"an annotation changed": {proxy, `{"metadata":{"annotations":{"zarf-registry/metrics-port":"1"}}}`, "annotation"},
		"a label":               {proxy, `{"metadata":{"labels":{"a":"b"}}}`, "labels"},
		"a label removed":       {proxy, `{"metadata":{"labels":{"app.kubernetes.io/component":null}}}`, "labels"},
		"a finalizer":           {proxy, `{"metadata":{"finalizers":["a.example/b"]}}`, "finalizers"},
		"no owner":              {proxy, `{"metadata":{"ownerReferences":null}}`, "owners"},
		"a toleration":          {other.Name, `{"spec":{"tolerations":[{"operator":"Exists"},{"key":"a","operator":"Exists"}]}}`, "scheduling"},
		"a deadline":            {proxy, `{"spec":{"activeDeadlineSeconds":1}}`, "deadlines"},
	} {
		_, err := healer.CoreV1().Pods(namespace).Patch(t.Context(), c.pod, types.StrategicMergePatchType,
			[]byte(c.patch), dry)
		switch {
		case c.refused == "" && err != nil:
			t.Errorf("%s: %v", description, err)
		case c.refused != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "the healer may") ||
			!strings.Contains(err.Error(), c.refused)):
			t.Errorf("%s: %v", description, err)
		}
	}
	for description, try := range map[string]func() error{
		"patch a node": func() error {
			_, err := healer.CoreV1().Nodes().Patch(t.Context(), "n1", types.MergePatchType, []byte(`{}`), dry)
			return err
		},
		"delete a node": func() error {
			return healer.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
		},
		"create a pod": func() error {
			_, err := healer.CoreV1().Pods(namespace).Create(t.Context(), pod("x", "", "a:1"), metav1.CreateOptions{})
			return err
		},
		"delete a pod that is no proxy": func() error {
			return healer.CoreV1().Pods(namespace).Delete(t.Context(), other.Name, metav1.DeleteOptions{})
		},
		"read a Secret": func() error {
			_, err := healer.CoreV1().Secrets(namespace).Get(t.Context(), release+"-state", metav1.GetOptions{})
			return err
		},
		"patch a pod elsewhere": func() error {
			_, err := healer.CoreV1().Pods("default").Patch(t.Context(), "x", types.StrategicMergePatchType, []byte(`{}`), dry)
			return err
		},
		"add an ephemeral container": func() error {
			_, err := healer.CoreV1().Pods(namespace).Patch(t.Context(), proxy, types.StrategicMergePatchType,
				[]byte(`{"spec":{"ephemeralContainers":[{"name":"x","image":"a:1"}]}}`), dry, "ephemeralcontainers")
			return err
		},
	} {
		if err := try(); !apierrors.IsForbidden(err) {
			t.Errorf("it may %s: %v", description, err)
		}
	}
}
