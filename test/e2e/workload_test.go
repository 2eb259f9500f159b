package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// workloads is the namespace of pods that pull.
const workloads = "default"

// pod returns a pod that satisfies the restricted Pod Security level.
func pod(name, node, image string, args ...string) *corev1.Pod {
	no, yes, id := false, true, int64(65532)
	grace := int64(1)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: workloads},
		Spec: corev1.PodSpec{
			NodeName:                      node,
			RestartPolicy:                 corev1.RestartPolicyNever,
			AutomountServiceAccountToken:  &no,
			TerminationGracePeriodSeconds: &grace,
			Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: &yes, RunAsUser: &id,
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers: []corev1.Container{{
				Name: "main", Image: image, Args: args, ImagePullPolicy: corev1.PullAlways,
				SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: &no,
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
			}},
		},
	}
}

// runPod runs a pod and waits until it is running or, if it has arguments, has ended. It returns
// how long that took and the kubelet's event about the pull.
func (w *world) runPod(t *testing.T, pod *corev1.Pod) (time.Duration, string) {
	t.Helper()
	begin := time.Now()
	pods := w.client.CoreV1().Pods(pod.Namespace)
	made := require.Value(pods.Create(t.Context(), pod, metav1.CreateOptions{}))(t)
	t.Cleanup(func() {
		now := int64(0)
		pods.Delete(context.Background(), made.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	})
	eventually(t, "pod "+made.Name+" to run", func() error {
		p, err := pods.Get(t.Context(), made.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		switch p.Status.Phase {
		case corev1.PodRunning, corev1.PodSucceeded:
			return nil
		case corev1.PodFailed:
			if len(pod.Spec.Containers[0].Args) > 0 {
				return nil
			}
		}
		return fmt.Errorf("phase %s: %s", p.Status.Phase, mustJSON(p.Status.ContainerStatuses))
	})
	took := time.Since(begin)
	var pulled string
	eventually(t, "the event about the pull", func() error {
		events, err := w.client.CoreV1().Events(pod.Namespace).List(t.Context(),
			metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(made.UID) + ",reason=Pulled"})
		if err != nil {
			return err
		}
		if len(events.Items) == 0 {
			return errors.New("no event yet")
		}
		pulled = events.Items[0].Message
		return nil
	})
	return took, pulled
}

// pullEverywhere runs a pod with the image on every node.
func (w *world) pullEverywhere(t *testing.T, image string) {
	t.Helper()
	secrets := w.pullSecrets(t)
	for _, node := range w.nodes {
		p := pod("hello-"+node, node, image)
		p.Spec.ImagePullSecrets = secrets
		took, event := w.runPod(t, p)
		t.Logf("on %s after %.1f s: %s", node, took.Seconds(), event)
		if !strings.Contains(event, image) {
			t.Errorf("the event is not about a pull of %s: %s", image, event)
		}
	}
}

// pullSecret returns the Secret for pulls through the node port, nil if there is none.
func (w *world) pullSecret(t *testing.T) *corev1.Secret {
	t.Helper()
	secret, err := w.client.CoreV1().Secrets(w.namespace).Get(t.Context(), release+"-pull", metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		t.Fatal(err)
	}
	return secret
}

// pullSecrets copies that Secret to the namespace of the workloads, as the documentation says, and
// returns the reference for pods.
func (w *world) pullSecrets(t *testing.T) []corev1.LocalObjectReference {
	t.Helper()
	secret := w.pullSecret(t)
	if secret == nil {
		return nil
	}
	theirs := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "from-the-registry", Namespace: workloads},
		Type:       secret.Type,
		Data:       map[string][]byte{corev1.DockerConfigJsonKey: secret.Data[corev1.DockerConfigJsonKey]},
	}
	secrets := w.client.CoreV1().Secrets(workloads)
	require.Value(secrets.Create(t.Context(), theirs, metav1.CreateOptions{}))(t)
	t.Cleanup(func() { secrets.Delete(context.Background(), theirs.Name, metav1.DeleteOptions{}) })
	return []corev1.LocalObjectReference{{Name: theirs.Name}}
}

// podReaches reports whether a pod on a node can connect to an address.
func (w *world) podReaches(t *testing.T, name, node, image, address string) bool {
	t.Helper()
	p := pod(name, node, image, "dial", address)
	p.Spec.ImagePullSecrets = w.pullSecrets(t)
	w.runPod(t, p)
	reached := false
	eventually(t, name+" to end", func() error {
		p, err := w.client.CoreV1().Pods(workloads).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		reached = p.Status.Phase == corev1.PodSucceeded
		if !reached && p.Status.Phase != corev1.PodFailed {
			return fmt.Errorf("phase %s", p.Status.Phase)
		}
		return nil
	})
	return reached
}

