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
)

const (
	// provers is how many nodes are proven at once; each costs a pod.
	provers = 50
	// proofTime is how long a node may take. A kubelet that fails to pull waits
	// 10 s, 20 s, 40 s before it tries again, so this gives four tries.
	proofTime = 90 * time.Second
)

// prove runs a pod from a tiny image of the registry on every node that has a
// proxy and is ready, always pulled anew through the loopback address.
func (f *finishing) prove(ctx context.Context) (string, error) {
	nodes, err := f.nodesToProve(ctx)
	if err != nil {
		return "", err
	}
	if len(nodes) == 0 {
		return "", errors.New("no ready node has a proxy: nothing can be proven; see the proxy DaemonSets")
	}
	defer f.deleteProofs()
	f.deleteProofs() // those of a run that was killed

	image := f.Options.Address() + "/" + f.Registry.ProbeImage(f.Options.Mode)
	begin := f.Now()
	for batch := range slices.Chunk(nodes, provers) {
		if err := f.proveOn(ctx, batch, image); err != nil {
			return "", err
		}
	}
	f.proven = nodes
	return fmt.Sprintf("pulled %s on %d of %d nodes (%s) in %s", image, len(nodes), len(nodes), strings.Join(nodes, ", "), f.since(begin)), nil
}

func (f *finishing) nodesToProve(ctx context.Context) ([]string, error) {
	isReady, err := f.nodes(ctx)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(isReady)) {
		if isReady[name] {
			continue
		}
		f.Log.Warn("a node is not ready and cannot be proven; its proxy starts when it comes back", "node", name)
	}
	pods, err := f.Cluster.Pods.List(ctx, f.selector(componentProxy))
	if err != nil {
		return nil, fmt.Errorf("listing the proxy pods in namespace %s: %w", f.Options.Namespace, err)
	}
	nodes := map[string]bool{}
	for _, p := range pods.Items {
		if isReady[p.Spec.NodeName] {
			nodes[p.Spec.NodeName] = true
		}
	}
	return slices.Sorted(maps.Keys(nodes)), nil
}

func (f *finishing) proveOn(ctx context.Context, nodes []string, image string) error {
	ctx, cancel := context.WithTimeout(ctx, proofTime)
	defer cancel()
	open := map[string]string{} // node by pod
	for _, node := range nodes {
		pod, err := f.Cluster.Pods.Create(ctx, f.proof(node, image), metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("creating the proving pod of node %s: %w", node, err)
		}
		open[pod.Name] = node
	}
	for {
		pods, err := f.Cluster.Pods.List(ctx, f.selector(componentProbe))
		if err == nil {
			for _, p := range pods.Items {
				node, ours := open[p.Name]
				switch {
				case !ours:
				case p.Status.Phase == corev1.PodSucceeded:
					delete(open, p.Name)
				case p.Status.Phase == corev1.PodFailed:
					return fmt.Errorf("node %s: %s: it was pulled but could not run: %s", node, f.object("pod", p.Name), podComplaint(p)+p.Status.Message)
				}
			}
			if len(open) == 0 {
				return nil
			}
		}
		if sleepErr := sleep(ctx, pollInterval); sleepErr != nil {
			if errors.Is(sleepErr, context.DeadlineExceeded) {
				return f.failedProofs(open, image)
			}
			return sleepErr
		}
	}
}

// failedProofs names each node that could not pull, with what its kubelet says
// and what to do about it.
func (f *finishing) failedProofs(open map[string]string, image string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second) // the run's own context has ended
	defer cancel()
	complaints := f.warnings(ctx)
	if pods, err := f.Cluster.Pods.List(ctx, f.selector(componentProbe)); err == nil {
		for _, p := range pods.Items {
			if c := podComplaint(p); c != "" && complaints[p.Name] == "" {
				complaints[p.Name] = c
			}
		}
	}
	var errs []error
	for _, pod := range slices.Sorted(maps.Keys(open)) {
		complaint := complaints[pod]
		if complaint == "" {
			complaint = "the node said nothing about it within " + proofTime.String()
		}
		errs = append(errs, fmt.Errorf("node %s could not pull %s: %s; %s", open[pod], image, complaint, advice(complaint)))
	}
	return errors.Join(errs...)
}

// advice says what to do about a kubelet's complaint.
func advice(complaint string) string {
	for _, a := range []struct{ sign, advice string }{
		{"gave HTTP response to HTTPS client", "the container runtime wants TLS on loopback: --set proxy.tls=always and let the node trust the registry's CA"},
		{"certificate signed by unknown authority", "let the node trust the registry's CA (Secret …-ca), or --set proxy.tls=never where the runtime accepts plain HTTP on loopback"},
		{"connection refused", "nothing answers on the node's loopback address: the network plugin does not serve hostPort there; try --set proxy.hostNetwork=true"},
		{"503", "the node's proxy cannot reach the registry: look at the logs of the proxy pod on that node and at the network policies"},
		{"not found", "the registry does not have the image: run helm upgrade again, which pushes it"},
		{"i/o timeout", "packets to the loopback address are dropped on that node: look for a firewall there"},
	} {
		if strings.Contains(complaint, a.sign) {
			return a.advice
		}
	}
	return "look at the logs of the proxy pod on that node"
}

func (f *finishing) proof(node, image string) *corev1.Pod {
	no, yes, id := false, true, int64(65532)
	seconds := int64(1)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: f.Options.Name + "-probe-",
			Namespace:    f.Options.Namespace,
			Labels:       f.labels(componentProbe),
		},
		Spec: corev1.PodSpec{
			// Straight to the node: the scheduler has no part in a pull.
			NodeName:                      node,
			Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			RestartPolicy:                 corev1.RestartPolicyNever,
			AutomountServiceAccountToken:  &no,
			EnableServiceLinks:            &no,
			TerminationGracePeriodSeconds: &seconds,
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: &yes, RunAsUser: &id, RunAsGroup: &id,
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name:            "probe",
				Image:           image,
				ImagePullPolicy: corev1.PullAlways,
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: &no,
					ReadOnlyRootFilesystem:   &yes,
					Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
}

// deleteProofs removes the proving pods, this run's and those of one that was killed.
func (h *Hook) deleteProofs() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second) // also when the run's own context has ended
	defer cancel()
	pods, err := h.Cluster.Pods.List(ctx, h.selector(componentProbe))
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
