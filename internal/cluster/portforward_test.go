package cluster_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/zarf-dev/zarf-registry/internal/cluster"
	"github.com/zarf-dev/zarf-registry/test/require"
)

func forwarder(t *testing.T, handler http.HandlerFunc) func(context.Context) (net.Conn, error) {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL}
	client := require.Value(kubernetes.NewForConfig(config))(t)
	dial := cluster.PortForward(config, client)
	return func(ctx context.Context) (net.Conn, error) {
		return dial(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "zarf", Name: "p"}}, 9100)
	}
}

func TestPortForwardEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	release := make(chan struct{})
	dial := forwarder(t, func(http.ResponseWriter, *http.Request) {
		cancel() // the API server has received the request and does not answer
		<-release
	})
	t.Cleanup(func() { close(release) })
	conn, err := dial(ctx)
	if conn != nil || !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(),
		"port-forward to port 9100 of pod zarf/p") {
		t.Errorf("error is %v", err)
	}
	if _, err := dial(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("with a canceled context: error is %v", err)
	}
}

func TestPortForwardErrorNamesThePort(t *testing.T) {
	dial := forwarder(t, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, `pods "p" is forbidden`, http.StatusForbidden)
	})
	if conn, err := dial(t.Context()); conn != nil || err == nil ||
		!strings.Contains(err.Error(), "port-forward to port 9100 of pod zarf/p") ||
		!strings.Contains(err.Error(), "forbidden") {
		t.Errorf("error is %v", err)
	}
}

// Kubernetes 1.30 refuses WebSocket. A refusal of SPDY, too, is the error.
func TestPortForwardFallsBackToSPDY(t *testing.T) {
	var requests []string
	dial := forwarder(t, func(w http.ResponseWriter, r *http.Request) {
		requests = append(requests, r.Method+" "+r.Header.Get("Upgrade"))
		http.Error(w, "no "+r.Header.Get("Upgrade"), http.StatusBadRequest)
	})
	_, err := dial(t.Context())
	if want := []string{"GET websocket", "POST SPDY/3.1"}; !slices.Equal(requests, want) || err == nil ||
		!strings.Contains(err.Error(), "no SPDY/3.1") {
		t.Errorf("requests are %q and the error is %v; want %q", requests, err, want)
	}
}

// client-go waits 30 s for the reply of a connection that has closed.
func TestPortForwardThatBreaksIsAnErrorAtOnce(t *testing.T) {
	upgrader := websocket.Upgrader{Subprotocols: []string{"SPDY/3.1+portforward.k8s.io"}}
	dial := forwarder(t, func(w http.ResponseWriter, r *http.Request) {
		conn, err := upgrader.Upgrade(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		// The request for a stream, in several messages. The next one would come after a reply.
		_, _, err = conn.ReadMessage()
		_ = conn.SetReadDeadline(time.Now().Add(time.Second))
		for err == nil {
			_, _, err = conn.ReadMessage()
		}
	})
	if conn, err := dial(t.Context()); conn != nil || err == nil ||
		!strings.Contains(err.Error(), "the connection to the API server broke") {
		t.Errorf("error is %v", err)
	}
}
