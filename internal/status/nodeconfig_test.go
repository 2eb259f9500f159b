package status_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/node/noderuntime"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/internal/status"
	"github.com/zarf-dev/zarf-registry/test/golden"
)

const k3s = "v1.36.3+k3s1"

var written = now.Add(-time.Hour)

// configure has the DaemonSet of node configuration, and says how many pods it is to have.
func (c cluster) configure(t *testing.T, wanted, scheduled int32) cluster {
	t.Helper()
	d := &appsv1.DaemonSet{ObjectMeta: meta("zarf-registry-node-config-1", "node-config"),
		Spec: appsv1.DaemonSetSpec{Template: template(nodeLoad)}}
	d.Status.DesiredNumberScheduled, d.Status.CurrentNumberScheduled = wanted, scheduled
	c.payload(t, nodeLoad, "registry-node", 1_500_000)
	return c.add(d)
}

// configPod is the pod that configures a node, with what its init container left.
func configPod(node string, exit int32, message string) *corev1.Pod {
	p := pod("node-config", node, exit == 0)
	p.Status.ContainerStatuses = nil
	last := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: exit, Message: message}}
	init := corev1.ContainerStatus{Name: "configure", State: last, Ready: exit == 0}
	if exit != 0 {
		init.State, init.LastTerminationState = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 10s"}}, last
	}
	p.Status.InitContainerStatuses = []corev1.ContainerStatus{init}
	return p
}

func encode(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(data)
}

// registries is the report of a node with a registries.yaml.
func registries() string {
	return encode(noderuntime.Report{Release: "zarf/zarf-registry", Written: 1, Changed: written,
		Registries: &noderuntime.RegistriesReport{Path: "/etc/rancher/k3s/registries.yaml", Changed: written}})
}

// kubelet gives a node a version of its kubelet, and a role.
func kubelet(n *corev1.Node, version string, roles ...string) *corev1.Node {
	n.Status.NodeInfo.KubeletVersion = version
	n.Labels = map[string]string{}
	for _, role := range roles {
		n.Labels["node-role.kubernetes.io/"+role] = "true"
	}
	return n
}

func TestWithoutNodeConfigurationThereIsNothingToSay(t *testing.T) {
	r := healthy(t, state.ModeProxy).collect(t)
	if data := encode(r); !strings.Contains(data, `"nodeConfig":[]`) {
		t.Error(data)
	}
}

func TestAConfiguredNode(t *testing.T) {
	files := encode(noderuntime.Report{Written: 1, Unchanged: 2, Restored: 3, Removed: 4, Changed: written,
		Warnings: []string{"one\nline"}})
	waiting := configPod("n1", 0, "")
	init := &waiting.Status.InitContainerStatuses[0]
	init.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no such\nhost"}}
	init.Ready = false
	golden := golden.Open(t, "nodeconfig")
	for name, p := range map[string]*corev1.Pod{
		"with files that are read at each pull":  configPod("n1", 0, files),
		"with a report of a newer release":       configPod("n1", 0, `{"written":1,"more":true}`),
		"whose K3s reads it when it starts":      configPod("n1", 0, registries()),
		"that refuses":                           configPod("n1", 2, encode(noderuntime.Report{Error: "key x:\nunknown", Unchanged: 1, Changed: written})),
		"that refuses, with no more than a log":  configPod("n1", 1, "loader: no\nmemory"),
		"that was killed":                        configPod("n1", 137, ""),
		"that was killed after its report":       configPod("n1", 137, files),
		"that says of itself that it failed":     configPod("n1", 0, `{"error":"no"}`),
		"whose kubelet has forgotten the report": configPod("n1", 0, "Unable to get init container status"),
		"whose pod waits":                        waiting,
	} {
		r := healthy(t, state.ModeExternal).configure(t, 1, 1).add(p, kubelet(node("n1", true), k3s)).collect(t)
		golden.Check(t, name, told(t, state.ModeExternal, r))
	}
}

