package nodes

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// WaitConfigured waits until each ready node is configured, and saves the directories that may hold
// files from now on.
func (o *Observer) WaitConfigured(ctx context.Context) (string, error) {
	w := o.waitFiles(names.ComponentNodeConfig, "the node configuration", o.Settings.NodeConfig.DaemonSets, nil)
	if err := w.run(ctx); err != nil {
		return "", fmt.Errorf("%w; see the log of such a pod (container configure), fix the problem, then run helm "+
			"upgrade again; nothing was changed on a node that refuses", err)
	}
	o.logReports(w.progress.pods())

	var notReady []string
	for _, node := range slices.Sorted(maps.Keys(w.ready)) {
		if !w.ready[node] {
			notReady = append(notReady, node)
		}
	}
	remembered := ""
	err := o.UpdateState(ctx, func(s *state.State) bool {
		switch {
		case len(notReady) > 0:
			// These nodes may still have files of an earlier configuration.
			remembered = "; their directories stay recorded until a later upgrade, because these nodes are not ready: " +
				release.ListNodes(notReady)
			return false
		case o.Settings.NodeConfig.AgentsOnly:
			// Control-plane nodes may have files of a version, or of values, that did not leave them out.
			return false
		}
		var none *state.NodeConfig
		next := none.Remember(o.Settings.NodeConfig.DirectoriesInUse...)
		same := reflect.DeepEqual(next, s.NodeConfig)
		s.NodeConfig = next
		return !same
	})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("done on %d nodes%s", len(w.progress.in(done)), remembered), nil
}

// logReports logs the nodes' warnings and where K3s needs a restart. Nodes with the same message
// share one line.
func (o *Observer) logReports(pods []nodePod) {
	warnings, restarts := map[string][]string{}, map[string][]string{}
	for _, p := range pods {
		for _, warning := range p.report.Warnings {
			warnings[warning] = append(warnings[warning], p.Spec.NodeName)
		}
		if hint := restartHint(p); hint != "" {
			restarts[hint] = append(restarts[hint], p.Spec.NodeName)
		}
	}
	for _, warning := range slices.Sorted(maps.Keys(warnings)) {
		o.Log.Warn("node configuration", "nodes", release.ListNodes(warnings[warning]), "warning", warning)
	}
	for _, hint := range slices.Sorted(maps.Keys(restarts)) {
		o.Log.Warn("registries.yaml is read when K3s or RKE2 starts", "nodes", release.ListNodes(restarts[hint]),
			"restart", hint)
	}
}

// restartHint says how to restart K3s or RKE2 and what takes effect then. It is "" if the pod changed no file that
// they read. Both timestamps come from the node's clock.
func restartHint(p nodePod) string {
	r := p.report.Registries
	if r == nil || r.Changed.IsZero() || r.Changed.Before(p.began.Time) {
		return ""
	}
	command := "systemctl restart k3s, on agents k3s-agent"
	if strings.Contains(r.Path, "/rke2/") {
		command = "systemctl restart rke2-server, on agents rke2-agent"
	}
	if r.Gone {
		return command + ": until then the settings of the removed " + r.Path + " stay in effect"
	}
	return command + ": until then " + r.Path + " has no effect"
}
