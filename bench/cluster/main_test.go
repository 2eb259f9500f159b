package main

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/bench/internal/registries/registriestest"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// tiny is the scale of sets for tests.
const tiny = 0.0005

func tinySets(t *testing.T, seed uint64) (all, changed *imageSet) {
	t.Helper()
	all, changed, err := makeSets(registriestest.Memory(t), seed, tiny)
	require.NoError(t, err)
	return all, changed
}

func TestSets(t *testing.T) {
	one, changed := tinySets(t, 1)
	same, _ := tinySets(t, 1)
	other, _ := tinySets(t, 3)
	equal := func(a, b ocispec.Descriptor) bool { return a.Digest == b.Digest && a.Size == b.Size }
	if !slices.EqualFunc(one.blobs, same.blobs, equal) {
		t.Error("equal seeds give different sets")
	}
	if slices.EqualFunc(one.blobs, other.blobs, equal) {
		t.Error("different seeds give equal sets")
	}
	layers := families * (len(baseLayers) + members*len(ownLayers))
	if got, want := len(one.blobs), layers+2*families*members; got != want || want != 330 {
		t.Errorf("%d blobs, want %d", got, want)
	}
	different := 0
	for n, i := range changed.images {
		if i.repository != one.images[n].repository {
			t.Errorf("image %d is %s", n, i.repository)
		}
		if i.manifest.Digest != one.images[n].manifest.Digest {
			different++
		}
	}
	if different != 7 {
		t.Errorf("%d images have changed", different)
	}
	for _, dir := range []string{one.layout, changed.layout, changed.images[0].single} {
		raw := require.Value(os.ReadFile(filepath.Join(dir, ocispec.ImageIndexFile)))(t)
		var index ocispec.Index
		if err := json.Unmarshal(raw, &index); err != nil || len(index.Manifests) == 0 {
			t.Errorf("%s: %v", raw, err)
		}
		for _, m := range index.Manifests {
			if _, err := os.Stat(filepath.Join(dir, ocispec.ImageBlobsDir, "sha256", m.Digest.Encoded())); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestSetsOfFullSize(t *testing.T) {
	var sum, changed, large float64
	for n := range families * members {
		scale := familyScales[n/members]
		if n%members == 0 {
			for _, size := range baseLayers {
				sum += size * scale
			}
		}
		for _, size := range ownLayers {
			sum += size * scale
		}
		if n%changedEvery == 0 {
			changed += ownLayers[changedLayer] * scale
		}
	}
	for _, size := range largeLayers {
		large += size
	}
	if math.Abs(sum/1e9-1.48) > 0.01 || math.Abs(changed/sum-0.01) > 0.001 || large != 1e9 {
		t.Errorf("%.0f bytes, %.0f changed, %.0f in the large image", sum, changed, large)
	}
}

// A tool runs one command per image, or one that names all of them.
func TestToolsPushAllImages(t *testing.T) {
	set, _ := tinySets(t, 1)
	for _, tool := range tools() {
		j := job{program: tool.Name, host: "127.0.0.1:5000", dir: t.TempDir()}
		require.NoError(t, j.configure(map[string][]byte{}, map[string][]byte{}))
		text := ""
		for _, command := range tool.push(j, set) {
			text += strings.Join(command, " ") + "\n"
		}
		for _, i := range set.images {
			if !strings.Contains(text, set.layout) && !strings.Contains(text, i.reference(j.host)) {
				t.Errorf("%s: %s lacks %s", tool.Name, text, i.repository)
			}
		}
	}
}

func TestMissingManifestIsAnError(t *testing.T) {
	set, changed := tinySets(t, 1)
	list := ""
	for _, i := range set.images {
		list += i.manifest.Digest.String() + "\n"
	}
	if err := missing(list, set); err != nil {
		t.Error(err)
	}
	if err := missing(list, changed); err == nil || !strings.Contains(err.Error(), changed.images[0].repository) {
		t.Errorf("a registry without a manifest passes the check: %v", err)
	}
}

func TestOperationsAreMeasured(t *testing.T) {
	run := func(command ...string) (used, error) {
		return measure(func() (used, error) { return runAll(t.Context(), [][]string{command, {"true"}}, t.TempDir()) })
	}
	alone, err := run("bash", "-c", "for ((n = 0; n < 50000; n++)); do :; done; sleep 3")
	if err != nil || alone.seconds <= 0 || alone.cpu <= 0 || alone.memory <= 0 {
		t.Errorf("%+v, %v", alone, err)
	}
	if _, err := run("false"); err == nil {
		t.Error("no error for a failing command")
	}
	beside, err := measure(func() (used, error) { return alone, nil }, os.Getpid())
	if err != nil || beside.cpu <= alone.cpu || beside.memory <= alone.memory {
		t.Errorf("%+v beside %+v, %v", beside, alone, err)
	}
}

func TestBadInput(t *testing.T) {
	for description, args := range map[string][]string{
		"no size":     {"-scale", "0"},
		"an argument": {"crane"},
	} {
		if _, err := parse(args); err == nil {
			t.Errorf("%s is accepted", description)
		}
	}
	if o, err := parse([]string{"-scale", "1e-6"}); err != nil || o.Runs != 3 || o.pushes != 1 {
		t.Errorf("%+v, %v", o, err)
	}
}

func podOf(component, name string, ready bool) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name,
		Labels: map[string]string{"app.kubernetes.io/component": component}}}
	if ready {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	return p
}

func TestTimeline(t *testing.T) {
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	l := newTimeline()
	for seconds, p := range []*corev1.Pod{podOf("init-hook", "hook", false), podOf("registry", "r", false),
		podOf("proxy", "p1", false), podOf("proxy", "p2", false), podOf("registry", "r", true), podOf("proxy", "p2", true),
		podOf("proxy", "p1", true), podOf("registry", "r", true)} {
		l.pod(p, noon.Add(time.Duration(seconds)*time.Second))
	}
	if at := l.ready["registry"]; !at.Equal(noon.Add(4 * time.Second)) {
		t.Errorf("the registry is ready at %s", at)
	}
	if r, p := l.start["registry"], l.start["proxy"]; r != 3*time.Second || p != 2*time.Second {
		t.Errorf("registry %s, proxy %s", r, p)
	}
}

func TestOpenWatches(t *testing.T) {
	line := func(id, user, stage string) string {
		return `{"auditID":"` + id + `","stage":"` + stage + `","user":{"username":"` + user + `"}}` + "\n"
	}
	got, err := openWatches(strings.NewReader(line("1", "a", "ResponseStarted") + line("2", "a", "ResponseStarted") +
		line("3", "b", "ResponseStarted") + line("4", "b", "ResponseComplete") + line("1", "a", "ResponseComplete")))
	if err != nil || got["a"] != 1 || got["b"] != 1 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := openWatches(strings.NewReader("rubbish\n")); err == nil {
		t.Error("no error for an invalid audit log")
	}
}
