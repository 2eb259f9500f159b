package programs

import (
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"

	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/internal/payload/embedded"
	"github.com/zarf-dev/zarf-registry/internal/release/settings"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/internal/version"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// Claim: Verifications pull by digest.
func TestTheProbeHasANameForEachWay(t *testing.T) {
	if _, err := embedded.Load("probe", "amd64"); err != nil {
		t.Skip("needs embedded programs: run make payload")
	}
	r := &Registry{log: slog.New(slog.DiscardHandler), missing: "of a test"}
	list := require.Value(r.images())(t)
	digests := map[string]string{}
	for _, image := range list {
		digests[strings.TrimPrefix(image.Reference, "docker.io/")] = image.Descriptor.Digest.String()
	}
	proxy, nodePort := probeTag(state.ModeProxy), probeTag(state.ModeNodePort)
	for mode, tag := range map[state.Mode]string{state.ModeProxy: proxy, state.ModeNodePort: nodePort} {
		if image, err := r.ProbeImage(mode); err != nil || image != tag+"@"+digests[tag] {
			t.Errorf("nodes verify with %s, %v, want the digest %s", image, err, digests[tag])
		}
	}
	if proxy != "zarf-registry/probe-proxy:"+version.Version ||
		nodePort != "zarf-registry/probe-nodeport:"+version.Version {
		t.Errorf("the probes are %s and %s", proxy, nodePort)
	}
	if len(digests) != 4 || digests[proxy] == "" || digests[proxy] != digests[nodePort] || r.own != nil {
		t.Errorf("the images are %v", digests)
	}

	executable, err := os.Executable()
	require.NoError(t, err)
	require.NoError(t, r.setOwn(executable))
	if r.own.Architecture != runtime.GOARCH {
		t.Errorf("init-hook's own image is for %s", r.own.Architecture)
	}
	list = require.Value(r.images())(t)
	if !slices.ContainsFunc(list, func(i graph.Item) bool {
		return i.Reference == "docker.io/zarf-registry/init-hook:"+version.Version &&
			r.own.Reference == "zarf-registry/init-hook:"+version.Version+"@"+i.Descriptor.Digest.String()
	}) {
		t.Error("init-hook's own image is not called what the state says")
	}
}

func TestOwnImageIsForNodesThatCanRunIt(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("files of Linux")
	}
	// The loader is linked statically, as init-hook is.
	loader, err := embedded.Loader("amd64")
	if err != nil {
		t.Skip("needs embedded programs: run make payload")
	}
	static := filepath.Join(t.TempDir(), "static")
	require.NoError(t, os.WriteFile(static, loader, 0o600))
	if why := unfit(static, []string{"sparc64", runtime.GOARCH}); why != "" {
		t.Error(why)
	}
	if why := unfit(static, []string{"sparc64"}); !strings.Contains(why, "no node has architecture") {
		t.Errorf("on a cluster of another architecture: %q", why)
	}
	if why := unfit("/etc/hostname", []string{runtime.GOARCH}); !strings.Contains(why, "cannot be read") {
		t.Errorf("a file that is no program: %q", why)
	}
	// Nearly everywhere; busybox is linked statically.
	if why := unfit("/bin/sh", []string{runtime.GOARCH}); !strings.Contains(why, "linked dynamically") {
		t.Logf("/bin/sh: %q", why)
	}
}

func TestAWorkstationThatPushesAsksForTheNodes(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	node.Status.NodeInfo.Architecture = "sparc64"
	r, err := New(t.Context(), settings.Settings{Namespace: "zarf", Mode: state.ModeProxy},
		&rest.Config{}, fake.NewClientset(node), false, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	if own, missing := r.HookImage(); r.Direct || own != nil || missing == "" {
		t.Errorf("direct is %t, the image %v, for %q", r.Direct, own, missing)
	}
}

func TestWhoDoesNotPushNeedsNoNodes(t *testing.T) {
	client := fake.NewClientset()
	for _, inCluster := range []bool{false, true} {
		r, err := New(t.Context(), settings.Settings{Namespace: "zarf"}, &rest.Config{}, client, inCluster,
			slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		if r.own != nil || len(client.Actions()) != 0 {
			t.Errorf("its image is %v, and it asked for %v", r.own, client.Actions())
		}
	}
}
