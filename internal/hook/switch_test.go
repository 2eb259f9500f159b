package hook_test

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubetesting "k8s.io/client-go/testing"

	"github.com/zarf-dev/zarf-registry/internal/release/plan"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

func TestSwitchBetweenAllModes(t *testing.T) {
	t.Parallel()
	for _, from := range allModes {
		for _, to := range allModes {
			subtest(t, string(from)+" to "+string(to), func(t *testing.T) {
				b := upgraded(t, from)
				b.checkFinished()
				b.watched = from != state.ModeExternal && to != state.ModeExternal
				b.upgrade(to)
				b.checkFinished()
				b.upgrade(from)
				b.checkFinished()
			})
		}
	}
}

func TestSwitchKeepsPullCredential(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := upgraded(t, state.ModeNodePort)
		before := b.secret("zarf-registry-pull").Data
		b.upgrade(state.ModeProxy)
		b.upgrade(state.ModeNodePort)
		after := b.secret("zarf-registry-pull").Data
		for _, key := range []string{".dockerconfigjson", "username", "password"} {
			if string(before[key]) != string(after[key]) {
				t.Errorf("%s changed: copies in other namespaces are wrong now", key)
			}
		}
	})
}

// Prepare or Finish of a switch is killed at each of its writes. Then the same upgrade runs again,
// or the user switches back.
func TestSwitchKilledAtAnyWriteConvergesOnTheNextRun(t *testing.T) {
	t.Parallel()
	for _, from := range allModes {
		for _, to := range allModes {
			if from == to {
				continue
			}
			for name, next := range map[string]state.Mode{"again": to, "back": from} {
				t.Run(string(from)+" to "+string(to)+", "+name, func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						// External mode has no endpoint of ours.
						watched := from != state.ModeExternal && to != state.ModeExternal
						installed := func() *bench {
							b := upgraded(t, from)
							b.watched = watched
							b.mode(to)
							return b
						}
						then := func(b *bench) {
							b.upgrade(next)
							b.checkFinished()
						}
						killedAtEachWrite(t, installed, func(b *bench) error { return b.hook.Prepare(t.Context()) }, then)
						killedAtEachWrite(t, func() *bench {
							b := installed()
							b.mustPrepare()
							b.helm()
							return b
						}, func(b *bench) error { return b.hook.Finish(t.Context()) }, then)
					})
				})
			}
		}
	}
}

const noHostPort = "dial tcp 127.0.0.1:31999: connect: connection refused"

func TestFailedSwitchServesThePreviousModeAgain(t *testing.T) {
	t.Parallel()
	for _, to := range []state.Mode{state.ModeProxy, state.ModeNodePort} {
		subtest(t, "to "+string(to), func(t *testing.T) {
			b, from, outcome := newBench(t), state.ModeNodePort, "serves the port again: nodes pull as before"
			if to == state.ModeNodePort {
				from, outcome = state.ModeProxy, "only reserves the port again: nodes pull as before"
			}
			b.upgrade(from)
			before := b.service().DeepCopy()
			b.begin(to)
			b.watched = true
			b.failing = map[string]string{"n2": noHostPort}
			begin := time.Now()
			b.mustFail(b.hook.Finish(t.Context()), true, "could not pull", "Service zarf/zarf-registry-nodeport "+outcome)
			if took := time.Since(begin); took > 55*time.Second {
				t.Errorf("a node could not pull for up to %s", took)
			}
			after := b.service()
			after.ResourceVersion = before.ResourceVersion
			if !reflect.DeepEqual(before, after) {
				t.Errorf("the Service was %+v and is %+v", before, after)
			}
			if s := b.state(); s.Phase != state.PhasePrepared || s.Desired.Mode != to || s.Current == nil ||
				s.Current.Mode != from {
				t.Errorf("state is %+v", s)
			}
			if b.proxies() != 1 || !b.registry.open {
				t.Error("the next run could not continue")
			}
			b.checkNoProbePods()

			b.failing = nil
			b.upgrade(to)
			b.checkFinished()
		})
	}
}

