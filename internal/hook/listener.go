package hook

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/zarf-dev/zarf-registry/internal/names"
)

const (
	// pullUser is the user that pulls through a node port.
	pullUser = "zarf-pull"
	// plainPortName is the name of the container port of the registry's plain
	// listener.
	plainPortName = "plain"
	// listenerTime is how long the registry may take to open or close its plain
	// listener. A kubelet looks at a pod's Secrets every 60 to 90 seconds by itself.
	listenerTime = 2 * time.Minute
	// refreshEvery is how often the pods are annotated while waiting: the kubelet
	// may have looked before it heard of the Secret's change.
	refreshEvery = 10 * time.Second
)

// openPlain makes the pull credential and has the registry's plain listener opened.
// A registry that does not run yet opens it when it starts.
func (h *Hook) openPlain(ctx context.Context) (string, error) {
	wrote, err := h.writePull(ctx)
	if err != nil {
		return "", err
	}
	pods, err := h.awaitPlain(ctx, true)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s; the listener is open, registry pods: %d", wrote, pods), nil
}

// closePlain has the registry's plain listener closed. The pull credential stays:
// copies of it in other namespaces are right again after the next switch.
func (h *Hook) closePlain(ctx context.Context) (string, error) {
	name := h.Settings.Name + names.SuffixPull
	secret, err := h.secret(ctx, name)
	if err != nil {
		return "", err
	}
	if secret == nil {
		return "nothing: it was never opened", nil
	}
	if _, open := secret.Data[names.KeyHtpasswd]; open {
		data := maps.Clone(secret.Data)
		delete(data, names.KeyHtpasswd)
		if err := h.writeSecret(ctx, secret, name, names.ComponentCredentials, corev1.SecretTypeDockerConfigJson, data); err != nil {
			return "", err
		}
	}
	// Also where a run that was killed removed the key: it may not have seen the end.
	pods, err := h.awaitPlain(ctx, false)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("it is closed, registry pods: %d", pods), nil
}

// writePull makes the Secret for pulling through the node port, or puts it right,
// and says in words what it did.
func (h *Hook) writePull(ctx context.Context) (string, error) {
	name := h.Settings.Name + names.SuffixPull
	secret, err := h.secret(ctx, name)
	if err != nil {
		return "", err
	}
	data := map[string][]byte{}
	if secret != nil {
		data = maps.Clone(secret.Data)
	}
	var reasons []string
	if len(data[keyUsername]) == 0 || len(data[keyPassword]) == 0 {
		reasons = append(reasons, "there was no credential")
		password, err := newPassword()
		if err != nil {
			return "", err
		}
		data = map[string][]byte{keyUsername: []byte(pullUser), keyPassword: password}
	}
	config, err := dockerConfig(h.Settings.Address, string(data[keyUsername]), string(data[keyPassword]))
	if err != nil {
		return "", err
	}
	if !bytes.Equal(data[corev1.DockerConfigJsonKey], config) {
		reasons = append(reasons, "it was not for "+h.Settings.Address)
		data[corev1.DockerConfigJsonKey] = config
	}
	if !htpasswdMatches(data[names.KeyHtpasswd], data[keyUsername], data[keyPassword]) {
		reasons = append(reasons, "it kept the listener closed")
		if data[names.KeyHtpasswd], err = newHtpasswd(data[keyUsername], data[keyPassword]); err != nil {
			return "", fmt.Errorf("hashing the password of %s: %w", h.object("Secret", name), err)
		}
	}
	if len(reasons) == 0 {
		return name + " is right", nil
	}
	if err := h.writeSecret(ctx, secret, name, names.ComponentCredentials, corev1.SecretTypeDockerConfigJson, data); err != nil {
		return "", err
	}
	return fmt.Sprintf("wrote %s: %s", name, strings.Join(reasons, ", ")), nil
}

// dockerConfig is the content of an image pull Secret.
func dockerConfig(address, username, password string) ([]byte, error) {
	type entry struct {
		Username string `json:"username"`
		Password string `json:"password"`
		Auth     []byte `json:"auth"` // base64 of username:password, which encoding/json makes of bytes
	}
	return json.Marshal(map[string]map[string]entry{"auths": {address: {username, password, []byte(username + ":" + password)}}})
}

// awaitPlain waits until the plain listener is open, or closed, on every ready
// registry pod, and returns how many those are.
func (h *Hook) awaitPlain(ctx context.Context, open bool) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, listenerTime)
	defer cancel()
	var refreshed time.Time
	for {
		pods, wrong, err := h.plainPods(ctx, open)
		if err == nil && len(wrong) == 0 {
			return pods, nil
		}
		if err == nil && time.Since(refreshed) >= refreshEvery {
			refreshed = time.Now()
			err = h.refresh(ctx, slices.Collect(maps.Keys(wrong)))
		}
		if err != nil && ctx.Err() == nil && !retriable(err) {
			return 0, err
		}
		if sleepErr := sleep(ctx, pollInterval); sleepErr != nil {
			want := "open"
			if !open {
				want = "close"
			}
			var complaints []string
			for _, pod := range slices.Sorted(maps.Keys(wrong)) {
				complaints = append(complaints, fmt.Sprintf("%s: %s", h.object("pod", pod), wrong[pod]))
			}
			if err != nil {
				complaints = append(complaints, err.Error())
			}
			return 0, fmt.Errorf("waiting for the registry to %s its plain listener, which follows the key %s of %s: %s; look at that pod's log: %w",
				want, names.KeyHtpasswd, h.object("Secret", h.Settings.Name+names.SuffixPull), strings.Join(complaints, "; "), sleepErr)
		}
	}
}

// plainPods returns how many ready registry pods there are, and of those whose
// plain listener is not as it should be what is wrong.
func (h *Hook) plainPods(ctx context.Context, open bool) (pods int, wrong map[string]string, err error) {
	list, err := h.Cluster.Pods.List(ctx, h.selector(names.ComponentRegistry))
	if err != nil {
		return 0, nil, fmt.Errorf("listing the registry pods in namespace %s: %w", h.Settings.Namespace, err)
	}
	wrong = map[string]string{}
	for _, pod := range list.Items {
		// The chart before this one had no such listener; Helm is about to replace its pods.
		if pod.DeletionTimestamp != nil || !PodReady(pod) || !hasPort(pod, plainPortName) {
			continue
		}
		pods++
		switch isOpen, err := h.Registry.PlainOpen(ctx, &pod); {
		case err != nil:
			wrong[pod.Name] = err.Error()
		case isOpen != open && open:
			wrong[pod.Name] = "it is still closed"
		case isOpen != open:
			wrong[pod.Name] = "it is still open"
		}
	}
	return pods, wrong, nil
}

func hasPort(pod corev1.Pod, name string) bool {
	return slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == name })
	})
}

// refresh has the kubelets bring the Secrets of pods up to date.
func (h *Hook) refresh(ctx context.Context, pods []string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"annotations": map[string]string{names.AnnotationRefreshed: h.Now().UTC().Format(time.RFC3339Nano)},
	}})
	if err != nil {
		return err
	}
	for _, pod := range pods {
		if _, err := h.Cluster.Pods.Patch(ctx, pod, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("annotating %s: %w", h.object("pod", pod), err)
		}
	}
	return nil
}

// retriable says whether an error may be gone in a moment: the API server is
// restarting or busy. What it refuses stays refused.
func retriable(err error) bool {
	return overloaded(err) || apierrors.ReasonForError(err) == metav1.StatusReasonUnknown
}
