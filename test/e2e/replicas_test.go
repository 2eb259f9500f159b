package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/cluster"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// TestReplicas runs two registry pods on a shared volume, on nodes with containerd and with CRI-O, and replaces, kills,
// drains and switches them while every node pulls. Then they move to S3.
func TestReplicas(t *testing.T) {
	w := ownCluster(t, "e2e-replicas", layout{args: []string{"--runtime", "n2=crio-1.34"}})
	const two, shared = "--set=registry.replicas=2", "--set=registry.persistence.accessModes={ReadWriteMany}"
	must(t, "replicas are refused with a ReadWriteOnce volume", func(t *testing.T) {
		w.helmChartFails(t, []string{"zarf-registry: registry.replicas:", "ReadWriteMany"}, "install", nodePortMode, two)
	})
	var image string
	must(t, "install two in nodeport mode", func(t *testing.T) {
		w.apply(t, nodePortMode, two, shared)
		w.replicas(t, 2)
		w.isHealthy(t)
		if _, text := w.status(t); !strings.Contains(text, "2 pods ready, on node n1, n2") &&
			!strings.Contains(text, "2 pods ready, on node n2, n1") {
			t.Errorf("status does not report pods on two nodes: %s", text)
		}
		image = w.pushHello(t)
		w.pullEverywhere(t, image)
		w.pushFresh(t)
		w.plainPorts(t, true)
	})
	must(t, "an upload continues at another pod, and at one that started after a credential rotation",
		func(t *testing.T) { testUploadMoves(t, w) })
	if long() {
		w.underLoop(t, "a rollout in nodeport mode", w.rollOut)
	} else {
		t.Log("SHORTENED: a rollout in proxy mode only")
	}
	w.underLoop(t, "a switch to proxy mode closes the plain port of both", func(t *testing.T) {
		w.apply(t, proxyMode, two, shared)
		w.isIn(t, state.ModeProxy, state.SourceValue)
		w.plainPorts(t, false)
	})
	w.underLoop(t, "a rollout in proxy mode", w.rollOut)
	w.underLoop(t, "a pod is killed", func(t *testing.T) {
		w.deletePod(t, w.replicas(t, 2)[0].Name, 0)
		w.replicas(t, 2)
	})
	w.underLoop(t, "both nodes are drained, one after the other", func(t *testing.T) { testDrain(t, w) })
	must(t, "a push survives the death of its pod", func(t *testing.T) { testPushOutlivesPod(t, w) })
	if long() {
		w.underLoop(t, "certs rotate --ca", func(t *testing.T) {
			w.certs(t, "rotate", "--ca")
			w.isHealthy(t)
		})
		w.underLoop(t, "a switch to nodeport mode opens the plain port of both", func(t *testing.T) {
			w.apply(t, nodePortMode, two, shared)
			w.isIn(t, state.ModeNodePort, state.SourceValue)
			w.plainPorts(t, true)
		})
		w.apply(t, proxyMode, two, shared)
	} else {
		t.Log("SHORTENED: no CA rotation, and no switch back to nodeport mode")
	}
	t.Run("S3", func(t *testing.T) { testS3(t, w, image) })
}

// replicas waits until exactly n registry pods exist, all ready, and returns them.
func (w *world) replicas(t *testing.T, n int) []corev1.Pod {
	t.Helper()
	return w.readyPods(t, "registry", n)
}

// readyPods waits until a component has exactly n pods, all ready, and returns them.
func (w *world) readyPods(t *testing.T, component string, n int) (pods []corev1.Pod) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d pods of the %s to be ready, and no others", n, component), func() error {
		pods = w.pods(t, component)
		for _, p := range pods {
			if p.DeletionTimestamp != nil || !ready(p) {
				return fmt.Errorf("%s is not ready, or terminating", p.Name)
			}
		}
		if len(pods) != n {
			return fmt.Errorf("there are %d", len(pods))
		}
		return nil
	})
	return pods
}

// rollOut replaces the registry's pods as a changed pod template does. They are on more than one node then.
func (w *world) rollOut(t *testing.T) {
	previous := w.pods(t, "registry")
	output(t, w.command(t, w.kubectl, "-n", namespace, "rollout", "restart", "deployment/"+release))
	output(t, w.command(t, w.kubectl, "-n", namespace, "rollout", "status", "deployment/"+release, "--timeout=3m"))
	nodes := map[string]bool{}
	for _, p := range w.replicas(t, len(previous)) {
		nodes[p.Spec.NodeName] = true
		if slices.ContainsFunc(previous, func(old corev1.Pod) bool { return old.Name == p.Name }) {
			t.Errorf("%s was not replaced", p.Name)
		}
	}
	if len(nodes) < 2 {
		t.Errorf("after the rollout all %d are on the same node: %v", len(previous), nodes)
	}
}

// plainPorts fails unless the plain port of every registry pod is open, or closed.
func (w *world) plainPorts(t *testing.T, open bool) {
	t.Helper()
	pods := w.pods(t, "registry")
	if len(pods) < 2 {
		t.Fatalf("registry pods: %d", len(pods))
	}
	for _, p := range pods {
		// NetworkPolicies allow traffic from the pod's node.
		if err := w.dial(t, p.Spec.NodeName, p.Status.PodIP+":5001"); (err == nil) != open {
			t.Errorf("plain port of %s: want open %t: %v", p.Name, open, err)
		}
	}
}

