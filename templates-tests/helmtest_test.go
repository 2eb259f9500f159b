package templates

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// testPods returns the pods of helm test by the suffix of their names.
func testPods(out *output) map[string]*corev1.Pod {
	found := map[string]*corev1.Pod{}
	for _, p := range all[*corev1.Pod](out) {
		_, test, _ := strings.Cut(p.Name, "-test-")
		found[test] = p
	}
	return found
}

func TestHelmTestPods(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		values map[string]any
		want   []string // pods
		args   []string // of the pod tls
		secret string   // image pull secret
	}{
		"proxy mode": {
			proxyMode(t), []string{"pull", "push", "tls"}, []string{"--port-service=zarf-registry-nodeport"}, "",
		},
		"nodeport mode": {
			with(t, nil, "registryProxy=false"), []string{"pull", "push", "tls"},
			[]string{"--plain=zarf-registry-nodeport.zarf.svc:5001", "--anonymous-pull=false"}, "zarf-registry-pull",
		},
		"anonymous pull": {
			with(t, nil, "registryProxy=false", "auth.anonymousPull=true"), []string{"pull", "push", "tls"},
			[]string{"--anonymous-pull=true"}, "",
		},
		"no image is pushed": {
			proxyMode(t, "image.pullPolicy=Never", "imagePullSecrets=[{name: mine}]", "reservePort=false"),
			[]string{"push", "tls"}, nil, "mine",
		},
		"port not reserved":           {proxyMode(t, "reservePort=false"), []string{"pull", "push", "tls"}, nil, ""},
		"port out of the usual range": {proxyMode(t, "port=5999"), []string{"pull", "push", "tls"}, nil, ""},
		"external":                    {with(t, nil, "registryURL=registry.example.com"), nil, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			out := rendering{values: c.values}.render(t)
			pods := testPods(out)
			for _, test := range []string{"pull", "push", "tls"} {
				if _, there := pods[test]; there != slices.Contains(c.want, test) {
					t.Errorf("pod %s exists: %t", test, there)
				}
			}
			for _, p := range pods {
				if secrets := p.Spec.ImagePullSecrets; len(secrets) > 1 || (len(secrets) == 1) != (c.secret != "") ||
					len(secrets) == 1 && secrets[0].Name != c.secret {
					t.Errorf("%s pulls with %v, want %q", p.Name, secrets, c.secret)
				}
			}
			if tls := pods["tls"]; tls != nil {
				args := tls.Spec.Containers[0].Args
				for _, want := range c.args {
					if !slices.Contains(args, want) {
						t.Errorf("arguments of %s: %v lack %s", tls.Name, args, want)
					}
				}
				if c.args == nil && slices.ContainsFunc(args, func(arg string) bool {
					return strings.HasPrefix(arg, "--plain=") || strings.HasPrefix(arg, "--port-service=")
				}) {
					t.Errorf("arguments of %s contain a node port: %v", tls.Name, args)
				}
			}
			if pull := pods["pull"]; pull != nil {
				if c := pull.Spec.Containers[0]; c.ImagePullPolicy != corev1.PullAlways ||
					!strings.Contains(c.Image, "/zarf-registry/init-hook:") {
					t.Errorf("%s pulls %s %s", pull.Name, c.Image, c.ImagePullPolicy)
				}
			}
			// The network policy admits the test pods only if there are any.
		})
	}
}

func TestHelmTestPodsRunWhereTheRegistryCanBePulledFrom(t *testing.T) {
	t.Parallel()
	pods := testPods(rendering{values: proxyMode(t, "initHook.nodeSelector={a: b}", "proxy.nodeSelector={c: d}")}.render(t))
	for _, p := range pods {
		if p.Spec.NodeSelector["a"] != "b" || p.Spec.NodeSelector["c"] != "d" {
			t.Errorf("node selector of %s: %v", p.Name, p.Spec.NodeSelector)
		}
	}
	if len(pods) != 3 {
		t.Errorf("%d pods", len(pods))
	}
}
