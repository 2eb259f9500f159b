package hook_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/node/noderuntime"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// configured is a bench of a release that has files on nodes.
func configured(t *testing.T, mode state.Mode) *bench {
	t.Helper()
	b := newBench(t)
	b.configureNodes(mode == state.ModeProxy)
	b.upgrade(mode)
	b.forget()
	return b
}

func TestCleanupRestoresNodeFilesFirst(t *testing.T) {
	t.Parallel()
	for _, mode := range allModes {
		subtest(t, string(mode), func(t *testing.T) {
			b := configured(t, mode)
			b.uninstall("n1", "n2")
			b.must(b.hook.Cleanup(t.Context()))
			b.checkClean()
			if len(b.nodePods()) != 0 || len(b.disk) != 0 {
				t.Errorf("%d pods and files on %d nodes remain", len(b.nodePods()), len(b.disk))
			}
			w := b.writes()
			if want := []string{"delete daemonsets zarf-registry-node-config-amd64", "update secrets zarf-registry-state",
				"delete daemonsets zarf-registry-node-restore-amd64"}; !slices.Equal(w[:3], want) {
				t.Errorf("it wrote %q", w)
			}
		})
	}
}

// The pods belong to the last revision. prepare may have been refused before it wrote that
// revision's payload, and the previous one had none.
func TestCleanupSeedsPayloadOfRestorePods(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := configured(t, state.ModeProxy)
		for _, index := range []string{"00", "01"} {
			b.remove("configmaps", "zarf-registry-payload-registry-node-amd64-"+index)
		}
		b.hook.Settings.Injector.PayloadID = "refused"
		b.uninstall("n1", "n2")
		b.must(b.hook.Cleanup(t.Context()))
		b.checkClean()
		writes := b.writes()
		brought := slices.IndexFunc(writes, func(w string) bool {
			return strings.HasPrefix(w, "create configmaps") && strings.Contains(w, "payload-registry-node-")
		})
		restored := slices.IndexFunc(writes, func(w string) bool { return strings.HasPrefix(w, "update secrets") })
		if brought < 0 || restored < brought {
			t.Errorf("it wrote %q", writes)
		}
		if slices.ContainsFunc(writes, func(w string) bool { return strings.Contains(w, "payload-refused-registry-amd64") }) {
			t.Error("the registry's payload was written although no pod needs it")
		}
	})
}

// helmAgain simulates Helm before cleanup if the objects that the pods need are missing: the
// controller cannot create the pods.
func (b *bench) helmAgain() { b.add(b.nodeSet("node-restore", []string{"n1", "n2"})) }

func TestCleanupDoesNotWaitForUnneededRestorePods(t *testing.T) {
	t.Parallel()
	for name, setUp := range map[string]func(*testing.T) *bench{
		"an installation that prepare refused": func(t *testing.T) *bench { return newBench(t) },
		"cleanup that ended after all files were restored": func(t *testing.T) *bench {
			b := configured(t, state.ModeProxy)
			b.uninstall("n1", "n2")
			b.must(b.hook.Cleanup(t.Context()))
			return b
		},
		"cleanup that ended before the state was deleted": func(t *testing.T) *bench {
			b := configured(t, state.ModeProxy)
			b.uninstall("n1", "n2")
			b.forbid = func(write string) error {
				if strings.HasPrefix(write, "delete secrets") {
					return errors.New("the Job was ended")
				}
				return nil
			}
			b.mustFail(b.hook.Cleanup(t.Context()), false, "the Job was ended")
			b.forbid = nil
			return b
		},
	} {
		subtest(t, name, func(t *testing.T) {
			b := setUp(t)
			b.helmAgain()
			begin := time.Now()
			b.must(b.hook.Cleanup(t.Context()))
			checkTook(t, begin, 0, 10*time.Second)
			b.checkClean()
			if b.get("daemonsets", "zarf-registry-node-restore-amd64") != nil {
				t.Error("the DaemonSet of pods that cannot be created remains")
			}
		})
	}
}

// Helm was stopped between prepare and the first object of the chart.
func TestCleanupOfReleaseThatWasNeverApplied(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := nodesPrepared(t)
		b.helmAgain()
		b.must(b.hook.Cleanup(t.Context()))
		b.checkClean()
		b.mustLog(`"directories":"/etc/containerd/certs.d","reason":"waiting for the pods that restore the nodes' files: DaemonSet zarf/zarf-registry-node-restore-amd64 has no pods`)
	})
}

// helm rollback to a revision without node configuration keeps the files.
func TestCleanupNamesFilesThatAreNotRestored(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := configured(t, state.ModeProxy)
		b.hook.Settings.NodeConfig.Directories, b.hook.Settings.NodeConfig.DaemonSets, b.hook.Settings.NodeConfig.CA = nil,
			nil, false
		b.upgrade(state.ModeProxy)
		b.must(b.hook.Cleanup(t.Context()))
		b.checkClean()
		b.mustLog(`"directories":"/etc/containerd/certs.d, /etc/containers/certs.d"`)
	})
}

