package heal

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/zarf-dev/zarf-registry/internal/release/nodeimages"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// server is an API server with one node.
type server struct {
	http *http.Client
	t    *testing.T

	mu      sync.Mutex
	images  []string      // of the node; nil: none reported yet
	refuse  int           // status of patches
	events  chan string   // watch events to send
	hangUp  chan struct{} // ends the watch
	watches int
	reads   int // of the node
	patches []string
	records []string // reason and message of events
}

func newServer(t *testing.T, images ...string) *server {
	s := &server{t: t, images: images, events: make(chan string, 10), hangUp: make(chan struct{}, 1)}
	s.http = inMemory(t, s.serve)
	return s
}

const inMemoryURL = "http://api.example"

// inMemory returns the client of a server without sockets, which would not work in a bubble of synctest.
func inMemory(t *testing.T, handler http.HandlerFunc) *http.Client {
	conns := make(pipes)
	api := &http.Server{Handler: handler}
	go func() { _ = api.Serve(conns) }()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		client, server := net.Pipe()
		select {
		case conns <- server:
			return client, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}}
	t.Cleanup(func() {
		_ = api.Close()
		transport.CloseIdleConnections()
	})
	return &http.Client{Transport: transport}
}

// pipes is a listener for connections in memory.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (p pipes) Close() error {
	close(p)
	return nil
}

func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (s *server) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case r.URL.Query().Get("watch") == "1":
		if got := r.URL.Query().Get("labelSelector"); got !=
			"app.kubernetes.io/name=zarf-registry,app.kubernetes.io/instance=r" {
			s.t.Errorf("labelSelector=%s", got)
		}
		if got := r.URL.Query().Get("fieldSelector"); got != "status.phase!=Succeeded,status.phase!=Failed" {
			s.t.Errorf("fieldSelector=%s", got)
		}
		s.watches++
		s.mu.Unlock()
		w.(http.Flusher).Flush()
		for open := true; open; {
			select {
			case event := <-s.events:
				fmt.Fprintln(w, event)
				w.(http.Flusher).Flush()
			case <-s.hangUp:
				open = false
			case <-r.Context().Done():
				open = false
			}
		}
		s.mu.Lock()
	case r.URL.Path == "/api/v1/nodes/n1":
		s.reads++
		fmt.Fprint(w, `{"status":{"images":[`)
		for i, image := range s.images {
			fmt.Fprintf(w, `%s{"names":[%q],"sizeBytes":1}`, strings.Repeat(",", min(i, 1)), image)
		}
		fmt.Fprint(w, `]}}`)
	case r.Method == http.MethodPatch && r.URL.Path == "/api/v1/namespaces/ns/pods/p":
		if got := r.Header.Get("Content-Type"); got != "application/json-patch+json" {
			s.t.Errorf("Content-Type %s", got)
		}
		s.patches = append(s.patches, string(body))
		if s.refuse != 0 {
			w.WriteHeader(s.refuse)
		}
	case r.Method == http.MethodPost && r.URL.Path == "/api/v1/namespaces/ns/events":
		var e struct {
			Reason, Message, Type string
			InvolvedObject        struct{ UID string }
		}
		if err := json.Unmarshal(body, &e); err != nil || e.InvolvedObject.UID != "u" {
			s.t.Errorf("event %s: %v", body, err)
		}
		s.records = append(s.records, e.Type+" "+e.Reason+": "+e.Message)
	default:
		s.t.Errorf("%s %s", r.Method, r.URL)
	}
}

// change sends a watch event about the pod.
func (s *server) change(kind, image, status string) {
	p := fmt.Sprintf(`{"metadata":{"name":"p","uid":"u","resourceVersion":"7"},"spec":{"nodeName":"n1",
		"containers":[{"name":"proxy","image":%q,"command":["/payload/loader"]}]},"status":%s}`, image, status)
	s.events <- fmt.Sprintf(`{"type":%q,"object":%s}`, kind, p)
}

const (
	pulling = `{"phase":"Pending"}`
	failed  = `{"phase":"Pending","containerStatuses":[{"name":"proxy","state":{"waiting":{"reason":"ErrImagePull"}}}]}`
)

