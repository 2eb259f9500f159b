package heal

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

const key = "a.example/starting"

// nodeServer is an API server with nodes. Its fields are JSON.
type nodeServer struct {
	http *http.Client
	t    *testing.T

	mu       sync.Mutex
	node     string // spec.nodeName of own
	own      string // the release's pods on that node
	registry string // the registry's pods
	refuse   int    // status of patches
	looks    int
	patches  []string
	events   chan string
	items    []string // answers to lists of nodes
	args     string   // of the healer
}

func newNodeServer(t *testing.T) *nodeServer {
	s := &nodeServer{t: t, node: "n1", events: make(chan string, 10)}
	s.http = inMemory(t, s.serve)
	return s
}

func (s *nodeServer) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	query := r.URL.Query()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case query.Get("watch") == "1":
		s.mu.Unlock()
		w.(http.Flusher).Flush()
		for open := true; open; {
			events := s.events
			if r.URL.Path != nodes {
				events = nil
			}
			select {
			case event := <-events:
				fmt.Fprintln(w, event)
				w.(http.Flusher).Flush()
			case <-r.Context().Done():
				open = false
			}
		}
		s.mu.Lock()
	case r.Method == http.MethodPatch && strings.HasPrefix(r.URL.Path, nodes+"/"):
		s.patches = append(s.patches, string(body))
		if s.refuse != 0 {
			w.WriteHeader(s.refuse)
		}
	case r.URL.Path == nodes:
		if next := query.Get("continue"); next != "" && next != "more" {
			s.t.Errorf("continue=%s", next)
		}
		fmt.Fprint(w, s.items[0])
		s.items = s.items[1:]
	case strings.HasSuffix(r.URL.Path, "/deployments"):
		fmt.Fprintf(w, `{"items":[{"spec":{"template":{"spec":{"containers":[{"args":[%s]}]}}}}]}`, s.args)
	case strings.HasSuffix(query.Get("labelSelector"), "component in (registry)"):
		fmt.Fprintf(w, `{"items":[%s]}`, s.registry)
	case strings.HasSuffix(query.Get("labelSelector"), "component in (proxy,node-config)"):
		s.looks++
		if query.Get("fieldSelector") != "spec.nodeName="+s.node {
			fmt.Fprint(w, `{"items":[]}`)
			return
		}
		fmt.Fprintf(w, `{"items":[%s]}`, s.own)
	default:
		s.t.Errorf("%s %s", r.Method, r.URL)
	}
}

func (s *nodeServer) client() *Client {
	return &Client{HTTP: s.http, URL: inMemoryURL, Namespace: "ns", Release: "r"}
}

// podOf is a pod of a component.
func podOf(component, created string, isReady bool) string {
	status := map[bool]string{true: "True", false: "False"}[isReady]
	return fmt.Sprintf(`{"metadata":{"name":"p-%s","creationTimestamp":%q,"labels":{%q:%q}},
		"status":{"conditions":[{"type":"Ready","status":%q,"reason":"x"}]}}`, component, created, names.LabelComponent, component,
		status)
}

// nodeWith is a node with taints, as KEY:EFFECT.
func nodeWith(name, created string, isReady bool, taints ...string) string {
	var list []string
	for _, t := range taints {
		key, effect, _ := strings.Cut(t, ":")
		list = append(list, fmt.Sprintf(`{"key":%q,"effect":%q,"value":"v"}`, key, effect))
	}
	status := map[bool]string{true: "True", false: "Unknown"}[isReady]
	return fmt.Sprintf(`{"metadata":{"name":%q,"uid":"u","creationTimestamp":%q},"spec":{"taints":[%s]},
		"status":{"conditions":[{"type":"Ready","status":%q}]}}`, name, created, strings.Join(list, ","), status)
}

const (
	longAgo = "2020-01-01T00:00:00Z"
	before  = "2019-12-31T00:00:00Z"
)

// startNodes runs a healer until the test ends.
func (s *nodeServer) startNodes(until Until) *Healer {
	h := New(Config{
		Connect: func() (*Client, error) { return s.client(), nil },
		Logger:  slog.New(slog.DiscardHandler), Startup: Startup{Taint: key, Until: until},
	})
	runHealer(s.t, h)
	return h
}

func (s *nodeServer) eventually(what string, holds func() bool) {
	s.t.Helper()
	eventually(s.t, &s.mu, what, holds)
}