// A run that was killed after the verification may have closed the listener. If the next run's
// verification fails, serving the node port without the listener would not help.
func TestSwitchBackOpensTheListener(t *testing.T) {
	t.Parallel()
	for _, left := range []string{"patch services " + serviceName, "update secrets zarf-registry-pull",
		"update secrets zarf-registry-auth"} {
		subtest(t, "killed after "+left, func(t *testing.T) {
			b := switching(t, state.ModeNodePort, state.ModeProxy)
			b.client.PrependReactor("*", "*", func(a kubetesting.Action) (bool, runtime.Object, error) {
				if describe(a) == left && !b.dead {
					b.left, b.lost = 0, true
				}
				return false, nil, nil
			})
			if b.hook.Finish(t.Context()) == nil || b.served() {
				t.Fatal("it was not killed in time")
			}
			b.client.ReactionChain = b.client.ReactionChain[1:]
			b.left, b.dead, b.watched = -1, false, true
			b.failing = map[string]string{"n1": noHostPort}
			b.mustFail(b.hook.Finish(t.Context()), true, "serves the port again: nodes pull as before")
			if !b.served() || !b.endpoints() {
				t.Error("the Service is not served or has no open listener")
			}
			checkPull(b, b.secret("zarf-registry-pull"), true)
			b.checkAuth(true)
		})
	}
}

func TestInterruptedSwitchGoesBack(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*bench, context.CancelFunc){
		"by a signal":    func(_ *bench, cancel context.CancelFunc) { time.AfterFunc(10*time.Second, cancel) },
		"by its timeout": func(b *bench, _ context.CancelFunc) { b.hook.Timeout = 10 * time.Second },
	} {
		subtest(t, name, func(t *testing.T) {
			b := switching(t, state.ModeNodePort, state.ModeProxy)
			b.failing = map[string]string{"n1": noHostPort}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			end(b, cancel)
			err := b.hook.Finish(ctx)
			b.mustFail(err, false, "serves the port again: nodes pull as before")
			if !b.served() || !b.endpoints() {
				t.Error("the Service is not served or has no open listener")
			}
			b.checkNoProbePods()
		})
	}
}

func TestSwitchGoesBackDuringAPIServerRestart(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := switching(t, state.ModeNodePort, state.ModeProxy)
		b.failing = map[string]string{"n1": noHostPort}
		down := 5
		b.client.PrependReactor("patch", "services", func(action kubetesting.Action) (bool, runtime.Object, error) {
			if !unlabels(action) {
				return false, nil, nil
			}
			down--
			return down >= 0, nil, errors.New("connect: connection refused")
		})
		b.mustFail(b.hook.Finish(t.Context()), true, "serves the port again")
		if down >= 0 || !b.served() {
			t.Error("the Service is not served")
		}
	})
}

func TestFailureToSwitchBackIsReported(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := switching(t, state.ModeNodePort, state.ModeProxy)
		b.failing = map[string]string{"n1": noHostPort}
		b.client.PrependReactor("patch", "services", func(action kubetesting.Action) (bool, runtime.Object, error) {
			return unlabels(action), nil, errors.New("a webhook says no")
		})
		b.mustFail(b.hook.Finish(t.Context()), true, "switching back failed", "a webhook says no", "run helm rollback")
	})
}

// unlabels reports whether a patch makes kube-proxy serve the node port.
func unlabels(action kubetesting.Action) bool {
	return strings.Contains(string(action.(kubetesting.PatchAction).GetPatch()), `"`+plan.LabelProxyName+`":null`)
}

// kube-proxy sees the label before the endpoints go: it would otherwise reject connections.
func TestPortIsReservedBeforeItsEndpointsGo(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := switching(t, state.ModeNodePort, state.ModeProxy)
		var at []time.Time
		var targets []string
		b.client.PrependReactor("patch", "services", func(action kubetesting.Action) (bool, runtime.Object, error) {
			var patch corev1.Service
			if err := json.Unmarshal(action.(kubetesting.PatchAction).GetPatch(), &patch); err != nil {
				t.Error(err)
			}
			at, targets = append(at, time.Now()), append(targets, patch.Spec.Ports[0].TargetPort.String())
			return false, nil, nil
		})
		b.must(b.hook.Finish(t.Context()))
		if len(at) != 2 || targets[0] == targets[1] || at[1].Sub(at[0]) < 3*time.Second {
			t.Errorf("target ports %q, patched at %s", targets, at)
		}
		if b.served() {
			t.Error("kube-proxy serves the port")
		}
	})
}