// start runs a healer until the test ends.
func (s *server) start(change ...func(*times)) *Healer {
	h := New(Config{
		Connect: func() (*Client, error) {
			return &Client{HTTP: s.http, URL: inMemoryURL, Namespace: "ns", Release: "r"}, nil
		},
		Rules: func() (nodeimages.Rules, error) {
			return nodeimages.Rules{References: []string{"a/pause:1"}, Digest: "^$", Name: "^b/pause:", Own: "^$"}, nil
		},
		Logger: slog.New(slog.DiscardHandler),
	})
	for _, c := range change {
		c(&h.times)
	}
	runHealer(s.t, h)
	return h
}

// runHealer runs a healer until the test ends.
func runHealer(t *testing.T, h *Healer) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- h.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// eventually waits until a condition holds, with the lock held while it is checked.
func eventually(t *testing.T, mu *sync.Mutex, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Hour); ; time.Sleep(10 * time.Millisecond) {
		mu.Lock()
		ok := holds()
		mu.Unlock()
		if ok {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: it did not happen", what)
		}
	}
}

func (s *server) eventually(what string, holds func() bool) {
	s.t.Helper()
	eventually(s.t, &s.mu, what, holds)
}

// quiet fails if there are more patches or events when the healer has given up.
func (s *server) quiet(patches, records int) {
	s.t.Helper()
	time.Sleep(2 * defaultTimes.giveUp)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.patches) != patches || len(s.records) != records {
		s.t.Errorf("patches %q, want %d; events %q, want %d", s.patches, patches, s.records, records)
	}
}

func TestAFailingPodIsHealedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, "b/pause:2")
		h := s.start(func(times *times) { times.look = time.Hour })
		s.change("ADDED", "a/pause:1", failed)
		s.eventually("an event", func() bool { return len(s.records) == 1 })
		if got := s.records[0]; got !=
			"Normal ImageReplaced: node n1 does not have image a/pause:1: replaced with b/pause:2, which it has" {
			t.Error(got)
		}
		// The kubelet's old status, with the new image.
		s.change("MODIFIED", "b/pause:2", failed)
		s.change("DELETED", "b/pause:2", running)
		s.quiet(1, 1)
		if n := h.replaced.Get(); n != 1 {
			t.Errorf("%d replacements counted", n)
		}
	})
}

func TestAPodIsHealedBeforeItsKubeletGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, "b/pause:2")
		s.start()
		s.change("ADDED", "a/pause:1", pulling)
		s.eventually("a patch", func() bool { return len(s.patches) == 1 })
	})
}

func TestAPodWhoseNodeHasTheImageIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, "a/pause:1", "b/pause:2")
		s.start()
		s.change("ADDED", "a/pause:1", pulling)
		s.eventually("a look", func() bool { return s.reads == 1 })
		s.quiet(0, 0)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.reads != 1 {
			t.Errorf("the node was read %d times", s.reads)
		}
	})
}

func TestANodeThatReportsItsImagesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.start(func(times *times) { times.giveUp = time.Hour })
		s.change("ADDED", "a/pause:1", failed)
		s.eventually("several looks", func() bool { return s.reads > 2 })
		s.mu.Lock()
		s.images = []string{"b/pause:2"}
		s.mu.Unlock()
		s.eventually("a patch", func() bool { return len(s.patches) > 0 })
	})
}

func TestWhatCannotBeHealedIsReportedOnce(t *testing.T) {
	for description, c := range map[string]struct {
		images []string
		want   string
	}{
		"the kubelet pulls what it has": {[]string{"a/pause:1", "c/tool:1"}, "it reports a/pause:1, c/tool:1"},
		"nothing else to try":           {[]string{"127.0.0.1:31999/x:1"}, "it reports 127.0.0.1:31999/x:1"},
		"no images reported":            {nil, "its kubelet cannot get image a/pause:1"},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(t, c.images...)
			h := s.start()
			s.change("ADDED", "a/pause:1", failed)
			s.eventually("a report", func() bool { return len(s.records) == 1 })
			s.change("MODIFIED", "a/pause:1", failed)
			s.quiet(0, 1)
			if got := s.records[0]; !strings.HasPrefix(got, "Warning NoImageLeft: node n1 ") || !strings.Contains(got, c.want) {
				t.Errorf("%s: %s", description, got)
			}
			if n := h.reports.Get(); n != 1 {
				t.Errorf("%s: %d reports counted", description, n)
			}
		})
	}
}

