package status

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/node/noderuntime"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/plan"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// NodeConfig describes the configuration of a node's container runtime. The counts are
// those of the pod's last run.
type NodeConfig struct {
	Node string `json:"node"`
	// Pod configures the node; "" if it does not exist.
	Pod       string `json:"pod,omitempty"`
	Written   int    `json:"written"`
	Unchanged int    `json:"unchanged"`
	Restored  int    `json:"restored"`
	Removed   int    `json:"removed"`
	// WrittenAt is when the newest file was written. It is zero if there is none.
	WrittenAt time.Time `json:"writtenAt,omitzero"`
	Effect    Effect    `json:"effect"`
	// Restart is the command on the node that restarts K3s or RKE2, if the effect needs that.
	Restart  string   `json:"restart,omitempty"`
	Warnings []string `json:"warnings"`
	// Error is why the last run failed. Message says why the effect is unknown or missing, what the kubelet reported where
	// the mirrors are ignored, or when a restart is not needed.
	Error   string `json:"error,omitempty"`
	Message string `json:"message,omitempty"`

	registries *noderuntime.RegistriesReport
}

// Effect says whether the container runtime uses its configuration.
type Effect string

// The effects.
const (
	// EffectMirrors: after the files were written, the node pulled a mirrored reference from this registry.
	EffectMirrors Effect = "mirrors in effect"
	// EffectIgnored: the node could not.
	EffectIgnored Effect = "mirrors ignored"
	// EffectWritten: no pull has shown whether the container runtime uses the files.
	EffectWritten Effect = "written"
	// EffectRestart: K3s and RKE2 read registries.yaml when they start.
	EffectRestart Effect = "after a restart"
	EffectUnknown Effect = "unknown"
	// EffectNotYet: no run has finished, so the node still has its previous files.
	EffectNotYet Effect = "not yet written"
	EffectFailed Effect = "failed"
)

