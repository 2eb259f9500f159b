package hook_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubetesting "k8s.io/client-go/testing"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

func TestRollbackGivesUpDaemonSetsWithoutTheirPods(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.upgrade(state.ModeProxy)
	b.mode(state.ModeNodePort)
	b.mustPrepare() // of a switch whose next step fails: its revision lacks the DaemonSets
	b.mode(state.ModeProxy)
	b.mustPrepare()
	b.client.ClearActions()
	if err := b.hook.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
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