func TestTheOtherHealerWasFaster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, "b/pause:2")
		s.refuse = http.StatusUnprocessableEntity
		h := s.start()
		s.change("ADDED", "a/pause:1", failed)
		s.eventually("a conflict", func() bool { return h.conflicts.Get() > 0 })
		s.change("MODIFIED", "b/pause:2", pulling)
		s.change("DELETED", "b/pause:2", running)
		synctest.Wait()
		s.mu.Lock()
		n := len(s.patches)
		s.mu.Unlock()
		s.quiet(n, 0)
	})
}

func TestABrokenWatchIsOpenedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, "b/pause:2")
		h := s.start()
		s.eventually("a watch", func() bool { return s.watches == 1 })
		s.events <- `{"type":"ERROR","object":{"code":410}}`
		s.eventually("another watch", func() bool { return s.watches == 2 && h.watching.Load() })
		if n := h.broken.Get(); n != 1 {
			t.Errorf("%d errors counted", n)
		}
		s.hangUp <- struct{}{} // the API server's own timeout is no error
		ended := time.Now()
		s.eventually("a third watch", func() bool { return s.watches == 3 && h.watching.Load() })
		if after := time.Since(ended); after < h.times.reconnect {
			t.Errorf("the third watch began after %s", after)
		}
		s.change("ADDED", "a/pause:1", failed)
		s.eventually("a patch", func() bool { return len(s.patches) == 1 })
		if n := h.broken.Get(); n != 1 {
			t.Errorf("%d errors counted", n)
		}
	})
}

func TestStatusPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		h := s.start()
		get := func(path string) (int, string) {
			w := httptest.NewRecorder()
			h.handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
			return w.Code, w.Body.String()
		}
		s.eventually("a watch", func() bool { return h.watching.Load() })
		if code, _ := get("/readyz"); code != 200 {
			t.Errorf("ready: %d", code)
		}
		h.watching.Store(false)
		if code, _ := get("/readyz"); code != 503 {
			t.Errorf("ready: %d", code)
		}
		if code, _ := get("/healthz"); code != 200 {
			t.Errorf("healthy: %d", code)
		}
		h = New(Config{})
		for i, counter := range []*metrics.Counter{h.replaced, h.conflicts, h.failures, h.reports, h.broken} {
			counter.Set(uint64(i + 1))
		}
		h.waiting.Store(9)
		_, page := get("/metrics")
		for _, name := range []string{`replacements_total{result="ok"} 1`, `replacements_total{result="conflict"} 2`,
			`replacements_total{result="error"} 3`, "unresolved_total 4", "watch_errors_total 5", "pods_waiting 9"} {
			if !strings.Contains(page, "zarf_registry_healer_"+name) {
				t.Errorf("no %s in\n%s", name, page)
			}
		}
	})
}

func TestInCluster(t *testing.T) {
	got := make(chan string, 2)
	api := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		got <- r.Header.Get("Authorization")
	}))
	defer api.Close()
	host, port, _ := strings.Cut(api.Listener.Addr().String(), ":")
	dir := t.TempDir()
	if _, err := InCluster(dir); err == nil || !strings.Contains(err.Error(), "KUBERNETES_SERVICE_HOST") {
		t.Errorf("without the variables: %v", err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", host)
	t.Setenv("KUBERNETES_SERVICE_PORT", port)
	if _, err := InCluster(dir); err == nil || !strings.Contains(err.Error(), "ca.crt") {
		t.Errorf("without a CA: %v", err)
	}
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: api.Certificate().Raw}))
	write(t, dir, "ca.crt", ca)
	c := require.Value(InCluster(dir))(t)
	if _, err := c.node(t.Context(), "n1", nil); err == nil || !strings.Contains(err.Error(), "token") {
		t.Errorf("without a token: %v", err)
	}
	for _, token := range []string{"one", "two"} { // kubelets renew it
		write(t, dir, "token", token+"\n")
		_, _ = c.node(t.Context(), "n1", nil)
		if header := <-got; header != "Bearer "+token {
			t.Errorf("Authorization: %s", header)
		}
	}
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
}

