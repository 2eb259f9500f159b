package cluster

import (
	"net/netip"
	"slices"
	"testing"
)

func TestAddressPlan(t *testing.T) {
	for family, want := range map[Family]struct{ controlPlane, api, dns, node2, pods2, allPods string }{
		IPv4: {"172.30.0.1", "10.96.0.1", "10.96.0.10", "172.30.0.12", "10.77.2.0/24", "10.77.0.0/16"},
		IPv6: {"fd30::1", "fd96::1", "fd96::a", "fd30::c", "fd77:0:0:2::/64", "fd77::/48"},
		DualStack: {"172.30.0.1,fd30::1", "10.96.0.1,fd96::1", "10.96.0.10,fd96::a", "172.30.0.12,fd30::c",
			"10.77.2.0/24,fd77:0:0:2::/64", "10.77.0.0/16,fd77::/48"},
	} {
		t.Run(string(family), func(t *testing.T) {
			for _, c := range []struct{ what, got, want string }{
				{"control plane", join(family.ControlPlane()), want.controlPlane},
				{"API Service", join(family.APIService()), want.api},
				{"DNS Service", join(family.DNSService()), want.dns},
				{"second node", join(family.Node(2)), want.node2},
				{"pods of the second node", join(family.NodePods(2)), want.pods2},
				{"all pods", join(family.Pods()), want.allPods},
			} {
				if c.got != c.want {
					t.Errorf("%s: got %s, want %s", c.what, c.got, c.want)
				}
			}
		})
	}
}

func TestNodeAddressesAreUnique(t *testing.T) {
	family := DualStack
	addresses := family.ControlPlane()
	var ranges []netip.Prefix
	for index := 1; index <= maxNodes; index++ {
		for i, address := range family.Node(index) {
			if !family.families()[i].fabric.Contains(address) {
				t.Fatalf("node %d: %s is not on the fabric", index, address)
			}
			addresses = append(addresses, address)
		}
		for i, pods := range family.NodePods(index) {
			if pods != pods.Masked() || !family.Pods()[i].Contains(pods.Addr()) {
				t.Fatalf("node %d: %s is not a part of %s", index, pods, family.Pods()[i])
			}
			ranges = append(ranges, pods)
		}
	}
	slices.SortFunc(addresses, netip.Addr.Compare)
	if unique := slices.Compact(slices.Clone(addresses)); len(unique) != len(addresses) {
		t.Errorf("%d addresses, %d of them different", len(addresses), len(unique))
	}
	for i, a := range ranges {
		for _, b := range ranges[i+1:] {
			if a.Overlaps(b) {
				t.Fatalf("%s overlaps %s", a, b)
			}
		}
	}
}

func TestAddressRangesDoNotOverlap(t *testing.T) {
	for _, f := range DualStack.families() {
		if f.fabric.Overlaps(f.pods) || f.fabric.Overlaps(f.services) || f.pods.Overlaps(f.services) {
			t.Errorf("ranges overlap: %+v", f)
		}
	}
}
