// Package verify makes every node pull an image, which is the only check that covers network plugin,
// kube-proxy and container runtime at once. It changes nothing but its own pods.
package verify

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

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/names"
	"github.com/zarf-dev/zarf-registry/internal/nodes"
	"github.com/zarf-dev/zarf-registry/internal/plan"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/state"
)

// Pods lists, creates and deletes pods.
type Pods interface {
	List(ctx context.Context, opts metav1.ListOptions) (*corev1.PodList, error)
	Create(ctx context.Context, pod *corev1.Pod, opts metav1.CreateOptions) (*corev1.Pod, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// Images names the image to pull.
type Images interface {
	// ProbeImage is the "<repository>:<tag>@<digest>" of the tiny image for a mode: the registry serves
	// zarf-registry/probe-proxy to proxies only, and zarf-registry/probe-nodeport at the plain
	// listener only, so that a pull cannot succeed by the other path.
	ProbeImage(mode state.Mode) (string, error)
}

// Verifier verifies pulls. Its fields must be set.
type Verifier struct {
	*nodes.Observer
	Pods   Pods
	Images Images
}

const (
	// batchSize is how many nodes pull at once; each costs a pod.
	batchSize = 50
	// verifyTimeout bounds one batch. A kubelet that fails to pull waits 10 s, 20 s, 40 s before it
	// retries, so this allows four attempts.
	verifyTimeout = 90 * time.Second
	// switchTimeout is verifyTimeout during a switch: three attempts, because nodes that the new mode
	// does not serve cannot pull meanwhile.
	switchTimeout = 45 * time.Second
	// hopelessAfter is when a batch may end early because no node can succeed: each has tried twice
	// by then.
	hopelessAfter = 20 * time.Second
	// hopelessInterval is how often that is checked; each check lists events.
	hopelessInterval = 2 * time.Second
)

// Nodes runs a pod with a tiny image of the registry on every node that is ready and, in proxy
// mode, has a proxy. The image is always pulled, through the loopback address. It returns the nodes
// that pulled. switching means that a failure is undone by serving the previous mode.
func (v *Verifier) Nodes(ctx context.Context, switching bool) (verified []string, did string, err error) {
	eligible, err := v.eligible(ctx)
	if err != nil {
		return nil, "", err
	}
	if len(eligible) == 0 {
		return nil, "", errors.New(
			"no node can be verified: none is ready and able to pull; check the nodes, and in proxy mode the proxy DaemonSets")
	}
	image, err := v.Images.ProbeImage(v.Settings.Mode)
	if err != nil {
		return nil, "", err
	}
	image = v.Settings.Address + "/" + image
	v.DeletePods() // from a run that was killed

	begin := v.Now()
	for nodes := range slices.Chunk(eligible, batchSize) {
		if err := v.batch(ctx, nodes, image, switching); err != nil {
			return nil, "", err
		}
	}
	took := v.Now().Sub(begin).Round(time.Millisecond)
	return eligible, fmt.Sprintf("pulled %s on %d of %d nodes (%s) in %s", image, len(eligible), len(eligible),
		strings.Join(eligible, ", "), took), nil
}

// eligible returns the nodes that should be able to pull.
func (v *Verifier) eligible(ctx context.Context) ([]string, error) {
	list, err := v.Cluster.Nodes.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	proxied := map[string]bool{}
	if v.Settings.Mode == state.ModeProxy {
		pods, err := v.ProxyPods(ctx)
		if err != nil {
			return nil, err
		}
		for _, p := range pods {
			proxied[p.Spec.NodeName] = true
		}
	}
	var eligible []string
	for _, n := range list.Items {
		arch := n.Status.NodeInfo.Architecture
		switch {
		case !plan.Linux(n):
		case !plan.NodeReady(n):
			v.Log.Warn("skipping a node that is not ready", "node", n.Name)
		case v.Settings.Mode == state.ModeProxy && !proxied[n.Name]:
			v.Log.Warn("skipping a node without a proxy; it cannot pull", "node", n.Name, "architecture", arch,
				"see", "proxy.nodeSelector, proxy.tolerations, injector.architectures")
		case v.Settings.Mode == state.ModeNodePort && !slices.Contains(v.Settings.Architectures, arch):
			v.Log.Warn("skipping a node: there is no image for its architecture", "node", n.Name, "architecture", arch)
		default:
			eligible = append(eligible, n.Name)
		}
	}
	slices.Sort(eligible)
	return eligible, nil
}

// batch makes some nodes pull.
func (v *Verifier) batch(run context.Context, selected []string, image string, switching bool) error {
	limit := verifyTimeout
	if switching {
		limit = switchTimeout
	}
	ctx, cancel := context.WithTimeout(run, limit)
	defer cancel()
	open := map[string]string{} // node by pod
	for _, node := range selected {
		pod, err := v.Pods.Create(ctx, v.pod(node, image), metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("creating the probe pod of node %s: %w", node, err)
		}
		open[pod.Name] = node
	}
	begin := time.Now()
	look := hopelessAfter
	for {
		pods, err := v.Pods.List(ctx, v.Selector(names.ComponentProbe))
		if err == nil {
			for _, p := range pods.Items {
				node, ours := open[p.Name]
				switch {
				case !ours:
				case p.Status.Phase == corev1.PodFailed:
					return fmt.Errorf("node %s: %s: the image was pulled but could not run: %s", node, v.Object("pod", p.Name),
						nodes.PodComplaint(p)+p.Status.Message)
				case ran(p):
					delete(open, p.Name)
				}
			}
			if len(open) == 0 {
				return nil
			}
		}
		if time.Since(begin) >= look && v.Settings.Mode == state.ModeNodePort {
			if err := v.hopeless(ctx, open, image); err != nil {
				return err
			}
			look += hopelessInterval
		}
		if sleepErr := release.Sleep(ctx, release.PollInterval); sleepErr != nil {
			if !errors.Is(sleepErr, context.DeadlineExceeded) {
				return sleepErr // interrupted
			}
			err := v.failures(open, image, limit)
			switch {
			case run.Err() != nil:
				err = fmt.Errorf("%w: %w", err, run.Err())
			case switching:
				// A retry would interrupt pulls again.
				err = exitcode.Refuse("%w", err)
			}
			return err
		}
	}
}

// ran reports whether a pod's container has run, so that its image was pulled. A kubelet takes two
// more seconds to report that the pod has succeeded.
func ran(p corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || slices.ContainsFunc(p.Status.ContainerStatuses,
		func(c corev1.ContainerStatus) bool {
			return c.State.Running != nil || c.State.Terminated != nil && c.State.Terminated.ExitCode == 0
		})
}

// hopeless returns an error if every node that has not pulled reports that no kube-proxy serves the
// node port on the loopback address.
func (v *Verifier) hopeless(ctx context.Context, open map[string]string, image string) error {
	complaints := v.complaints(ctx)
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
	return exitcode.Refuse("nodes %s could not pull %s: %s; %s",
		strings.Join(nodes, ", "), image, example, adviceNotServed)
}

const adviceNotServed = "kube-proxy serves no node port on the loopback address there, as in nftables mode, with " +
	"IPv6, and in some distributions: use proxies instead, --set registryProxy=true"

// notServed reports whether a kubelet's complaint means that nothing answers on the loopback address,
// or that a proxy does instead of the node port: it gets a 403 for the image for node ports.
func notServed(complaint string) bool {
	return strings.Contains(complaint, "connection refused") || forbidden(complaint)
}

func forbidden(complaint string) bool {
	return strings.Contains(complaint, "403 Forbidden") || strings.Contains(complaint, "denied: ")
}

// complaints returns what the kubelets report about the pods.
func (v *Verifier) complaints(ctx context.Context) map[string]string {
	complaints := v.Warnings(ctx)
	if complaints == nil {
		complaints = map[string]string{}
	}
	if pods, err := v.Pods.List(ctx, v.Selector(names.ComponentProbe)); err == nil {
		for _, p := range pods.Items {
			if c := nodes.PodComplaint(p); c != "" && complaints[p.Name] == "" {
				complaints[p.Name] = c
			}
		}
	}
	return complaints
}

// failures names each node that could not pull, with the kubelet's complaint and what to do about
// it.
func (v *Verifier) failures(open map[string]string, image string, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second) // the run's context has ended
	defer cancel()
	complaints := v.complaints(ctx)
	var errs []error
	for _, pod := range slices.Sorted(maps.Keys(open)) {
		complaint := complaints[pod]
		if complaint == "" {
			complaint = "its kubelet reported nothing within " + limit.String()
		}
		errs = append(errs, fmt.Errorf("node %s could not pull %s: %s; %s", open[pod], image, complaint,
			Advice(v.Settings.Mode, complaint)))
	}
	return errors.Join(errs...)
}

// Advice returns what to do about a kubelet's complaint about the pull of an image.
func Advice(mode state.Mode, complaint string) string {
	nodePort := mode == state.ModeNodePort
	switch has := func(sign string) bool { return strings.Contains(complaint, sign) }; {
	case has("gave HTTP response to HTTPS client") && nodePort:
		return "the container runtime requires TLS on loopback, which node ports do not have: use proxies instead, --set " +
			"registryProxy=true --set proxy.tls=always, and let the node trust the registry's CA"
	case has("gave HTTP response to HTTPS client"):
		return "the container runtime requires TLS on loopback: --set proxy.tls=always, and let the node trust the " +
			"registry's CA"
	case has("certificate signed by unknown authority"):
		return "let the node trust the registry's CA (Secret …-ca; for CRI-O --set nodeConfig.crio.ca=true), or --set " +
			"proxy.tls=never where the runtime accepts plain HTTP on loopback"
	case nodePort && notServed(complaint):
		return adviceNotServed
	case has("connection refused"):
		return "nothing answers on the node's loopback address: the network plugin does not serve hostPort there; try " +
			"--set proxy.hostNetwork=true"
	case forbidden(complaint):
		return "the pull did not go through the node's proxy: look for another Service or pod that uses the port"
	case has("401 Unauthorized"):
		return "the registry does not accept the pull credential: run helm upgrade again, which repairs the Secret …-pull"
	case has("503"):
		return "the node's proxy cannot reach the registry: check the logs of the proxy pod on that node and the " +
			"network policies"
	case has("not found"):
		return "the registry does not have the image: run helm upgrade again, which pushes it"
	case has("i/o timeout") && nodePort:
		return "packets to the loopback address or to the registry's port 5001 are dropped: look for a firewall on that " +
			"node and the network policies; or use proxies instead, --set registryProxy=true"
	case has("i/o timeout"):
		return "packets to the loopback address are dropped on that node: on CRI-O --set proxy.hostNetwork=true; else look " +
			"for a firewall there"
	case nodePort:
		return "check kube-proxy on that node and the registry's log"
	}
	return "check the logs of the proxy pod on that node"
}

// pod returns the pod that makes a node pull.
func (v *Verifier) pod(node, image string) *corev1.Pod {
	no, seconds := false, int64(1)
	var pullSecrets []corev1.LocalObjectReference
	if v.Settings.Mode == state.ModeNodePort {
		pullSecrets = []corev1.LocalObjectReference{{Name: v.Settings.Name + names.SuffixPull}}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: v.Settings.Name + "-probe-",
			Namespace:    v.Settings.Namespace,
			Labels:       v.PodLabels(names.ComponentProbe),
		},
		Spec: corev1.PodSpec{
			// Set directly: the scheduler plays no part in a pull.
			NodeName:                      node,
			Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			RestartPolicy:                 corev1.RestartPolicyNever,
			AutomountServiceAccountToken:  &no,
			EnableServiceLinks:            &no,
			TerminationGracePeriodSeconds: &seconds,
			ImagePullSecrets:              pullSecrets,
			SecurityContext:               v.RestrictedPod(),
			Containers: []corev1.Container{{
				Name:            "probe",
				Image:           image,
				ImagePullPolicy: corev1.PullAlways,
				SecurityContext: release.RestrictedContainer(),
			}},
		},
	}
}

// DeletePods deletes the pods of this run and of runs that were killed.
func (v *Verifier) DeletePods() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second) // also if the run's context has ended
	defer cancel()
	pods, err := v.Pods.List(ctx, v.Selector(names.ComponentProbe))
	if err != nil {
		v.Log.Warn("cannot list probe pods; they stay until the next run", "error", err.Error())
		return
	}
	for _, p := range pods.Items {
		if err := v.Pods.Delete(ctx, p.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			v.Log.Warn("cannot delete a probe pod; it stays until the next run", "pod", p.Name, "error", err.Error())
		}
	}
}
