package heal

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// proxies is an API server with a DaemonSet whose template has the generation 2, and its pods.
type proxies struct {
	generation map[string]string // of the template of a node's pod
	down       map[string]bool
	deleting   map[string]bool
	strategy   string    // the members of updateStrategy
	registry   string    // whether the registry is ready; empty: True
	served     time.Time // when the registry was last ready during the rollout
	absent     int       // nodes without a pod
	nodesRead  int
	deleted    []string
	bodies     []string
}

func (p *proxies) serve(w http.ResponseWriter, r *http.Request) {
	switch path := r.URL.Path; {
	case strings.HasSuffix(path, "/daemonsets"):
		updated := 0
		for _, g := range p.generation {
			if g == "2" {
				updated++
			}
		}
		fmt.Fprintf(w, `{"items":[{"metadata":{"name":"proxy","uid":"set","generation":3,
			"annotations":{"deprecated.daemonset.template.generation":"2","zarf-registry/max-unavailable":"10%%"}},
			"spec":{"updateStrategy":{%s}},
			"status":{"observedGeneration":3,"desiredNumberScheduled":%d,"updatedNumberScheduled":%d}}]}`, p.strategy,
			len(p.generation)+p.absent, updated)
	case r.Method == http.MethodDelete:
		var body json.RawMessage
		_ = json.NewDecoder(r.Body).Decode(&body)
		p.bodies = append(p.bodies, string(body))
		p.deleted = append(p.deleted, path[strings.LastIndexByte(path, '/')+1:])
	case strings.HasSuffix(path, "/pods"):
		pods := []string{fmt.Sprintf(`{"metadata":{"name":"registry","labels":{"app.kubernetes.io/component":"registry"}},
			"status":{"conditions":[{"type":"Ready","status":%q}]}}`, cmp.Or(p.registry, "True"))}
		for node, generation := range p.generation {
			deletion := ""
			if p.deleting[node] {
				deletion = `"deletionTimestamp":"2026-11-28T12:00:00Z",`
			}
			ready := map[bool]string{true: "False", false: "True"}[p.down[node]]
			pods = append(pods, fmt.Sprintf(`{"metadata":{"name":"proxy-%[1]s","uid":"uid-%[1]s",%[2]s
				"labels":{"pod-template-generation":%[3]q,"controller-revision-hash":%[3]q},"ownerReferences":[{"uid":"set"}]},
				"spec":{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[
				{"matchFields":[{"key":"metadata.name","operator":"In","values":[%[1]q]}]}]}}}},
				"status":{"conditions":[{"type":"Ready","status":%[4]q}],"containerStatuses":[{}]}}`, node, deletion, generation,
				ready))
		}
		fmt.Fprintf(w, `{"items":[%s]}`, strings.Join(pods, ","))
	default: // a node
		p.nodesRead++
		node := path[strings.LastIndexByte(path, '/')+1:]
		if node == "gone" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		fmt.Fprintf(w, `{"status":{"conditions":[{"type":"Ready","status":%q}]}}`,
			map[bool]string{true: "Unknown", false: "True"}[p.down[node]])
	}
}

func rolling(surge string) string {
	return `"type":"RollingUpdate","rollingUpdate":{"maxUnavailable":"10%","maxSurge":` + surge + "}"
}

func TestRolloutsThatANodeHoldsUpAreContinued(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*proxies)
		want   []string
	}{
		"a node is down":               {func(*proxies) {}, []string{"proxy-n1"}},
		"the first node is updated":    {func(p *proxies) { p.generation["n1"] = "2" }, []string{"proxy-n2"}},
		"all are updated but one":      {func(p *proxies) { p.generation["n1"], p.generation["n2"] = "2", "2" }, nil},
		"the previous pod of one ends": {func(p *proxies) { p.deleting["n1"] = true }, nil},
		"no node is down":              {func(p *proxies) { clear(p.down); clear(p.deleting) }, nil},
		"the node is gone": {func(p *proxies) {
			delete(p.generation, "n3")
			p.generation["gone"], p.down["gone"] = "1", true
		}, nil}, // Kubernetes continues
		"on the host network": {func(p *proxies) { p.strategy = rolling(`"25%"`) }, nil},
		"on delete, no node is down": {func(p *proxies) {
			p.strategy = `"type":"OnDelete"`
			clear(p.down)
			clear(p.deleting)
		}, []string{"proxy-n1"}},
		"the registry is not ready": {func(p *proxies) { p.registry = "False" }, nil},
		"the registry has not been ready for long": {func(p *proxies) {
			p.registry = "False"
			p.served = time.Now().Add(-keepTimeout)
		}, []string{"proxy-n1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &proxies{generation: map[string]string{"n1": "1", "n2": "1", "n3": "1"}, strategy: rolling("0"),
				served: time.Now(), down: map[string]bool{"n3": true}, deleting: map[string]bool{"n3": true}}
			c.change(p)
			client := &Client{HTTP: inMemory(t, p.serve), URL: inMemoryURL, Namespace: "zarf", Release: "zarf-registry"}
			require.NoError(t, client.continueRollouts(t.Context(), &p.served, func(string, ...any) {}))
			if !slices.Equal(p.deleted, c.want) {
				t.Errorf("deleted %q, want %q", p.deleted, c.want)
			}
			for _, body := range p.bodies {
				if !strings.Contains(body, `"preconditions":{"uid":"uid-n`) {
					t.Errorf("a replaced pod could be deleted: %s", body)
				}
			}
		})
	}
}

func TestAnInstallationReadsNoNodes(t *testing.T) {
	t.Parallel()
	p := &proxies{generation: map[string]string{"n1": "2", "n2": "2"}, strategy: `"type":"OnDelete"`,
		down: map[string]bool{"n1": true, "n2": true}, absent: 1}
	client := &Client{HTTP: inMemory(t, p.serve), URL: inMemoryURL, Namespace: "zarf", Release: "zarf-registry"}
	require.NoError(t, client.continueRollouts(t.Context(), &p.served, func(string, ...any) {}))
	if p.nodesRead > 0 || p.served.IsZero() {
		t.Errorf("read %d nodes; the rollout was seen at %v", p.nodesRead, p.served)
	}
}

func TestPatienceBeginsWithTheRollout(t *testing.T) {
	t.Parallel()
	p := &proxies{generation: map[string]string{"n1": "2"}, strategy: `"type":"OnDelete"`,
		served: time.Now().Add(-keepTimeout)} // during an earlier rollout
	client := &Client{HTTP: inMemory(t, p.serve), URL: inMemoryURL, Namespace: "zarf", Release: "zarf-registry"}
	// The DaemonSet is updated, and a moment later the registry.
	for _, look := range []struct{ template, registry string }{{"2", "True"}, {"1", "True"}, {"1", "False"}} {
		p.generation["n1"], p.registry = look.template, look.registry
		require.NoError(t, client.continueRollouts(t.Context(), &p.served, func(string, ...any) {}))
	}
	if len(p.deleted) > 0 {
		t.Errorf("deleted %q while the registry restarts", p.deleted)
	}
}
