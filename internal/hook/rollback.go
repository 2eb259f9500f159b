package hook

import (
	"context"

	"github.com/zarf-dev/zarf-registry/internal/hook/steps"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// Rollback makes way for helm rollback. Helm 3 fails with "no DaemonSet with the name ... found" where an object exists
// that the target revision has and the failed one lacks (Update in pkg/kube/client.go): what a switch of modes keeps.
func (h *Hook) Rollback(ctx context.Context) error {
	r := h.start()
	return r.phase(ctx, "rollback", []steps.Step{
		{Name: "give up the DaemonSets", Run: steps.OnlyIf(h.Settings.Mode == state.ModeProxy, r.OrphanProxies),
			Why: "a switch to another mode keeps them, and Helm cannot take them back; their pods go on serving"},
	})
}
