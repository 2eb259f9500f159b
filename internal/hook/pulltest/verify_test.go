package pulltest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/zarf-dev/zarf-registry/internal/hook/nodes"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/settings"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

type images struct{}

func (images) ProbeImage(state.Mode) (string, error) { return "team/shop:2", nil }

// fakeNodes lists the nodes that exist at the beginning, and then what the cluster reports.
type fakeNodes struct {
	*fakeCluster
	names []string
	asked int
}

func (f *fakeNodes) List(ctx context.Context, _ metav1.ListOptions) (*corev1.NodeList, error) {
	f.asked++
	list := &corev1.NodeList{}
	if f.asked == 1 {
		for _, name := range f.names {
			list.Items = append(list.Items, linux(node(name)))
		}
		return list, nil
	}
	ready, err := f.ready(ctx)
	for name, is := range ready {
		n := linux(node(name))
		if !is {
			n.Status.Conditions[0].Status = corev1.ConditionUnknown
		}
		list.Items = append(list.Items, n)
	}
	return list, err
}

func linux(n corev1.Node) corev1.Node {
	n.Status.NodeInfo.OperatingSystem, n.Status.NodeInfo.Architecture = "linux", "amd64"
	return n
}

func newVerifier(c *fakeCluster, names ...string) (*Verifier, *bytes.Buffer) {
	c.pods = map[string]corev1.Pod{"killed": {ObjectMeta: metav1.ObjectMeta{Name: "killed"}}}
	c.kubelet, c.nodes = kubelet, names
	log := &bytes.Buffer{}
	logger := slog.New(slog.NewTextHandler(log, nil))
	return &Verifier{Pods: c, Images: images{}, Observer: &nodes.Observer{
		Release: &release.Release{Settings: settings.Settings{Name: "r", Namespace: "zarf", Release: "r",
			Mode: state.ModeNodePort, Address: "127.0.0.1:31999", Architectures: []string{"amd64"}},
			Log: logger, Progress: release.Logged{Log: logger}, Now: time.Now},
		Cluster: nodes.Cluster{Nodes: &fakeNodes{fakeCluster: c, names: names}, Events: fakeEvents{c}},
	}}, log
}

