package hook_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubetesting "k8s.io/client-go/testing"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/payload/injector"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/require"
)

func TestChunkZeroIsWrittenLast(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.hook.Programs = programs{large: true}
	b.mustPrepare()
	last := map[string]string{}
	for _, w := range b.writes() {
		if name, ok := strings.CutPrefix(w, "create configmaps "); ok {
			last[name[:len(name)-2]] = name[len(name)-2:]
		}
	}
	if len(last) != 2 {
		t.Fatalf("found the payloads %v, want two", last)
	}
	for payload, index := range last {
		if index != "00" {
			t.Errorf("%s: the last chunk written is %s", payload, index)
		}
	}
}

func TestPayloadIsNamedByItsDigest(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.upgrade(state.ModeProxy) // from a source checkout, without digests
	digests := map[string]string{}
	for program, p := range smallPayloads {
		digests[program.Key()] = p.Digest()
	}
	b.hook.Settings.Injector.Digests = digests
	b.upgrade(state.ModeProxy)
	list, err := b.client.CoreV1().ConfigMaps("zarf").List(t.Context(),
		metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=payload"})
	if err != nil || len(list.Items) == 0 {
		t.Fatalf("%d ConfigMaps, %v", len(list.Items), err)
	}
	for _, cm := range list.Items {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(digests)), func(program string) bool {
			return strings.HasPrefix(cm.Name, "zarf-registry-payload-"+digests[program][:12]+"-"+program+"-") ||
				strings.HasPrefix(cm.Name, "zarf-registry-payload-registry-node-amd64-")
		}) {
			t.Errorf("%s is left", cm.Name)
		}
	}

	// Ignoring the check does not write another program under that name.
	for _, ignore := range [][]string{nil, {"payload"}} {
		digests["registry-node-amd64"] = strings.Repeat("0", 64)
		b.hook.Settings.Preflight.Ignore = ignore
		b.forget()
		err := b.hook.Prepare(t.Context())
		for _, want := range []string{"registry-node for amd64", "chart and program are of different builds",
			"the chart expects the payload 000000000000", "image.tag"} {
			if !exitcode.IsRefusal(err) || !strings.Contains(err.Error(), want) {
				t.Errorf("error is %v, want a refusal with %q", err, want)
			}
		}
		for _, w := range b.writes() {
			if strings.Contains(w, "configmaps") || ignore == nil {
				t.Errorf("refused, but wrote %s", w)
			}
		}
	}
}

func TestDamagedChunkIsReplacedAndWaitingPodsRestart(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.hook.Programs = programs{large: true}
	b.mustPrepare()
	name := "zarf-registry-payload-registry-node-amd64-01"
	cms := b.client.CoreV1().ConfigMaps("zarf")
	cm := require.Value(cms.Get(t.Context(), name, metav1.GetOptions{}))(t)
	cm.BinaryData["chunk-01"] = []byte("altered")
	require.Value(cms.Update(t.Context(), cm, metav1.UpdateOptions{}))(t)
	require.NoError(t, cms.Delete(t.Context(), "zarf-registry-payload-0.1.0-registry-amd64-01", metav1.DeleteOptions{}))
	podLabels := labels("proxy")
	podLabels["zarf.dev/agent"] = "ignore"
	pod := func(name string, exit int32, ready bool) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "zarf", Labels: podLabels},
			Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Ready: ready,
				LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: exit}}}}},
		}
	}
	for _, p := range []*corev1.Pod{pod("waiting", 104, false), pod("running", 104, true), pod("crashing", 1, false)} {
		require.Value(b.client.CoreV1().Pods("zarf").Create(t.Context(), p, metav1.CreateOptions{}))(t)
	}
	b.forget()
	b.mustPrepare()
	b.checkPrepared()
	want := []string{
		"create configmaps zarf-registry-payload-0.1.0-registry-amd64-01",
		"update configmaps " + name,
		"delete pods waiting",
		"update secrets zarf-registry-state",
	}
	if got := b.writes(); !slices.Equal(got, want) {
		t.Errorf("wrote %q, want %q", got, want)
	}

	// As after a run that was killed before it restarted the pods.
	b.add(pod("waiting", 104, false))
	b.forget()
	b.mustPrepare()
	if got, want := b.writes(), want[2:]; !slices.Equal(got, want) {
		t.Errorf("the next run wrote %q, want %q", got, want)
	}
}

