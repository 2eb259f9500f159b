package hook_test

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// strict is an installation whose nodes run CRI-O, which trusts only its own copy of the CAs.
func strict(t *testing.T, change ...func(*bench)) *bench {
	t.Helper()
	return installed(t, append([]func(*bench){func(b *bench) { b.configureNodes(true) }}, change...)...)
}

// checkNodesTrust checks each write.
func TestNodesFollowRotation(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := strict(t)
		b.checkNodesFollow("n1", "n2")
		b.slowly = 10 * time.Second
		b.asTheCronJobDoes()
		b.must(b.rotate())
		b.checkConverged()
		b.checkNodesFollow("n1", "n2")
		var got []string
		for _, w := range b.writes() {
			for prefix, short := range map[string]string{
				"update secrets zarf-registry-state": "state", "update secrets zarf-registry-ca": "ca",
				"update secrets zarf-registry-node-tls": "node",
				"delete pods node-config-n1":            "n1", "delete pods node-config-n2": "n2",
			} {
				if strings.HasPrefix(w, prefix) {
					got = append(got, short)
				}
			}
		}
		// Trust bundle written, nodes updated, leaves reissued, old CA dropped, nodes updated, done.
		if want := []string{"ca", "state", "node", "n1", "n2", "state", "node", "state", "node", "n1", "n2",
			"state"}; !slices.Equal(got, want) {
			t.Errorf("the order is %q, want %q", got, want)
		}
		b.mustLog("to write the current CAs", "its node has outdated CAs",
			"DaemonSet zarf/zarf-registry-node-config-amd64: 0 of 2 pods exist")
	})
}

func TestNodesFollowEveryCAChange(t *testing.T) {
	t.Parallel()
	// Killing at each write takes ten times as long, so only two cases do; all write in the same
	// order.
	for name, killed := range map[string]bool{
		"leaves at half of their lifetime": false, "CA at half of its lifetime": false, "forced CA rotation": true,
		"internal to existingSecret": false, "existingSecret to certManager": true,
		"new user certificates from another CA": false,
	} {
		c := changes[name]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			setUp := func(t *testing.T) *bench {
				b := strict(t, func(b *bench) {
					if c.before != nil {
						c.before(b)
					}
				})
				b.ready(t, name)
				b.slowly = 3 * time.Second
				return b
			}
			synctest.Test(t, func(t *testing.T) {
				b := setUp(t)
				b.must(c.run(b))
				b.must(b.renew())
				b.checkConverged()
				b.checkNodesFollow("n1", "n2")
			})
			if !killed {
				return
			}
			synctest.Test(t, func(t *testing.T) {
				killedAtEachWrite(t, func() *bench { return setUp(t) }, c.run, func(b *bench) {
					b.loadAll()
					b.checkTrust("after the kill")
					again := c.again
					if again == nil {
						again = c.run
					}
					b.must(again(b))
					b.must(b.renew())
					b.checkConverged()
					b.checkNodesFollow("n1", "n2")
				})
			})
		})
	}
}

func TestNodeWithoutCurrentCAsBlocksRotation(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := strict(t)
		b.ends = map[string]corev1.ContainerStateTerminated{"node-config n2": {ExitCode: 1,
			Message: `{"error":"/etc/containers is read-only"}`}}
		b.asTheCronJobDoes()
		before := b.secret("zarf-registry-node-tls").Data["tls.crt"]
		b.mustFail(b.rotate(), false, "not all pods have loaded the certificates; all of them keep working",
			"pod zarf/node-config-n2-",
			"on node n2: it has not written the CAs yet", "/etc/containers is read-only")
		if string(before) != string(b.secret("zarf-registry-node-tls").Data["tls.crt"]) {
			t.Error("a certificate that n2 does not trust is served")
		}
		if r := b.state().Rotation; r == nil || r.Phase != state.RotationTrust || !strings.Contains(r.Waiting, "node n2") ||
			strings.Contains(r.Waiting, "node n1") {
			t.Errorf("the state records %+v", r)
		}
		// A run that does not know what the first run deleted waits as well.
		b.mustFail(b.renew(), false, "on node n2: it has not written the CAs yet")
		b.ends = nil
		b.remove("pods", b.nodePodNames("n2")...)
		b.startNodePod(b.nodeSetOf(), "n2")
		b.must(b.renew())
		b.checkConverged()
		b.checkNodesFollow("n1", "n2")
	})
}