func TestCleanupNamesNodesThatNeedAK3sRestart(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := configured(t, state.ModeNodePort)
		b.reports = map[string]noderuntime.Report{"n1": {Registries: &noderuntime.RegistriesReport{Path: "/etc/rancher/k3s/registries.yaml", Changed: b.now, Gone: true}}}
		b.uninstall("n1", "n2")
		b.must(b.hook.Cleanup(t.Context()))
		b.mustLog(`"nodes":"node n1","restart":"systemctl restart k3s, on agents k3s-agent: until then the settings of the removed /etc/rancher/k3s/registries.yaml stay in effect"`)
	})
}

func TestCleanupWaitsForSlowNodes(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := configured(t, state.ModeNodePort)
		set := b.nodeSet("node-restore", []string{"n1", "n2"})
		b.add(set)
		b.startNodePod(set, "n1")
		go func() {
			after(30 * time.Second)
			if b.get("secrets", "zarf-registry-credentials") == nil || b.get("daemonsets", set.Name) == nil {
				t.Error("objects that the pods need were deleted")
			}
			b.startNodePod(set, "n2")
		}()
		b.must(b.hook.Cleanup(t.Context()))
		b.checkClean()
	})
}

func TestCleanupNamesNodeThatCannotRestoreFiles(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end    corev1.ContainerStateTerminated
		atOnce bool
	}{
		"node refuses": {refused("/etc/containerd is read-only"), true},
		"node fails": {corev1.ContainerStateTerminated{ExitCode: 1, Message: `{"error":"/etc/containerd is read-only"}`},
			false},
	} {
		subtest(t, name, func(t *testing.T) {
			b := configured(t, state.ModeProxy)
			b.ends = map[string]corev1.ContainerStateTerminated{"node-restore n2": c.end}
			b.uninstall("n1", "n2")
			begin := time.Now()
			b.mustFail(b.hook.Cleanup(t.Context()), c.atOnce, "restore the nodes' files: ", "node n2",
				"/etc/containerd is read-only", "run helm uninstall again", "helm uninstall --no-hooks, then zarf-registry uninstall")
			if took := time.Since(begin); took < 10*time.Second != c.atOnce {
				t.Errorf("it took %s", took)
			}
			if b.get("secrets", "zarf-registry-node-tls") == nil || b.proxies() == 0 {
				t.Error("other objects were deleted")
			}
			// Helm recreates the DaemonSet.
			b.remove("daemonsets", "zarf-registry-node-restore-amd64")
			b.remove("pods", b.nodePodNames()...)
			b.ends = nil
			b.uninstall("n1", "n2")
			b.must(b.hook.Cleanup(t.Context()))
			b.checkClean()
		})
	}
}

func TestCleanupSkipsNodesThatAreNotReady(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := configured(t, state.ModeNodePort)
		b.update("nodes", node("n2", notReady))
		b.ends = map[string]corev1.ContainerStateTerminated{"node-restore n2": {ExitCode: 1}}
		b.uninstall("n1", "n2")
		b.must(b.hook.Cleanup(t.Context()))
		b.checkClean()
		b.mustLog(`"nodes":"node n2"`, "FILE.before-zarf-registry")
	})
}

// A pod that had not finished may have written files after they were restored.
func TestFilesAreRestoredAgainWhereAnUnfinishedPodMayHaveWritten(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := configured(t, state.ModeProxy)
		for _, pod := range b.nodePodNames("n2") {
			b.change(pod, func(p *corev1.Pod) {
				p.Status.InitContainerStatuses[0].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
			})
		}
		b.uninstall("n1", "n2")
		b.disk = map[string][]byte{"n2": b.secret("zarf-registry-node-tls").Data["ca.crt"]}
		b.must(b.hook.Cleanup(t.Context()))
		if len(b.disk) != 0 {
			t.Error("a file of the release remains on n2")
		}
		b.checkClean()
	})
}

func TestCleanupNamesPodsThatDoNotTerminate(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := configured(t, state.ModeNodePort)
		b.uninstall("n1", "n2")
		stray := b.nodePods()[0].DeepCopy()
		stray.Name, stray.OwnerReferences[0].Name = "node-config-stray", "another"
		b.add(stray)
		begin := time.Now()
		b.mustFail(b.hook.Cleanup(t.Context()), false,
			"waiting for the pods that configure nodes to end: pod zarf/node-config-stray on node n1")
		checkTook(t, begin, 0, 3*time.Minute)
	})
}

func TestCleanupKilledAtAnyWriteConvergesOnTheNextRun(t *testing.T) {
	t.Parallel()
	for _, mode := range allModes {
		subtest(t, string(mode), func(t *testing.T) {
			killedAtEachWrite(t, func() *bench {
				b := newBench(t, node("n1"), node("n2"), namespace("baseline"))
				b.hook.Settings.Preflight.LabelNamespace = true
				b.admit = podSecurityAt(b)
				b.configureNodes(mode == state.ModeProxy)
				b.upgrade(mode)
				b.uninstall("n1", "n2")
				return b
			}, func(b *bench) error { return b.hook.Cleanup(t.Context()) }, func(b *bench) {
				b.must(b.hook.Cleanup(t.Context()))
				b.checkClean()
				if got := b.level(); got != "baseline" {
					t.Errorf("the namespace has the level %q", got)
				}
				if len(b.nodePods()) != 0 || len(b.disk) != 0 {
					t.Errorf("%d pods and files on %d nodes remain", len(b.nodePods()), len(b.disk))
				}
			})
		})
	}
}