func TestSeedRetriesWhileAPIServerIsOverloaded(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var mu sync.Mutex
	answers := []error{
		apierrors.NewTooManyRequests("slow down", 0),
		apierrors.NewInternalError(errors.New("etcdserver: too many requests")),
		apierrors.NewServerTimeout(corev1.Resource("configmaps"), "create", 0),
	}
	b.client.PrependReactor("create", "configmaps", func(kubetesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		if len(answers) == 0 {
			return false, nil, nil
		}
		err := answers[0]
		answers = answers[1:]
		return true, nil, err
	})
	b.mustPrepare()
	b.checkPrepared()
	if len(answers) != 0 {
		t.Errorf("%d answers were never given", len(answers))
	}
}

func TestRunsThatWriteTheSamePayload(t *testing.T) {
	t.Parallel()
	const chunk = "zarf-registry-payload-registry-node-amd64-00"
	other, b := newBench(t), newBench(t)
	other.mustPrepare()
	b.interfere = func(write string) {
		if write == "create configmaps "+chunk {
			b.add(other.get("configmaps", chunk).DeepCopyObject())
		}
	}
	b.mustPrepare()
	if !strings.Contains(strings.Join(b.writes(), "\n"), "create configmaps "+chunk) {
		t.Errorf("the runs did not meet: %q", b.writes())
	}
}

// crossPrograms are for any architecture.
type crossPrograms struct{}

func (crossPrograms) Payload(program, architecture string) (*injector.Payload, error) {
	layer, err := injector.BuildLayer(program, []byte(program+" for "+architecture))
	if err != nil {
		return nil, err
	}
	return injector.Encode(injector.Program{Name: program, Architecture: architecture}, layer,
		[]byte("loader for "+architecture))
}

// The invariants of the chart say that pods mount the payload of the architecture that they select.
func TestPayloadIsForTheArchitecturesOfTheNodes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		nodes    []string
		registry string
		want     []string
	}{
		"amd64": {[]string{"amd64", "amd64"}, "amd64", []string{"registry for amd64", "registry-node for amd64"}},
		"arm64": {[]string{"arm64"}, "arm64", []string{"registry for arm64", "registry-node for arm64"}},
		"both, the registry on amd64": {[]string{"amd64", "arm64", "arm64"}, "amd64",
			[]string{"registry for amd64", "registry-node for amd64", "registry-node for arm64"}},
		"both, the registry on arm64": {[]string{"arm64", "amd64"}, "arm64",
			[]string{"registry for arm64", "registry-node for amd64", "registry-node for arm64"}},
		"both, the registry on either": {[]string{"amd64", "arm64"}, "",
			[]string{"registry for amd64", "registry for arm64", "registry-node for amd64", "registry-node for arm64"}},
		"arm64 and one without programs": {[]string{"arm64", "riscv64"}, "",
			[]string{"registry for arm64", "registry-node for arm64"}},
	} {
		t.Run(name, func(t *testing.T) {
			var nodes []runtime.Object
			for i, arch := range c.nodes {
				nodes = append(nodes, node(fmt.Sprintf("n%d", i), architecture(arch)))
			}
			b := newBench(t, nodes...)
			b.hook.Programs = crossPrograms{}
			b.hook.Settings.Injector.RegistryArchitecture = c.registry
			b.mustPrepare()
			if found := b.payloads(); !slices.Equal(found, c.want) {
				t.Errorf("the payload has %q, want %q", found, c.want)
			}
		})
	}
	b := newBench(t) // of amd64
	b.hook.Programs = crossPrograms{}
	b.hook.Settings.Injector.RegistryArchitecture = "amd64"
	b.upgrade(state.ModeProxy)
	b.add(node("late", architecture("arm64")))
	b.upgrade(state.ModeProxy)
	want := []string{"registry for amd64", "registry-node for amd64", "registry-node for arm64"}
	if found := b.payloads(); !slices.Equal(found, want) {
		t.Errorf("after an upgrade the payload has %q, want %q", found, want)
	}
}

// payloads returns the programs of the payload, by its manifests.
func (b *bench) payloads() []string {
	b.Helper()
	list, err := b.client.CoreV1().ConfigMaps("zarf").List(b.Context(),
		metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=payload"})
	require.NoError(b, err)
	var programs []string
	for _, cm := range list.Items {
		text, ok := cm.BinaryData[injector.ManifestKey]
		if !ok {
			continue
		}
		manifest := require.Value(injector.ParseManifest(text))(b)
		program := manifest.Program
		if loader := string(cm.BinaryData[injector.LoaderKey]); loader != "loader for "+program.Architecture ||
			!strings.HasSuffix(cm.Name, program.Key()+"-00") {
			b.Errorf("ConfigMap %s has %s and a %s", cm.Name, program, loader)
		}
		programs = append(programs, program.String())
	}
	slices.Sort(programs)
	return programs
}
