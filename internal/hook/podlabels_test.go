package hook_test

import (
	"testing"
	"testing/synctest"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// The bench checks the label of each created pod. This test makes sure that there is one of each
// kind.
func TestCreatedPodsHaveTheLabelThatZarfAgentIgnores(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.add(kubernetesService("10.96.0.1"))
		b.upgrade(state.ModeProxy)
		if len(b.probePods) == 0 || b.podsCreated <= len(b.probePods) {
			t.Errorf("%d pods were created, %d of them to verify pulls: none was a dry run", b.podsCreated, len(b.probePods))
		}
	})
}
