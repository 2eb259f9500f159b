package hook_test

import (
	"bytes"
	"cmp"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubetesting "k8s.io/client-go/testing"

	"github.com/zarf-dev/zarf-registry/internal/node/noderuntime"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/release/rollout"
	"github.com/zarf-dev/zarf-registry/test/require"
)

const (
	certsD   = "/etc/containerd/certs.d"
	criOCert = "/etc/containers/certs.d"
)

// nodeFiles simulates the chart's DaemonSets on nodes: the controller keeps a pod on each node,
// whose init container writes files when it starts.
type nodeFiles struct {
	// disk holds the CAs that a node's CRI-O trusts.
	disk map[string][]byte
	// ends maps a node to how the init container fails there.
	ends map[string]corev1.ContainerStateTerminated
	// reports maps a node to what the init container reports on success.
	reports map[string]noderuntime.Report
	// slowly is how long a successor takes to start.
	slowly     time.Duration
	successors []successor
	podsMade   int
}

type successor struct {
	set  *appsv1.DaemonSet
	node string
	due  time.Time
}

// configureNodes renders node configuration, with or without the CA for CRI-O.
func (b *bench) configureNodes(ca bool) {
	b.Helper()
	o := &b.hook.Settings
	config := noderuntime.Config{Release: "zarf/zarf-registry", Directories: []string{certsD},
		Containerd: noderuntime.Containerd{
			Directories: []string{certsD},
			Hosts:       map[string]string{"example.com": "server = \"https://example.com\"\n[host]\n"},
		}}
	if ca {
		config.Address = "127.0.0.1:31999"
		config.Directories = append(config.Directories, criOCert)
		config.CRIO.CertsDirectory = criOCert
	}
	o.NodeConfig.Directories, o.NodeConfig.DirectoriesInUse, o.NodeConfig.CA = config.Directories, config.Directories, ca
	o.NodeConfig.DaemonSets = []string{"zarf-registry-node-config-amd64"}
	b.hook.NodeConfigData = configData(b, config)
}

func configData(b *bench, config noderuntime.Config) map[string][]byte {
	b.Helper()
	return map[string][]byte{noderuntime.KeyConfig: require.Value(json.Marshal(config))(b)}
}

func (b *bench) nodeSet(component string, nodes []string) *appsv1.DaemonSet {
	set := daemonSet("zarf-registry-"+component+"-amd64", nodes...)
	set.ObjectMeta = meta(set.Name, component)
	set.Annotations = map[string]string{rollout.AnnotationGeneration: "1"}
	if b.hook.Settings.NodeConfig.CA {
		set.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "config",
			VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
				Sources: []corev1.VolumeProjection{{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "zarf-registry-node-tls"}}}},
			}}}}
	}
	return set
}

// helmNodes simulates Helm and the controller for node configuration.
func (b *bench) helmNodes(nodes []string) {
	b.Helper()
	if len(b.hook.Settings.NodeConfig.Directories) == 0 {
		b.remove("daemonsets", "zarf-registry-node-config-amd64")
		b.remove("pods", b.nodePodNames()...)
		return
	}
	set := b.nodeSet("node-config", nodes)
	if b.add(set) {
		for _, node := range nodes {
			b.startNodePod(set, node)
		}
	}
}

// replaceSet changes the DaemonSet that configures nodes, but no pod.
func (b *bench) replaceSet(change func(*appsv1.DaemonSet)) {
	b.Helper()
	set := b.nodeSetOf()
	change(set)
	b.update("daemonsets", set)
}

// uninstall simulates Helm before cleanup.
func (b *bench) uninstall(nodes ...string) {
	b.Helper()
	set := b.nodeSet("node-restore", nodes)
	if b.add(set) {
		for _, node := range nodes {
			b.startNodePod(set, node)
		}
	}
}

// startNodePod creates a pod whose init container has ended.
func (b *bench) startNodePod(set *appsv1.DaemonSet, node string) {
	b.podsMade++
	component := set.Labels["app.kubernetes.io/component"]
	pod := &corev1.Pod{ObjectMeta: meta(fmt.Sprintf("%s-%s-%d", component, node, b.podsMade), component),
		Spec: corev1.PodSpec{NodeName: node, Volumes: set.Spec.Template.Spec.Volumes}}
	pod.UID = types.UID("uid of " + pod.Name)
	pod.Labels[rollout.LabelGeneration] = cmp.Or(set.Spec.Template.Labels[rollout.LabelGeneration],
		set.Annotations[rollout.AnnotationGeneration])
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: set.Name}}
	status := corev1.ContainerStatus{Name: "configure"}
	if end, bad := b.ends[component+" "+node]; bad {
		status.State.Waiting = &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 5m0s"}
		status.LastTerminationState.Terminated = &end
		pod.Status = corev1.PodStatus{Phase: corev1.PodPending}
	} else {
		report := b.reports[node]
		report.Release = "zarf/zarf-registry"
		if len(set.Spec.Template.Spec.Volumes) > 0 {
			b.writeAuthorities(component, node, &report)
		}
		message := require.Value(json.Marshal(report))(b)
		status.State.Terminated = &corev1.ContainerStateTerminated{Message: string(message), StartedAt: metav1.NewTime(b.now)}
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: podReady}
	}
	pod.Status.InitContainerStatuses = []corev1.ContainerStatus{status}
	b.add(pod)
}

