package hook_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

var allModes = []state.Mode{state.ModeProxy, state.ModeNodePort, state.ModeExternal}

func TestFinishVerifiesAndRecordsEveryReadyNode(t *testing.T) {
	t.Parallel()
	for _, mode := range []state.Mode{state.ModeProxy, state.ModeNodePort} {
		t.Run(string(mode), func(t *testing.T) {
			b := newBench(t, node("n1"), node("n2"), node("gone", notReady),
				node("windows", func(n *corev1.Node) { n.Status.NodeInfo.OperatingSystem = "windows" }))
			b.begin(mode)
			b.add(proxyPod(proxyName, "removed"))
			old := &corev1.ConfigMap{ObjectMeta: meta("zarf-registry-payload-0.0.9-registry-amd64-00", "payload")}
			b.add(old)
			b.mustFinish()
			b.checkFinished()
			b.checkPrepared()
			image := "127.0.0.1:31999/zarf-registry/probe-" + string(mode) + ":dev"
			var pulled []string
			for _, p := range b.probePods {
				if p.Spec.Containers[0].Image != image || p.Spec.Containers[0].ImagePullPolicy != corev1.PullAlways {
					t.Errorf("the probe container is %+v", p.Spec.Containers[0])
				}
				secret := len(p.Spec.ImagePullSecrets) == 1 && p.Spec.ImagePullSecrets[0].Name == "zarf-registry-pull"
				if secret != (mode == state.ModeNodePort) {
					t.Errorf("in %s mode, it has the pull Secrets %v", mode, p.Spec.ImagePullSecrets)
				}
				pulled = append(pulled, p.Spec.NodeName)
			}
			if want := []string{"n1", "n2"}; !slices.Equal(pulled, want) {
				t.Errorf("verified nodes are %q, want %q", pulled, want)
			}
			if a := b.registry.pushed; len(a) != 1 || a[0].ServerName != "zarf-registry.zarf.svc" || a[0].Username == "" ||
				len(a[0].Key) == 0 {
				t.Errorf("pushed with %d accesses", len(a))
			}
			if b.get("configmaps", old.Name) != nil {
				t.Error("the previous payload still exists")
			}
		})
	}
}

// A container runtime that ignores its mirrors does not fail the release, and is recorded.
func TestFinishVerifiesMirrors(t *testing.T) {
	t.Parallel()
	b := newBench(t, node("n1"), node("n2"))
	b.configureNodes(false)
	b.hook.Settings.NodeConfig.Mirrors = []string{"!quay.io", "*", "docker.io"}
	b.ignoresMirrors = "n2"
	b.begin(state.ModeProxy)
	b.helmNodes([]string{"n1", "n2"})
	b.mustFinish()
	b.checkFinished()
	const image = "docker.io/zarf-registry/probe-proxy:dev"
	m := b.state().Mirrors
	if m == nil || m.Image != image || !slices.Equal(m.Pulled, []string{"n1"}) || len(m.Failed) != 1 ||
		!slices.Equal(m.Failed[0].Nodes, []string{"n2"}) || !strings.Contains(m.Failed[0].Reason, "no such host") {
		t.Errorf("the state has %+v", m)
	}
	b.mustLog("nodes could not pull from the mirror")
	b.hook.Settings.NodeConfig.Mirrors = nil
	b.begin(state.ModeProxy)
	b.mustFinish()
	if m := b.state().Mirrors; m != nil {
		t.Errorf("without mirrors, the state has %+v", m)
	}
}

func TestFinishInExternalModeOnlyRecordsAndDeletes(t *testing.T) {
	t.Parallel()
	b := upgraded(t, state.ModeExternal)
	b.checkFinished()
	if len(b.probePods) != 0 || len(b.registry.pushed) != 0 {
		t.Error("it verified pulls or pushed")
	}
}

func TestFinishRequiresPrepare(t *testing.T) {
	t.Parallel()
	b := upgraded(t, state.ModeNodePort)
	b.mode(state.ModeProxy)
	b.mustFail(b.hook.Finish(t.Context()), true, "prepare recorded nodeport mode at 127.0.0.1:31999",
		"asked for proxy mode")
	b.mode(state.ModeNodePort)
	b.hook.Settings.Port = 32000
	b.mustFail(b.hook.Finish(t.Context()), true, "asked for nodeport mode at 127.0.0.1:32000")
	if b.get("services", serviceName) == nil {
		t.Error("the NodePort Service is gone")
	}
	fresh := newBench(t)
	fresh.mustFail(fresh.hook.Finish(t.Context()), false, "Secret zarf/zarf-registry-state is missing: run prepare")
}

func TestFinishWithoutVerificationRecordsNoVerifiedMode(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := upgraded(t, state.ModeNodePort)
		b.hook.Settings.Finish.VerifyPulls = false
		b.upgrade(state.ModeNodePort)
		if s := b.state(); s.Phase != state.PhasePrepared || s.Current == nil || s.Current.Mode != state.ModeNodePort {
			t.Errorf("the verified mode was lost: %+v", s)
		}
		b.upgrade(state.ModeProxy)
		if s := b.state(); s.Phase != state.PhasePrepared || s.Current != nil || s.VerifiedNodes != nil {
			t.Errorf("the state records more than was verified: %+v", s)
		}
		if b.proxies() != 1 || b.registry.open {
			t.Error("the steps did not run")
		}
		b.checkPort()
	})
}

