package hook_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/zarf-dev/zarf-registry/internal/hook/preflight"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/settings"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// kubernetesService is the API server's Service, which shows the cluster's IP families.
func kubernetesService(ips ...string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes", Namespace: "default"},
		Spec: corev1.ServiceSpec{ClusterIP: ips[0], ClusterIPs: ips}}
}

func otherService(change ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop"}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80, NodePort: 30080,
			Protocol: corev1.ProtocolTCP}, {Port: 81, NodePort: 31999, Protocol: corev1.ProtocolTCP}}}}
	for _, c := range change {
		c(s)
	}
	return s
}

func images(names ...string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Status.Images = nil
		for _, name := range names {
			n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{name, name + "@sha256:1"}})
		}
	}
}

func manyImages(n *corev1.Node) {
	var names []string
	for i := range 50 {
		names = append(names, fmt.Sprintf("example.com/app:%d", i))
	}
	images(names...)(n)
}

// kubeletConfigs answers with a credential verification policy and its list of allowed images, for the named nodes.
func kubeletConfigs(policy string, allowed []string, names ...string) func(context.Context, string) ([]byte, error) {
	return func(_ context.Context, node string) ([]byte, error) {
		if !slices.Contains(names, node) {
			return nil, errors.New("forbidden")
		}
		return json.Marshal(map[string]any{"kubeletconfig": map[string]any{
			"imagePullCredentialsVerificationPolicy": policy, "preloadedImagesVerificationAllowlist": allowed}})
	}
}

func runtimeVersion(v string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Status.NodeInfo.ContainerRuntimeVersion = v }
}

func architecture(v string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Status.NodeInfo.Architecture = v }
}

func podCIDRs(v ...string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Spec.PodCIDR, n.Spec.PodCIDRs = v[0], v }
}

func internalIP(v string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: v})
	}
}

func hostNetwork(o *settings.Settings) { o.Proxy.HostNetwork = true }

func modeOf(mode state.Mode) func(*settings.Settings) {
	return func(o *settings.Settings) { o.Mode = mode }
}

func family(f state.IPFamily) func(*settings.Settings) {
	return func(o *settings.Settings) { o.IPFamily = f }
}

func unreserved(o *settings.Settings) { o.UnreservedPort = true }

func blindPause(o *settings.Settings) {
	choosePause(o, pauseImage, state.SourceDefault, state.PauseDefault)
}

// choosePause sets the image of injected pods.
func choosePause(o *settings.Settings, image string, source state.Source, reason state.PauseReason) {
	for architecture := range o.Injector.PauseImages {
		o.Injector.PauseImages[architecture] = settings.PauseImage{Source: source,
			PauseImage: state.PauseImage{Reference: image, Reason: reason}}
	}
}

func healed(o *settings.Settings) { o.Injector.Healer = true }

func refusePods(err error) func(runtime.Object) error {
	return func(o runtime.Object) error {
		if _, ok := o.(*corev1.Pod); ok {
			return err
		}
		return nil
	}
}

func refuseServices(err error) func(runtime.Object) error {
	return func(o runtime.Object) error {
		if _, ok := o.(*corev1.Service); ok {
			return err
		}
		return nil
	}
}

func changePods(change func(*corev1.Container)) func(runtime.Object) error {
	return func(o runtime.Object) error {
		if p, ok := o.(*corev1.Pod); ok {
			change(&p.Spec.Containers[0])
		}
		return nil
	}
}

// forbiddenBy is the API server's error for a missing permission.
func forbiddenBy(verb, resource string) error {
	return apierrors.NewForbidden(corev1.Resource(resource), "",
		fmt.Errorf(`User "jane" cannot %s resource "%s" in API group "" in the namespace "zarf"`, verb, resource))
}

func invalidPort(message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: "Failure", Reason: metav1.StatusReasonInvalid,
		Code: 422, Message: message}}
}