// Endpoints come before the rules: kube-proxy would otherwise reject connections.
func TestNodePortIsServedOnceItHasEndpoints(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := switching(t, state.ModeProxy, state.ModeNodePort)
		late := 10
		b.client.PrependReactor("list", "endpointslices", func(kubetesting.Action) (bool, runtime.Object, error) {
			late--
			if b.served() {
				t.Error("the node port is served without endpoints")
			}
			of := metav1.ObjectMeta{Labels: map[string]string{discoveryv1.LabelServiceName: serviceName}}
			no := false
			pod := discoveryv1.Endpoint{Addresses: []string{"10.244.1.5"}}
			unready := pod
			unready.Conditions.Ready = &no
			return late >= 0, &discoveryv1.EndpointSliceList{Items: []discoveryv1.EndpointSlice{
				{ObjectMeta: of, Endpoints: []discoveryv1.Endpoint{pod}}, // without a port
				{ObjectMeta: of, Endpoints: []discoveryv1.Endpoint{unready}, Ports: []discoveryv1.EndpointPort{{}}},
			}}, nil
		})
		b.mustFinish()
		b.checkFinished()
		if late >= 0 {
			t.Error("it did not wait")
		}
	})
}

// kube-proxy before Kubernetes 1.36 ignores EndpointSlices with the Service's label.
func TestNodePortIsServedOnceKubeProxySeesItsEndpoints(t *testing.T) {
	t.Parallel()
	for _, forbidden := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := switching(t, state.ModeProxy, state.ModeNodePort)
			visible := false
			b.interfere = func(write string) {
				visible = write == "patch services "+serviceName && b.slices().Items[0].Labels[plan.LabelProxyName] == ""
			}
			b.after = func(string) {
				if b.served() {
					if visible == forbidden {
						t.Errorf("kube-proxy saw the EndpointSlices: %t, want %t", visible, !forbidden)
					}
					b.interfere, b.after = nil, nil
				}
			}
			if forbidden { // a Role of a previous version
				b.answer("patch", "endpointslices", errors.New("forbidden"))
			}
			b.mustFinish()
			b.checkFinished()
			if b.after != nil {
				t.Error("the node port was not served")
			}
		})
	}
}

func TestSwitchWithoutEndpointsKeepsProxies(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := switching(t, state.ModeProxy, state.ModeNodePort)
		b.watched = true
		b.client.PrependReactor("list", "endpointslices", func(kubetesting.Action) (bool, runtime.Object, error) {
			return true, &discoveryv1.EndpointSliceList{}, nil
		})
		b.mustFail(b.hook.Finish(t.Context()), false, "waiting for a ready endpoint of Service zarf/zarf-registry-nodeport",
			"only reserves the port again")
		b.upgrade(state.ModeProxy)
		b.checkFinished()
	})
}

// The failing switch is killed too, also while it switches back.
func TestFailingSwitchKilledAtAnyWriteConvergesOnTheNextRun(t *testing.T) {
	simulate(t, func(t *testing.T) {
		failing := func(b *bench) error {
			b.failing = map[string]string{"n2": noHostPort}
			defer func() { b.failing = nil }()
			return b.hook.Finish(t.Context())
		}
		setUp := func() *bench {
			b := upgraded(t, state.ModeNodePort)
			b.watched = true
			b.begin(state.ModeProxy)
			return b
		}
		whole := setUp()
		whole.forget()
		if failing(whole) == nil {
			t.Fatal("it did not fail")
		}
		writes := whole.writes()
		if strings.Count(strings.Join(writes, "\n"), "patch services "+serviceName) < 2 {
			t.Fatalf("it did not switch back: %q", writes)
		}
		for n := range writes {
			for _, next := range []state.Mode{state.ModeProxy, state.ModeNodePort} {
				b := setUp()
				b.left = n
				if failing(b) == nil || !b.dead {
					t.Fatalf("killed at write %d, it did not fail", n+1)
				}
				b.left, b.dead = -1, false
				b.upgrade(next)
				b.checkFinished()
			}
		}
	})
}

func TestListenerIsClosedBeforeModeIsRecorded(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := switching(t, state.ModeNodePort, state.ModeProxy)
		b.registry.deaf = true
		b.mustFail(b.hook.Finish(t.Context()), false, "waiting for the registry to close its plain listener",
			"pod zarf/zarf-registry-1: it is still open")
		if s := b.state(); s.Current == nil || s.Current.Mode != state.ModeNodePort {
			t.Errorf("state is %+v", s)
		}
		if b.served() {
			t.Error("the Service is served although the proxies are verified and the listener is closing")
		}
		b.registry.deaf = false
		b.upgrade(state.ModeProxy)
		b.checkFinished()
	})
}

func TestPayloadOfTerminatingProxiesIsCollected(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := upgraded(t, state.ModeProxy)
		ending := proxyPod(proxyName, "n1")
		ending.Name, ending.DeletionTimestamp = "proxy-ending", &metav1.Time{Time: b.now}
		ending.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "zarf-registry-payload-registry-node-amd64-00"}}}}}}}}
		b.add(ending)
		b.upgrade(state.ModeNodePort)
		b.checkFinished()
	})
}