// nodeConfig reports the results of the pods that configure nodes.
func (c *collector) nodeConfig(ctx context.Context) error {
	sets, err := c.Client.AppsV1().DaemonSets(c.Namespace).List(ctx, selector(c.Release, names.ComponentNodeConfig))
	if err != nil {
		return c.unreadable("listing the DaemonSets of node configuration in namespace "+c.Namespace, err)
	}
	c.configObjects = sets.Items
	pods, err := c.Client.CoreV1().Pods(c.Namespace).List(ctx, selector(c.Release, names.ComponentNodeConfig))
	if err != nil {
		return c.unreadable("listing the pods of node configuration in namespace "+c.Namespace, err)
	}
	if len(sets.Items) == 0 {
		c.forgotten()
	}
	byNode := newest(pods.Items)
	nodes := map[string]corev1.Node{}
	for _, n := range c.linux {
		nodes[n.Name] = n
	}
	missing := lacksPods(sets.Items)
	// Without permission to list nodes, only nodes with a pod are reported.
	names := maps.Clone(byNode)
	for name, n := range nodes {
		// If all desired pods exist, nodeConfig.nodeSelector or nodeConfig.tolerations
		// excludes the nodes without one.
		if missing && plan.NodeReady(n) && names[name].Name == "" {
			names[name] = corev1.Pod{}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		c.report.NodeConfig = append(c.report.NodeConfig, c.configured(name, names[name]))
	}
	c.effects(nodes)
	c.adviseNodeConfig(nodes)
	return nil
}

// newest returns the newest pod of each node. There may be two during a rollout or after
// an eviction.
func newest(pods []corev1.Pod) map[string]corev1.Pod {
	byNode := map[string]corev1.Pod{}
	for _, p := range pods {
		if p.Spec.NodeName == "" || p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodFailed {
			continue
		}
		old, ok := byNode[p.Spec.NodeName]
		if !ok || old.CreationTimestamp.Before(&p.CreationTimestamp) {
			byNode[p.Spec.NodeName] = p
		}
	}
	return byNode
}

// configured describes a node by the last run of its pod.
func (c *collector) configured(node string, pod corev1.Pod) NodeConfig {
	n := NodeConfig{Node: node, Pod: pod.Name, Warnings: []string{}}
	if pod.Name == "" {
		n.Effect, n.Message = EffectNotYet, "pod does not exist yet"
		return n
	}
	last, ok := lastRun(pod)
	if !ok {
		n.Effect, n.Message = EffectNotYet, orUnknown(c.why(pod))
		return n
	}
	report, err := noderuntime.ParseReport(last.Message)
	text := "" // instead of a report: the end of the log, or a message of the kubelet
	if err != nil {
		text = oneLine(last.Message)
	}
	n.Written, n.Unchanged, n.Restored, n.Removed = report.Written, report.Unchanged, report.Restored, report.Removed
	n.WrittenAt, n.registries = report.Changed, report.Registries
	for _, warning := range report.Warnings {
		n.Warnings = append(n.Warnings, oneLine(warning))
	}
	switch {
	case last.ExitCode != 0:
		n.Effect, n.Error = EffectFailed, cmp.Or(oneLine(report.Error), text, fmt.Sprintf("exit code %d", last.ExitCode))
	case err != nil:
		// The kubelet may have removed the container since.
		n.Effect, n.Message = EffectUnknown, "no report; check the pod's log"
	case report.Error != "":
		n.Effect, n.Error = EffectFailed, oneLine(report.Error)
	default:
		n.Effect = EffectWritten
	}
	return n
}

// lastRun returns the last termination of the init container.
func lastRun(pod corev1.Pod) (*corev1.ContainerStateTerminated, bool) {
	for _, s := range pod.Status.InitContainerStatuses {
		if last := cmp.Or(s.State.Terminated, s.LastTerminationState.Terminated); last != nil {
			return last, true
		}
	}
	return nil, false
}

// effects adds what the last verification of mirrors showed, and names the nodes whose K3s or RKE2 must have been
// restarted since their files changed. Both read registries.yaml only when they start.
func (c *collector) effects(nodes map[string]corev1.Node) {
	for i := range c.report.NodeConfig {
		n := &c.report.NodeConfig[i]
		if n.Effect != EffectWritten {
			continue
		}
		c.mirrors(n)
		if n.registries == nil {
			continue
		}
		n.Effect = EffectRestart
		n.Restart = cmp.Or(restart(nodes[n.Node]), "restart the K3s or RKE2 service")
		n.Message = "unless restarted since " + n.registries.Changed.UTC().Format(time.RFC3339)
	}
}

// mirrors adds what a node did with a mirrored reference since its files were written.
func (c *collector) mirrors(n *NodeConfig) {
	s := c.report.State
	if s == nil || s.mirrors == nil || n.WrittenAt.After(s.mirrors.CheckedAt) {
		return
	}
	if slices.Contains(s.mirrors.Pulled, n.Node) {
		n.Effect = EffectMirrors
		return
	}
	for _, f := range s.mirrors.Failed {
		if slices.Contains(f.Nodes, n.Node) {
			n.Effect, n.Message = EffectIgnored, oneLine(f.Reason)
		}
	}
}

// restart returns the command that restarts a node's K3s or RKE2, during which pods keep
// running. It is "" if the kubelet is of neither or unknown.
func restart(n corev1.Node) string {
	server := plan.ControlPlane(n)
	switch version := n.Status.NodeInfo.KubeletVersion; {
	case strings.Contains(version, "+k3s") && server:
		return "sudo systemctl restart k3s"
	case strings.Contains(version, "+k3s"):
		return "sudo systemctl restart k3s-agent"
	case strings.Contains(version, "+rke2") && server:
		return "sudo systemctl restart rke2-server"
	case strings.Contains(version, "+rke2"):
		return "sudo systemctl restart rke2-agent"
	}
	return ""
}

// adviseNodeConfig adds the next steps, one sentence for all nodes that need the same. It asks for no restart, because
// it is unknown whether the service has been restarted.
func (c *collector) adviseNodeConfig(nodes map[string]corev1.Node) {
	ready := func(n NodeConfig) bool {
		node, known := nodes[n.Node]
		return !known || plan.NodeReady(node) // nodes reports the others
	}
	for _, s := range c.nodesByReason(func(n NodeConfig) (string, bool) {
		return "", n.Effect == EffectNotYet && n.Pod == ""
	}) {
		c.next("The container runtime of %s is not configured, because the pod for it does not exist: kubectl --namespace "+
			"%s describe daemonsets --selector app.kubernetes.io/instance=%s,app.kubernetes.io/component=%s shows why.",
			s, c.Namespace, c.Release, names.ComponentNodeConfig)
	}
	for _, s := range c.nodesByReason(func(n NodeConfig) (string, bool) {
		return n.Message, n.Effect == EffectNotYet && n.Pod != "" && ready(n)
	}) {
		c.next("The container runtime of %s is not configured yet (%s): kubectl --namespace %s describe pod %s shows more.",
			s, s.reason, c.Namespace, s.pod)
	}
	for _, s := range c.nodesByReason(func(n NodeConfig) (string, bool) {
		return readFiles(nodes[n.Node]), n.Effect == EffectIgnored && ready(n)
	}) {
		c.next("The container runtime of %s ignores the mirrors: %s. Then run helm upgrade, which verifies them again.",
			s, s.reason)
	}
	for _, s := range c.nodesByReason(func(n NodeConfig) (string, bool) {
		return n.Error, n.Effect == EffectFailed && ready(n)
	}) {
		c.next("The container runtime of %s could not be configured (%s): fix the values with helm upgrade, or the node; "+
			"the pod retries by itself. kubectl --namespace %s logs %s --all-containers shows the full log.", s, s.reason,
			c.Namespace, s.pod)
	}
}

// readFiles tells how a node's container runtime comes to read its files.
func readFiles(n corev1.Node) string {
	if command := restart(n); command != "" {
		return command + " on the node"
	}
	if strings.HasPrefix(n.Status.NodeInfo.ContainerRuntimeVersion, "cri-o://") {
		return "sudo systemctl reload crio on the node"
	}
	return `set config_path = "/etc/containerd/certs.d" in the configuration of its containerd, and restart that`
}

// nodeGroup is a group of nodes that need the same for one reason.
type nodeGroup struct {
	reason string
	nodes  []string
	pod    string // of the first node
}

// nodesByReason groups the nodes for which applies returns true by reason, ordered by name.
func (c *collector) nodesByReason(applies func(NodeConfig) (reason string, yes bool)) []*nodeGroup {
	var found []*nodeGroup
	for _, n := range c.report.NodeConfig {
		reason, yes := applies(n)
		if !yes {
			continue
		}
		i := slices.IndexFunc(found, func(s *nodeGroup) bool { return s.reason == reason })
		if i < 0 {
			i, found = len(found), append(found, &nodeGroup{reason: reason, pod: n.Pod})
		}
		found[i].nodes = append(found[i].nodes, n.Node)
	}
	return found
}

// String lists the nodes, shortened if there are many.
func (s *nodeGroup) String() string { return release.ListNodes(s.nodes) }

// forgotten adds the next step for files on nodes that nothing manages any more. During a
// run this is temporary.
func (c *collector) forgotten() {
	s := c.report.State
	if s == nil || s.Phase != state.PhaseReady || len(s.NodeDirectories) == 0 {
		return
	}
	c.next("Nodes may still hold files of the release in %s, and nothing manages them: helm upgrade with --set "+
		"'nodeConfig.directories={%s}' restores the original files.",
		strings.Join(s.NodeDirectories, ", "), strings.Join(s.NodeDirectories, ","))
}