func TestPreflightFinds(t *testing.T) {
	t.Parallel()
	const blocker, warning = preflight.Blocker, preflight.Warning
	type nodes = []runtime.Object
	for name, c := range map[string]struct {
		objects  nodes
		options  []func(*settings.Settings)
		admit    func(runtime.Object) error
		kubelet  func(context.Context, string) ([]byte, error)
		check    string // empty: no finding
		severity preflight.Severity
		want     []string
	}{
		"no finding on a healthy cluster": {objects: nodes{node("n1"), kubernetesService("10.96.0.1")}},
		"no finding on a healthy cluster in nodeport mode": {objects: nodes{node("n1"), kubernetesService("10.96.0.1")},
			options: []func(*settings.Settings){modeOf(state.ModeNodePort)}},

		"node port of another Service": {objects: nodes{node("n1"), otherService()}, check: "port", severity: blocker,
			want: []string{"Service shop/web", "node port 31999", "kubectl --namespace shop edit service web", "--set port="}},
		"node port of another Service, nodeport mode": {objects: nodes{node("n1"), otherService()},
			options: []func(*settings.Settings){modeOf(state.ModeNodePort)}, check: "port", severity: blocker,
			want: []string{"Service shop/web"}},
		"UDP node port in proxy mode": {objects: nodes{node("n1"),
			otherService(func(s *corev1.Service) { s.Spec.Ports[1].Protocol = corev1.ProtocolUDP })},
			check: "port", severity: blocker, want: []string{"Service shop/web"}},
		"ignores a UDP node port if the port is not reserved": {objects: nodes{node("n1"),
			otherService(func(s *corev1.Service) { s.Spec.Ports[1].Protocol = corev1.ProtocolUDP })},
			options: []func(*settings.Settings){unreserved}, admit: refuseServices(errors.New("not asked"))},
		"node port of another Service if the port is not reserved": {objects: nodes{node("n1"), otherService()},
			options: []func(*settings.Settings){unreserved}, check: "port", severity: blocker},
		"Service of someone else with the name": {objects: nodes{node("n1"),
			func() *corev1.Service { s := nodePortService(); s.Labels, s.Spec.Ports = nil, nil; return s }()},
			check: "port", severity: blocker, want: []string{"Service zarf/zarf-registry-nodeport", "fullnameOverride"}},
		"ignores a policy against node ports in proxy mode": {objects: nodes{node("n1")},
			admit: refuseServices(apierrors.NewForbidden(corev1.Resource("services"), "x",
				errors.New("exceeded quota: none, services.nodeports=0")))},
		"ignores the release's own Service": {objects: nodes{node("n1"), nodePortService()},
			options: []func(*settings.Settings){modeOf(state.ModeNodePort)},
			admit:   refuseServices(errors.New("the allocated port must not be requested"))},
		"Service of another release": {objects: nodes{node("n1"),
			func() *corev1.Service { s := nodePortService(); s.Labels = nil; return s }()},
			check: "port", severity: blocker, want: []string{"Service zarf/zarf-registry-nodeport"}},
		"proxies of another release on the host network": {objects: nodes{node("n1"), proxiesOf("app", "other", "31998,9102")},
			options: []func(*settings.Settings){onHostNetwork}, check: "port", severity: blocker,
			want: []string{"release other in namespace app", "its proxies listen on port 9102 of the nodes, too",
				"--set proxy.metricsPort=PORT"}},
		"ignores proxies of another release on other ports": {objects: nodes{node("n1"), proxiesOf("app", "other", "31998,9103")},
			options: []func(*settings.Settings){onHostNetwork}},
		"ignores the release's own proxies": {objects: nodes{node("n1"), proxiesOf("zarf", "zarf-registry", "31999,9102")},
			options: []func(*settings.Settings){onHostNetwork}},
		"node port allocated meanwhile": {objects: nodes{node("n1")},
			options: []func(*settings.Settings){modeOf(state.ModeNodePort)},
			admit: refuseServices(
				invalidPort("spec.ports[0].nodePort: Invalid value: 31999: provided port is already allocated")), check: "port",
			severity: blocker},
		"port outside the node port range": {objects: nodes{node("n1")},
			options: []func(*settings.Settings){modeOf(state.ModeNodePort)},
			admit: refuseServices(
				invalidPort("spec.ports[0].nodePort: Invalid value: 5999: provided port is not in the valid range. The range of " +
					"valid ports is 30000-32767")),
			check: "port-range", severity: blocker, want: []string{"30000-32767", "--set port=", "--set registryProxy=true"}},
		"ignores the node port range in proxy mode": {objects: nodes{node("n1")},
			admit: refuseServices(invalidPort("provided port is not in the valid range"))},
		"policy against node ports": {objects: nodes{node("n1")}, options: []func(
			*settings.Settings){modeOf(state.ModeNodePort)},
			admit: refuseServices(apierrors.NewForbidden(corev1.Resource("services"), "x",
				errors.New("exceeded quota: none, services.nodeports=0"))),
			check: "admission", severity: blocker, want: []string{"exceeded quota", "--set registryProxy=true"}},

		"IPv4 on an IPv6-only cluster": {objects: nodes{node("n1", podCIDRs("fd00:1::/64")),
			kubernetesService("fd00::1")}, check: "ip-family", severity: blocker,
			want: []string{"no IPv4", "--set ipFamily=IPv6"}},
		"dual-stack on an IPv6-only cluster": {objects: nodes{node("n1", podCIDRs("fd00:1::/64")),
			kubernetesService("fd00::1")}, options: []func(*settings.Settings){family(state.DualStack)}, check: "ip-family",
			severity: blocker, want: []string{"--set ipFamily=IPv6"}},
		"an explicit node port on an IPv6-only cluster": {objects: nodes{node("n1", podCIDRs("fd00:1::/64")),
			kubernetesService("fd00::1")}, options: []func(*settings.Settings){family(state.IPv6), modeOf(state.ModeNodePort)},
			check: "ip-family", severity: blocker, want: []string{"nodeport mode cannot work", "--set registryProxy=true"}},
		"IPv6 on an IPv4-only cluster": {objects: nodes{node("n1", podCIDRs("10.1.0.0/24")),
			kubernetesService("10.96.0.1")}, options: []func(*settings.Settings){family(state.IPv6)}, check: "ip-family",
			severity: blocker, want: []string{"[::1]:31999", "--set ipFamily=IPv4"}},
		"IPv6 addresses on nodes only": {objects: nodes{node("n1", podCIDRs("10.1.0.0/24"),
			internalIP("fd00::5"))}, options: []func(*settings.Settings){family(state.IPv6)}, check: "ip-family",
			severity: blocker},
		"ignores an additional family of pods": {objects: nodes{node("n1", podCIDRs("fd00:1::/64", "10.1.0.0/24")),
			kubernetesService("fd00::1")}},
		"accepts node addresses if pod CIDRs are unknown": {objects: nodes{node("n1", internalIP("10.0.0.5")),
			kubernetesService("fd00::1")}},
		"accepts the family of any Service": {objects: nodes{node("n1", podCIDRs("10.1.0.0/24")),
			kubernetesService("10.96.0.1"), otherService(func(s *corev1.Service) {
				s.Spec.ClusterIP, s.Spec.Ports = "fd00::7", s.Spec.Ports[:1]
			})},
			options: []func(*settings.Settings){family(state.IPv6)}},
		"accepts any family if none is known": {objects: nodes{node("n1")},
			options: []func(*settings.Settings){family(state.IPv6)}},

		"CRI-O 1.35 with node ports": {objects: nodes{node("n1"), node("n2", runtimeVersion("cri-o://1.35.0"))},
			options: []func(*settings.Settings){modeOf(state.ModeNodePort)}, check: "cri-o", severity: blocker,
			want: []string{"node n2", "--set registryProxy=true"}},
		"CRI-O 1.36 with plain proxies": {objects: nodes{node("n2", runtimeVersion("cri-o://v1.36.1"))},
			options: []func(*settings.Settings){hostNetwork}, check: "cri-o",
			severity: blocker, want: []string{"--set proxy.tls=always"}},
		"CRI-O 2 with TLS": {objects: nodes{node("n2", runtimeVersion("cri-o://2.0.0"))},
			options: []func(*settings.Settings){hostNetwork, func(o *settings.Settings) { o.PKI.ServeTLS = true }},
			check:   "cri-o", severity: warning,
			want: []string{"zarf-registry certs ca", "/etc/containers/certs.d/127.0.0.1:31999/ca.crt"}},
		"CRI-O on an IPv6-only cluster": {objects: nodes{node("n1"), node("n2", runtimeVersion("cri-o://1.34.9"))},
			options: []func(*settings.Settings){hostNetwork, family(state.IPv6)}, check: "ip-family", severity: blocker,
			want: []string{"node n2", "CRI-O accepts no image reference", "IPv6", "--set registryURL="}},
		"no finding for containerd on an IPv6-only cluster": {objects: nodes{node("n1")},
			options: []func(*settings.Settings){hostNetwork, family(state.IPv6)}},
		"no finding for CRI-O 1.34": {objects: nodes{node("n2", runtimeVersion("cri-o://1.34.9"))},
			options: []func(*settings.Settings){hostNetwork}},
		"CRI-O with host ports": {objects: nodes{node("n1"), node("n2", runtimeVersion("cri-o://1.34.9"))},
			check: "host-port", severity: warning, want: []string{"node n2", "--set proxy.hostNetwork=true"}},
		"no finding for CRI-O 1.34 with node ports": {objects: nodes{node("n2", runtimeVersion("cri-o://1.34.9"))},
			options: []func(*settings.Settings){modeOf(state.ModeNodePort)}},

		"only nodes of an unsupported architecture": {objects: nodes{node("n2", architecture("s390x"))},
			check: "architecture", severity: blocker, want: []string{"no other node can run it"}},
		"program missing in this binary": {objects: nodes{node("n1"), node("n2", architecture("arm64"))},
			check: "architecture", severity: blocker,
			want: []string{"program registry for arm64: no payload of registry for arm64"}},
		"ignores architectures without injector": {objects: nodes{node("n1"), node("n2", architecture("s390x"))},
			options: []func(*settings.Settings){modeOf(state.ModeNodePort),
				func(o *settings.Settings) { o.Injector.Enabled = false }}},

		"pause image of a blind rendering": {objects: nodes{node("n1", images("registry.k8s.io/pause:3.9")),
			node("n2", images("registry.k8s.io/pause:3.9", "rancher/mirrored-pause:3.6"))},
			options: []func(*settings.Settings){blindPause},
			check:   "pause-image", severity: blocker, want: []string{"nodes n1, n2", pauseImage,
				"they report registry.k8s.io/pause:3.9@sha256:1, rancher/mirrored-pause:3.6@sha256:1",
				"--set injector.image=registry.k8s.io/pause:3.9@sha256:1, or "}},
		"node without a pause image": {objects: nodes{node("n1"), node("n2", images("docker.io/library/app:1"))},
			check: "pause-image", severity: warning, want: []string{"node n2", "--set injector.image=IMAGE"}},
		"no node with a pause image": {objects: nodes{node("n1", images()), node("n2", images())},
			options: []func(*settings.Settings){blindPause}, check: "pause-image", severity: blocker,
			want: []string{"no pause image is known", "--set injector.image="}},
		"only images that nobody knows": {objects: nodes{node("n1", images("a/pause:9", "a/pause@sha256:aa", "b/c:1")),
			node("n2", images("a/pause:9", "a/pause@sha256:aa"))}, options: []func(*settings.Settings){blindPause, healed},
			check: "pause-image", severity: blocker, want: []string{"nodes n1, n2", "no node reports an image with the digest of an",
				"--set injector.image=a/pause@sha256:aa"}},
		"accepts nodes that the healer serves": {objects: nodes{node("n1"), node("n2", images("registry.k8s.io/pause:3.9"))},
			options: []func(*settings.Settings){healed}},
		"nodes that the healer cannot serve": {objects: nodes{node("n1"), node("n2", images("a/pause:9"))},
			options: []func(*settings.Settings){healed}, check: "pause-image", severity: warning,
			want: []string{"node n2", "they report a/pause:9", "--set injector.image=a/pause:9"}},
		"ignores truncated image lists": {objects: nodes{node("n1"), node("n2", manyImages)},
			options: []func(*settings.Settings){blindPause}},
		"ignores nodes that are not ready": {objects: nodes{node("n1"),
			node("n2", images("a:1"), notReady)}},
		"ignores pause images without injector": {objects: nodes{node("n1", images("a:1"))},
			options: []func(*settings.Settings){blindPause, func(o *settings.Settings) { o.Injector.Enabled = false }}},
		"accepts one node with a pause image in nodeport mode": {objects: nodes{node("n1"), node("n2", images("a:1"))},
			options: []func(*settings.Settings){blindPause, modeOf(state.ModeNodePort)}, check: "pause-image",
			severity: warning},

		"AlwaysPullImages": {objects: nodes{node("n1")},
			admit: changePods(func(c *corev1.Container) { c.ImagePullPolicy = corev1.PullAlways }), check: "always-pull-images",
			severity: blocker, want: []string{"AlwaysPullImages", "--set injector.enabled=false"}},
		"ignores AlwaysPullImages without injector": {objects: nodes{node("n1")},
			options: []func(*settings.Settings){func(o *settings.Settings) { o.Injector.Enabled = false }},
			admit:   changePods(func(c *corev1.Container) { c.ImagePullPolicy = corev1.PullAlways })},
		"kubelets that verify credentials": {objects: nodes{node("n1"), node("n2")}, kubelet: kubeletConfigs("AlwaysVerify", nil,
			"n1", "n2"), check: "always-pull-images", severity: blocker,
			want: []string{"nodes n1, n2", "AlwaysVerify", "NeverVerifyPreloadedImages"}},
		"one kubelet that verifies credentials": {objects: nodes{node("n1"), node("n2"), node("n3", notReady)},
			kubelet: kubeletConfigs("AlwaysVerify", nil, "n2"), check: "always-pull-images", severity: warning,
			want: []string{"node n2"}},
		"kubelets that verify images which are not listed": {objects: nodes{node("n1"), node("n2")},
			kubelet: kubeletConfigs("NeverVerifyAllowlistedImages", []string{"registry.k8s.io/paus", "registry.k8s.io/pause/*"},
				"n1", "n2"), check: "always-pull-images", severity: blocker,
			want: []string{"nodes n1, n2", "NeverVerifyAllowlistedImages", "add the image's repository"}},
		"accepts kubelets that list the image": {objects: nodes{node("n1")},
			kubelet: kubeletConfigs("NeverVerifyAllowlistedImages", []string{"registry.k8s.io/pause"}, "n1")},
		"accepts kubelets that list the image's registry": {objects: nodes{node("n1")},
			kubelet: kubeletConfigs("NeverVerifyAllowlistedImages", []string{"registry.k8s.io/*"}, "n1")},
		"accepts kubelets that verify what they pulled": {objects: nodes{node("n1")},
			kubelet: kubeletConfigs("NeverVerifyPreloadedImages", nil, "n1")},
		"skips kubelets that cannot be read": {objects: nodes{node("n1")}, kubelet: kubeletConfigs("AlwaysVerify", nil)},
		"skips kubelets of nodes that are not ready": {objects: nodes{node("n1"), node("n2", notReady)},
			kubelet: kubeletConfigs("AlwaysVerify", nil, "n2")},
		"ignores kubelets without injector": {objects: nodes{node("n1")},
			options: []func(*settings.Settings){func(o *settings.Settings) { o.Injector.Enabled = false }},
			kubelet: kubeletConfigs("AlwaysVerify", nil, "n1")},
		"webhook that changes images": {objects: nodes{node("n1")},
			admit: changePods(func(c *corev1.Container) { c.Image = "mirror.example.com/" + c.Image }), check: "admission",
			severity: warning, want: []string{"mirror.example.com/" + pauseImage}},
		"webhook that rejects pods": {objects: nodes{node("n1")},
			admit: refusePods(apierrors.NewBadRequest(`admission webhook "policy.example.com" denied the request: no`)),
			check: "admission", severity: blocker, want: []string{"policy.example.com"}},
		"webhook that is down": {objects: nodes{node("n1")},
			admit: refusePods(apierrors.NewInternalError(errors.New(`failed calling webhook "policy.example.com"`))),
			check: "admission", severity: blocker, want: []string{"policy.example.com"}},
		"quota": {objects: nodes{node("n1")}, admit: refusePods(
			apierrors.NewForbidden(corev1.Resource("pods"), "x", errors.New("exceeded quota: few"))), check: "admission",
			severity: blocker, want: []string{"exceeded quota: few"}},
		"quota that the running pods fill": {
			objects: nodes{node("n1"), saved(t, state.ModeProxy, "127.0.0.1:31999", state.IPv4)},
			admit:   refusePods(apierrors.NewForbidden(corev1.Resource("pods"), "x", errors.New("exceeded quota: few"))),
			check:   "admission", severity: warning, want: []string{"has no room for another pod of the registry", "exceeded quota: few"}},

		"no finding for a new external registry": {objects: nodes{node("n1", runtimeVersion("cri-o://1.35.0"),
			images("a:1"))}, options: []func(*settings.Settings){modeOf(state.ModeExternal),
			func(o *settings.Settings) { o.RegistryURL = registryURL }}, admit: refusePods(errors.New("no pods are tried"))},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, c.objects...)
			for _, change := range c.options {
				change(&b.hook.Settings)
			}
			b.admit = c.admit
			b.hook.Cluster.Preflight.KubeletConfig = c.kubelet
			findings, err := b.hook.Preflight(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			b.mustNotWrite()
			if c.check == "" {
				if len(findings) != 0 {
					t.Errorf("findings are %v", findings)
				}
				return
			}
			for _, f := range findings {
				if f.Check != c.check || f.Severity != c.severity || f.Object == "" || f.Cause == "" || f.Remedy == "" ||
					strings.Contains(f.String(), "\n") {
					t.Errorf("finding is %+v, want a %s of %s", f, c.severity, c.check)
				}
				if !slices.Contains(preflight.Checks(), f.Check) {
					t.Errorf("unknown check %s", f.Check)
				}
			}
			if len(findings) == 0 {
				t.Fatal("no findings")
			}
			for _, want := range c.want {
				if line := findings[0].String(); !strings.Contains(line, want) {
					t.Errorf("finding is %q, want one with %q", line, want)
				}
			}

			// Prepare reports the same, and all blockers at once.
			err = b.hook.Prepare(t.Context())
			if c.severity == blocker {
				b.mustFail(err, true, append(c.want, "nothing was changed")...)
				b.mustNotWrite()
				b.hook.Settings.Preflight.Ignore = []string{c.check}
				again, err := b.hook.Preflight(t.Context())
				if err != nil || slices.ContainsFunc(again, func(f preflight.Finding) bool { return f.Severity == blocker }) {
					t.Errorf("still a blocker although ignored: %v (%v)", again, err)
				}
				return
			}
			if err != nil {
				t.Errorf("prepare failed because of a warning: %v", err)
			}
			b.mustLog(`"check":"` + c.check + `"`)
		})
	}
}

