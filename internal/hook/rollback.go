package hook

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/hook/steps"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// Rollback makes way for helm rollback. Helm 3 fails with "no DaemonSet with the name ... found" where an object exists
// that the target revision has and the failed one lacks (Update in pkg/kube/client.go): what a switch of modes keeps.
func (h *Hook) Rollback(ctx context.Context) error {
	r := h.start()
	return r.phase(ctx, "rollback", []steps.Step{
		{Name: "check the claim", Run: r.checkClaim,
			Why: "Helm 3 cannot take back a claim that it kept, and deleting it would delete the images"},
		{Name: "give up the DaemonSets", In: []state.Mode{state.ModeProxy}, Run: r.OrphanProxies,
			Why: "a switch to another mode keeps them, and Helm cannot take them back; their pods go on serving"},
	})
}

// checkClaim refuses a rollback from external mode with Helm 3. Revisions of that mode lack the claim, and Helm 3 takes
// back only what the revision before had. prepare has already changed what is desired.
func (r *run) checkClaim(ctx context.Context) (string, error) {
	name := r.Settings.Storage.Claim.Name
	_, saved, err := r.LoadState(ctx)
	if err != nil || name == "" || saved == nil || saved.Current == nil || saved.Current.Mode != state.ModeExternal {
		return "nothing to do", err
	}
	if r.Settings.HelmAdopts {
		return "Helm takes back the claim", nil
	}
	_, err = r.inspection().Cluster.Claims.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "Helm creates it", nil
	case err != nil:
		return "", fmt.Errorf("reading %s: %w", r.Object("PersistentVolumeClaim", name), err)
	}
	return "", exitcode.Refuse("helm rollback of Helm 3 cannot take back %s, which was kept for its images: run helm "+
		"rollback %[2]s --namespace %[3]s, which ends this rollback, then helm get values %[2]s --namespace %[3]s "+
		"--revision REVISION -o yaml >values.yaml, and then helm upgrade with --reset-values -f values.yaml",
		r.Object("PersistentVolumeClaim", name), r.Settings.Release, r.Settings.Namespace)
}
