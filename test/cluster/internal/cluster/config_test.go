package cluster

import (
	"strings"
	"testing"
)

func TestNetnsNamesAreNotPrefixesOfOtherClusters(t *testing.T) {
	// Cluster "a-n1" must not be mistaken for node "n1" of cluster "a".
	if strings.HasPrefix(netnsName("a-n1", controlPlaneName), netnsName("a", "")) {
		t.Error("removing cluster a would remove a namespace of cluster a-n1")
	}
}
