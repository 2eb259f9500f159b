package preflight

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

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
	var nodes []corev1.Node
	for _, n := range i.nodes {
		if plan.NodeReady(n) && len(nodes) < maxKubelets {
			nodes = append(nodes, n)
		}
	}
	policies := make([]string, len(nodes)) // those that make a kubelet pull
	var group errgroup.Group
	for n, node := range nodes {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, kubeletTimeout)
			defer cancel()
			data, err := i.Cluster.KubeletConfig(ctx, node.Name)
			image := i.Settings.Injector.PauseImages[node.Status.NodeInfo.Architecture].Reference
			var config struct {
				Kubelet kubeletConfig `json:"kubeletconfig"`
			}
			if err == nil && json.Unmarshal(data, &config) == nil && config.Kubelet.verifies(image) {
				policies[n] = config.Kubelet.Policy
			}
			return nil
		})
	}
	_ = group.Wait() // no function fails
	found := map[string][]string{}
	for n, policy := range policies {
		if policy != "" {
			found[policy] = append(found[policy], nodes[n].Name)
		}
	}
	remedies := map[string]string{
		alwaysVerify:   "set it to NeverVerifyPreloadedImages",
		verifyUnlisted: "add the image's repository to preloadedImagesVerificationAllowlist",
	}
	var findings []Finding
	for _, policy := range slices.Sorted(maps.Keys(found)) {
		f := Finding{Check: checkAlwaysPull, Severity: Blocker, Object: release.ListNodes(found[policy]),
			Cause: "the kubelet's imagePullCredentialsVerificationPolicy is " + policy + ", so it pulls the pause image that " +
				"injected pods use, although the node has it",
			Remedy: remedies[policy] + ", or --set injector.enabled=false where nodes can pull the project's images"}
		if len(found[policy]) < len(nodes) {
			f.Severity = Warning
		}
		findings = append(findings, f)
	}
	return findings, nil
}

// The policies with which a kubelet verifies the credentials of images that the node has, as a pull.
const (
	alwaysVerify   = "AlwaysVerify"
	verifyUnlisted = "NeverVerifyAllowlistedImages"
)

// kubeletConfig is the part of a kubelet's configuration that says which images of the node it uses without a pull.
type kubeletConfig struct {
	Policy string `json:"imagePullCredentialsVerificationPolicy"`
	// Allowed are repositories, or prefixes of them that end with "/*".
	Allowed []string `json:"preloadedImagesVerificationAllowlist"`
}

// verifies reports whether the kubelet pulls an image that was loaded on its node.
func (c kubeletConfig) verifies(image string) bool {
	repository, _, _ := strings.Cut(image, "@")
	if colon := strings.LastIndex(repository, ":"); colon > strings.LastIndex(repository, "/") {
		repository = repository[:colon]
	}
	return c.Policy == alwaysVerify || c.Policy == verifyUnlisted &&
		!slices.ContainsFunc(c.Allowed, func(pattern string) bool {
			prefix, wildcard := strings.CutSuffix(pattern, "*")
			return repository == pattern || wildcard && strings.HasPrefix(repository, prefix)
		})
}