func TestVerification(t *testing.T) {
	for name, c := range map[string]struct {
		nodes     []string
		switching bool
		change    func(*fakeCluster)
		verified  []string
		did       []string // parts of the description
		err       []string // parts of the error
		logged    string
		atMost    time.Duration
	}{
		"all nodes pull": {nodes: []string{"b", "a"}, verified: []string{"a", "b"},
			did: []string{"on 2 of 2 nodes (nodes a, b)"}, atMost: 2 * time.Second},
		"a node that reboots meanwhile is skipped": {nodes: []string{"a", "reboots"}, verified: []string{"a"},
			did: []string{"on 1 of 2 nodes (node a)", "not verified: node reboots"}, logged: "no longer ready",
			atMost: 15 * time.Second},
		"a node that is removed meanwhile is skipped, also in a switch": {nodes: []string{"a", "is removed"},
			switching: true, verified: []string{"a"}, did: []string{"not verified: node is removed"}, atMost: 15 * time.Second},
		"a node without room is skipped, and the message says why": {nodes: []string{"a", "full"}, verified: []string{"a"},
			did: []string{"not verified: node full"}, logged: "its kubelet rejected the pod: OutOfpods: too many pods",
			atMost: 15 * time.Second},
		"no node has room": {nodes: []string{"full"}, err: []string{"no node was verified: node full"},
			atMost: 15 * time.Second},
		"a pod that was deleted is created again": {nodes: []string{"deletes", "a"}, verified: []string{"a", "deletes"},
			change: func(c *fakeCluster) {
				c.kubelet = func(node string, age time.Duration) (corev1.PodStatus, []corev1.Event) {
					if node == "deletes" && c.seen[node] == 1 {
						return corev1.PodStatus{Phase: corev1.PodPending}, nil
					}
					return kubelet("a", time.Hour)
				}
			}, did: []string{"on 2 of 2 nodes"}, atMost: 10 * time.Second},
		"a silent kubelet fails a switch only when the node controller has had time": {nodes: []string{"a", "dead"},
			switching: true, err: []string{"node dead could not pull", "its kubelet reported nothing"},
			atMost: 91 * time.Second},
		"a program that cannot run": {nodes: []string{"exits"},
			err:    []string{"node exits could not pull", "was pulled but could not run", "exec format error"},
			atMost: 2 * time.Second},
		"no loopback": {nodes: []string{"refused"}, err: []string{"registryProxy=true"}, atMost: 21 * time.Second},
		"other nodes are not tried after a failure": {nodes: append(slices.Repeat([]string{"refused"}, nodesAtOnce), "a"),
			err: []string{"and 40 more could not pull"}, atMost: 22 * time.Second},
		"an API server that restarts": {nodes: []string{"a"}, verified: []string{"a"}, did: []string{"on 1 of 1"},
			change: func(c *fakeCluster) {
				tries := 0
				c.refuse = func(*corev1.Pod) error {
					if tries++; tries < 3 {
						return errors.New("connection refused")
					}
					return nil
				}
			}, atMost: 3 * time.Second},
		"a quota of pods": {nodes: []string{"a", "b", "c", "d"}, verified: []string{"a", "b", "c", "d"},
			did: []string{"on 4 of 4"}, change: func(c *fakeCluster) { c.quota = 2 }, atMost: 5 * time.Second},
		"a LimitRange": {nodes: []string{"a", "b"}, verified: []string{"a", "b"}, did: []string{"on 2 of 2"},
			change: func(c *fakeCluster) {
				c.refuse = func(pod *corev1.Pod) error {
					if len(pod.Spec.Containers[0].Resources.Limits) == 0 {
						return nil
					}
					return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "r-probe-1",
						errors.New("minimum memory usage per Container is 32Mi, but request is 0"))
				}
			}, atMost: 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cluster := &fakeCluster{}
				v, log := newVerifier(cluster, c.nodes...)
				if c.change != nil {
					c.change(cluster)
				}
				begin := time.Now()
				verified, did, err := v.Nodes(t.Context(), c.switching)
				if took := time.Since(begin); took > c.atMost {
					t.Errorf("it took %s, want at most %s", took, c.atMost)
				}
				if !slices.Equal(verified, c.verified) || (err != nil) != (len(c.err) > 0) {
					t.Errorf("verified %q, error %v", verified, err)
				}
				for _, part := range slices.Concat(c.did, c.err) {
					if !strings.Contains(did+fmt.Sprint(err), part) {
						t.Errorf("it says %q and %v, want %q", did, err, part)
					}
				}
				if !strings.Contains(log.String(), c.logged) {
					t.Errorf("the log lacks %q: %s", c.logged, log)
				}
				if len(cluster.pods) > 0 {
					t.Errorf("%d pods are left", len(cluster.pods))
				}
				if len(log.String()) > 250*len(c.nodes)+1000 {
					t.Errorf("the log has %d bytes", log.Len())
				}
			})
		})
	}
}

// podsOf lists the pods that configure nodes.
type podsOf []string

func (p podsOf) List(context.Context, metav1.ListOptions) (*corev1.PodList, error) {
	list := &corev1.PodList{}
	for _, name := range p {
		list.Items = append(list.Items, corev1.Pod{Spec: corev1.PodSpec{NodeName: name}})
	}
	return list, nil
}

func (podsOf) Delete(context.Context, string, metav1.DeleteOptions) error {
	return errors.New("not asked for")
}

func TestMirrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := &fakeCluster{}
		names := []string{"a", "b", "refused", "full", "not configured"}
		v, _ := newVerifier(cluster, names...)
		v.Settings.NodeConfig.Mirrors = []string{"!quay.io", "*"}
		v.Cluster.Pods = podsOf{"a", "b", "refused", "full"}
		begin := time.Now()
		m, err := v.Mirrors(t.Context(), names)
		if err != nil || !slices.Equal(m.Pulled, []string{"a", "b"}) || len(m.Failed) != 1 ||
			!slices.Equal(m.Failed[0].Nodes, []string{"refused"}) || m.Image != "zarf-registry.invalid/team/shop:2" ||
			!m.CheckedAt.Equal(begin) {
			t.Errorf("%+v, %v", m, err)
		}
		if took := time.Since(begin); took > mirrorTimeout+time.Second {
			t.Errorf("it took %s", took)
		}
		if len(cluster.pods) > 0 || cluster.seen["not configured"] > 0 {
			t.Errorf("%d pods are left, created %v", len(cluster.pods), cluster.seen)
		}
	})
}

