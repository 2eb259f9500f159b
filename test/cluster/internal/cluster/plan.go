package cluster

import (
	"encoding/binary"
	"net/netip"
	"strings"
)

// Family is the IP families of a cluster, in the terms of a Service's ipFamilyPolicy.
type Family string

// The families. DualStack prefers IPv4, as most dual-stack clusters do.
const (
	IPv4      Family = "IPv4"
	IPv6      Family = "IPv6"
	DualStack Family = "DualStack"
)

// family holds the addresses of one IP family. No packet with them leaves the cluster's namespaces,
// so that all clusters use the same addresses.
type family struct {
	fabric   netip.Prefix // connects control plane and nodes
	pods     netip.Prefix // of all nodes
	podBits  int          // prefix length of one node's part of pods
	services netip.Prefix
}

var (
	familyIPv4 = family{
		fabric:   netip.MustParsePrefix("172.30.0.0/24"),
		pods:     netip.MustParsePrefix("10.77.0.0/16"),
		podBits:  24,
		services: netip.MustParsePrefix("10.96.0.0/16"),
	}
	familyIPv6 = family{
		fabric:   netip.MustParsePrefix("fd30::/64"),
		pods:     netip.MustParsePrefix("fd77::/48"),
		podBits:  64,
		services: netip.MustParsePrefix("fd96::/112"),
	}
)

// Offsets in a range of addresses. In the Service range, the API server has the first and DNS by
// convention the tenth address; nodes follow the control plane.
const (
	firstAddress    = 1
	dnsAddress      = 10
	nodeAddressBase = 10
)

func (f Family) families() []family {
	switch f {
	case IPv6:
		return []family{familyIPv6}
	case DualStack:
		return []family{familyIPv4, familyIPv6}
	default:
		return []family{familyIPv4}
	}
}

// ControlPlane returns the control plane's addresses, one for each family.
func (f Family) ControlPlane() []netip.Addr {
	return each(f, func(a family) netip.Addr { return nth(a.fabric.Addr(), firstAddress) })
}

// APIService returns the ClusterIPs of the Service kubernetes.
func (f Family) APIService() []netip.Addr {
	return each(f, func(a family) netip.Addr { return nth(a.services.Addr(), firstAddress) })
}

// DNSService returns the ClusterIPs of the Service kube-dns.
func (f Family) DNSService() []netip.Addr {
	return each(f, func(a family) netip.Addr { return nth(a.services.Addr(), dnsAddress) })
}

// Node returns the addresses of the node with an index, counted from 1.
func (f Family) Node(index int) []netip.Addr {
	return each(f, func(a family) netip.Addr { return nth(a.fabric.Addr(), nodeAddressBase+uint64(index)) })
}

// NodePods returns the pod ranges of a node.
func (f Family) NodePods(index int) []netip.Prefix {
	return each(f, func(a family) netip.Prefix {
		bytes := a.pods.Addr().AsSlice()
		// The node's index is in the last 16 bits (IPv6) or 8 bits (IPv4) of the prefix.
		bytes[a.podBits/8-1] = byte(index)
		address, _ := netip.AddrFromSlice(bytes)
		return netip.PrefixFrom(address, a.podBits)
	})
}

// Pods returns the ranges of all pods.
func (f Family) Pods() []netip.Prefix { return each(f, func(a family) netip.Prefix { return a.pods }) }

// Services returns the ranges of Services.
func (f Family) Services() []netip.Prefix {
	return each(f, func(a family) netip.Prefix { return a.services })
}

func each[T any](f Family, get func(family) T) (list []T) {
	for _, a := range f.families() {
		list = append(list, get(a))
	}
	return list
}

// onFabric returns an address with the fabric's prefix length.
func (f Family) onFabric(address netip.Addr) netip.Prefix {
	for _, a := range f.families() {
		if a.fabric.Contains(address) {
			return netip.PrefixFrom(address, a.fabric.Bits())
		}
	}
	panic("address outside the fabric: " + address.String()) // callers pass ControlPlane and Node
}

// unspecified is the family's wildcard address.
func (f Family) unspecified() string {
	if f == IPv4 {
		return "0.0.0.0"
	}
	return "::"
}

// nth returns the n-th address after a.
func nth(a netip.Addr, n uint64) netip.Addr {
	bytes := a.AsSlice()
	low := bytes[len(bytes)-4:] // ranges of the plan do not overflow
	binary.BigEndian.PutUint32(low, binary.BigEndian.Uint32(low)+uint32(n))
	next, _ := netip.AddrFromSlice(bytes)
	return next
}

// join joins addresses or ranges with commas, for Kubernetes' flags.
func join[T interface{ String() string }](items []T) string {
	return strings.Join(texts(items), ",")
}

func texts[T interface{ String() string }](items []T) []string {
	out := make([]string, len(items))
	for i, item := range items {
		out[i] = item.String()
	}
	return out
}
