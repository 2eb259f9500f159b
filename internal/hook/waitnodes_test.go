package hook_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubetesting "k8s.io/client-go/testing"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/node/noderuntime"
	"github.com/zarf-dev/zarf-registry/internal/release/rollout"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

func refused(text string) corev1.ContainerStateTerminated {
	return corev1.ContainerStateTerminated{ExitCode: exitcode.Refused,
		Message: fmt.Sprintf(`{"release":"zarf/zarf-registry","written":0,"unchanged":0,"error":%q}`, text)}
}

// nodesPrepared returns a bench after prepare, with files on nodes.
func nodesPrepared(t *testing.T) *bench {
	t.Helper()
	b := newBench(t)
	b.configureNodes(false)
	b.mustPrepare()
	return b
}

// mustRecord checks which directories on nodes the state records.
func (b *bench) mustRecord(want []string) {
	b.Helper()
	if n := b.state().NodeConfig; n == nil || !slices.Equal(n.Directories, want) {
		b.Errorf("the saved directories are %+v, want %q", n, want)
	}
}

func TestFinishWaitsForNodesAndSavesDirectoriesInUse(t *testing.T) {
	t.Parallel()
	for _, mode := range allModes {
		subtest(t, string(mode), func(t *testing.T) {
			b := newBench(t)
			b.configureNodes(mode == state.ModeProxy)
			b.hook.Settings.NodeConfig.Directories = append(b.hook.Settings.NodeConfig.Directories, "/etc/rancher/k3s")
			b.upgrade(mode)
			b.checkFinished()
			b.mustRecord(b.hook.Settings.NodeConfig.DirectoriesInUse)
			b.hook.Settings.NodeConfig.DirectoriesInUse = nil
			b.upgrade(mode)
			if n := b.state().NodeConfig; n != nil {
				t.Errorf("after all files are restored, the saved directories are %+v", n)
			}
			b.hook.Settings.NodeConfig.Directories, b.hook.Settings.NodeConfig.DaemonSets, b.hook.Settings.NodeConfig.CA = nil,
				nil, false
			b.upgrade(mode)
			b.checkFinished()
		})
	}
}

func TestNotReadyNodesDoNotBlockFinishAndTheirDirectoriesAreKept(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := newBench(t, node("n1"), node("n2"), node("n3", notReady), savedWith(t, func(s *state.State) {
			s.NodeConfig = &state.NodeConfig{Directories: []string{"/etc/rancher/k3s"}}
		}))
		b.configureNodes(false)
		b.hook.Settings.NodeConfig.Directories = append(b.hook.Settings.NodeConfig.Directories, "/etc/rancher/k3s")
		b.ends = map[string]corev1.ContainerStateTerminated{"node-config n3": refused("invalid")}
		b.mustPrepare()
		b.helmNodes([]string{"n1", "n2", "n3"})
		b.helm()
		b.mustFinish()
		b.mustRecord([]string{certsD, "/etc/rancher/k3s"})
		b.mustLog("done on 2 nodes; their directories stay recorded until a later upgrade, because these nodes are not ready: node n3")
	})
}

// A poll of a large cluster is expensive for this process and for the API server.
func TestSlowPollsAreLessFrequent(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := nodesPrepared(t)
		b.helm()
		b.remove("daemonsets", "zarf-registry-node-config-amd64")
		looks := 0
		b.client.PrependReactor("list", "nodes", func(kubetesting.Action) (bool, runtime.Object, error) {
			looks++
			time.Sleep(time.Second)
			return false, nil, nil
		})
		b.mustFail(b.hook.Finish(t.Context()), false, "DaemonSet zarf/zarf-registry-node-config-amd64 is missing")
		if most := int(b.hook.Timeout / (5 * time.Second)); looks < most/2 || looks > most+5 {
			t.Errorf("polled %d times in %s", looks, b.hook.Timeout)
		}
	})
}

