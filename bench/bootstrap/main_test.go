package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func at(seconds float64) time.Time { return noon.Add(time.Duration(seconds * float64(time.Second))) }

func podOf(component, name, node string, running, isReady bool) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name,
		Labels: map[string]string{"app.kubernetes.io/component": component}}, Spec: corev1.PodSpec{NodeName: node}}
	state := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}
	if running {
		state = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: state}}
	if isReady {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	return p
}

func TestTimeline(t *testing.T) {
	l := newTimeline()
	follows := 0
	for _, seen := range []struct {
		seconds float64
		pod     *corev1.Pod
	}{
		{1, podOf("init-hook", "prepare", "", false, false)},
		{2, podOf("init-hook", "prepare", "n1", true, false)},
		{3, podOf("init-hook", "prepare", "n1", true, false)},
		{8, podOf("registry", "r", "n2", true, false)},
		{8.5, podOf("init-hook", "finish", "n1", true, false)},
		{9, podOf("registry", "r", "n2", true, true)},
		{9.2, podOf("proxy", "p1", "n1", true, true)},
		{9.5, podOf("registry", "r", "n2", true, true)},
		{10, podOf("proxy", "p2", "n2", true, true)},
		{11, podOf("proxy", "p1", "n1", true, true)},
	} {
		if l.pod(seen.pod, at(seen.seconds), 2) {
			follows++
		}
	}
	if follows != 2 {
		t.Errorf("%d logs are followed, want one per Job", follows)
	}
	log := `{"time":"2026-01-02T12:00:02.5Z","msg":"step done","phase":"prepare","step":"1/8 list the nodes",` +
		`"duration":"100ms"}` + `
{"time":"2026-01-02T12:00:03Z","msg":"waiting","for":"it"}
{"time":"2026-01-02T12:00:04Z","msg":"step done","phase":"prepare","step":"5/8 issue the certificates","duration":"50ms"}
{"time":"2026-01-02T12:00:05Z","msg":"step done","phase":"prepare","step":"7/8 seed the payload","duration":"900ms"}
{"time":"2026-01-02T12:00:05.1Z","msg":"phase done","phase":"prepare","duration":"2.7s"}
{"time":"2026-01-02T12:00:09Z","msg":"step done","phase":"finish","step":"1/13 read the saved state","duration":"10ms"}
{"time":"2026-01-02T12:00:11Z","msg":"step done","phase":"finish","step":"3/13 push the project's images","duration":"1s"}
{"time":"2026-01-02T12:00:12Z","msg":"step done","phase":"finish","step":"6/13 verify pulls","duration":"1s"}
`
	if err := readLog(strings.NewReader(log), l); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"chart applied", "finish done", returned}, l.missing()); diff != "" {
		t.Errorf("missing: %s", diff)
	}
	for name, seconds := range map[string]float64{
		hookPod: 1, "init-hook prepare begins": 2.4, certificates: 4, payload: 5, "prepare done": 5.1,
		"registry's container runs": 8, registryReady: 9, proxiesReady: 10, "init-hook finish begins": 8.99,
		"images pushed": 11, verified: 12,
	} {
		if got := l.reach[name]; !got.Equal(at(seconds)) {
			t.Errorf("%s at %s, want %s", name, got, at(seconds))
		}
	}
	if took := l.took["prepare: seed the payload"]; took != 900*time.Millisecond {
		t.Errorf("seeding took %s", took)
	}
	if err := readLog(strings.NewReader("panic: no log\n"), l); err == nil {
		t.Error("no error for a line that is not JSON")
	}
}

