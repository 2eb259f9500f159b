package hook

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/names"
	"github.com/zarf-dev/zarf-registry/internal/state"
)

const (
	// provers is how many nodes are proven at once; each costs a pod.
	provers = 50
	// proofTime is how long so many nodes may take. A kubelet that fails to pull
	// waits 10 s, 20 s, 40 s before it tries again, so this gives four tries.
	proofTime = 90 * time.Second
	// switchProofTime is the same while the NodePort Service is away: three tries,
	// because nodes whose proxy does not answer cannot pull meanwhile.
	switchProofTime = 45 * time.Second
	// hopelessTime is when a proof ends early that no node can pass: each has tried
	// twice by then.
	hopelessTime = 20 * time.Second
	// hopelessEvery is how often that is looked at; it costs a list of events.
	hopelessEvery = 2 * time.Second
)

// prove runs a pod from a tiny image of the registry on every node that is ready
// and, in proxy mode, has a proxy, always pulled anew through the loopback address.
func (f *finishing) prove(ctx context.Context) (string, error) {
	nodes, err := f.nodesToProve(ctx)
	if err != nil {
		return "", err
	}
	if len(nodes) == 0 {
		return "", errors.New("no node is there that is ready and could pull: nothing can be proven; see the nodes, and in proxy mode the proxy DaemonSets")
	}
	f.deleteProofs() // those of a run that was killed

	image := f.Settings.Address + "/" + f.Registry.ProbeImage(f.Settings.Mode)
	begin := f.Now()
	for batch := range slices.Chunk(nodes, provers) {
		if err := f.proveOn(ctx, batch, image); err != nil {
			if f.Settings.Mode == state.ModeNodePort {
				err = f.stillServed(err)
			}
			return "", err
		}
	}
	f.proven = nodes
	return fmt.Sprintf("pulled %s on %d of %d nodes (%s) in %s", image, len(nodes), len(nodes), strings.Join(nodes, ", "), f.since(begin)), nil
}

func (f *finishing) nodesToProve(ctx context.Context) ([]string, error) {
	list, err := f.Cluster.Nodes.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	proxied := map[string]bool{}
	if f.Settings.Mode == state.ModeProxy {
		pods, err := f.proxyPods(ctx)
		if err != nil {
			return nil, err
		}
		for _, p := range pods {
			proxied[p.Spec.NodeName] = true
		}
	}
	var nodes []string
	for _, n := range list.Items {
		arch := n.Status.NodeInfo.Architecture
		switch {
		case !linux(n):
		case !NodeReady(n):
			f.Log.Warn("a node is not ready and cannot be proven", "node", n.Name)
		case f.Settings.Mode == state.ModeProxy && !proxied[n.Name]:
			f.Log.Warn("a node has no proxy, so that it cannot pull", "node", n.Name, "architecture", arch, "see", "proxy.nodeSelector, proxy.tolerations, injector.architectures")
		case f.Settings.Mode == state.ModeNodePort && !slices.Contains(f.Settings.Architectures, arch):
			f.Log.Warn("a node's architecture has no proving image, so that it cannot be proven", "node", n.Name, "architecture", arch)
		default:
			nodes = append(nodes, n.Name)
		}
	}
	slices.Sort(nodes)
	return nodes, nil
}

