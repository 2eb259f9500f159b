package cluster

import "testing"

// Directories, namespaces and cgroups are removed by the names of a cluster and its nodes.
func TestNamesThatWouldReachOthersAreRefused(t *testing.T) {
	for _, name := range []string{"../etc", "", "a.n1"} {
		if err := ValidateName("cluster", name); err == nil {
			t.Errorf("cluster %q is accepted", name)
		}
	}
	if err := ValidateName("node", controlPlaneName); err == nil {
		t.Errorf("node %s is accepted", controlPlaneName)
	}
}