func TestReadAudit(t *testing.T) {
	line := func(id, user, verb, namespace, stage string, seconds float64) string {
		return `{"auditID":"` + id + `","verb":"` + verb + `","stage":"` + stage + `","user":{"username":"` + user +
			`"},"objectRef":{"namespace":"` + namespace +
			`"},"requestReceivedTimestamp":"` + at(seconds).Format(time.RFC3339Nano) + `"}` + "\n"
	}
	const node, daemons = "system:node:later", "system:serviceaccount:kube-system:daemon-set-controller"
	log := line("1", node, "get", "zarf", "ResponseComplete", -1) +
		line("2", node, "watch", "zarf", "ResponseStarted", 1) +
		line("3", node, "get", "kube-system", "ResponseComplete", 1) +
		line("4", node, "get", "zarf", "ResponseComplete", 2) +
		line("5", "system:node:n1", "get", "zarf", "ResponseComplete", 2) +
		line("6", daemons, "create", "zarf", "ResponseComplete", 2) +
		line("7", daemons, "create", "default", "ResponseComplete", 2) +
		line("8", "system:kube-scheduler", "create", "zarf", "ResponseComplete", 2) +
		line("9", "kubernetes-admin", "list", "zarf", "ResponseComplete", 2) +
		line("2", node, "watch", "zarf", "ResponseComplete", 1)
	got, err := readAudit(strings.NewReader(log), noon, node, "zarf")
	if want := (cost{byNode: 2, byOthers: 2, all: 3}); err != nil || got != want {
		t.Errorf("counted %+v, %v, want %+v", got, err, want)
	}
	if _, err := readAudit(strings.NewReader("rubbish\n"), noon, node, "zarf"); err == nil {
		t.Error("no error for an invalid audit log")
	}
}

func TestGapsAreBetweenSuccessfulPulls(t *testing.T) {
	var p pulls
	last := noon
	for _, pull := range []struct {
		seconds float64
		err     error
	}{{1, nil}, {2, errors.New("refused")}, {2.5, errors.New("reset")}, {4, nil}, {5, nil}} {
		last = p.add(pull.err, last, at(pull.seconds))
	}
	if want := (pulls{Pulls: 5, Failed: 2, First: "refused", Gap: 3 * time.Second}); p != want {
		t.Errorf("%+v, want %+v", p, want)
	}
}

// content starts a registry with one image.
func content(t *testing.T, damage bool) *httptest.Server {
	t.Helper()
	layer := "a layer"
	manifest := `{"config":{"digest":"` + digest.FromString("{}").String() + `"},"layers":[{"digest":"` +
		digest.FromString(layer).String() + `"}]}`
	index := `{"manifests":[{"digest":"sha256:0","platform":{"architecture":"pdp11"}},{"digest":"` +
		digest.FromString(manifest).String() + `","platform":{"architecture":"` + runtime.GOARCH + `"}}]}`
	served := map[string]string{
		"/v2/a/b/manifests/1": index,
		"/v2/a/b/manifests/" + digest.FromString(manifest).String(): manifest,
		"/v2/a/b/blobs/" + digest.FromString("{}").String():         "{}",
		"/v2/a/b/blobs/" + digest.FromString(layer).String():        layer,
	}
	if damage {
		served["/v2/a/b/blobs/"+digest.FromString(layer).String()] = "b layer"
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body, is := served[r.URL.Path]; is {
			_, _ = w.Write([]byte(body))
			return
		}
		http.NotFound(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func TestPullVerifiesDigests(t *testing.T) {
	for name, tt := range map[string]struct {
		damage bool
		tag    string
		want   string
	}{
		"whole":   {false, "1", ""},
		"damaged": {true, "1", "digest mismatch"},
		"missing": {false, "2", "404"},
	} {
		t.Run(name, func(t *testing.T) {
			s := content(t, tt.damage)
			err := pull(t.Context(), s.Client(), s.URL+"/v2/a/b", tt.tag)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}

func TestPullLoopEndsWithStopFile(t *testing.T) {
	stop := filepath.Join(t.TempDir(), "stop")
	if err := os.WriteFile(stop, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := run(t.Context(), []string{"no", "arguments"}); err == nil {
		t.Error("positional arguments are accepted")
	}
	if err := pullUntil(t.Context(), []string{"127.0.0.1:1", "a/b:1", stop}, &out); err != nil ||
		!strings.HasPrefix(out.String(), `{"Pulls":0`) {
		t.Errorf("%v: %s", err, out.String())
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := pullUntil(ended, []string{"127.0.0.1:1", "a/b:1", stop + "-not"}, &out); err == nil {
		t.Error("no error when the loop is canceled")
	}
}

func TestEveryRowHasASubject(t *testing.T) {
	names := map[string]bool{}
	for _, s := range subjects() {
		if names[s.Name] {
			t.Errorf("%s is listed twice", s.Name)
		}
		names[s.Name] = true
	}
	for _, name := range append([]string{ours, rolloutHostPort, rolloutHostNetwork, registryDeleted, toNodePort, toProxy},
		hookPod, certificates, payload, registryReady, proxiesReady, verified, returned) {
		if !names[name] {
			t.Errorf("%s has no row", name)
		}
	}
}