func onHostNetwork(o *settings.Settings) {
	o.Proxy.HostNetwork, o.Proxy.NodePorts = true, []int{31999, 9102}
}

// proxiesOf returns the Service of a release whose proxies listen on ports of the nodes.
func proxiesOf(namespace, release, ports string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "registry",
		Labels:      map[string]string{names.LabelName: names.Chart, names.LabelInstance: release},
		Annotations: map[string]string{"zarf-registry/node-ports": ports}}}
}

func TestPrepareReportsAllBlockersAndAllCanBeIgnored(t *testing.T) {
	t.Parallel()
	b := newBench(t, node("n1", runtimeVersion("cri-o://1.35.0"), images("registry.k8s.io/pause:3.9")), otherService())
	blindPause(&b.hook.Settings)
	b.hook.Settings.Proxy.HostNetwork = true
	err := b.hook.Prepare(t.Context())
	b.mustFail(err, true, "\n  port: ", "\n  cri-o: ", "\n  pause-image: ")
	if lines := strings.Count(err.Error(), "\n"); lines != 3 {
		t.Errorf("three blockers took %d lines", lines)
	}
	b.hook.Settings.Preflight.Ignore = []string{"port", "cri-o"}
	b.mustFail(b.hook.Prepare(t.Context()), true, "\n  pause-image: ")
	findings, err := b.hook.Preflight(t.Context())
	if err != nil || len(findings) != 3 || findings[0].Check != "pause-image" ||
		findings[0].Severity != preflight.Blocker {
		t.Errorf("the blocker is not the first: %v (%v)", findings, err)
	}
	b.hook.Settings.Preflight.Ignore = []string{"all"}
	b.mustPrepare()
}

