package hook_test

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

func TestFailedPullNamesTheNodeAndRecordsNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		mode    state.Mode
		says    string
		refused bool
		want    []string
	}{
		"no host port": {state.ModeProxy, noHostPort, false,
			[]string{"probe-proxy:dev", "connection refused", "proxy.hostNetwork=true"}},
		"pull bypasses the proxy": {state.ModeProxy, "unexpected status: 403 Forbidden", false,
			[]string{"did not go through the node's proxy"}},
		"no node port on loopback": {state.ModeNodePort, noHostPort, true,
			[]string{"probe-nodeport:dev", "serves no node port on the loopback address", "--set registryProxy=true"}},
		"a proxy answers at the node port": {state.ModeNodePort, "unexpected status: 403 Forbidden", true,
			[]string{"in nftables mode", "--set registryProxy=true"}},
	} {
		subtest(t, name, func(t *testing.T) {
			b := newBench(t)
			b.begin(c.mode)
			b.failing = map[string]string{"n2": c.says}
			err := b.hook.Finish(t.Context())
			b.mustFail(err, c.refused, append(c.want, "n2 could not pull 127.0.0.1:31999/zarf-registry/probe-", c.says)...)
			if err != nil && strings.Contains(err.Error(), "n1") {
				t.Errorf("the error names a node that pulled: %v", err)
			}
			if s := b.state(); s.Phase != state.PhasePrepared || s.Current != nil {
				t.Errorf("the state records more than was verified: %+v", s)
			}
			b.checkNoProbePods()
		})
	}
}

func TestVerificationContinuesWhileOneNodeMaySucceed(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := newBench(t)
		b.begin(state.ModeNodePort)
		b.failing = map[string]string{"n1": noHostPort, "n2": "not found"}
		begin := time.Now()
		b.mustFail(b.hook.Finish(t.Context()), false, "node n1 could not pull", "node n2 could not pull")
		if took := time.Since(begin); took < 80*time.Second {
			t.Errorf("it gave up after %s", took)
		}
	})
}

func TestNodesWithoutAProbeImageAreSkipped(t *testing.T) {
	t.Parallel()
	other := func(n *corev1.Node) { n.Status.NodeInfo.Architecture = "s390x" }
	b := newBench(t, node("n1"), node("n2"), node("n3", other))
	b.upgrade(state.ModeNodePort)
	b.checkFinished()
	b.mustLog("there is no image for their architecture s390x")
}

func TestNoEligibleNodeRecordsNoVerifiedMode(t *testing.T) {
	t.Parallel()
	b := newBench(t, node("n1", notReady))
	b.mustPrepare()
	b.helm("n1")
	b.mustFail(b.hook.Finish(context.Background()), false, "no node can be verified")
}
