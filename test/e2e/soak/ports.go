package soak

import "slices"

// ControlPort is a port of the registry's pods that pods without NetworkPolicies open: a scan that misses it is
// worthless.
const ControlPort = 5001

// NodePorts returns the TCP ports that may be open on a node's address: those of Kubernetes and, in
// nodeport mode, the registry's. Proxies listen on the loopback address only.
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

// PodPorts returns the ports that may be open on the release's pods for other nodes and from
// outside. NetworkPolicies block all others.
func PodPorts(proxy bool) []int {
	if proxy {
		return nil
	}
	return []int{5001} // the plain port: a node port hides the client's address
}

// Unexpected returns the open ports that are not expected, sorted.
func Unexpected(open, expected []int) []int {
	found := slices.DeleteFunc(slices.Clone(open), func(port int) bool { return slices.Contains(expected, port) })
	slices.Sort(found)
	return found
}