// A runtime of which every node fails costs one attempt on as many nodes as pull at once.
func TestMirrorsThatNoNodeUses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := slices.Repeat([]string{"refused"}, 3*nodesAtOnce)
		cluster := &fakeCluster{}
		v, _ := newVerifier(cluster, nodes...)
		v.Settings.NodeConfig.Mirrors, v.Cluster.Pods = []string{"docker.io"}, podsOf(nodes)
		m, err := v.Mirrors(t.Context(), nodes)
		if err != nil || len(m.Pulled) > 0 || len(m.Failed) != 1 || cluster.created != nodesAtOnce {
			t.Errorf("%+v, %v, %d pods", m, err, cluster.created)
		}
	})
}

// Each pod is deleted when its node has pulled, so that listings stay short, and no line names all nodes.
func TestFiveThousandNodesAreVerified(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := &fakeCluster{}
		var names []string
		for i := range 5000 {
			names = append(names, fmt.Sprintf("n%04d", i))
		}
		v, log := newVerifier(cluster, names...)
		verified, did, err := v.Nodes(t.Context(), false)
		if err != nil || len(verified) != 5000 || len(cluster.pods) != 0 || cluster.most > nodesAtOnce {
			t.Errorf("verified %d, %d pods left, %d at once, %v", len(verified), len(cluster.pods), cluster.most, err)
		}
		if len(did) > 300 || log.Len() > 300 {
			t.Errorf("the description has %d bytes, the log %d", len(did), log.Len())
		}
	})
}

func TestVerifyingPodsFitIntoQuotas(t *testing.T) {
	v, _ := newVerifier(&fakeCluster{})
	pod := v.puller(image, false).pod("n1")
	c := pod.Spec.Containers[0]
	for _, list := range []corev1.ResourceList{c.Resources.Requests, c.Resources.Limits} {
		if len(list) != 2 {
			t.Errorf("a quota may reject the resources %+v", c.Resources)
		}
	}
	if c.ImagePullPolicy != corev1.PullAlways || pod.Spec.ActiveDeadlineSeconds == nil ||
		*pod.Spec.AutomountServiceAccountToken || *c.SecurityContext.AllowPrivilegeEscalation ||
		c.SecurityContext.Capabilities.Drop[0] != "ALL" || !*pod.Spec.SecurityContext.RunAsNonRoot || pod.Spec.ImagePullSecrets[0].Name != "r-pull" ||
		pod.Labels["zarf.dev/agent"] != "ignore" {
		t.Errorf("%+v", pod)
	}
	v.Settings.Mode = state.ModeProxy
	if v.puller(image, false).pod("n1").Spec.ImagePullSecrets != nil {
		t.Error("proxy mode has a pull secret")
	}
}

func TestAdviceFollowsTheModeAndTheComplaint(t *testing.T) {
	const (
		proxy = state.ModeProxy
		port  = state.ModeNodePort
	)
	for _, c := range []struct {
		mode            state.Mode
		complaint, want string
	}{
		{port, "http: server gave HTTP response to HTTPS client", "--set registryProxy=true --set proxy.tls=always"},
		{proxy, "http: server gave HTTP response to HTTPS client", "on loopback: --set proxy.tls=always"},
		{proxy, "x509: certificate signed by unknown authority", "nodeConfig.crio.ca=true"},
		{proxy, "x509: certificate signed by unknown authority", "--set proxy.tls=never where"},
		{port, "dial tcp 127.0.0.1:31999: connect: connection refused", adviceNotServed},
		{port, "unexpected status: 403 Forbidden", adviceNotServed},
		{proxy, "dial tcp 127.0.0.1:31999: connect: connection refused", "proxy.hostNetwork=true"},
		{proxy, "unexpected status: 403 Forbidden", "another Service or pod that uses the port"},
		{port, "401 Unauthorized", "repairs the Secret"},
		{proxy, "503 Service Unavailable", "logs of the proxy pod on that node and the network policies"},
		{proxy, "manifest unknown: not found", "helm upgrade again, which pushes it"},
		{port, "i/o timeout", "registry's port 5001"},
		{proxy, "i/o timeout", "on CRI-O --set proxy.hostNetwork=true"},
		{port, "other", "kube-proxy on that node"},
		{proxy, "other", "logs of the proxy pod on that node"},
	} {
		if got := advice(c.mode, c.complaint); !strings.Contains(got, c.want) {
			t.Errorf("%s, %q: %s", c.mode, c.complaint, got)
		}
	}
}
