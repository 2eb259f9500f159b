package hook_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/zarf-dev/zarf-registry/internal/hook/preflight"
	"github.com/zarf-dev/zarf-registry/internal/node/noderuntime"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/settings"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/golden"
	"github.com/zarf-dev/zarf-registry/test/require"
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

// notOurs is a Service of another owner with the name of the release's.
func notOurs(ports []corev1.ServicePort) *corev1.Service {
	s := nodePortService()
	s.Labels, s.Spec.Ports = nil, ports
	return s
}

func udp(s *corev1.Service)     { s.Spec.Ports[1].Protocol = corev1.ProtocolUDP }
func onePort(s *corev1.Service) { s.Spec.Ports = s.Spec.Ports[:1] }

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

func notInjected(o *settings.Settings) { o.Injector.Enabled = false }
func serveTLS(o *settings.Settings)    { o.PKI.ServeTLS = true }
func externalURL(o *settings.Settings) { o.RegistryURL = registryURL }

// all makes several changes.
func all(changes ...func(*settings.Settings)) func(*settings.Settings) {
	return func(o *settings.Settings) {
		for _, change := range changes {
			change(o)
		}
	}
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

var alwaysPull = changePods(func(c *corev1.Container) { c.ImagePullPolicy = corev1.PullAlways })

// quota is the API server's error for a ResourceQuota without room.
func quota(name string) error {
	return apierrors.NewForbidden(corev1.Resource("pods"), "x", errors.New("exceeded quota: "+name))
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

// A situation is a cluster with a node, unless it has others, and settings for an installation.
type situation struct {
	objects  objects
	settings func(*settings.Settings)
	arrange  func(*bench)
	admit    func(runtime.Object) error
	kubelet  func(context.Context, string) ([]byte, error)
	dial     func(context.Context, string, string) (net.Conn, error)
	inPod    bool
}

type objects = []runtime.Object

// findings compares what preflight finds in each situation with a golden file. prepare reports the same, and changes
// nothing if there is a blocker.
func findings(t *testing.T, file string, situations map[string]situation) {
	t.Helper()
	golden := golden.Open(t, file)
	for name, s := range situations {
		t.Run(name, func(t *testing.T) {
			if !slices.ContainsFunc(s.objects, func(o runtime.Object) bool { _, is := o.(*corev1.Node); return is }) {
				s.objects = append(s.objects, node("n1"))
			}
			b := newBench(t, s.objects...)
			b.admit = s.admit
			if s.settings != nil {
				s.settings(&b.hook.Settings)
			}
			if s.arrange != nil {
				s.arrange(b)
			}
			p := &b.hook.Cluster.Preflight
			p.KubeletConfig, p.Dial, p.InPod = s.kubelet, s.dial, s.inPod
			found, err := b.hook.Preflight(t.Context())
			require.NoError(t, err)
			b.mustNotWrite()
			var text, blockers strings.Builder
			for _, f := range found {
				fmt.Fprintf(&text, "%s %s\n", f.Severity, f)
				if f.Severity == preflight.Blocker {
					fmt.Fprintf(&blockers, "\n  %s", f)
				}
				if f.Object == "" && f.Check != "nodeConfig" || f.Cause == "" || f.Remedy == "" ||
					!slices.Contains(preflight.Checks(), f.Check) {
					t.Errorf("finding is %+v", f)
				}
			}
			golden.Check(t, name, text.String())

			err = b.hook.Prepare(t.Context())
			if blockers.Len() == 0 {
				b.must(err)
				for _, f := range found {
					b.mustLog(`"check":"` + f.Check + `"`)
				}
				return
			}
			b.mustFail(err, true, blockers.String(), "nothing was changed")
			b.mustNotWrite()
			for _, f := range found {
				b.hook.Settings.Preflight.Ignore = append(b.hook.Settings.Preflight.Ignore, f.Check)
			}
			found, err = b.hook.Preflight(t.Context())
			if err != nil || found[0].Severity == preflight.Blocker {
				t.Errorf("still a blocker although ignored: %v (%v)", found, err)
			}
			if strings.Contains(b.log.String()+text.String(), "hunter2") {
				t.Error("a message has the content of a Secret")
			}
		})
	}
}

func TestPreflightFinds(t *testing.T) {
	t.Parallel()
	findings(t, "preflight", map[string]situation{
		"no finding on a healthy cluster": {objects: objects{kubernetesService("10.96.0.1")}},
		"no finding on a healthy cluster in nodeport mode": {objects: objects{kubernetesService("10.96.0.1")},
			settings: modeOf(state.ModeNodePort)},

		"node port of another Service": {objects: objects{otherService()}},
		"node port of another Service, nodeport mode": {objects: objects{otherService()},
			settings: modeOf(state.ModeNodePort)},
		"UDP node port in proxy mode": {objects: objects{otherService(udp)}},
		"ignores a UDP node port if the port is not reserved": {objects: objects{otherService(udp)},
			settings: unreserved, admit: refuseServices(errors.New("not asked"))},
		"node port of another Service if the port is not reserved": {objects: objects{otherService()}, settings: unreserved},
		"Service of someone else with the name":                    {objects: objects{notOurs(nil)}},
		"ignores a policy against node ports in proxy mode":        {admit: refuseServices(quota("none, services.nodeports=0"))},
		"ignores the release's own Service": {objects: objects{nodePortService()},
			settings: modeOf(state.ModeNodePort),
			admit:    refuseServices(errors.New("the allocated port must not be requested"))},
		"Service of another release": {objects: objects{notOurs(nodePortService().Spec.Ports)}},
		"proxies of another release on the host network": {objects: objects{proxiesOf("app", "other", "31998,9102")},
			settings: onHostNetwork},
		"ignores proxies of another release on other ports": {objects: objects{proxiesOf("app", "other", "31998,9103")},
			settings: onHostNetwork},
		"ignores the release's own proxies": {objects: objects{proxiesOf("zarf", "zarf-registry", "31999,9102")},
			settings: onHostNetwork},
		"node port allocated meanwhile": {settings: modeOf(state.ModeNodePort),
			admit: refuseServices(
				invalidPort("spec.ports[0].nodePort: Invalid value: 31999: provided port is already allocated"))},
		"port outside the node port range": {settings: modeOf(state.ModeNodePort),
			admit: refuseServices(
				invalidPort("spec.ports[0].nodePort: Invalid value: 5999: provided port is not in the valid range. The range of " +
					"valid ports is 30000-32767"))},
		"ignores the node port range in proxy mode": {
			admit: refuseServices(invalidPort("provided port is not in the valid range"))},
		"policy against node ports": {settings: modeOf(state.ModeNodePort),
			admit: refuseServices(quota("none, services.nodeports=0"))},

		"IPv4 on an IPv6-only cluster": {objects: objects{node("n1", podCIDRs("fd00:1::/64")), kubernetesService("fd00::1")}},
		"dual-stack on an IPv6-only cluster": {objects: objects{node("n1", podCIDRs("fd00:1::/64")),
			kubernetesService("fd00::1")}, settings: family(state.DualStack)},
		"an explicit node port on an IPv6-only cluster": {objects: objects{node("n1", podCIDRs("fd00:1::/64")),
			kubernetesService("fd00::1")}, settings: all(family(state.IPv6), modeOf(state.ModeNodePort))},
		"IPv6 on an IPv4-only cluster": {
			objects:  objects{node("n1", podCIDRs("10.1.0.0/24")), kubernetesService("10.96.0.1")},
			settings: family(state.IPv6)},
		"IPv6 addresses on nodes only": {objects: objects{node("n1", podCIDRs("10.1.0.0/24"), internalIP("fd00::5"))},
			settings: family(state.IPv6)},
		"ignores an additional family of pods": {objects: objects{node("n1", podCIDRs("fd00:1::/64", "10.1.0.0/24")),
			kubernetesService("fd00::1")}},
		"accepts node addresses if pod CIDRs are unknown": {objects: objects{node("n1", internalIP("10.0.0.5")),
			kubernetesService("fd00::1")}},
		"accepts the family of any Service": {objects: objects{node("n1", podCIDRs("10.1.0.0/24")),
			kubernetesService("10.96.0.1"), otherService(func(s *corev1.Service) {
				s.Spec.ClusterIP, s.Spec.Ports = "fd00::7", s.Spec.Ports[:1]
			})},
			settings: family(state.IPv6)},
		"accepts any family if none is known": {settings: family(state.IPv6)},

		"CRI-O 1.35 with node ports": {objects: objects{node("n1"), node("n2", runtimeVersion("cri-o://1.35.0"))},
			settings: modeOf(state.ModeNodePort)},
		"CRI-O 1.36 with plain proxies": {objects: objects{node("n2", runtimeVersion("cri-o://v1.36.1"))},
			settings: hostNetwork},
		"CRI-O 2 with TLS": {objects: objects{node("n2", runtimeVersion("cri-o://2.0.0"))},
			settings: all(hostNetwork, serveTLS)},
		"CRI-O on an IPv6-only cluster": {objects: objects{node("n1"), node("n2", runtimeVersion("cri-o://1.34.9"))},
			settings: all(hostNetwork, family(state.IPv6))},
		"no finding for containerd on an IPv6-only cluster": {settings: all(hostNetwork, family(state.IPv6))},
		"no finding for CRI-O 1.34": {objects: objects{node("n2", runtimeVersion("cri-o://1.34.9"))},
			settings: hostNetwork},
		"CRI-O with host ports": {objects: objects{node("n1"), node("n2", runtimeVersion("cri-o://1.34.9"))}},
		"CRI-O 2 that trusts the CA": {objects: objects{node("n2", runtimeVersion("cri-o://2.0.0"))},
			settings: all(hostNetwork, serveTLS), arrange: func(b *bench) { b.configureNodes(true) }},
		"CRI-O 2 with plain proxies that it accepts": {objects: objects{node("n2", runtimeVersion("cri-o://2.0.0"))},
			settings: hostNetwork, arrange: func(b *bench) {
				config := noderuntime.Config{Release: "zarf/zarf-registry", Address: "127.0.0.1:31999",
					Directories: []string{"/etc/containers/registries.conf.d"}}
				config.CRIO.ConfDirectory, config.CRIO.Insecure = "/etc/containers/registries.conf.d", true
				b.hook.Settings.NodeConfig.Directories, b.hook.NodeConfigData = config.Directories, configData(b, config)
			}},
		"no finding for CRI-O 1.34 with node ports": {objects: objects{node("n2", runtimeVersion("cri-o://1.34.9"))},
			settings: modeOf(state.ModeNodePort)},

		"only nodes of an unsupported architecture": {objects: objects{node("n2", architecture("s390x"))}},
		"program missing in this binary":            {objects: objects{node("n1"), node("n2", architecture("arm64"))}},
		"ignores architectures without injector": {objects: objects{node("n1"), node("n2", architecture("s390x"))},
			settings: all(modeOf(state.ModeNodePort), notInjected)},

		"pause image of a blind rendering": {objects: objects{node("n1", images("registry.k8s.io/pause:3.9")),
			node("n2", images("registry.k8s.io/pause:3.9", "rancher/mirrored-pause:3.6"))},
			settings: blindPause},
		"node without a pause image": {objects: objects{node("n1"), node("n2", images("docker.io/library/app:1"))}},
		"no node with a pause image": {objects: objects{node("n1", images()), node("n2", images())}, settings: blindPause},
		"only images that nobody knows": {objects: objects{node("n1", images("a/pause:9", "a/pause@sha256:aa", "b/c:1")),
			node("n2", images("a/pause:9", "a/pause@sha256:aa"))}, settings: all(blindPause, healed)},
		"accepts nodes that the healer serves": {
			objects:  objects{node("n1"), node("n2", images("registry.k8s.io/pause:3.9"))},
			settings: healed},
		"nodes that the healer cannot serve": {objects: objects{node("n1"), node("n2", images("a/pause:9"))},
			settings: healed},
		"ignores truncated image lists":    {objects: objects{node("n1"), node("n2", manyImages)}, settings: blindPause},
		"ignores nodes that are not ready": {objects: objects{node("n1"), node("n2", images("a:1"), notReady)}},
		"ignores pause images without injector": {objects: objects{node("n1", images("a:1"))},
			settings: all(blindPause, notInjected)},
		"accepts one node with a pause image in nodeport mode": {objects: objects{node("n1"), node("n2", images("a:1"))},
			settings: all(blindPause, modeOf(state.ModeNodePort))},

		"AlwaysPullImages":                          {admit: alwaysPull},
		"ignores AlwaysPullImages without injector": {settings: notInjected, admit: alwaysPull},
		"kubelets that verify credentials": {objects: objects{node("n1"), node("n2")},
			kubelet: kubeletConfigs("AlwaysVerify", nil, "n1", "n2")},
		"one kubelet that verifies credentials": {objects: objects{node("n1"), node("n2"), node("n3", notReady)},
			kubelet: kubeletConfigs("AlwaysVerify", nil, "n2")},
		"kubelets that verify images which are not listed": {objects: objects{node("n1"), node("n2")},
			kubelet: kubeletConfigs("NeverVerifyAllowlistedImages", []string{"registry.k8s.io/paus", "registry.k8s.io/pause/*"},
				"n1", "n2")},
		"accepts kubelets that list the image": {
			kubelet: kubeletConfigs("NeverVerifyAllowlistedImages", []string{"registry.k8s.io/pause"}, "n1")},
		"accepts kubelets that list the image's registry": {
			kubelet: kubeletConfigs("NeverVerifyAllowlistedImages", []string{"registry.k8s.io/*"}, "n1")},
		"accepts kubelets that verify what they pulled": {kubelet: kubeletConfigs("NeverVerifyPreloadedImages", nil, "n1")},
		"skips kubelets that cannot be read":            {kubelet: kubeletConfigs("AlwaysVerify", nil)},
		"skips kubelets of nodes that are not ready": {objects: objects{node("n1"), node("n2", notReady)},
			kubelet: kubeletConfigs("AlwaysVerify", nil, "n2")},
		"ignores kubelets without injector": {settings: notInjected, kubelet: kubeletConfigs("AlwaysVerify", nil, "n1")},
		"webhook that changes images": {
			admit: changePods(func(c *corev1.Container) { c.Image = "mirror.example.com/" + c.Image })},
		"webhook that rejects pods": {
			admit: refusePods(apierrors.NewBadRequest(`admission webhook "policy.example.com" denied the request: no`))},
		"webhook that is down": {
			admit: refusePods(apierrors.NewInternalError(errors.New(`failed calling webhook "policy.example.com"`)))},
		"quota": {admit: refusePods(quota("few"))},
		"quota that the running pods fill": {objects: objects{saved(t, state.ModeProxy, "127.0.0.1:31999", state.IPv4)},
			admit: refusePods(quota("few"))},

		"host ports below the level privileged": {objects: objects{namespace("baseline")},
			arrange: func(b *bench) { b.admit = podSecurityAt(b) }},
		"the host network below the level privileged": {objects: objects{namespace("baseline")}, settings: hostNetwork,
			arrange: func(b *bench) { b.admit = podSecurityAt(b) }},

		"no finding for a new external registry": {objects: objects{node("n1", runtimeVersion("cri-o://1.35.0"),
			images("a:1"))}, settings: all(modeOf(state.ModeExternal), externalURL),
			admit: refusePods(errors.New("no pods are tried"))},
	})
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
		b := upgraded(t, mode)
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