func (f *finishing) proveOn(run context.Context, nodes []string, image string) error {
	limit := proofTime
	if f.switching {
		limit = switchProofTime
	}
	ctx, cancel := context.WithTimeout(run, limit)
	defer cancel()
	open := map[string]string{} // node by pod
	for _, node := range nodes {
		pod, err := f.Cluster.Pods.Create(ctx, f.proof(node, image), metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("creating the proving pod of node %s: %w", node, err)
		}
		open[pod.Name] = node
	}
	begin := time.Now()
	look := hopelessTime
	for {
		pods, err := f.Cluster.Pods.List(ctx, f.selector(names.ComponentProbe))
		if err == nil {
			for _, p := range pods.Items {
				node, ours := open[p.Name]
				switch {
				case !ours:
				case p.Status.Phase == corev1.PodFailed:
					return fmt.Errorf("node %s: %s: it was pulled but could not run: %s", node, f.object("pod", p.Name), podComplaint(p)+p.Status.Message)
				case ran(p):
					delete(open, p.Name)
				}
			}
			if len(open) == 0 {
				return nil
			}
		}
		if time.Since(begin) >= look && f.Settings.Mode == state.ModeNodePort {
			if err := f.hopeless(ctx, open, image); err != nil {
				return err
			}
			look += hopelessEvery
		}
		if sleepErr := sleep(ctx, pollInterval); sleepErr != nil {
			if !errors.Is(sleepErr, context.DeadlineExceeded) {
				return sleepErr // told to end
			}
			err := f.failedProofs(open, image, limit)
			switch {
			case run.Err() != nil:
				err = fmt.Errorf("%w: %w", err, run.Err())
			case f.switching:
				// Trying again would take the NodePort Service away again.
				err = &Refused{err}
			}
			return err
		}
	}
}

// ran says whether a pod's container was seen to run, so that its image was pulled. A
// kubelet takes two seconds more to say that the pod has succeeded.
func ran(p corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || slices.ContainsFunc(p.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
		return c.State.Running != nil || c.State.Terminated != nil && c.State.Terminated.ExitCode == 0
	})
}

// hopeless says that no kube-proxy serves the node port on the loopback address,
// when that is what every node that has not pulled says; nil otherwise.
func (f *finishing) hopeless(ctx context.Context, open map[string]string, image string) error {
	complaints := f.proofComplaints(ctx)
	var nodes []string
	example := ""
	for pod, node := range open {
		if !notServed(complaints[pod]) {
			return nil
		}
		nodes = append(nodes, node)
		example = complaints[pod]
	}
	slices.Sort(nodes)
	return refuse("nodes %s could not pull %s: %s; %s", strings.Join(nodes, ", "), image, example, adviceNotServed)
}

const adviceNotServed = "kube-proxy serves no node port on the loopback address there; in nftables mode it never does, nor with IPv6, nor do some distributions: use proxies instead, --set registryProxy=true"

// notServed says whether a kubelet's complaint means that nothing answers on the
// loopback address, or a proxy instead of the node port, which gets a 403 for the
// image that proves node ports.
func notServed(complaint string) bool {
	return strings.Contains(complaint, "connection refused") || forbidden(complaint)
}

func forbidden(complaint string) bool {
	return strings.Contains(complaint, "403 Forbidden") || strings.Contains(complaint, "denied: ")
}

// proofComplaints is what the kubelets say about the proving pods.
func (f *finishing) proofComplaints(ctx context.Context) map[string]string {
	complaints := f.warnings(ctx)
	if complaints == nil {
		complaints = map[string]string{}
	}
	if pods, err := f.Cluster.Pods.List(ctx, f.selector(names.ComponentProbe)); err == nil {
		for _, p := range pods.Items {
			if c := podComplaint(p); c != "" && complaints[p.Name] == "" {
				complaints[p.Name] = c
			}
		}
	}
	return complaints
}

// failedProofs names each node that could not pull, with what its kubelet says
// and what to do about it.
func (f *finishing) failedProofs(open map[string]string, image string, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second) // the run's own context has ended
	defer cancel()
	complaints := f.proofComplaints(ctx)
	var errs []error
	for _, pod := range slices.Sorted(maps.Keys(open)) {
		complaint := complaints[pod]
		if complaint == "" {
			complaint = "the node said nothing about it within " + limit.String()
		}
		errs = append(errs, fmt.Errorf("node %s could not pull %s: %s; %s", open[pod], image, complaint, advice(f.Settings.Mode, complaint)))
	}
	return errors.Join(errs...)
}

