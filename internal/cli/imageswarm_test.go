package cli

import (
	"bytes"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/hook/pull"
	"github.com/zarf-dev/zarf-registry/internal/images"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

// named parses references.
func named(t *testing.T, refs ...string) (all []images.Name) {
	t.Helper()
	for _, ref := range refs {
		n, err := images.ParseName(ref)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, n)
	}
	return all
}

func TestImagesToWarmAreThoseOfTheRegistry(t *testing.T) {
	s := searchIn(t)
	d := digest.FromString("team/multiamd64").String()
	found, references, err := s.stored(named(t, "team/multi:1", "127.0.0.1:31999/team/multi:1", "docker.io/library/redis:7",
		"quay.io/team/multi@"+d, "localhost:31999/team/chart:1"))
	want := []string{"127.0.0.1:31999/team/multi:1", "127.0.0.1:31999/library/redis:7-zarf-1028528839",
		"127.0.0.1:31999/team/multi@" + d, "127.0.0.1:31999/team/chart:1"}
	if err != nil || !slices.Equal(references, want) || len(found) != len(want) || found[2].Digest.String() != d {
		t.Errorf("%v, error %v", references, err)
	}
	_, _, err = s.stored(named(t, "team/multi:1", "team/none:2", "team/broken:1"))
	if err == nil || !exitcode.IsRefusal(err) ||
		!strings.Contains(err.Error(), "the registry does not have 127.0.0.1:31999/team/none:2: ") ||
		!strings.Contains(err.Error(), "127.0.0.1:31999/team/broken:1 cannot be read: ") {
		t.Errorf("error is %v", err)
	}
}

func TestCachesFetchThePlatformsOfTheNodes(t *testing.T) {
	s := searchIn(t)
	index := s.find("team/multi", "1", "")
	layer, manifest := digest.FromString("layer"), func(of string) string {
		return "/v2/team/multi/manifests/" + digest.FromString(of).String()
	}
	s.find("team/multi", "amd64", "").Needs = []digest.Digest{layer}
	amd64 := []string{manifest("team/multiamd64"), "/v2/team/multi/blobs/" + layer.String()}
	var err error
	for platforms, want := range map[string][]string{
		"linux/amd64":             append([]string{manifest("team/multi1")}, amd64...),
		"linux/amd64,linux/arm64": append(append([]string{manifest("team/multi1")}, amd64...), manifest("team/multiarm64")),
		"all":                     append(append([]string{manifest("team/multi1")}, amd64...), manifest("team/multiarm64")),
		"linux/s390x":             {manifest("team/multi1")},
	} {
		want = append(want, "/v2/team/multi/manifests/1") // the tag, for cache.staleFor
		if s.platforms, err = images.ParsePlatforms(platforms); err != nil {
			t.Fatal(err)
		}
		var logged bytes.Buffer
		got := s.contents([]*catalog.Manifest{index}, []string{"multi:1"}, slog.New(slog.NewTextHandler(&logged, nil)))
		if len(got) != 1 || got[0].Reference != "multi:1" || !slices.Equal(got[0].Paths, want) {
			t.Errorf("%s: %v, want %v", platforms, got, want)
		}
		if lacks := strings.Contains(logged.String(), "s390x"); lacks != (platforms == "linux/s390x") {
			t.Errorf("%s: log %s", platforms, &logged)
		}
	}
	// A single manifest is fetched in any case, and a sparse index without what it lacks.
	if got := s.paths(s.find("team/multi", "amd64", "")); !slices.Equal(got, amd64) {
		t.Errorf("%v", got)
	}
	s.platforms = nil
	if got := s.paths(s.find("team/multi", "sparse", "")); len(got) != 3 {
		t.Errorf("%v", got)
	}
}