func TestMissingServiceInProxyModeReservesThePort(t *testing.T) {
	t.Parallel()
	for _, to := range []state.Mode{state.ModeNodePort, state.ModeProxy} {
		subtest(t, string(to), func(t *testing.T) {
			b := upgraded(t, state.ModeProxy)
			b.remove("services", serviceName)
			b.watched = true
			b.mode(to)
			b.mustPrepare()
			if b.service() == nil || b.served() {
				t.Errorf("the Service is %+v: the proxies would not answer", b.service())
			}
			b.helm()
			b.mustFinish()
			b.checkFinished()
		})
	}
}

func TestMissingServiceInNodePortModeIsServedAtOnce(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := upgraded(t, state.ModeNodePort)
		b.remove("services", serviceName)
		b.mustPrepare()
		if !b.served() || !b.endpoints() {
			t.Errorf("the Service is %+v", b.service())
		}
		b.mustFinish()
		b.checkFinished()
	})
}

func TestPortIsNotReserved(t *testing.T) {
	t.Parallel()
	forbidden := apierrors.NewForbidden(corev1.Resource("services"), "x", errors.New("exceeded quota: none"))
	for name, c := range map[string]struct {
		unreserved bool
		err        error
		recorded   string
	}{
		"by choice":          {unreserved: true, recorded: "reservePort=false"},
		"outside the range":  {err: invalidPort("provided port is not in the valid range"), recorded: "port 31999 is outside of the node port range"},
		"against the policy": {err: forbidden},
	} {
		subtest(t, name, func(t *testing.T) {
			b := newBench(t)
			b.hook.Settings.UnreservedPort = c.unreserved
			if c.err != nil {
				b.answer("create", "services", c.err)
			}
			b.upgrade(state.ModeProxy)
			if s := b.service(); s != nil {
				t.Errorf("the Service is %+v", s)
			}
			if got := b.state().PortNotReserved; got != c.recorded {
				t.Errorf("recorded is %q, want %q", got, c.recorded)
			}
			if c.err != nil {
				b.client.ReactionChain = b.client.ReactionChain[1:]
			}
			b.hook.Settings.UnreservedPort = false
			b.upgrade(state.ModeProxy)
			b.checkFinished()
			if got := b.state().PortNotReserved; got != "" {
				t.Errorf("recorded is still %q", got)
			}
		})
	}
}

func TestServiceIsDeletedAfterVerificationIfThePortIsNotReserved(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := newBench(t)
		b.hook.Settings.UnreservedPort = true
		b.upgrade(state.ModeNodePort)
		b.begin(state.ModeProxy)
		b.watched = true
		b.failing = map[string]string{"n2": noHostPort}
		b.mustFail(b.hook.Finish(t.Context()), true, "serves the port again")
		b.failing = nil
		b.upgrade(state.ModeProxy)
		b.checkFinished()
		if b.service() != nil {
			t.Error("the Service remains")
		}
		b.upgrade(state.ModeNodePort)
		b.checkFinished()
	})
}

func TestPrepareNamesServiceThatTookThePort(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	zarfs := otherService()
	zarfs.Namespace, zarfs.Name = "zarf", "zarf-docker-registry"
	b.add(zarfs)
	b.mustFail(b.hook.Prepare(t.Context()), true, "Service zarf/zarf-docker-registry",
		"it is Zarf's registry: docs/reference/zarf.md")

	b = newBench(t) // taken after the preflight
	b.client.PrependReactor("create", "services", func(a kubetesting.Action) (bool, runtime.Object, error) {
		dry := len(a.(kubetesting.CreateActionImpl).CreateOptions.DryRun) > 0
		return !dry, nil, invalidPort("provided port is already allocated")
	})
	b.mustFail(b.hook.Prepare(t.Context()), true, "provided port is already allocated", "kubectl get services")
}

func TestPortChangeMovesTheReservation(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := upgraded(t, state.ModeProxy)
		b.hook.Settings.Port = 31888
		b.upgrade(state.ModeProxy)
		b.checkFinished()
		b.hook.Settings.Port = 5999
		b.answer("patch", "services", invalidPort("provided port is not in the valid range"))
		b.upgrade(state.ModeProxy)
		if b.service() != nil {
			t.Error("the Service still holds a port that is not in use")
		}
	})
}