func TestWhetherMirrorsAreInEffectWasObserved(t *testing.T) {
	golden := golden.Open(t, "mirrors")
	failed := state.Mirrors{CheckedAt: written, Failed: []state.MirrorFailure{{Reason: "no host", Nodes: []string{"n1"}}}}
	for name, c := range map[string]struct {
		mirrors state.Mirrors
		runtime string
	}{
		"pulled": {state.Mirrors{CheckedAt: written, Pulled: []string{"n1"}}, ""},
		"pulled before the files were written": {state.Mirrors{CheckedAt: written.Add(-time.Second),
			Pulled: []string{"n1"}}, ""},
		"a new node":              {state.Mirrors{CheckedAt: written, Pulled: []string{"n2"}}, ""},
		"containerd ignores them": {failed, "containerd://2.4.2"},
		"CRI-O ignores them":      {failed, "cri-o://1.35.0"},
	} {
		n := node("n1", true)
		n.Status.NodeInfo.ContainerRuntimeVersion = c.runtime
		r := healthy(t, state.ModeProxy).configure(t, 1, 1).
			add(n, configPod("n1", 0, encode(noderuntime.Report{Written: 1, Changed: written}))).
			changeState(t, func(s *state.State) { s.Mirrors = &c.mirrors }).collect(t)
		golden.Check(t, name, told(t, state.ModeProxy, r))
	}
}

func TestTheCommandThatRestarts(t *testing.T) {
	for _, c := range []struct {
		version, role, want string
	}{
		{k3s, "control-plane", "sudo systemctl restart k3s"},
		{k3s, "etcd", "sudo systemctl restart k3s"},
		{k3s, "worker", "sudo systemctl restart k3s-agent"},
		{"v1.36.3+rke2r1", "control-plane", "sudo systemctl restart rke2-server"},
		{"v1.36.3+rke2r1", "worker", "sudo systemctl restart rke2-agent"},
		{"v1.36.3", "control-plane", "restart the K3s or RKE2 service"},
	} {
		t.Run(c.version+", "+c.role, func(t *testing.T) {
			r := healthy(t, state.ModeExternal).configure(t, 1, 1).
				add(configPod("n1", 0, registries()), kubelet(node("n1", true), c.version, c.role)).collect(t)
			if len(r.NodeConfig) != 1 || r.NodeConfig[0].Restart != c.want || len(r.Next) != 0 {
				t.Errorf("%+v, next %q", r.NodeConfig, r.Next)
			}
		})
	}
}

func TestManyNodesShareASentence(t *testing.T) {
	c := healthy(t, state.ModeExternal).configure(t, 30, 30)
	for i := range 12 {
		broken := fmt.Sprintf("x%02d", i)
		c.add(node(broken, true), configPod(broken, 2, encode(noderuntime.Report{Error: "no"})))
	}
	r := c.collect(t)
	const want = "The container runtime of nodes x00, x01, x02, x03, x04, x05, x06, x07, x08, x09 and 2 more could not be " +
		"configured (no): "
	if len(r.Next) != 1 || !strings.Contains(r.Next[0], want) {
		t.Errorf("next is %q, want %q", r.Next, want)
	}
}

func TestNodesWithoutAPodThatConfiguresThem(t *testing.T) {
	done := configPod("n1", 0, encode(noderuntime.Report{Written: 1}))
	missing := healthy(t, state.ModeExternal).configure(t, 2, 1).add(done, node("n3", false))
	r := missing.collect(t)
	if len(r.NodeConfig) != 2 || r.NodeConfig[1].Node != "n2" || r.NodeConfig[1].Effect != status.EffectNotYet ||
		r.NodeConfig[1].Message == "" {
		t.Errorf("node configuration is %+v", r.NodeConfig)
	}
	if !slices.ContainsFunc(r.Next, func(s string) bool {
		return strings.HasPrefix(s,
			"The container runtime of node n2 is not configured, because the pod for it does not exist") &&
			strings.Contains(s, "component=node-config shows why")
	}) {
		t.Errorf("next is %q", r.Next)
	}
	// Of its own will the user has some nodes left alone.
	if r := healthy(t, state.ModeExternal).configure(t, 1, 1).add(done).collect(t); len(r.NodeConfig) != 1 || !r.Healthy {
		t.Errorf("node configuration is %+v, next %q", r.NodeConfig, r.Next)
	}
}

