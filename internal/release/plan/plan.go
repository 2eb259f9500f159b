// Package plan holds the rules about nodes that several packages apply, as pure functions of what
// the API server reports. It reads no cluster and changes nothing.
//
// The chart needs RequiresTLS and HostPortUnreachable too, to choose what it renders (_cluster.tpl). Tests of
// templates-tests compare them.
package plan

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/release/nodeimages"
)

// RunsPods reports whether a node may run the pods of a release that every node has: it runs Linux (kubelets of other
// systems say so), and it is no virtual one, which has neither a loopback address nor files. The chart has the same
// rule (zarf-registry.pod.noVirtualNodes).
func RunsPods(n corev1.Node) bool {
	os := n.Status.NodeInfo.OperatingSystem
	return (os == "" || os == "linux") && n.Labels["type"] != "virtual-kubelet" &&
		n.Labels["eks.amazonaws.com/compute-type"] != "fargate"
}

// NodeReady reports whether a node's status says that it is ready.
func NodeReady(n corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// ControlPlane reports whether a node is a server. One of K3s or RKE2 may run only etcd.
func ControlPlane(n corev1.Node) bool {
	_, controlPlane := n.Labels["node-role.kubernetes.io/control-plane"]
	_, etcd := n.Labels["node-role.kubernetes.io/etcd"]
	return controlPlane || etcd
}

// Reports reports whether a node's kubelet lists an image under that name.
func Reports(n corev1.Node, image string) bool {
	return slices.ContainsFunc(n.Status.Images, func(i corev1.ContainerImage) bool {
		return slices.Contains(i.Names, image)
	})
}

// Images returns the images that a node's kubelet lists.
func Images(n corev1.Node) []nodeimages.Image {
	var images []nodeimages.Image
	for _, image := range n.Status.Images {
		images = append(images, nodeimages.Image{Names: image.Names, SizeBytes: image.SizeBytes})
	}
	return images
}

var criOVersion = regexp.MustCompile(`^cri-o://v?(\d+)\.(\d+)`)

// RequiresTLS returns why a node pulls with TLS only, also from its loopback address, or "" if
// plain HTTP works there.
func RequiresTLS(n corev1.Node) string {
	m := criOVersion.FindStringSubmatch(n.Status.NodeInfo.ContainerRuntimeVersion)
	if m == nil {
		return ""
	}
	major, _ := strconv.Atoi(m[1])
	minor, _ := strconv.Atoi(m[2])
	if major < 1 || major == 1 && minor < 35 {
		return ""
	}
	return "CRI-O 1.35 and later pulls with TLS only, from the loopback address too"
}

// HostPortUnreachable returns why a node's host ports cannot be reached from its loopback address, or "" if that
// depends on the network plugin.
func HostPortUnreachable(n corev1.Node) string {
	if !runsCRIO(n) {
		return ""
	}
	return "CRI-O serves host ports itself, and answers none of those on the loopback address"
}

// IPv6Unsupported returns why a node cannot pull from an IPv6 address, or "" if it can.
func IPv6Unsupported(n corev1.Node) string {
	if !runsCRIO(n) {
		return ""
	}
	return "CRI-O accepts no image reference that begins with an IPv6 address"
}

func runsCRIO(n corev1.Node) bool {
	return strings.HasPrefix(n.Status.NodeInfo.ContainerRuntimeVersion, "cri-o://")
}

// LabelProxyName hands a Service to another data plane than kube-proxy, which then ignores it. The
// Service keeps its node port: no other can get it.
const LabelProxyName = "service.kubernetes.io/service-proxy-name"

// TakesPort reports whether kube-proxy answers a port on the nodes for a Service, and so gets the
// connections that are meant for the registry's proxies.
func TakesPort(s corev1.Service, port int) bool {
	if _, other := s.Labels[LabelProxyName]; other {
		return false
	}
	return int(s.Spec.HealthCheckNodePort) == port || slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool {
		return int(p.NodePort) == port && (p.Protocol == "" || p.Protocol == corev1.ProtocolTCP)
	})
}

// HoldsPort reports whether a port is allocated to a Service as a node port, so that no other Service
// can have it. Protocols share the numbers.
func HoldsPort(s corev1.Service, port int) bool {
	return int(s.Spec.HealthCheckNodePort) == port || slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool {
		return int(p.NodePort) == port
	})
}
