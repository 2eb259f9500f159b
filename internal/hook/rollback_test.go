package hook_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubetesting "k8s.io/client-go/testing"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/require"
)

func TestRollbackGivesUpDaemonSetsWithoutTheirPods(t *testing.T) {
	t.Parallel()
	b := upgraded(t, state.ModeProxy)
	b.mode(state.ModeNodePort)
	b.mustPrepare() // of a switch whose next step fails: its revision lacks the DaemonSets
	b.mode(state.ModeProxy)
	b.mustPrepare()
	b.client.ClearActions()
	require.NoError(t, b.hook.Rollback(t.Context()))
	deletions := 0
	for _, a := range b.client.Actions() {
		if a, ok := a.(kubetesting.DeleteActionImpl); ok {
			deletions++
			p := a.DeleteOptions.PropagationPolicy
			if a.Resource.Resource != "daemonsets" || p == nil || *p != metav1.DeletePropagationOrphan {
				t.Errorf("deleted %s %s, with %v", a.Resource.Resource, a.Name, p)
			}
		}
	}
	if deletions == 0 {
		t.Error("no DaemonSet was deleted")
	}
}

func TestRollbackFromExternalModeNamesTheCommandForTheClaim(t *testing.T) {
	t.Parallel()
	b := newBench(t, savedWith(t, func(s *state.State) {
		external := s.Desired
		external.Mode = state.ModeExternal
		s.Current = &external
	}),
		&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "zarf", Name: "zarf-registry"}})
	b.mode(state.ModeProxy)
	b.hook.Settings.Storage.Claim.Name, b.hook.Settings.Release = "zarf-registry", "images"
	b.mustFail(b.hook.Rollback(t.Context()), true, "cannot take back PersistentVolumeClaim zarf/zarf-registry",
		"helm rollback images --namespace zarf, ",
		"helm upgrade with", "helm get values images --namespace zarf --revision REVISION")
	b.mustNotWrite()
	b.hook.Settings.HelmAdopts = true
	if err := b.hook.Rollback(t.Context()); err != nil {
		t.Error(err)
	}
}