// A node whose disk stays full must not make the certificates of all nodes expire.
func TestNodeWithoutCurrentCAsIsSkippedBeforeExpiry(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := strict(t)
		b.unwatched = true
		b.ends = map[string]corev1.ContainerStateTerminated{"node-config n2": {ExitCode: 1}}
		b.asTheCronJobDoes()
		b.checkSkippedBeforeExpiry("on node n2: it has not written the CAs yet", "no longer waiting for nodes")
	})
}

// checkSkippedBeforeExpiry checks that a CA rotation waits for what the complaint names until the certificates are
// about to expire, and that it logs why it waits no longer.
func (b *bench) checkSkippedBeforeExpiry(complaint, logged string) {
	b.Helper()
	b.mustFail(b.rotate(), false, complaint)
	leaf := func() []byte { return b.secret("zarf-registry-node-tls").Data["tls.crt"] }
	before := leaf()
	b.now = b.now.Add(pki.DefaultLeafLifetime * 8 / 10)
	b.mustFail(b.renew(), false, complaint)
	if !bytes.Equal(before, leaf()) {
		b.Error("renew did not wait")
	}
	b.now = b.now.Add(pki.DefaultLeafLifetime * 15 / 100)
	b.mustFail(b.renew(), false, complaint) // the previous CAs stay trusted
	if bytes.Equal(before, leaf()) {
		b.Error("the certificates were not renewed before expiry")
	}
	b.mustLog(logged)
}

func (b *bench) nodeSetOf() *appsv1.DaemonSet {
	return b.get("daemonsets", "zarf-registry-node-config-amd64").(*appsv1.DaemonSet)
}

func TestMissingPermissionToDeletePodsIsReportedWithTheCommand(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := strict(t)
		b.asTheCronJobDoes()
		b.hook.Timeout = 3 * time.Minute
		b.mayNot("delete", "pods", "")
		b.mustFail(b.rotate(), false, "its node has outdated CAs", "cannot delete resource",
			"kubectl --namespace zarf delete pod node-config-n1-")
		b.forbid = nil
		b.must(b.renew())
		b.checkConverged()
		b.checkNodesFollow("n1", "n2")
	})
}

func TestReturningNodeGetsCurrentCAs(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := strict(t)
		b.unwatched = true
		b.update("nodes", node("n2", notReady))
		b.asTheCronJobDoes()
		b.must(b.rotate())
		b.checkNodesFollow("n1")
		b.mustLog(`"msg":"not waiting for a node that is not ready; it gets the CAs when it is back","node":"n2"`)
		b.update("nodes", node("n2"))
		b.loadAll()
		b.must(b.renew())
		b.checkConverged()
		b.checkNodesFollow("n1", "n2")
	})
}

// Renewing leaves under the same CA does not depend on nodes.
func TestRenewalUnderTheSameCADoesNotWaitForNodes(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := strict(t)
		b.ends = map[string]corev1.ContainerStateTerminated{"node-config n2": {ExitCode: 1}}
		b.remove("pods", b.nodePodNames()...)
		b.startNodePod(b.nodeSetOf(), "n2")
		b.now = b.now.Add(pki.DefaultLeafLifetime * 2 / 3)
		b.asTheCronJobDoes()
		begin := time.Now()
		b.must(b.renew())
		checkTook(t, begin, 0, time.Second)
		b.checkConverged()
	})
}

func TestCopiesOnNodesThatCannotBeRead(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := installed(t, func(b *bench) { b.configureNodes(true) })
		b.answer("list", "daemonsets", apierrors.NewBadRequest("the API server is broken"))
		b.asTheCronJobDoes()
		b.mustFail(b.rotate(), false, "the API server is broken")
	})
}

// Without files on nodes, the permissions for updating them are not needed.
func TestWithoutCAsOnNodesNodePodsAreIgnored(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]func(*bench){
		"no node configuration":          func(*bench) {},
		"node configuration without CAs": func(b *bench) { b.configureNodes(false) },
	} {
		subtest(t, name, func(t *testing.T) {
			b := installed(t, c)
			b.ends = map[string]corev1.ContainerStateTerminated{"node-config n2": {ExitCode: 1}}
			for _, pod := range b.nodePodNames("n2") {
				b.remove("pods", pod)
				b.startNodePod(b.nodeSetOf(), "n2")
			}
			b.answer("list", "daemonsets", apierrors.NewForbidden(corev1.Resource("daemonsets"), "",
				errors.New(`User "x" cannot list resource "daemonsets"`)))
			b.asTheCronJobDoes()
			b.must(b.rotate())
			b.checkConverged()
			if slices.ContainsFunc(b.writes(), func(w string) bool { return strings.HasPrefix(w, "delete pods") }) {
				t.Errorf("it wrote %q", b.writes())
			}
		})
	}
}
