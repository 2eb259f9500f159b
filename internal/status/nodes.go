package status

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/nodeimages"
	"github.com/zarf-dev/zarf-registry/internal/release/plan"
	"github.com/zarf-dev/zarf-registry/internal/release/rollout"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// Node describes a node and its access to images.
type Node struct {
	Name string `json:"name"`
	// Ready is the node's condition.
	Ready bool `json:"ready"`
	// Via is how the node pulls: proxy, nodeport or external, or none if no proxy is
	// scheduled on it.
	Via string `json:"via"`
	// Endpoint reports whether the endpoint appears to work: the proxy is ready, or the
	// registry behind the node port is.
	Endpoint bool `json:"endpoint"`
	// Verified reports whether the node pulled in the last verification.
	Verified bool `json:"verified"`
	// Message says why the endpoint does not work, or what else is unusual.
	Message string `json:"message,omitempty"`
}

// viaNone is the only value of Via that is not a mode.
const viaNone = "none"

func (c *collector) nodes(ctx context.Context) error {
	list, err := c.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return c.unreadable("listing nodes", err)
	}
	pods, err := c.Client.CoreV1().Pods(c.Namespace).List(ctx, selector(c.Release, "proxy"))
	if err != nil {
		if err := c.unreadable("listing the proxies' pods in namespace "+c.Namespace, err); err != nil {
			return err
		}
		pods = &corev1.PodList{}
	}
	proxies := map[string]corev1.Pod{} // by node
	for _, p := range pods.Items {
		old, ok := proxies[p.Spec.NodeName]
		// During a rollout there may be two; prefer the ready one, and the new one to one that ends.
		if !ok || old.DeletionTimestamp != nil || p.DeletionTimestamp == nil && !release.PodReady(old) {
			proxies[p.Spec.NodeName] = p
		}
	}
	slices.SortFunc(list.Items, func(a, b corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	for _, n := range list.Items {
		if !plan.RunsPods(n) {
			continue // nothing runs there
		}
		c.linux = append(c.linux, n)
		c.report.Nodes = append(c.report.Nodes, c.node(n, proxies))
	}
	return nil
}

func (c *collector) node(n corev1.Node, proxies map[string]corev1.Pod) Node {
	node := Node{Name: n.Name, Ready: plan.NodeReady(n)}
	s := c.report.State
	if s != nil {
		node.Via, node.Verified = string(s.mode()), slices.Contains(s.VerifiedNodes, n.Name)
	}
	if !node.Ready {
		node.Message = "node not ready"
		c.next("Node %s is not ready and cannot pull: kubectl describe node %s shows why.", n.Name, n.Name)
	}
	pod, hasProxy := proxies[n.Name]
	// During a switch, proxies matter in both directions.
	if hasProxy && (s == nil || s.mode() == state.ModeProxy || s.Desired.Mode == state.ModeProxy) {
		if why := c.proxy(n, pod); why != "" && node.Ready {
			node.Message = why
		}
	}
	switch node.Via {
	case string(state.ModeExternal):
		node.Endpoint = node.Ready
	case string(state.ModeNodePort):
		node.Endpoint = node.Ready && c.report.Registry != nil && c.report.Registry.ReadyPods() > 0
		if node.Ready && !node.Endpoint && node.Message == "" {
			node.Message = "registry not ready"
		}
	case string(state.ModeProxy):
		node.Endpoint = node.Ready && hasProxy && release.PodServes(pod)
		if !hasProxy && node.Ready {
			c.noProxy(&node)
		}
	}
	c.excused(&node, pod)
	return node
}

// excused says that the last run did not wait for a node, until it is up to date.
func (c *collector) excused(node *Node, pod corev1.Pod) {
	s := c.report.State
	if s == nil || s.excused[node.Name] == "" || node.Message != "" {
		return
	}
	current := slices.ContainsFunc(c.objects, func(d appsv1.DaemonSet) bool {
		return pod.Labels[rollout.LabelGeneration] == d.Annotations[rollout.AnnotationGeneration] &&
			slices.ContainsFunc(pod.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == d.UID })
	})
	if node.Endpoint && (current || s.mode() != state.ModeProxy) {
		return
	}
	node.Message = "not up to date: " + s.excused[node.Name]
	c.next("The last run did not wait for node %s (%s): unless it is up to date soon, run %s.", node.Name,
		s.excused[node.Name], c.installCommand())
}

