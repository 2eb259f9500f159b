package hook_test

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubetesting "k8s.io/client-go/testing"

	"github.com/zarf-dev/zarf-registry/internal/state"
)

func TestSwitchBetweenAllModes(t *testing.T) {
	for _, from := range allModes {
		for _, to := range allModes {
			t.Run(string(from)+" to "+string(to), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := newBench(t)
					b.upgrade(from)
					b.checkFinished()
					b.watched = from != state.ModeExternal && to != state.ModeExternal
					b.upgrade(to)
					b.checkFinished()
					b.upgrade(from)
					b.checkFinished()
				})
			})
		}
	}
}

func TestSwitchKeepsPullCredential(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.upgrade(state.ModeNodePort)
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
							b := newBench(t)
							b.hook.Programs = programs{small: true}
							b.upgrade(from)
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

func TestFailedSwitchToProxyRestoresService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.upgrade(state.ModeNodePort)
		before := b.get("services", serviceName).(*corev1.Service)
		b.begin(state.ModeProxy)
		b.watched = true
		b.failing = map[string]string{"n2": noHostPort}
		begin := time.Now()
		b.mustFail(b.hook.Finish(t.Context()), true, "node n2 could not pull", "proxy.hostNetwork=true",
			"Service zarf/zarf-registry-nodeport was restored: nodes pull as before")
		if took := time.Since(begin); took > 50*time.Second {
			t.Errorf("a node was without the Service for up to %s", took)
		}
		after, _ := b.get("services", serviceName).(*corev1.Service)
		if after == nil {
			t.Fatal("the Service is missing")
		}
		if after.Spec.Ports[0] != before.Spec.Ports[0] || !maps.Equal(after.Annotations, before.Annotations) ||
			!maps.Equal(after.Labels, before.Labels) || !maps.Equal(after.Spec.Selector, before.Spec.Selector) {
			t.Errorf("it was %+v and is %+v", before, after)
		}
		if after.Spec.ClusterIP != "" || after.Spec.ClusterIPs != nil || after.ResourceVersion != "" {
			t.Errorf("it has fields of the previous Service: %+v", after)
		}
		if s := b.state(); s.Phase != state.PhasePrepared || s.Desired.Mode != state.ModeProxy || s.Current == nil ||
			s.Current.Mode != state.ModeNodePort {
			t.Errorf("state is %+v", s)
		}
		if b.proxies() != 1 || !b.registry.open {
			t.Error("the next run could not continue")
		}
		b.checkNoProbePods()

		b.failing = nil
		b.upgrade(state.ModeProxy)
		b.checkFinished()
	})
}

// A run that was killed after the verification may have closed the listener. If the next run's
// verification fails, restoring the Service without the listener would not help.
func TestRestoredServiceHasAListener(t *testing.T) {
	for _, left := range []string{"delete services " + serviceName, "update secrets zarf-registry-pull"} {
		t.Run("killed after "+left, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				b.upgrade(state.ModeNodePort)
				b.begin(state.ModeProxy)
				b.client.PrependReactor("*", "*", func(a kubetesting.Action) (bool, runtime.Object, error) {
					if describe(a) == left && !b.dead {
						b.left, b.lost = 0, true
					}
					return false, nil, nil
				})
				if b.hook.Finish(t.Context()) == nil || b.get("services", serviceName) != nil {
					t.Fatal("it was not killed in time")
				}
				b.client.ReactionChain = b.client.ReactionChain[1:]
				b.left, b.dead, b.watched = -1, false, true
				b.failing = map[string]string{"n1": noHostPort}
				b.mustFail(b.hook.Finish(t.Context()), true, "was restored: nodes pull as before")
				if b.get("services", serviceName) == nil || !b.registry.open {
					t.Error("the Service is missing or has no open listener")
				}
				checkPull(b, b.secret("zarf-registry-pull"), true)
			})
		})
	}
}

func TestInterruptedSwitchRestoresService(t *testing.T) {
	for name, end := range map[string]func(*bench, context.CancelFunc){
		"by a signal":    func(_ *bench, cancel context.CancelFunc) { time.AfterFunc(10*time.Second, cancel) },
		"by its timeout": func(b *bench, _ context.CancelFunc) { b.hook.Timeout = 10 * time.Second },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				b.upgrade(state.ModeNodePort)
				b.begin(state.ModeProxy)
				b.failing = map[string]string{"n1": noHostPort}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				end(b, cancel)
				err := b.hook.Finish(ctx)
				b.mustFail(err, b.hook.Timeout == 10*time.Second, "was restored: nodes pull as before")
				if b.get("services", serviceName) == nil || !b.registry.open {
					t.Error("the Service is missing or has no open listener")
				}
				b.checkNoProbePods()
			})
		})
	}
}

func TestServiceIsRestoredDuringAPIServerRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.upgrade(state.ModeNodePort)
		b.begin(state.ModeProxy)
		b.failing = map[string]string{"n1": noHostPort}
		down := 5
		b.client.PrependReactor("create", "services", func(kubetesting.Action) (bool, runtime.Object, error) {
			down--
			return down >= 0, nil, errors.New("connect: connection refused")
		})
		b.mustFail(b.hook.Finish(t.Context()), true, "was restored")
		if b.get("services", serviceName) == nil {
			t.Error("the Service is missing")
		}
	})
}

func TestFailureToRestoreServiceIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.upgrade(state.ModeNodePort)
		b.begin(state.ModeProxy)
		b.failing = map[string]string{"n1": noHostPort}
		b.client.PrependReactor("create", "services", func(kubetesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("the port is taken")
		})
		b.mustFail(b.hook.Finish(t.Context()), true, "could not be restored", "the port is taken",
			"--set registryProxy=false")
	})
}

// The failing switch is killed too, also while it restores the Service.
func TestFailingSwitchKilledAtAnyWriteConvergesOnTheNextRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failing := func(b *bench) error {
			b.failing = map[string]string{"n2": noHostPort}
			defer func() { b.failing = nil }()
			return b.hook.Finish(t.Context())
		}
		setUp := func() *bench {
			b := newBench(t)
			b.hook.Programs = programs{small: true}
			b.upgrade(state.ModeNodePort)
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
		if !slices.Contains(writes, "create services "+serviceName) {
			t.Fatalf("it did not restore the Service: %q", writes)
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

func TestFailedSwitchToNodePortKeepsProxies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.upgrade(state.ModeProxy)
		b.begin(state.ModeNodePort)
		b.noLoopback = true // kube-proxy in nftables mode
		begin := time.Now()
		b.mustFail(b.hook.Finish(t.Context()), true,
			"nodes n1, n2 could not pull 127.0.0.1:31999/zarf-registry/probe-nodeport:dev", "403 Forbidden",
			"in nftables mode", "--set registryProxy=true", "the previous proxies still run, and nodes pull through them")
		if took := time.Since(begin); took < 19*time.Second || took > 25*time.Second {
			t.Errorf("it took %s to fail", took)
		}
		if b.proxies() != 1 {
			t.Error("the proxies are gone")
		}
		if s := b.state(); s.Current == nil || s.Current.Mode != state.ModeProxy || s.Desired.Mode != state.ModeNodePort {
			t.Errorf("state is %+v", s)
		}
		b.upgrade(state.ModeProxy)
		b.checkFinished()
	})
}

func TestPrepareKeepsCopyOfRemovedService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.upgrade(state.ModeNodePort)
		b.begin(state.ModeProxy)
		b.client.PrependReactor("delete", "services", func(kubetesting.Action) (bool, runtime.Object, error) {
			b.left, b.lost = 0, true
			return false, nil, nil
		})
		if b.hook.Finish(t.Context()) == nil {
			t.Fatal("it was not killed")
		}
		b.client.ReactionChain = b.client.ReactionChain[1:]
		b.left, b.dead = -1, false
		b.mustPrepare()
		var kept corev1.Service
		if err := json.Unmarshal(b.secret("zarf-registry-state").Data[state.KeyRemovedService], &kept); err != nil ||
			kept.Kind != "Service" || kept.Name != serviceName {
			t.Errorf("the copy is %+v (%v)", kept, err)
		}
	})
}

func TestListenerIsClosedBeforeModeIsRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.upgrade(state.ModeNodePort)
		b.begin(state.ModeProxy)
		b.registry.deaf = true
		b.mustFail(b.hook.Finish(t.Context()), false, "waiting for the registry to close its plain listener",
			"pod zarf/zarf-registry-1: it is still open")
		if s := b.state(); s.Current == nil || s.Current.Mode != state.ModeNodePort {
			t.Errorf("state is %+v", s)
		}
		if b.get("services", serviceName) != nil {
			t.Error("the Service was restored although the proxies are verified and the listener is closing")
		}
		b.registry.deaf = false
		b.upgrade(state.ModeProxy)
		b.checkFinished()
	})
}

func TestPayloadOfTerminatingProxiesIsCollected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.upgrade(state.ModeProxy)
		ending := proxyPod(proxyName, "n1")
		ending.Name = "proxy-ending"
		ending.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "zarf-registry-payload-0.1.0-registry-node-amd64-00"}}}}}}}}
		b.add(ending)
		b.upgrade(state.ModeNodePort)
		b.checkFinished()
	})
}
