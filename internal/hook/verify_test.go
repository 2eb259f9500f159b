package hook_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
		"no registry":               {state.ModeProxy, "503 Service Unavailable", false, []string{"logs of the proxy pod"}},
		"unhelpful kubelet message": {state.ModeProxy, "oh", false, []string{"logs of the proxy pod"}},
		"no node port on loopback": {state.ModeNodePort, noHostPort, true,
			[]string{"probe-nodeport:dev", "serves no node port on the loopback address", "--set registryProxy=true"}},
		"wrong credential": {state.ModeNodePort, "401 Unauthorized", false, []string{"repairs the Secret …-pull"}},
		"CRI-O": {state.ModeProxy, "dial tcp: i/o timeout", false,
			[]string{"on CRI-O --set proxy.hostNetwork=true"}},
		"firewall": {state.ModeNodePort, "dial tcp: i/o timeout", false, []string{"registry's port 5001"}},
		"TLS only": {state.ModeNodePort, "http: server gave HTTP response to HTTPS client", false,
			[]string{"--set registryProxy=true --set proxy.tls=always"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
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
		})
	}
}

func TestVerificationContinuesWhileOneNodeMaySucceed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
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

func TestFailureReasonComesFromTheEventWithDetails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, node("n1"))
		b.mustPrepare()
		b.helm("n1")
		b.failing = map[string]string{"n1": "Back-off pulling image"}
		go func() {
			after(10 * time.Second)
			for i, message := range []string{`Failed to pull image "i": x509: certificate signed by unknown authority`,
				"Error: ErrImagePull", "Error: ImagePullBackOff"} {
				b.add(&corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: message[:9] + string(rune('a'+i)), Namespace: "zarf"},
					Type: "Warning", Reason: "Failed", Message: message,
					InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: b.probePods[0].Name,
						FieldPath: "spec.containers{image-0}"},
					LastTimestamp: metav1.NewTime(b.now.Add(time.Duration(i) * time.Second))})
			}
			b.add(&corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "normal", Namespace: "zarf"}, Type: "Normal",
				Reason: "Pulling", Message: "Pulling image", LastTimestamp: metav1.NewTime(b.now.Add(time.Minute)),
				InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: b.probePods[0].Name}})
		}()
		b.mustFail(b.hook.Finish(t.Context()), false, "certificate signed by unknown authority", "--set proxy.tls=never")
	})
}

func TestNodesWithoutAProbeImageAreSkipped(t *testing.T) {
	t.Parallel()
	other := func(n *corev1.Node) { n.Status.NodeInfo.Architecture = "s390x" }
	b := newBench(t, node("n1"), node("n2"), node("n3", other))
	b.upgrade(state.ModeNodePort)
	b.checkFinished()
	if !strings.Contains(b.log.String(), "there is no image for their architecture s390x") {
		t.Error("the log lacks the message")
	}
}

func TestNoEligibleNodeRecordsNoVerifiedMode(t *testing.T) {
	t.Parallel()
	b := newBench(t, node("n1", notReady))
	b.mustPrepare()
	b.helm("n1")
	b.mustFail(b.hook.Finish(context.Background()), false, "no node can be verified")
}