func (b *bench) writeAuthorities(component, node string, report *noderuntime.Report) {
	if b.disk == nil {
		b.disk = map[string][]byte{}
	}
	trust := filesOf(b.get("secrets", "zarf-registry-node-tls")).trust
	bundle, err := pki.ParseBundle(trust)
	if component == "node-restore" || err != nil {
		delete(b.disk, node)
		return
	}
	b.disk[node] = trust
	report.CA = bundle.Fingerprints()
	slices.Reverse(report.CA) // the order must not matter
}

// endedBy returns what the controller does after the deletion of a pod or a DaemonSet.
func (b *bench) endedBy(a kubetesting.Action) func() {
	d, ok := a.(kubetesting.DeleteActionImpl)
	if !ok {
		return func() {}
	}
	switch d.GetResource().Resource {
	case "pods":
		pod, ok := b.get("pods", d.GetName()).(*corev1.Pod)
		if !ok || !strings.HasPrefix(pod.Labels["app.kubernetes.io/component"], "node-") {
			return func() {}
		}
		set, ok := b.get("daemonsets", pod.OwnerReferences[0].Name).(*appsv1.DaemonSet)
		if !ok {
			return func() {}
		}
		return func() {
			b.successors = append(b.successors, successor{set, pod.Spec.NodeName, time.Now().Add(b.slowly)})
		}
	case "daemonsets":
		return func() {
			for _, pod := range b.nodePods() {
				if pod.OwnerReferences[0].Name == d.GetName() {
					b.remove("pods", pod.Name)
				}
			}
		}
	}
	return func() {}
}

func (b *bench) startSuccessors() {
	due := b.successors
	b.successors = nil
	for _, s := range due {
		switch {
		case b.get("daemonsets", s.set.Name) == nil:
		case time.Now().Before(s.due):
			b.successors = append(b.successors, s)
		default:
			b.startNodePod(s.set, s.node)
		}
	}
}

// nodePods returns the pods that write files on nodes, by name.
func (b *bench) nodePods() []corev1.Pod {
	b.Helper()
	list := require.Value(b.tracker.List(resource("pods"), corev1.SchemeGroupVersion.WithKind("Pod"), "zarf"))(b)
	pods := slices.DeleteFunc(slices.Clone(list.(*corev1.PodList).Items), func(p corev1.Pod) bool {
		return !strings.HasPrefix(p.Labels["app.kubernetes.io/component"], "node-")
	})
	slices.SortFunc(pods, func(x, y corev1.Pod) int { return strings.Compare(x.Name, y.Name) })
	return pods
}

// nodePodNames returns the names of such pods on nodes, or on all.
func (b *bench) nodePodNames(nodes ...string) (names []string) {
	for _, pod := range b.nodePods() {
		if len(nodes) == 0 || slices.Contains(nodes, pod.Spec.NodeName) {
			names = append(names, pod.Name)
		}
	}
	return names
}

// checkNodesTrust checks that every CRI-O trusts the certificates that a proxy serves or may serve
// at this moment.
func (b *bench) checkNodesTrust(when string, proxies []files) {
	b.Helper()
	for node, trust := range b.disk {
		for _, p := range proxies {
			if p.usable() != nil {
				continue
			}
			if err := (files{trust: trust}).verifies(p, x509.ExtKeyUsageAny, "", b.now); err != nil {
				b.Errorf("%s: CRI-O of node %s does not trust its proxy's certificate: %v", when, node, err)
				return
			}
		}
	}
}

// checkNodesFollow checks that each node trusts exactly the current CAs.
func (b *bench) checkNodesFollow(nodes ...string) {
	b.Helper()
	b.startSuccessors()
	trust := filesOf(b.get("secrets", "zarf-registry-node-tls")).trust
	for _, node := range nodes {
		if !bytes.Equal(b.disk[node], trust) {
			b.Errorf("node %s does not trust exactly the current CAs", node)
		}
	}
}
