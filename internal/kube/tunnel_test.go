package kube_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/zarf-dev/zarf-registry/internal/kube"
)

func newTunnel(t *testing.T, handler http.HandlerFunc) *kube.Tunnel {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	tunnel, err := kube.NewTunnel(config, client, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "zarf", Name: "p"}}, 9100)
	if err != nil {
		t.Fatal(err)
	}
	return tunnel
}

func TestATunnelIsGivenUpWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	release := make(chan struct{})
	tunnel := newTunnel(t, func(http.ResponseWriter, *http.Request) {
		cancel() // the API server has the request, and does not answer
		<-release
	})
	t.Cleanup(func() { close(release) })
	conn, err := tunnel.DialContext(ctx, "", "")
	if conn != nil || !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "opening a tunnel to port 9100 of pod zarf/p") {
		t.Errorf("error is %v", err)
	}
	if _, err := tunnel.DialContext(ctx, "", ""); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: error is %v", err)
	}
}

func TestATunnelThatIsRefusedNamesItsTarget(t *testing.T) {
	tunnel := newTunnel(t, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, `pods "p" is forbidden`, http.StatusForbidden)
	})
	if conn, err := tunnel.DialContext(t.Context(), "", ""); conn != nil || err == nil || !strings.Contains(err.Error(), "opening a tunnel to port 9100 of pod zarf/p") || !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("error is %v", err)
	}
}
