package soak

import "slices"

// NodePorts are the TCP ports that others may find open on a node's address: those of
// Kubernetes itself and, in nodeport mode, the registry's. A proxy answers on the
// loopback address only.
func NodePorts(proxy bool) []int {
	ports := []int{
		10250, // kubelet
		10256, // kube-proxy's health check
	}
	if !proxy {
		ports = append(ports, 31999)
	}
	return ports
}

// PodPorts are those that another node, or what is outside of all nodes, may find open
// on the addresses of the release's pods: network policies keep them from all else.
func PodPorts(proxy bool) []int {
	if proxy {
		return nil
	}
	return []int{5001} // the plain port: a node port hides who comes through it
}

// Unexpected returns the open ports that are not among those expected, sorted.
func Unexpected(open, expected []int) []int {
	found := slices.DeleteFunc(slices.Clone(open), func(port int) bool { return slices.Contains(expected, port) })
	slices.Sort(found)
	return found
}