func TestRefusingNodeIsReportedAtOnce(t *testing.T) {
	t.Parallel()
	for _, mode := range allModes {
		subtest(t, string(mode), func(t *testing.T) {
			b := upgraded(t, mode)
			b.configureNodes(false)
			b.mustPrepare()
			b.ends = map[string]corev1.ContainerStateTerminated{"node-config n2": refused(
				"/etc/containerd/certs.d/ghcr.io/hosts.toml was not written by zarf-registry: nodeConfig.force=true replaces it")}
			b.helm()
			probePods := len(b.probePods)
			begin := time.Now()
			b.mustFail(b.hook.Finish(t.Context()), true,
				"wait for the node configuration: node n2 refuses: /etc/containerd/certs.d/ghcr.io/hosts.toml was not written",
				"nodeConfig.force=true", "(pod zarf/node-config-n2-", "run helm upgrade again")
			checkTook(t, begin, 0, 10*time.Second)
			if len(b.probePods) != probePods {
				t.Error("a pull was verified")
			}
			if n := b.state().NodeConfig; n == nil || !slices.Contains(n.Directories, certsD) {
				t.Errorf("the saved directories are %+v", n)
			}
			// The problem is fixed on the node, while the pod waits for its back-off.
			b.ends = nil
			b.mustFinish()
			b.checkFinished()
		})
	}
}

func TestFailingNodesAreRetriedUntilTimeout(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end  corev1.ContainerStateTerminated
		want string
	}{
		"a report": {corev1.ContainerStateTerminated{ExitCode: 1, Message: `{"error":"no space left on device"}`},
			"container configure exited with code 1: no space left on device"},
		"other text": {corev1.ContainerStateTerminated{ExitCode: 102,
			Message: "zarf-registry loader: chunk 03: missing\n"}, "exited with code 102: zarf-registry loader: chunk 03: missing"},
		"other JSON": {corev1.ContainerStateTerminated{ExitCode: 1, Message: `[1]`}, "exited with code 1: [1]"},
		"end of a long message": {corev1.ContainerStateTerminated{ExitCode: 1,
			Message: strings.Repeat("x\n", 2000) + "panic: index out of range"}, "x x panic: index out of range"},
		"no message": {corev1.ContainerStateTerminated{ExitCode: 137}, "exited with code 137: no message"},
	} {
		subtest(t, name, func(t *testing.T) {
			b := nodesPrepared(t)
			b.ends = map[string]corev1.ContainerStateTerminated{"node-config n2": c.end}
			b.helm()
			begin := time.Now()
			err := b.hook.Finish(t.Context())
			b.mustFail(err, false, "waiting for the node configuration: not done on node n2; pod zarf/node-config-n2-",
				" on node n2: ", c.want, "not done within 5m0s")
			if took := time.Since(begin); took < 4*time.Minute {
				t.Errorf("it gave up after %s", took)
			}
			if len(err.Error()) > 2500 {
				t.Errorf("the error has %d characters", len(err.Error()))
			}
			b.ends = nil
			b.mustFinish()
		})
	}
}

func TestOnlyTheFirstOfManyRefusingNodesAreNamed(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := nodesPrepared(t)
		b.ends = map[string]corev1.ContainerStateTerminated{}
		var nodes []string
		for n := range 30 {
			name := fmt.Sprintf("n%02d", n)
			nodes = append(nodes, name)
			b.add(node(name))
			b.ends["node-config "+name] = refused(strings.Repeat("no ", 1300))
		}
		b.helmNodes(nodes)
		b.helm()
		err := b.hook.Finish(t.Context())
		b.mustFail(err, true, "node n00 refuses: no no", "node n09 refuses", "and 20 more")
		if len(err.Error()) > 15000 || strings.Contains(err.Error(), "n10") {
			t.Errorf("the error has %d characters", len(err.Error()))
		}
	})
}

// A pod from before the upgrade says nothing about the new configuration.
func TestRefusalOfPreviousConfigurationIsIgnored(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := nodesPrepared(t)
		b.helm()
		// The controller has yet to replace the pod of n2, which fails again meanwhile.
		b.ends = map[string]corev1.ContainerStateTerminated{"node-config n2": refused("the previous configuration")}
		set := b.nodeSet("node-config", []string{"n1", "n2"})
		set.Spec.Template.Labels = map[string]string{rollout.LabelGeneration: "0"}
		b.replaceSet(func(d *appsv1.DaemonSet) { d.Status.UpdatedNumberScheduled = 1 })
		b.remove("pods", b.nodePodNames("n2")...)
		go func() {
			after(2 * time.Second)
			b.startNodePod(set, "n2")
			after(20 * time.Second)
			b.ends = nil
			b.remove("pods", b.nodePodNames("n2")...)
			b.startNodePod(b.nodeSet("node-config", nil), "n2")
		}()
		b.mustFinish()
		b.checkFinished()
	})
}