// proxy returns why a node's proxy is not ready, or "" if it is.
func (c *collector) proxy(n corev1.Node, pod corev1.Pod) string {
	p := c.pod(pod)
	if p.Ready {
		return ""
	}
	why := "proxy not ready: " + orUnknown(p.Message)
	if !plan.NodeReady(n) {
		return why // named already
	}
	if image := injectedImage(pod); image != "" && !plan.Reports(n, image) {
		pauses := nodeimages.Candidates(plan.Images(n))
		if len(pauses) > 0 {
			c.next("Node %s has the pause image %s, but its proxy uses %s: run zarf-registry heal; if it says that no trusted "+
				"pause image is left, load %s on the node, or %s --set injector.image=IMAGE.", n.Name,
				strings.Join(pauses, ", "), image, image, c.installCommand())
			return why + "; the node reports " + strings.Join(pauses, ", ") + ", not " + image
		}
		c.next("Node %s reports no pause image, and its proxy, which uses %s, is not ready (%s): load that image on the "+
			"node, or choose one that all nodes have with %s --set injector.image=IMAGE.", n.Name, image, orUnknown(p.Message),
			c.installCommand())
		return why + "; the node does not report " + image
	}
	c.next("The proxy of node %s is not ready (%s): kubectl --namespace %s describe pod %s shows more.", n.Name,
		orUnknown(p.Message), c.Namespace, p.Name)
	return why
}

// noProxy distinguishes a node excluded from proxies from one whose proxy is missing.
func (c *collector) noProxy(node *Node) {
	switch {
	case len(c.objects) == 0:
		node.Message = "no proxy DaemonSet"
		c.next("The proxy DaemonSet is missing: run %s.", c.installCommand())
	case lacksPods(c.objects):
		node.Message = "proxy pod does not exist yet"
		c.next("Node %s has no proxy pod yet: kubectl --namespace %s describe daemonsets --selector "+
			"app.kubernetes.io/instance=%s,app.kubernetes.io/component=proxy shows why.", node.Name, c.Namespace, c.Release)
	default:
		// Excluded by proxy.nodeSelector or proxy.tolerations.
		node.Via, node.Message = viaNone, "excluded from proxy scheduling"
	}
}

// lacksPods reports whether DaemonSets do not have all of their pods yet.
func lacksPods(sets []appsv1.DaemonSet) bool {
	missing := int32(0)
	for _, d := range sets {
		missing += d.Status.DesiredNumberScheduled - d.Status.CurrentNumberScheduled
	}
	return missing > 0
}

// injectedImage returns the image of a pod whose program comes from a payload, or "".
func injectedImage(pod corev1.Pod) string {
	for _, container := range pod.Spec.Containers {
		if len(container.Command) > 0 && container.Command[0] == "/payload/loader" {
			return container.Image
		}
	}
	return ""
}

