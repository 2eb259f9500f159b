package cluster

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
)

// A registry on a node that lost power never answers, and the API server keeps the connection open.
func TestConnectionsToLostPodsAreClosed(t *testing.T) {
	gone := func(t *testing.T, client *fake.Clientset) {
		t.Helper()
		if err := client.CoreV1().Pods("zarf").Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	ready := func(status corev1.ConditionStatus) func(t *testing.T, client *fake.Clientset) {
		return func(t *testing.T, client *fake.Clientset) {
			t.Helper()
			pod := registryPod("a", func(p *corev1.Pod) { p.Status.Conditions[0].Status = status })
			if _, err := client.CoreV1().Pods("zarf").Update(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, tt := range map[string]struct {
		change  func(t *testing.T, client *fake.Clientset)
		answers time.Duration // the pod sends a byte this often; 0 means never
		repair  bool          // the pod is ready again after 10 s
		mute    bool          // the API server does not answer after the first request
		closed  bool
	}{
		"its pod is gone":                   {change: gone, closed: true},
		"its pod is not ready":              {change: ready(corev1.ConditionFalse), closed: true},
		"nothing is known about its node":   {change: ready(corev1.ConditionUnknown), closed: true},
		"its pod is ready and slow":         {change: ready(corev1.ConditionTrue)},
		"its pod is not ready, but answers": {change: ready(corev1.ConditionFalse), answers: 10 * time.Second},
		"its pod is not ready for a moment": {change: ready(corev1.ConditionFalse), repair: true},
		"the API server does not answer":    {change: gone, mute: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset(registryPod("a"))
				lists := 0
				client.PrependReactor("list", "pods", func(kubetesting.Action) (bool, runtime.Object, error) {
					lists++
					return tt.mute && lists > 1, nil, errors.New("connection refused")
				})
				here, there := net.Pipe()
				r := &Registry{Client: client, Namespace: "zarf", Release: "zarf-registry",
					Forward: func(context.Context, *corev1.Pod, int) (net.Conn, error) { return here, nil }}
				conn, err := r.DialContext(t.Context(), "tcp", "ignored:1")
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				tt.change(t, client)
				if tt.answers > 0 {
					go func() {
						for time.Sleep(tt.answers); ; time.Sleep(tt.answers) {
							if _, err := there.Write([]byte("x")); err != nil {
								return
							}
						}
					}()
				}
				if tt.repair {
					time.AfterFunc(10*time.Second, func() { ready(corev1.ConditionTrue)(t, client) })
				}
				time.AfterFunc(5*time.Minute, func() { _ = there.Close() })
				begin := time.Now()
				_, err = io.Copy(io.Discard, conn)
				took := time.Since(begin)
				if tt.closed && (err == nil || !strings.Contains(err.Error(), "pod a is gone or not ready") ||
					took < lostAfter || took > lostAfter+2*lostPoll) || !tt.closed && (err != nil || took != 5*time.Minute) {
					t.Errorf("the connection ended after %s: %v", took, err)
				}
				_ = conn.Close()
				time.Sleep(2 * lostPoll) // nothing runs after the last connection
				r.lost.mu.Lock()
				defer r.lost.mu.Unlock()
				if r.lost.conns != nil {
					t.Error("pods are still watched")
				}
			})
		})
	}
}