// The first pass meets a kubelet that still reports the failure of the previous image, and the second finds
// another pod. The third finds none.
func TestOnceLooksAgain(t *testing.T) {
	const item = `{"metadata":{"name":"p","uid":"u","resourceVersion":"7"},"spec":{"nodeName":"n1",
		"containers":[{"name":"proxy","image":%q,"command":["/payload/loader"]}]},"status":` + failed + `}`
	waiting, other := fmt.Sprintf(item, "b/pause:2"), fmt.Sprintf(item, "a/pause:1")
	lists := []string{waiting, strings.ReplaceAll(other, `"p"`, `"q"`) + "," + waiting, ""}
	patches := 0
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPatch:
			patches++
		case strings.HasSuffix(r.URL.Path, "/pods"):
			fmt.Fprintf(w, `{"items":[%s]}`, lists[0])
			lists = lists[1:]
		case r.Method == http.MethodGet:
			fmt.Fprint(w, `{"status":{"images":[{"names":["b/pause:2"]}]}}`)
		}
	}))
	defer api.Close()
	client := &Client{HTTP: api.Client(), URL: api.URL, Namespace: "ns", Release: "r"}
	results, err := Once(t.Context(), client, rules, false)
	if err != nil || len(results) != 1 || results[0].Action != Replace || results[0].Pod != "q" || patches != 1 || len(lists) != 0 {
		t.Errorf("%+v, %v after %d patches; %d lists left", results, err, patches, len(lists))
	}
}

// A kubelet writes a status while a dry run looks at its pod and its node.
func TestDryRunsLookAgainAtWhatChanges(t *testing.T) {
	const (
		pod = `{"metadata":{"name":"p","uid":"u","resourceVersion":"7"},"spec":{"nodeName":"n1",
			"containers":[{"name":"proxy","image":"a/pause:1","command":["/payload/loader"]}]},"status":` + failed + `}`
	)
	patches := 0
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPatch:
			if patches++; patches == 1 {
				w.WriteHeader(http.StatusConflict)
			}
		case r.URL.Query().Get("fieldSelector") == "status.phase!=Succeeded,status.phase!=Failed":
			fmt.Fprintf(w, `{"items":[%s]}`, pod)
		default:
			fmt.Fprint(w, `{"status":{"images":[{"names":["b/pause:2"]}]}}`)
		}
	}))
	defer api.Close()
	client := &Client{HTTP: api.Client(), URL: api.URL, Namespace: "ns", Release: "r"}
	pods, err := Once(t.Context(), client, rules, true)
	if err != nil || len(pods) != 1 || pods[0].Action != Replace {
		t.Errorf("pods %+v, %v", pods, err)
	}
	if patches != 2 {
		t.Errorf("%d patches", patches)
	}
}

// A node with many images reports only the largest. The healer tries what the release's other pods use there.
func TestANodeThatReportsOnlySomeOfItsImages(t *testing.T) {
	var many []string
	for i := range nodeimages.MaxReported {
		many = append(many, fmt.Sprintf("{%q:[%q]}", "names", fmt.Sprintf("x/app:%d", i)))
	}
	pod := func(node, image string) string {
		return fmt.Sprintf(`{"spec":{"nodeName":%q,"containers":[{"name":"sidecar","image":"b/pause:9"},
			{"name":"proxy","image":%q,"command":["/payload/loader"]}]}}`, node, image)
	}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Query().Get("fieldSelector") == "status.phase=Running":
			fmt.Fprintf(w, `{"items":[%s,%s,%s]}`, pod("n2", "b/pause:2"), pod("n2", "b/pause:1"), pod("n1", "b/pause:3"))
		default:
			fmt.Fprintf(w, `{"status":{"images":[%s]}}`, strings.Join(many, ","))
		}
	}))
	defer api.Close()
	client := &Client{HTTP: api.Client(), URL: api.URL, Namespace: "ns", Release: "r"}
	tried := []string{"a/pause:1"}
	for _, want := range []string{"r/own:1", "b/pause:3", "b/pause:1", "b/pause:2", ""} {
		p := podWith(t, tried[len(tried)-1], backOff, strings.Join(tried[:len(tried)-1], ","))
		d, _, err := client.decide(t.Context(), p, rules)
		if err != nil || d.Image != want {
			t.Errorf("after %s: %+v, %v, want %s", tried, d, err, want)
		}
		tried = append(tried, d.Image)
	}
}
