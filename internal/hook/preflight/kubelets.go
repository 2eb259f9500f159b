package preflight

import (
	"context"
	"encoding/json"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/plan"
)

const (
	// maxKubelets is the number of kubelets whose configuration is read. Nodes of a cluster rarely
	// differ in it.
	maxKubelets = 20
	// kubeletTimeout limits reading one of them, which the API server does through the node's port.
	kubeletTimeout = 5 * time.Second
)

// lookAtKubelets finds kubelets that pull images which their node has. A configuration that cannot be
// read is skipped: the right to read it (nodes/proxy) is too much to ask for.
func (i *Inspection) lookAtKubelets(ctx context.Context) ([]Finding, error) {
	if i.Cluster.KubeletConfig == nil || !i.Settings.Injector.Enabled {
		return nil, nil
	}
	var names []string
	for _, n := range i.nodes {
		if plan.NodeReady(n) && len(names) < maxKubelets {
			names = append(names, n.Name)
		}
	}
	verifies := make([]bool, len(names))
	var group errgroup.Group
	for n, name := range names {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, kubeletTimeout)
			defer cancel()
			data, err := i.Cluster.KubeletConfig(ctx, name)
			var config struct {
				Kubelet struct {
					Policy string `json:"imagePullCredentialsVerificationPolicy"`
				} `json:"kubeletconfig"`
			}
			verifies[n] = err == nil && json.Unmarshal(data, &config) == nil && config.Kubelet.Policy == "AlwaysVerify"
			return nil
		})
	}
	_ = group.Wait() // no function fails
	var found []string
	for n, name := range names {
		if verifies[n] {
			found = append(found, name)
		}
	}
	if len(found) == 0 {
		return nil, nil
	}
	f := Finding{Check: checkAlwaysPull, Severity: Blocker, Object: release.ListNodes(found),
		Cause: "the kubelet's imagePullCredentialsVerificationPolicy is AlwaysVerify, so it pulls the pause image that " +
			"injected pods use, although the node has it",
		Remedy: "set it to NeverVerifyPreloadedImages, or --set injector.enabled=false where nodes can pull the project's " +
			"images"}
	if len(found) < len(names) {
		f.Severity = Warning
	}
	return []Finding{f}, nil
}