func TestTheTaintIsRemovedWhenTheProxyIsReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newNodeServer(t)
		h := s.startNodes(UntilProxy)
		taints := []string{"x:NoSchedule", key + ":NoSchedule", key + ":NoExecute"}
		s.eventually("watches", func() bool { return h.watching.Load() && h.watchingNodes.Load() })
		s.events <- `{"type":"ADDED","object":` + nodeWith("other", longAgo, true, "x:NoSchedule") + `}`
		s.events <- `{"type":"ADDED","object":` + nodeWith("n1", longAgo, false, taints...) + `}`
		s.eventually("the node to be counted", func() bool { return h.tainted.Load() == 1 })
		time.Sleep(2 * defaultTimes.maxPoll)
		s.mu.Lock()
		if s.looks > 0 {
			t.Errorf("%d looks at a node that is not ready", s.looks)
		}
		s.own = podOf("proxy", longAgo, false)
		s.mu.Unlock()
		s.events <- `{"type":"MODIFIED","object":` + nodeWith("n1", longAgo, true, taints...) + `}`
		s.eventually("several looks", func() bool { return s.looks > 2 && len(s.patches) == 0 })
		s.mu.Lock()
		s.own = podOf("proxy", longAgo, true)
		s.mu.Unlock()
		s.eventually("a patch", func() bool { return len(s.patches) > 0 })
		s.events <- `{"type":"MODIFIED","object":` + nodeWith("n1", longAgo, true, "x:NoSchedule") + `}`
		s.eventually("no tainted node", func() bool { return h.tainted.Load() == 0 })
		if n := h.untainted.Get(); n == 0 {
			t.Error("nothing was counted")
		}
		want := `[{"op":"test","path":"/metadata/uid","value":"u"},` +
			`{"op":"test","path":"/spec/taints/2/key","value":"a.example/starting"},` +
			`{"op":"test","path":"/spec/taints/2/effect","value":"NoExecute"},{"op":"remove","path":"/spec/taints/2"},` +
			`{"op":"test","path":"/spec/taints/1/key","value":"a.example/starting"},` +
			`{"op":"test","path":"/spec/taints/1/effect","value":"NoSchedule"},{"op":"remove","path":"/spec/taints/1"}]`
		if got := s.patches[0]; got != want {
			t.Errorf("patch %s, want %s", got, want)
		}
		// An operator adds it again; the other healer is faster.
		s.mu.Lock()
		s.refuse = http.StatusUnprocessableEntity
		s.mu.Unlock()
		s.events <- `{"type":"MODIFIED","object":` + nodeWith("n1", longAgo, true, key+":NoSchedule") + `}`
		s.eventually("conflicts", func() bool { return h.untaintConflicts.Get() > 1 })
		s.events <- `{"type":"DELETED","object":` + nodeWith("n1", longAgo, true, key+":NoSchedule") + `}`
		s.eventually("no tainted node", func() bool { return h.tainted.Load() == 0 })
	})
}

func TestAHealerWithoutTheRightToPatchNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newNodeServer(t)
		s.own, s.refuse = podOf("proxy", longAgo, true), http.StatusForbidden
		h := s.startNodes(UntilProxy)
		s.events <- `{"type":"ADDED","object":` + nodeWith("n1", longAgo, true, key+":NoSchedule") + `}`
		s.eventually("failures", func() bool { return h.untaintFailures.Get() > 1 })
		h.watchingNodes.Store(false)
		w := httptest.NewRecorder()
		h.handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
		if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "nodes") {
			t.Errorf("ready without a watch of nodes: %d %s", w.Code, w.Body)
		}
	})
}