func TestNodeWarningsAndK3sRestartsAreLogged(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := nodesPrepared(t)
		now, before := b.now, b.now.Add(-time.Hour)
		report := func(path string, changed time.Time, gone bool) noderuntime.Report {
			return noderuntime.Report{Registries: &noderuntime.RegistriesReport{Path: path, Changed: changed, Gone: gone}, Warnings: []string{"docker.io is asked directly"}}
		}
		b.reports = map[string]noderuntime.Report{
			"n1": report("/etc/rancher/k3s/registries.yaml", now, false),
			"n2": report("/etc/rancher/k3s/registries.yaml", now, false),
			"n3": report("/etc/rancher/k3s/registries.yaml", before, false),
			"n4": report("/etc/rancher/rke2/registries.yaml", now, false),
			"n5": report("/etc/rancher/k3s/registries.yaml", now, true),
		}
		nodes := []string{"n1", "n2", "n3", "n4", "n5"}
		for _, n := range nodes[2:] {
			b.add(node(n))
		}
		b.helm(nodes...)
		b.mustFinish()
		b.mustLog(`"level":"WARN","msg":"node configuration","nodes":"nodes n1, n2, n3, n4, n5","warning":"docker.io is asked directly"`,
			`"level":"WARN","msg":"registries.yaml is read when K3s or RKE2 starts","nodes":"nodes n1, n2","restart":"systemctl restart k3s, on agents k3s-agent: until then /etc/rancher/k3s/registries.yaml has no effect"`,
			`"nodes":"node n4","restart":"systemctl restart rke2-server, on agents rke2-agent: until then /etc/rancher/rke2/registries.yaml has no effect"`,
			`"nodes":"node n5","restart":"systemctl restart k3s, on agents k3s-agent: until then the settings of the removed /etc/rancher/k3s/registries.yaml stay in effect"`)
		if strings.Contains(b.log.String(), `"nodes":"node n3"`) {
			t.Error("an unchanged node needs a restart")
		}
	})
}

func TestFinishWaitsForMissingNodeConfiguration(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*bench)
		want   string
	}{
		"no DaemonSet": {func(b *bench) { b.remove("daemonsets", "zarf-registry-node-config-amd64") },
			"DaemonSet zarf/zarf-registry-node-config-amd64 is missing"},
		"no pod on a node": {func(b *bench) {
			b.remove("pods", b.nodePodNames("n2")...)
		}, "DaemonSet zarf/zarf-registry-node-config-amd64: 1 of 2 pods exist"},
		"terminating pod": {func(b *bench) {
			for _, pod := range b.nodePods() {
				b.change(pod.Name, func(p *corev1.Pod) { p.DeletionTimestamp, p.Finalizers = &metav1Now, []string{"x"} })
			}
		}, "not done on nodes n1, n2"},
		"stale controller": {func(b *bench) {
			set := b.nodeSet("node-config", []string{"n1", "n2"})
			set.Generation, set.Status.ObservedGeneration = 2, 1
			b.remove("daemonsets", set.Name)
			b.add(set)
		}, "the controller has not seen the last change"},
		"pods of the previous configuration": {func(b *bench) {
			b.replaceSet(func(d *appsv1.DaemonSet) {
				d.Annotations = map[string]string{rollout.AnnotationGeneration: "2"}
				d.Status.UpdatedNumberScheduled = 0
			})
		}, "2 pods are not updated yet: nodes n1, n2"},
	} {
		subtest(t, name, func(t *testing.T) {
			b := nodesPrepared(t)
			b.helm()
			c.change(b)
			b.mustFail(b.hook.Finish(t.Context()), false, "waiting for the node configuration: ", c.want)
		})
	}
}

func TestFinishWithNodesKilledAtAnyWriteConvergesOnTheNextRun(t *testing.T) {
	t.Parallel()
	for _, mode := range allModes {
		subtest(t, string(mode), func(t *testing.T) {
			killedAtEachWrite(t, func() *bench {
				b := newBench(t)
				b.configureNodes(mode == state.ModeProxy)
				b.hook.Settings.NodeConfig.Directories = append(b.hook.Settings.NodeConfig.Directories, "/etc/rancher/k3s")
				b.mode(mode)
				b.ends = map[string]corev1.ContainerStateTerminated{"node-config n2": refused("the previous configuration")}
				return b
			}, func(b *bench) error {
				if err := b.hook.Prepare(t.Context()); err != nil {
					return err
				}
				b.helm()
				b.ends = nil
				return b.hook.Finish(t.Context())
			}, func(b *bench) {
				b.begin(mode)
				b.ends = nil
				b.mustFinish()
				b.checkFinished()
				b.mustRecord(b.hook.Settings.NodeConfig.DirectoriesInUse)
			})
		})
	}
}