func TestFinishFailsWithoutNodePortService(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*bench){
		"missing": func(*bench) {},
		"Service of another release": func(b *bench) {
			s := nodePortService()
			s.Labels["app.kubernetes.io/instance"] = "other"
			b.add(s)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.begin(state.ModeNodePort)
			b.remove("services", serviceName)
			change(b)
			b.mustFail(b.hook.Finish(t.Context()), true,
				"Service zarf/zarf-registry-nodeport of release zarf-registry is missing: run helm upgrade")
		})
	}
}

func TestFinishKilledAtAnyWriteConvergesOnTheNextRun(t *testing.T) {
	t.Parallel()
	for _, mode := range allModes {
		subtest(t, string(mode), func(t *testing.T) {
			killedAtEachWrite(t, func() *bench {
				b := newBench(t)
				b.begin(mode)
				time.Sleep(time.Second) // the proxies get ready
				b.watched = mode != state.ModeExternal
				return b
			}, func(b *bench) error { return b.hook.Finish(t.Context()) }, func(b *bench) {
				b.mustFinish()
				b.checkFinished()
			})
		})
	}
}

// Kubernetes replaces such a pod after five minutes, which exceeds a Job's time limit.
func TestReplicaOnNotReadyNodeDoesNotBlockFinish(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		available int32
		lost      string // the node of the unavailable pod
		want      string
	}{
		"node not ready":             {1, "down", ""},
		"node ready":                 {1, "n2", "1 of 2 pods are available"},
		"no other replica available": {0, "down", "0 of 2 pods are available"},
	} {
		subtest(t, name, func(t *testing.T) {
			b := newBench(t, node("n1"), node("n2"), node("down", notReady))
			b.mustPrepare()
			b.helm()
			d := b.get("deployments", "zarf-registry").(*appsv1.Deployment)
			two := int32(2)
			d.Spec.Replicas, d.Status.Replicas, d.Status.UpdatedReplicas, d.Status.AvailableReplicas = &two, 2, 2, c.available
			b.remove("deployments", d.Name)
			b.add(d)
			b.add(&corev1.Pod{ObjectMeta: meta("zarf-registry-2", "registry"), Spec: corev1.PodSpec{NodeName: c.lost}})
			b.hook.Timeout = time.Minute
			if c.want != "" {
				b.mustFail(b.hook.Finish(t.Context()), false, c.want)
				return
			}
			b.mustFinish()
			b.checkFinished()
		})
	}
}

func TestPreviousProxiesWithTheSameHostPortAreDeletedFirst(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := upgraded(t, state.ModeProxy)
		// The group was renamed: n1's new proxy waits for the host port of the previous one.
		b.remove("daemonsets", proxyName)
		b.remove("pods", "proxy-n1", "proxy-n2")
		b.add(daemonSet(proxyName+"-old", "n1"))
		b.add(proxyPod(proxyName+"-old", "n1"))
		b.mustPrepare()
		b.helm("n2")
		waiting := proxyPod(proxyName, "n1")
		waiting.Name, waiting.Spec.NodeName = "proxy-new-n1", ""
		waiting.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
			Reason:  "Unschedulable",
			Message: "0/2 nodes are available: 1 node(s) didn't have free ports for the requested pod ports."}}
		b.add(waiting)
		go func() { // simulates the scheduler and the kubelet
			for after(0); b.get("daemonsets", proxyName+"-old") != nil; after(time.Second) {
			}
			b.add(proxyPod(proxyName, "n2"))
			b.add(proxyPod(proxyName, "n1"))
			b.remove("pods", "proxy-new-n1") // last: finish waits for this
		}()
		b.mustFinish()
		b.checkFinished()
	})
}

func TestPreviousProxiesAreDeletedAfterVerification(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := newBench(t)
		b.mustPrepare()
		b.helm()
		b.add(daemonSet(proxyName+"-old", "n1"))
		b.forget()
		b.mustFinish()
		w := b.writes()
		before, _, removed := strings.Cut(strings.Join(w, "\n"), "delete daemonsets "+proxyName+"-old")
		// One update after the push, one after the verification.
		if !removed || strings.Count(before, "update secrets zarf-registry-state") != 2 {
			t.Errorf("the order is %q", w)
		}
		b.checkFinished()
	})
}

func TestFinishByHandInProxyModeKeepsAllProxies(t *testing.T) {
	t.Parallel()
	b := upgraded(t, state.ModeProxy)
	b.hook.Settings.Proxy.DaemonSets = nil
	b.mustFinish()
	b.checkFinished()
}

func TestFinishWaitsForMissingProxy(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := newBench(t)
		b.mustPrepare()
		b.helm()
		b.hook.Settings.Proxy.DaemonSets = []string{proxyName, "zarf-registry-proxy-arm64"}
		b.mustFail(b.hook.Finish(t.Context()), false, "DaemonSet zarf/zarf-registry-proxy-arm64 is missing")
	})
}