// pushClient sends requests to one pod as zarf-registry images push does. It reads the credential for
// each request.
type pushClient struct {
	*http.Client
	w *world
}

func (w *world) pushClient(t *testing.T, pod corev1.Pod) pushClient {
	t.Helper()
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return cluster.PortForward(w.config, w.client)(ctx, &pod, 5000)
	}
	push := w.secret(t, "-push-tls").Data
	pair := require.Value(tls.X509KeyPair(push["tls.crt"], push["tls.key"]))(t)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(push["ca.crt"])
	client := &http.Client{Transport: &http.Transport{
		DialContext: dial,
		TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: release + "." + namespace + ".svc",
			Certificates: []tls.Certificate{pair}},
	}, Timeout: time.Minute}
	t.Cleanup(client.CloseIdleConnections)
	return pushClient{client, w}
}

// do sends a request and returns the response, whose body is read.
func (c pushClient) do(t *testing.T, status int, method, path string, body []byte, header ...string) (*http.Response,
	[]byte) {
	t.Helper()
	request := require.Value(http.NewRequest(method, "https://registry"+path, bytes.NewReader(body)))(t)
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	credential := c.w.secret(t, "-credentials").Data
	request.SetBasicAuth(string(credential["username"]), string(credential["password"]))
	response, err := c.Do(request)
	require.NoError(t, err, method, path)
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != status {
		t.Fatalf("%s %s: %s, want %d: %s %v", method, path, response.Status, status, answer, err)
	}
	return response, answer
}

// next returns the location where an upload continues.
func next(t *testing.T, response *http.Response) string {
	t.Helper()
	location, err := url.Parse(response.Header.Get("Location"))
	if err != nil || location.Path == "" {
		t.Fatalf("Location %q: %v", response.Header.Get("Location"), err)
	}
	return location.RequestURI()
}

// testUploadMoves uploads a blob in three parts to three pods.
func testUploadMoves(t *testing.T, w *world) {
	pods := w.replicas(t, 2)
	content := make([]byte, 3<<20)
	rand.Read(content)
	piece := func(n int) []byte { return content[n<<20 : (n+1)<<20] }
	part := func(n int) []string {
		return []string{"Content-Type", "application/octet-stream", "Content-Range", fmt.Sprintf("%d-%d", n<<20, (n+1)<<20-1)}
	}
	first, second := w.pushClient(t, pods[0]), w.pushClient(t, pods[1])
	begun, _ := first.do(t, http.StatusAccepted, "POST", "/v2/e2e/moved/blobs/uploads/", nil)
	sent, _ := first.do(t, http.StatusAccepted, "PATCH", next(t, begun), piece(0), part(0)...)

	// Replace the credential and one of the pods.
	output(t, w.command(t, w.hook, "credentials", "rotate"))
	w.deletePod(t, pods[0].Name, 30)
	var third pushClient
	for _, p := range w.replicas(t, 2) {
		if p.Name != pods[1].Name {
			third = w.pushClient(t, p)
		}
	}
	if third.w == nil {
		t.Fatal("no pod is new")
	}
	where, _ := third.do(t, http.StatusNoContent, "GET", next(t, sent), nil)
	if got := where.Header.Get("Range"); got != fmt.Sprintf("0-%d", 1<<20-1) {
		t.Errorf("the new pod reports the range %s", got)
	}
	sent, _ = third.do(t, http.StatusAccepted, "PATCH", next(t, where), piece(1), part(1)...)
	want := digest.FromBytes(content)
	separator := "?"
	if strings.Contains(next(t, sent), "?") {
		separator = "&"
	}
	second.do(t, http.StatusCreated, "PUT", next(t, sent)+separator+"digest="+url.QueryEscape(want.String()), piece(2),
		part(2)...)
	for _, c := range []pushClient{second, third} {
		if _, got := c.do(t, http.StatusOK, "GET", "/v2/e2e/moved/blobs/"+want.String(), nil); !bytes.Equal(got, content) {
			t.Error("a pod returned other content")
		}
	}
}

// testDrain evicts the registry's pods as kubectl drain does: the second only when the first has a
// successor.
func testDrain(t *testing.T, w *world) {
	evict := func(name string) error {
		return w.client.CoreV1().Pods(namespace).EvictV1(t.Context(),
			&policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}})
	}
	pods := w.replicas(t, 2)
	// The PodDisruptionBudget's status may lag behind.
	eventually(t, "the first to be evicted", func() error { return evict(pods[0].Name) })
	if err := evict(pods[1].Name); !apierrors.IsTooManyRequests(err) {
		t.Errorf("the second pod was evicted while the first had no successor: %v", err)
	}
	eventually(t, "the second to be evicted", func() error {
		if err := evict(pods[1].Name); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		return nil
	})
	for _, p := range w.replicas(t, 2) {
		if p.Name == pods[0].Name || p.Name == pods[1].Name {
			t.Error(errors.New(p.Name + " is still there"))
		}
	}
}