func TestWaitsFor(t *testing.T) {
	now := time.Now().UTC().Format(time.RFC3339)
	for description, c := range map[string]struct {
		until    Until
		created  string
		notReady bool
		own      string
		registry string
		want     string
	}{
		"a ready proxy":            {until: UntilProxy, own: podOf("proxy", longAgo, true)},
		"no proxy":                 {until: UntilProxy, registry: podOf("registry", longAgo, true), want: "its proxy is not ready"},
		"a proxy that starts":      {until: UntilProxy, own: podOf("proxy", longAgo, false), want: "its proxy is not ready"},
		"two proxies, one ready":   {until: UntilProxy, own: podOf("proxy", now, false) + "," + podOf("proxy", now, true)},
		"a node that is not ready": {until: UntilNode, notReady: true, want: "the node is not ready"},
		"not configured yet": {until: UntilProxy, own: podOf("proxy", now, true) + "," + podOf("node-config", now, false),
			want: "pod p-node-config, which configures it, is not ready"},
		"configured": {until: UntilProxy, own: podOf("proxy", now, true) + "," + podOf("node-config", now, true)},
		"a proxy that ends": {until: UntilProxy, want: "its proxy is not ready",
			own: strings.Replace(podOf("proxy", now, true), `"name"`, `"deletionTimestamp":"x","name"`, 1)},
		"a proxy of a previous node": {until: UntilProxy, created: now, own: podOf("proxy", before, true),
			want: "its proxy is not ready"},
		"a proxy older than its node": {until: UntilProxy, own: podOf("proxy", before, true)},
		"a ready registry":            {until: UntilRegistry, registry: podOf("registry", now, true)},
		"no registry":                 {until: UntilRegistry, own: podOf("proxy", now, true), want: "the registry is not ready"},
		"an external registry":        {until: UntilNode},
	} {
		t.Run(description, func(t *testing.T) {
			s := newNodeServer(t)
			s.own, s.registry = c.own, c.registry
			if c.created == "" {
				c.created = longAgo
			}
			var n startingNode
			if err := json.Unmarshal([]byte(nodeWith("n1", c.created, !c.notReady, key+":NoSchedule")), &n); err != nil {
				t.Fatal(err)
			}
			if got, err := s.client().waitsFor(t.Context(), n, c.until); err != nil || got != c.want {
				t.Errorf("%q, %v; want %q", got, err, c.want)
			}
		})
	}
}

func TestUntaint(t *testing.T) {
	s := newNodeServer(t)
	s.own = podOf("proxy", longAgo, true)
	waiting := nodeWith("n2", longAgo, true, key+":NoSchedule")
	s.items = []string{
		`{"metadata":{"continue":"more"},"items":[` + nodeWith("n1", longAgo, true, key+":NoExecute") + `]}`,
		`{"items":[` + nodeWith("n3", longAgo, true, "x:NoSchedule") + "," + waiting + `]}`,
	}
	got, err := Untaint(t.Context(), s.client(), Startup{key, UntilProxy}, true)
	want := []NodeResult{{Node: "n1", Action: Remove, Taint: key, Reason: "pods can pull on it"},
		{Node: "n2", Action: Wait, Taint: key, Reason: "its proxy is not ready"}}
	if err != nil || !slices.Equal(got, want) || len(s.patches) != 1 {
		t.Errorf("%v, %v after %d patches", got, err, len(s.patches))
	}
	// Without a dry run it looks again.
	s.items = []string{`{"items":[` + nodeWith("n1", longAgo, true, key+":NoExecute") + "," + waiting + `]}`,
		`{"items":[` + nodeWith("n2", longAgo, true) + `]}`}
	got, err = Untaint(t.Context(), s.client(), Startup{key, UntilProxy}, false)
	if err != nil || len(got) != 1 || got[0].Node != "n1" || got[0].Action != Remove || len(s.patches) != 2 || len(s.items) != 0 {
		t.Errorf("%v, %v after %d patches; %d lists left", got, err, len(s.patches), len(s.items))
	}
	s.items, s.refuse = []string{`{"items":[` + nodeWith("n1", longAgo, true, key+":NoExecute") + `]}`}, http.StatusForbidden
	if _, err = Untaint(t.Context(), s.client(), Startup{key, UntilProxy}, false); err == nil ||
		!strings.Contains(err.Error(), "removing taint "+key+" of node n1: ") {
		t.Error(err)
	}
}

func TestStartupOf(t *testing.T) {
	for args, want := range map[string]Startup{
		`"heal","--release=r"`: {},
		`"heal","--startup-taint=a","--startup-taint-until=registry"`: {"a", UntilRegistry},
	} {
		s := newNodeServer(t)
		s.args = args
		if got, err := StartupOf(t.Context(), s.client()); err != nil || got != want {
			t.Errorf("%s: %v, %v", args, got, err)
		}
	}
	s := newNodeServer(t)
	s.args = `"heal","--startup-taint=a","--startup-taint-until=later"`
	if _, err := StartupOf(t.Context(), s.client()); err == nil || !strings.Contains(err.Error(), "want proxy, registry or node") {
		t.Error(err)
	}
}