// nodePort checks the Service that owns the node port, and in nodeport mode the pull Secret.
func (c *collector) nodePort(ctx context.Context) error {
	s := c.report.State
	if s == nil || s.mode() == state.ModeExternal || s.unreserved != "" {
		return nil
	}
	object := fmt.Sprintf("Service %s/%s", c.Namespace, c.Name+names.SuffixNodePort)
	service, err := c.Client.CoreV1().Services(c.Namespace).Get(ctx, c.Name+names.SuffixNodePort, metav1.GetOptions{})
	proxies, ignored := s.mode() == state.ModeProxy, false
	if err == nil {
		_, ignored = service.Labels[plan.LabelProxyName]
	}
	switch {
	case apierrors.IsNotFound(err) && proxies:
		c.next("%s is missing, so any other Service can take node port %d and answer instead of the proxies: run %s, which "+
			"creates it, or accept this with --set reservePort=false.", object, s.port(), c.installCommand())
	case apierrors.IsNotFound(err):
		c.next("%s is missing, so the node port is closed: run %s.", object, c.installCommand())
	case err != nil:
		return c.unreadable("reading "+object, err)
	case !plan.HoldsPort(*service, s.port()):
		c.next("%s does not have node port %d: run %s.", object, s.port(), c.installCommand())
	case ignored != proxies && s.Switching(): // named already
	case proxies && !ignored:
		c.next("%s has no label %s, so it answers instead of the proxies: run %s.", object, plan.LabelProxyName,
			c.installCommand())
	case !proxies && ignored:
		c.next("%s has the label %s, so kube-proxy does not serve it: run %s.", object, plan.LabelProxyName,
			c.installCommand())
	}
	if proxies {
		return nil
	}
	secret, missing, err := c.secret(ctx, c.Name+names.SuffixPull)
	if err != nil {
		return err
	}
	if missing || secret != nil && len(secret.Data[names.KeyHtpasswd]) == 0 {
		c.next("Secret %s/%s has no key htpasswd, so the registry's plain listener is closed: run %s.", c.Namespace,
			c.Name+names.SuffixPull, c.installCommand())
	}
	return nil
}

// leftovers finds objects of another mode. During a switch they are expected.
func (c *collector) leftovers(ctx context.Context) error {
	s := c.report.State
	if s == nil || s.Phase != state.PhaseReady {
		return nil
	}
	found := func(what string) { c.report.Leftovers = append(c.report.Leftovers, what) }
	mode := s.mode()
	if mode != state.ModeProxy {
		for _, d := range c.objects {
			found("DaemonSet " + c.Namespace + "/" + d.Name)
		}
	}
	if mode == state.ModeExternal || s.unreserved != "" {
		name := c.Name + names.SuffixNodePort
		_, err := c.Client.CoreV1().Services(c.Namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case err == nil:
			found("Service " + c.Namespace + "/" + name)
		case !apierrors.IsNotFound(err):
			if err := c.unreadable("reading Service "+c.Namespace+"/"+name, err); err != nil {
				return err
			}
		}
	}
	if mode != state.ModeNodePort {
		secret, _, err := c.secret(ctx, c.Name+names.SuffixPull)
		if err != nil {
			return err
		}
		if secret != nil && len(secret.Data[names.KeyHtpasswd]) > 0 {
			found("the key htpasswd of Secret " + c.Namespace + "/" + secret.Name + ", which keeps the plain listener open")
		}
	}
	if mode == state.ModeExternal && c.deployment != nil {
		found("Deployment " + c.Namespace + "/" + c.deployment.Name)
	}
	if len(c.report.Leftovers) > 0 {
		c.next("Objects of another mode remain: %s: run %s, which removes them.", strings.Join(c.report.Leftovers, ", "),
			c.installCommand())
	}
	return nil
}

// port looks for the registry's Service, and for Services that take the proxies' port. The API server gives a node port
// to any Service that asks for it, or by chance.
func (c *collector) port(ctx context.Context) error {
	s := c.report.State
	if s == nil || s.mode() != state.ModeProxy {
		return nil
	}
	list, err := c.Client.CoreV1().Services(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return c.unreadable("listing the Services of all namespaces", err)
	}
	if !slices.ContainsFunc(list.Items, func(s corev1.Service) bool {
		return s.Namespace == c.Namespace && s.Name == c.Name
	}) {
		c.next("Service %s/%s is missing, so no proxy reaches the registry: run %s.", c.Namespace, c.Name,
			c.installCommand())
	}
	for _, service := range list.Items {
		ours := service.Namespace == c.Namespace && service.Name == c.Name+names.SuffixNodePort
		if !ours && plan.TakesPort(service, s.port()) {
			c.next("Service %s/%s has node port %d, so it answers instead of the proxies: delete it, or give it another "+
				"port (kubectl --namespace %s edit service %s).", service.Namespace, service.Name, s.port(), service.Namespace,
				service.Name)
		}
	}
	return nil
}
