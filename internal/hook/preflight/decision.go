package preflight

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/plan"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// Look lists the Linux nodes.
func (i *Inspection) Look(ctx context.Context) (string, error) {
	list, err := i.Observer.Cluster.Nodes.List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", fmt.Errorf("listing nodes: %w", release.RefuseForbidden(err))
	}
	// Windows nodes run none of this project's pods and pull no Linux images.
	i.nodes = slices.DeleteFunc(list.Items, func(n corev1.Node) bool { return !plan.RunsPods(n) })
	if len(i.nodes) == 0 {
		return "", exitcode.Refuse("the cluster has no nodes that run Linux: add one, then run this again")
	}
	byArchitecture := map[string]int{}
	for _, n := range i.nodes {
		byArchitecture[n.Status.NodeInfo.Architecture]++
	}
	var parts []string
	for _, arch := range slices.Sorted(maps.Keys(byArchitecture)) {
		parts = append(parts, fmt.Sprintf("%d %s", byArchitecture[arch], arch))
	}
	return fmt.Sprintf("found %d nodes (%s)", len(i.nodes), strings.Join(parts, ", ")), nil
}

// ReadState reads the saved state.
func (i *Inspection) ReadState(ctx context.Context) (string, error) {
	var err error
	_, i.Saved, err = i.LoadState(ctx)
	if err != nil {
		return "", release.RefuseForbidden(err)
	}
	if i.Saved == nil {
		return "found none: this is a new installation", nil
	}
	if i.Saved.Current == nil {
		return fmt.Sprintf("found %s desired, never verified", i.Saved.Desired.Mode), nil
	}
	return fmt.Sprintf("found %s desired, and %s at %s verified", i.Saved.Desired.Mode, i.Saved.Current.Mode,
		i.Saved.Current.Address), nil
}

// Decide compares the settings with the saved state.
func (i *Inspection) Decide(context.Context) (string, error) {
	o := &i.Settings
	if i.Saved != nil {
		if err := i.refuseDefaults(i.Saved.Working()); err != nil {
			return "", err
		}
	}
	i.Desired = state.Settings{Mode: o.Mode, Address: o.Address, IPFamily: o.IPFamily, DecidedBy: o.ModeSource}
	if o.Mode != state.ModeExternal {
		i.Desired.Port, i.Desired.HostNetwork, i.Desired.PKIMode = o.Port, o.Proxy.HostNetwork, o.PKI.Mode
	}
	return fmt.Sprintf("%s, IP family: %s", o.Decision(), i.Desired.IPFamily), nil
}

// refuseDefaults refuses a default that contradicts the saved state, because no value asks for that change.
func (i *Inspection) refuseDefaults(saved state.Settings) error {
	const withoutCluster = "but the chart was rendered without seeing the cluster and fell back to %s"
	o := &i.Settings
	if o.ModeSource == state.SourceDefault && saved.Mode != o.Mode {
		return exitcode.Refuse("the cluster uses %s mode, "+withoutCluster+
			" mode: name the mode, %s to keep it, or %s to switch",
			saved.Mode, o.Mode, setMode(saved.Mode, saved.Address), setMode(o.Mode, o.RegistryURL))
	}
	if o.IPFamilySource == state.SourceDefault && saved.IPFamily != o.IPFamily && o.Mode != state.ModeExternal {
		return exitcode.Refuse("the cluster's registry is set up for %s, "+withoutCluster+": name it, --set ipFamily=%s",
			saved.IPFamily, o.IPFamily, saved.IPFamily)
	}
	if p := i.Saved.PKI; p != nil && o.PKI.Source == state.SourceDefault && p.Mode != o.PKI.Mode &&
		o.Mode != state.ModeExternal {
		return exitcode.Refuse("the cluster uses certificates of mode %s, "+withoutCluster+
			": name the mode, --set pki.mode=%s to keep it, or --set pki.mode=%s to change it",
			p.Mode, o.PKI.Mode, p.Mode, o.PKI.Mode)
	}
	return nil
}

// setMode returns the Helm options that select a mode.
func setMode(mode state.Mode, registryURL string) string {
	if mode == state.ModeExternal {
		return "--set registryURL=" + registryURL
	}
	return fmt.Sprintf("--set registryProxy=%t", mode == state.ModeProxy)
}

// Architectures returns the nodes' architectures that the chart renders pods for.
func (i *Inspection) Architectures() []string {
	found := map[string]bool{}
	for _, n := range i.nodes {
		if arch := n.Status.NodeInfo.Architecture; slices.Contains(i.Settings.Architectures, arch) {
			found[arch] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}
