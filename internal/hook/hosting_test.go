package hook_test

import (
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/zarf-dev/zarf-registry/internal/release/settings"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// hosting returns the ConfigMap's content as tools read it, or nil.
func (b *bench) hosting() map[string]string {
	b.Helper()
	cm, err := b.client.CoreV1().ConfigMaps("kube-public").Get(b.Context(), "local-registry-hosting", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(b, err)
	var said map[string]string
	if err := yaml.UnmarshalStrict([]byte(cm.Data["localRegistryHosting.v1"]), &said); err != nil || len(cm.Data) != 1 {
		b.Fatalf("%v: %q", err, cm.Data)
	}
	return said
}

func TestAdvertisesRegistry(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		mode    state.Mode
		arrange func(*settings.Settings)
		want    []string // host, hostFromContainerRuntime, hostFromClusterNetwork; nil: no ConfigMap
	}{
		"proxy mode": {state.ModeProxy, func(*settings.Settings) {},
			[]string{"127.0.0.1:31999", "127.0.0.1:31999", "zarf-registry.zarf.svc.cluster.local:5000"}},
		"nodeport mode": {state.ModeNodePort, func(*settings.Settings) {},
			[]string{"127.0.0.1:31999", "127.0.0.1:31999", "zarf-registry.zarf.svc.cluster.local:5000"}},
		"an IPv6 cluster": {state.ModeProxy, func(o *settings.Settings) { o.IPFamily = state.IPv6 },
			[]string{"[::1]:31999", "[::1]:31999", "zarf-registry.zarf.svc.cluster.local:5000"}},
		"with an external address": {state.ModeProxy,
			func(o *settings.Settings) { o.Expose.Address = "registry.example.com:8443" },
			[]string{"registry.example.com:8443", "127.0.0.1:31999", "zarf-registry.zarf.svc.cluster.local:5000"}},
		"an external registry": {state.ModeExternal, func(*settings.Settings) {}, nil},
		"turned off":           {state.ModeProxy, func(o *settings.Settings) { o.Finish.LocalRegistryHosting = false }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			c.arrange(&b.hook.Settings)
			b.upgrade(c.mode)
			var want map[string]string
			if c.want != nil {
				want = map[string]string{"host": c.want[0], "hostFromContainerRuntime": c.want[1],
					"hostFromClusterNetwork": c.want[2], "help": b.hosting()["help"]}
			}
			if got := b.hosting(); !maps.Equal(got, want) || want != nil && !strings.HasPrefix(got["help"], "https://") {
				t.Errorf("it is %v, want %v", got, want)
			}
			b.forget()
			b.mustFinish()
			for _, w := range b.writes() {
				if strings.Contains(w, "local-registry-hosting") {
					t.Errorf("a second run wrote %s", w)
				}
			}
		})
	}
}

func TestAdvertisementFollowsTheRelease(t *testing.T) {
	t.Parallel()
	b := upgraded(t, state.ModeProxy)
	b.hook.Settings.Expose.Address = "registry.example.com"
	b.upgrade(state.ModeProxy)
	if got := b.hosting()["host"]; got != "registry.example.com" {
		t.Errorf("host is %q", got)
	}
	// Another run writes it between reading and writing.
	b.hook.Settings.Expose.Address = "new.example.com"
	b.interfere = func(write string) {
		if write != "update configmaps local-registry-hosting" {
			return
		}
		b.interfere = nil
		o := require.Value(b.tracker.Get(resource("configmaps"), "kube-public", "local-registry-hosting"))(t)
		b.update("configmaps", o)
	}
	b.upgrade(state.ModeProxy)
	if got := b.hosting()["host"]; got != "new.example.com" || b.interfere != nil {
		t.Errorf("host is %q after a conflict", got)
	}
	b.hook.Settings.Finish.LocalRegistryHosting = false
	b.upgrade(state.ModeProxy)
	if got := b.hosting(); got != nil {
		t.Errorf("the ConfigMap still has %v", got)
	}
}

func TestKeepsAdvertisementOfAnotherRegistry(t *testing.T) {
	t.Parallel()
	const theirs = "host: \"localhost:5000\"\n"
	for name, meta := range map[string]metav1.ObjectMeta{
		"created by hand": {},
		"another release": {Labels: map[string]string{"app.kubernetes.io/managed-by": "init-hook"},
			Annotations: map[string]string{"zarf-registry/owner": "zarf/other"}},
		"another namespace": {Labels: map[string]string{"app.kubernetes.io/managed-by": "init-hook"},
			Annotations: map[string]string{"zarf-registry/owner": "images/zarf-registry"}},
		"our annotation without our label": {Annotations: map[string]string{"zarf-registry/owner": "zarf/zarf-registry"}},
		"created by k3d or kind":           {Labels: map[string]string{"app": "kind"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			meta.Name, meta.Namespace = "local-registry-hosting", "kube-public"
			b.add(&corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"localRegistryHosting.v1": theirs}})
			b.upgrade(state.ModeProxy)
			b.mustLog("left alone: ConfigMap kube-public/local-registry-hosting belongs to ")
			b.must(b.hook.Cleanup(t.Context()))
			if got := b.hosting(); !maps.Equal(got, map[string]string{"host": "localhost:5000"}) {
				t.Errorf("the ConfigMap has %v", got)
			}
		})
	}
}

func TestMissingPermissionToAdvertiseIsNoError(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.mayNot("create", "configmaps", "local-registry-hosting")
	b.upgrade(state.ModeProxy)
	b.mustLog("localRegistryHosting=false")
	if b.state().Phase != state.PhaseReady {
		t.Errorf("%v", b.state())
	}
}