func TestPreflightNamesMissingPermission(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ verb, resource string }{
		"to list nodes":     {"list", "nodes"},
		"to read the state": {"get", "secrets"},
		"to create pods":    {"create", "pods"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, node("n1"))
			b.answer(c.verb, c.resource, forbiddenBy(c.verb, c.resource))
			_, err := b.hook.Preflight(t.Context())
			b.mustFail(err, true, fmt.Sprintf("cannot %s resource %q", c.verb, c.resource))
		})
	}
}

// Without the permission to list Services, the release's own may be the one that has the port.
func TestPreflightDoesNotBlameTheOwnService(t *testing.T) {
	t.Parallel()
	for _, mode := range []state.Mode{state.ModeProxy, state.ModeNodePort} {
		b := newBench(t)
		b.upgrade(mode)
		b.answer("list", "services", forbiddenBy("list", "services"))
		b.admit = refuseServices(invalidPort("provided port is already allocated"))
		b.upgrade(mode)
		b.checkFinished()
		b.remove("services", serviceName)
		b.answer("create", "services", invalidPort("provided port is already allocated"))
		b.mustFail(b.hook.Prepare(t.Context()), true, "provided port is already allocated")
	}
}

func TestPreflightWaitsForNewNamespace(t *testing.T) {
	simulate(t, func(t *testing.T) {
		missing := apierrors.NewForbidden(corev1.Resource("pods"), "x",
			errors.New(`error looking up service account zarf/default: serviceaccount "default" not found`))
		b := newBench(t, node("n1"))
		tries := 0
		b.admit = func(o runtime.Object) error {
			if _, ok := o.(*corev1.Pod); ok && tries < 5 {
				tries++
				return missing
			}
			return nil
		}
		b.mustFindNothing()
		b.admit = refusePods(missing)
		findings, err := b.hook.Preflight(t.Context())
		if err != nil || len(findings) == 0 || findings[0].Check != "admission" || findings[0].Severity != preflight.Blocker {
			t.Errorf("found %v (%v)", findings, err)
		}
	})
}

func TestOverloadedAPIServerIsNoFinding(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := newBench(t, node("n1"))
		b.admit = refusePods(apierrors.NewServiceUnavailable("starting"))
		findings, err := b.hook.Preflight(t.Context())
		if len(findings) != 0 {
			t.Errorf("found %v", findings)
		}
		b.mustFail(err, false, "trying a pod of the registry with a dry run", "starting")
	})
}