func TestOfSeveralPodsOfANodeTheNewestCounts(t *testing.T) {
	old, fresh, ending, evicted := configPod("n1", 2, ""), configPod("n1", 0, `{"written":7}`), configPod("n1", 2, ""),
		configPod("n1", 2, "")
	for i, p := range []*corev1.Pod{old, fresh, ending, evicted} {
		p.Name, p.CreationTimestamp = fmt.Sprint("p", i), metav1.NewTime(now.Add(time.Duration(i)*time.Second))
	}
	ending.DeletionTimestamp, ending.Finalizers = &metav1.Time{Time: now}, []string{"keep"}
	evicted.Status.Phase = corev1.PodFailed
	r := healthy(t, state.ModeExternal).configure(t, 1, 1).add(old, fresh, ending, evicted).collect(t)
	if len(r.NodeConfig) != 1 || r.NodeConfig[0].Written != 7 || !r.Healthy {
		t.Errorf("node configuration is %+v, next %q", r.NodeConfig, r.Next)
	}
}

func TestNodesThatAreDownNeedNoOtherStep(t *testing.T) {
	c := healthy(t, state.ModeExternal).configure(t, 2, 2)
	c.add(node("n1", false), configPod("n1", 0, registries()), node("n2", false), configPod("n2", 1, "no"))
	r := c.collect(t)
	if n := r.NodeConfig; len(n) != 2 || n[1].Effect != status.EffectFailed {
		t.Errorf("node configuration is %+v", r.NodeConfig)
	}
	if len(r.Next) != 2 || !strings.HasPrefix(r.Next[0], "Node n1 is not ready") ||
		!strings.HasPrefix(r.Next[1], "Node n2 is not ready") {
		t.Errorf("next is %q", r.Next)
	}
}

func TestNodeConfigurationThatMayNotBeReadIsNamed(t *testing.T) {
	for deny, want := range map[string]string{
		"list daemonsets": "listing the DaemonSets of node configuration in namespace zarf",
		"list pods":       "listing the pods of node configuration in namespace zarf",
	} {
		r := healthy(t, state.ModeExternal).configure(t, 1, 1).add(configPod("n1", 0, "{}")).collect(t, deny)
		if !slices.ContainsFunc(r.Unreadable, func(s string) bool { return strings.HasPrefix(s, want) }) ||
			len(r.NodeConfig) > 0 {
			t.Errorf("%s: unreadable is %q, node configuration %+v", deny, r.Unreadable, r.NodeConfig)
		}
	}
	// Without the nodes there are still their pods.
	r := healthy(t, state.ModeExternal).configure(t, 2, 1).add(configPod("n1", 0, registries())).collect(t, "list nodes")
	if len(r.NodeConfig) != 1 || r.NodeConfig[0].Effect != status.EffectRestart {
		t.Errorf("node configuration is %+v", r.NodeConfig)
	}
}

func TestFilesThatNothingLooksAfterAreNamed(t *testing.T) {
	remembers := func() cluster {
		return healthy(t, state.ModeProxy).changeState(t, func(s *state.State) {
			s.NodeConfig = &state.NodeConfig{Directories: []string{"/etc/containerd/certs.d", "/etc/rancher/k3s"}}
		})
	}
	r := remembers().collect(t)
	want := "Nodes may still hold files of the release in /etc/containerd/certs.d, /etc/rancher/k3s, and nothing " +
		"manages them: " +
		"helm upgrade with --set 'nodeConfig.directories={/etc/containerd/certs.d,/etc/rancher/k3s}' restores the " +
		"original files."
	if len(r.Next) != 1 || r.Next[0] != want || len(r.State.NodeDirectories) != 2 {
		t.Errorf("next is %q", r.Next)
	}
	if r := remembers().configure(t, 0, 0).collect(t); !r.Healthy {
		t.Errorf("with a DaemonSet next is %q", r.Next)
	}
	during := remembers().changeState(t, func(s *state.State) { s.Phase = state.PhasePrepared })
	if r := during.collect(t); len(r.Next) != 1 || strings.Contains(r.Next[0], "Nodes may still") {
		t.Errorf("during a run next is %q", r.Next)
	}
}