// advice says what to do about a kubelet's complaint.
func advice(mode state.Mode, complaint string) string {
	nodePort := mode == state.ModeNodePort
	switch has := func(sign string) bool { return strings.Contains(complaint, sign) }; {
	case has("gave HTTP response to HTTPS client") && nodePort:
		return "the container runtime wants TLS on loopback, which node ports do not have: use proxies instead, --set registryProxy=true --set proxy.tls=always, and let the node trust the registry's CA"
	case has("gave HTTP response to HTTPS client"):
		return "the container runtime wants TLS on loopback: --set proxy.tls=always and let the node trust the registry's CA"
	case has("certificate signed by unknown authority"):
		return "let the node trust the registry's CA (Secret …-ca; for CRI-O --set nodeConfig.crio.ca=true), or --set proxy.tls=never where the runtime accepts plain HTTP on loopback"
	case nodePort && notServed(complaint):
		return adviceNotServed
	case has("connection refused"):
		return "nothing answers on the node's loopback address: the network plugin does not serve hostPort there; try --set proxy.hostNetwork=true"
	case forbidden(complaint):
		return "the pull did not go through the node's proxy: look for another Service or pod that has the port"
	case has("401 Unauthorized"):
		return "the pull credential is not the one that the registry knows: run helm upgrade again, which puts the Secret …-pull right"
	case has("503"):
		return "the node's proxy cannot reach the registry: look at the logs of the proxy pod on that node and at the network policies"
	case has("not found"):
		return "the registry does not have the image: run helm upgrade again, which pushes it"
	case has("i/o timeout") && nodePort:
		return "packets to the loopback address or to the registry's port 5001 are dropped: look for a firewall on that node and at the network policies; or use proxies instead, --set registryProxy=true"
	case has("i/o timeout"):
		return "packets to the loopback address are dropped on that node: look for a firewall there"
	case nodePort:
		return "look at kube-proxy on that node and at the registry's log"
	}
	return "look at the logs of the proxy pod on that node"
}

func (f *finishing) proof(node, image string) *corev1.Pod {
	no, seconds := false, int64(1)
	var pullSecrets []corev1.LocalObjectReference
	if f.Settings.Mode == state.ModeNodePort {
		pullSecrets = []corev1.LocalObjectReference{{Name: f.Settings.Name + names.SuffixPull}}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: f.Settings.Name + "-probe-",
			Namespace:    f.Settings.Namespace,
			Labels:       f.podLabels(names.ComponentProbe),
		},
		Spec: corev1.PodSpec{
			// Straight to the node: the scheduler has no part in a pull.
			NodeName:                      node,
			Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			RestartPolicy:                 corev1.RestartPolicyNever,
			AutomountServiceAccountToken:  &no,
			EnableServiceLinks:            &no,
			TerminationGracePeriodSeconds: &seconds,
			ImagePullSecrets:              pullSecrets,
			SecurityContext:               f.restrictedPod(),
			Containers: []corev1.Container{{
				Name:            "probe",
				Image:           image,
				ImagePullPolicy: corev1.PullAlways,
				SecurityContext: restrictedContainer(),
			}},
		},
	}
}

// restrictedPod and restrictedContainer are what every pod of the project has: they
// pass Pod Security's strictest level.
func (h *Hook) restrictedPod() *corev1.PodSecurityContext {
	yes, id := true, int64(65532) // the user of nobody in particular that images from scratch agree on
	context := &corev1.PodSecurityContext{
		RunAsNonRoot: &yes, RunAsUser: &id, RunAsGroup: &id,
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	if h.Settings.OpenShift {
		context.RunAsUser, context.RunAsGroup = nil, nil
	}
	return context
}

func restrictedContainer() *corev1.SecurityContext {
	no, yes := false, true
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: &no,
		ReadOnlyRootFilesystem:   &yes,
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
}

// deleteProofs removes the proving pods, this run's and those of one that was killed.
func (h *Hook) deleteProofs() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second) // also when the run's own context has ended
	defer cancel()
	pods, err := h.Cluster.Pods.List(ctx, h.selector(names.ComponentProbe))
	if err != nil {
		h.Log.Warn("proving pods could not be listed; they stay until the next run", "error", err.Error())
		return
	}
	for _, p := range pods.Items {
		if err := h.Cluster.Pods.Delete(ctx, p.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			h.Log.Warn("a proving pod could not be deleted; it stays until the next run", "pod", p.Name, "error", err.Error())
		}
	}
}