// pods returns the release's pods of a component.
func (w *world) pods(t *testing.T, component string) []corev1.Pod {
	t.Helper()
	list, err := w.client.CoreV1().Pods(w.namespace).List(t.Context(),
		metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=" + release + ",app.kubernetes.io/component=" +
			component})
	require.NoError(t, err)
	return list.Items
}

// proxiesOn returns the proxies on a node: two while one is replaced.
func (w *world) proxiesOn(t *testing.T, node string) []corev1.Pod {
	t.Helper()
	return slices.DeleteFunc(w.pods(t, "proxy"), func(p corev1.Pod) bool { return p.Spec.NodeName != node })
}

// proxyOn returns the only proxy on a node.
func (w *world) proxyOn(t *testing.T, node string) corev1.Pod {
	t.Helper()
	proxies := w.proxiesOn(t, node)
	if len(proxies) != 1 {
		t.Fatalf("%d proxies on node %s", len(proxies), node)
	}
	return proxies[0]
}

func ready(p corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// deletePod deletes a pod of the release; grace is in seconds, 0 kills it.
func (w *world) deletePod(t *testing.T, name string, grace int64) {
	t.Helper()
	err := w.client.CoreV1().Pods(w.namespace).Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: &grace})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
}

// waitForRegistry waits for a ready registry pod other than the previous one.
func (w *world) waitForRegistry(t *testing.T, previous string) corev1.Pod {
	t.Helper()
	var found corev1.Pod
	eventually(t, "another registry pod to be ready", func() error {
		for _, p := range w.pods(t, "registry") {
			if p.Name != previous && p.DeletionTimestamp == nil && ready(p) {
				found = p
				return nil
			}
		}
		return errors.New("none yet")
	})
	return found
}

// waitForJobPod waits until a pod of a new hook Job is running.
func (w *world) waitForJobPod(t *testing.T, step string) corev1.Pod {
	t.Helper()
	begin := time.Now().Add(-time.Second) // creation times have whole seconds
	var found corev1.Pod
	eventually(t, "the Job "+step+" to run", func() error {
		list, err := w.client.CoreV1().Pods(w.namespace).List(t.Context(),
			metav1.ListOptions{LabelSelector: "batch.kubernetes.io/job-name=" + release + "-" + step})
		if err != nil {
			return err
		}
		for _, p := range list.Items {
			if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil && !p.CreationTimestamp.Time.Before(begin) {
				found = p
				return nil
			}
		}
		return errors.New("not running yet")
	})
	return found
}

// rolloutsEnd waits until controllers have observed the pod templates of registry and proxies, and all pods
// are made from them.
func (w *world) rolloutsEnd(t *testing.T) {
	t.Helper()
	options := metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=" + release +
		",app.kubernetes.io/component in (registry,proxy)"}
	eventually(t, "rollouts to end", func() error {
		deployments, err := w.client.AppsV1().Deployments(w.namespace).List(t.Context(), options)
		if err != nil {
			return err
		}
		for _, d := range deployments.Items {
			s := d.Status
			if s.ObservedGeneration != d.Generation || s.UpdatedReplicas != *d.Spec.Replicas || s.Replicas != *d.Spec.Replicas ||
				s.AvailableReplicas != *d.Spec.Replicas {
				return fmt.Errorf("Deployment %s, generation %d: %s", d.Name, d.Generation, mustJSON(s))
			}
		}
		sets, err := w.client.AppsV1().DaemonSets(w.namespace).List(t.Context(), options)
		if err != nil {
			return err
		}
		for _, d := range sets.Items {
			s := d.Status
			if s.ObservedGeneration != d.Generation || s.UpdatedNumberScheduled != s.DesiredNumberScheduled ||
				s.NumberAvailable != s.DesiredNumberScheduled {
				return fmt.Errorf("DaemonSet %s, generation %d: %s", d.Name, d.Generation, mustJSON(s))
			}
		}
		if len(deployments.Items) == 0 {
			return errors.New("the registry has no Deployment")
		}
		return nil
	})
}

// restarts lists the release's containers with their restart counts.
func (w *world) restarts(t *testing.T) string {
	t.Helper()
	var lines []string
	for _, component := range []string{"registry", "proxy"} {
		for _, p := range w.pods(t, component) {
			for _, c := range p.Status.ContainerStatuses {
				lines = append(lines, fmt.Sprintf("%s %s %d", p.Name, p.UID, c.RestartCount))
			}
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// restartsNothing fails if f restarts or replaces a pod of the release.
func (w *world) restartsNothing(t *testing.T, f func()) {
	t.Helper()
	before := w.restarts(t)
	f()
	w.rolloutsEnd(t) // one that f has started replaces pods
	if after := w.restarts(t); before != after {
		t.Errorf("pods before:\n%s\nafter:\n%s", before, after)
	}
}