func TestCachesAndNodesAreSelected(t *testing.T) {
	cache := func(name string, ready corev1.ConditionStatus) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "zarf",
			Labels: names.Labels("r", names.ComponentCache)},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}}}
	}
	log := slog.New(slog.DiscardHandler)
	f := &warmFlags{cluster: clusterFlags{globalFlags: &globalFlags{namespace: "zarf"}, release: "r"}}
	client := fake.NewClientset()
	if _, err := f.cachePods(t.Context(), client, log); !exitcode.IsRefusal(err) ||
		!strings.Contains(err.Error(), "cache.replicas") {
		t.Errorf("without caches: %v", err)
	}
	client = fake.NewClientset(cache("starts", corev1.ConditionFalse))
	if _, err := f.cachePods(t.Context(), client, log); !exitcode.IsRefusal(err) ||
		!strings.Contains(err.Error(), "no cache pod is ready") {
		t.Errorf("without ready caches: %v", err)
	}
	if nodes, err := f.selectNodes(t.Context(), client); nodes != nil || err != nil {
		t.Errorf("nodes that nobody wants: %v, %v", nodes, err)
	}
	node := func(name, os string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pool": name}}}
		n.Status.NodeInfo.OperatingSystem = os
		return n
	}
	client = fake.NewClientset(cache("starts", corev1.ConditionFalse), cache("ready", corev1.ConditionTrue),
		node("a", "linux"), node("b", "linux"), node("w", "windows"))
	if pods, err := f.cachePods(t.Context(), client, log); err != nil || len(pods) != 1 || pods[0].Name != "ready" {
		t.Errorf("caches %v, error %v", pods, err)
	}
	f.allNodes = true
	if nodes, err := f.selectNodes(t.Context(), client); err != nil || len(nodes) != 2 {
		t.Errorf("all nodes: %v, %v", nodes, err)
	}
	f.nodes, f.allNodes = "pool=b", false
	if nodes, err := f.selectNodes(t.Context(), client); err != nil || len(nodes) != 1 || nodes[0].Name != "b" {
		t.Errorf("a selector: %v, %v", nodes, err)
	}
	if pods, err := f.cachePods(t.Context(), fake.NewClientset(), log); len(pods) != 0 || err != nil {
		t.Errorf("nodes without caches: %v", err)
	}
	f.nodes = "pool=w"
	if _, err := f.selectNodes(t.Context(), client); !exitcode.IsRefusal(err) ||
		!strings.Contains(err.Error(), "no Linux node matches --nodes pool=w") {
		t.Errorf("no Linux node: %v", err)
	}
}

func TestWarmIsPrinted(t *testing.T) {
	report := &warmReport{Caches: []pull.Result{{Name: "r-cache-1", Image: "a:1", Outcome: pull.Filled, Seconds: 1.25}},
		Nodes: []pull.Result{{Name: "n1", Image: "a:1", Outcome: pull.Present}}}
	var out bytes.Buffer
	if err := printWarm(&out, "table", report); err != nil {
		t.Error(err)
	}
	same(t, "text", out.String(), `CACHE      IMAGE  SECONDS  RESULT
r-cache-1  a:1    1.2      filled
NODE       IMAGE  SECONDS  RESULT
n1         a:1    0.0      already there
`)
	report.Nodes[0] = pull.Result{Name: "n1", Image: "a:1", Outcome: pull.Failed, Message: "refused", Remedy: "help"}
	out.Reset()
	err := printWarm(&out, "table", report)
	if _, quiet := errors.AsType[*silent](err); !quiet || !strings.HasSuffix(out.String(), "failed: refused; help\n") {
		t.Errorf("error %v, output %s", err, &out)
	}
	for output, want := range map[string]string{"json": `"remedy": "help"`, "yaml": "remedy: help\n"} {
		out.Reset()
		err = printWarm(&out, output, report)
		if _, quiet := errors.AsType[*silent](err); !quiet || !strings.Contains(out.String(), want) {
			t.Errorf("%s: error %v, output %s", output, err, &out)
		}
	}
}

func TestInvalidWarmUpsAreRefused(t *testing.T) {
	c := newImageCommand(t, nil)
	for _, tt := range []struct {
		args []string
		want string
	}{
		{nil, "no images given"},
		{[]string{"A:1"}, "A:1"},
		{[]string{"a:1", "--nodes="}, "--nodes wants a label selector: use --all-nodes"},
		{[]string{"a:1", "--nodes=a=b", "--all-nodes"}, "without --nodes, for all nodes"},
		{[]string{"a:1", "--nodes=a in"}, "invalid --nodes \"a in\""},
		{[]string{"a:1", "--timeout=0s"}, "--timeout 0s"},
		{[]string{"a:1", "--output=list"}, "--output"},
		{[]string{"a:1", "--namespace=A"}, "amespace"},
	} {
		said, out := c.fails(exitcode.Refused, "", append([]string{"warm"}, tt.args...)...)
		if !strings.Contains(said, tt.want) || out != "" {
			t.Errorf("%q: %s, want %q", tt.args, said, tt.want)
		}
	}
}
