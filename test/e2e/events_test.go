package e2e

import (
	"context"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// noFailedPulls fails the test at its end if a kubelet could not pull an image, unless the scenario has added
// a part of the event's message to w.provoked. Each BackOff follows such an event.
func (w *world) noFailedPulls(t *testing.T) {
	if w.name == "" {
		return // another cluster has events of others
	}
	t.Cleanup(func() {
		list, err := w.client.CoreV1().Events("").List(context.Background(),
			metav1.ListOptions{FieldSelector: "involvedObject.kind=Pod,type=Warning"})
		if err != nil {
			t.Errorf("listing the events: %v", err)
			return
		}
		withoutSecret := map[string]bool{}
		for _, e := range list.Items {
			if e.Reason == "FailedToRetrieveImagePullSecret" {
				withoutSecret[string(e.InvolvedObject.UID)] = true
			}
		}
		for _, e := range list.Items {
			provoked := slices.ContainsFunc(w.provoked, func(part string) bool { return strings.Contains(e.Message, part) })
			if e.Reason != "Failed" || !strings.HasPrefix(e.Message, "Failed to pull image ") || provoked {
				continue
			}
			// On a busy machine a kubelet may not get the Secret within a second, and then pulls without it.
			if withoutSecret[string(e.InvolvedObject.UID)] && (strings.Contains(e.Message, "no basic auth credentials") ||
				strings.Contains(e.Message, "unauthorized: reading requires")) { // containerd, CRI-O
				t.Logf("figure: pod %s: pulled without its Secret", e.InvolvedObject.Name)
				continue
			}
			// kube-proxy serves a registry that has restarted some time after it is ready.
			if strings.Contains(e.Message, "/zarf-registry/probe-nodeport:") &&
				strings.Contains(e.Message, "connection refused") {
				t.Logf("figure: pod %s: pulled before kube-proxy served the node port", e.InvolvedObject.Name)
				continue
			}
			t.Errorf("pod %s/%s at %s: %s", e.InvolvedObject.Namespace, e.InvolvedObject.Name,
				e.FirstTimestamp.Format("15:04:05"), e.Message)
		}
	})
}
