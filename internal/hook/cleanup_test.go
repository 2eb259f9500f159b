package hook_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// checkClean checks that only those objects of this release are left that Helm deletes itself.
func (b *bench) checkClean(foreign ...string) {
	b.Helper()
	var left []string
	for _, kind := range []string{"ConfigMap", "DaemonSet", "Job", "Secret", "Service"} {
		r := resource(strings.ToLower(kind) + "s")
		for _, namespace := range []string{"kube-public", "zarf"} {
			list, err := b.tracker.List(r, r.GroupVersion().WithKind(kind), namespace)
			b.must(err)
			items, err := apimeta.ExtractList(list)
			b.must(err)
			for _, o := range items {
				left = append(left, kind+" "+metaOf(o).GetName())
			}
		}
	}
	slices.Sort(left)
	slices.Sort(foreign)
	if !slices.Equal(left, foreign) {
		b.Errorf("remaining objects are %q, want %q", left, foreign)
	}
	b.checkNoProbePods()
}

func TestCleanupDeletesOnlyObjectsOfTheRelease(t *testing.T) {
	t.Parallel()
	for _, mode := range allModes {
		t.Run(string(mode), func(t *testing.T) {
			b := upgraded(t, mode)
			otherRelease := func(name, component string) metav1.ObjectMeta {
				m := meta(name, component)
				m.Labels["app.kubernetes.io/instance"] = "another-release"
				return m
			}
			b.add(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "foreign", Namespace: "zarf"}})
			b.remove("secrets", "zarf-registry-push-tls")
			b.add(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "zarf-registry-push-tls", Namespace: "zarf"}})
			b.add(&corev1.ConfigMap{ObjectMeta: otherRelease("other-payload", "payload")})
			b.add(&corev1.Service{ObjectMeta: otherRelease("other-nodeport", "registry")})
			set := daemonSet("other-proxy")
			set.ObjectMeta = otherRelease("other-proxy", "proxy")
			b.add(set)
			b.add(&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "zarf-registry-finish", Namespace: "zarf"}})
			b.add(daemonSet(proxyName + "-old"))
			b.add(&corev1.Pod{ObjectMeta: meta("zarf-registry-test-pull", "test")})
			b.add(&corev1.Pod{ObjectMeta: meta("zarf-registry-test-tls", "test")})
			b.add(&corev1.Pod{ObjectMeta: otherRelease("other-test-tls", "test")})
			for range 2 { // the second run finds nothing to delete
				b.must(b.hook.Cleanup(t.Context()))
				b.checkClean("Secret foreign", "Secret zarf-registry-push-tls", "ConfigMap other-payload",
					"Service other-nodeport", "DaemonSet other-proxy")
				if b.get("pods", "zarf-registry-test-pull") != nil || b.get("pods", "zarf-registry-test-tls") != nil ||
					b.get("pods", "other-test-tls") == nil {
					t.Error("a pod of helm test of this release remains, or one of another release was deleted")
				}
			}
		})
	}
}

// Helm 3.18 leaves the proposal if prepare refused an upgrade. Without a node configuration, the Role does not allow
// to read it.
func TestCleanupDeletesTheProposalIfItConfiguresNodes(t *testing.T) {
	t.Parallel()
	const name = "zarf-registry-node-config-proposal"
	for _, configures := range []bool{true, false} {
		t.Run(fmt.Sprint(configures), func(t *testing.T) {
			b := upgraded(t, state.ModeProxy)
			if configures {
				b.hook.Settings.NodeConfig.Directories = []string{"/etc/rancher/k3s"}
			}
			proposal := meta(name, "node-config")
			proposal.Labels["app.kubernetes.io/managed-by"] = "Helm"
			b.add(&corev1.Secret{ObjectMeta: proposal})
			b.must(b.hook.Cleanup(t.Context()))
			if remains := b.get("secrets", name) != nil; remains == configures {
				t.Errorf("the proposal remains: %t", remains)
			}
		})
	}
}

func TestCleanupKeepsUserSecretsInEachPKIMode(t *testing.T) {
	t.Parallel()
	for _, mode := range []state.PKIMode{state.PKIExistingSecret, state.PKICertManager} {
		subtest(t, string(mode), func(t *testing.T) {
			killedAtEachWrite(t, func() *bench {
				return installed(t, func(b *bench) {
					b.installed = true
					b.corp()
					b.give("robot", "correct horse")
					b.pki(mode)
				})
			}, func(b *bench) error { return b.hook.Cleanup(t.Context()) }, func(b *bench) {
				b.must(b.hook.Cleanup(t.Context()))
				b.checkClean("Secret corp-credential", "Secret corp-node", "Secret corp-push", "Secret corp-server")
				for _, certificate := range []string{"server", "node", "push"} {
					if _, err := b.tracker.Get(certmanagerv1.SchemeGroupVersion.WithResource("certificates"), "zarf",
						"zarf-registry-"+certificate); err == nil {
						t.Errorf("Certificate %s still exists", certificate)
					}
				}
			})
		})
	}
}

func TestCleanupKeepsServiceOfAnotherOwner(t *testing.T) {
	t.Parallel()
	b := upgraded(t, state.ModeProxy)
	b.remove("services", serviceName)
	s := nodePortService()
	s.Labels["app.kubernetes.io/instance"] = "another-release"
	b.add(s)
	b.must(b.hook.Cleanup(t.Context()))
	b.checkClean("Service " + serviceName)
}

// Cleanup removes everything wherever a switch was killed, even if cleanup itself is killed and
// repeated.
func TestCleanupInTheMiddleOfASwitch(t *testing.T) {
	t.Parallel()
	for _, from := range allModes {
		for _, to := range allModes {
			if from == to {
				continue
			}
			t.Run(string(from)+" to "+string(to), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					killedAtEachWrite(t, func() *bench {
						b := switching(t, from, to)
						return b
					}, func(b *bench) error { return b.hook.Finish(t.Context()) }, func(b *bench) {
						b.must(b.hook.Cleanup(t.Context()))
						b.checkClean()
					})
				})
			})
		}
	}
}

// kubectl apply of the whole output of helm template creates cleanup's Job next to those of prepare
// and finish.
func TestCleanupRefusesToRunTogetherWithTheOtherJobs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		apart   time.Duration
		without string
		ended   bool
		waited  bool // finish was created after prepare had ended
		refused bool
	}{
		"all created by one command":            {apart: 2 * time.Second, refused: true},
		"created one after the other":           {apart: 2 * time.Second, waited: true},
		"cleanup created later":                 {apart: time.Minute},
		"prepare deleted, as Helm does":         {apart: 2 * time.Second, without: "zarf-registry-prepare"},
		"finish missing because prepare failed": {apart: 2 * time.Second, without: "zarf-registry-finish"},
		"run by hand":                           {apart: 2 * time.Second, without: "zarf-registry-cleanup"},
		"run by hand after the Job was refused": {apart: 2 * time.Second, ended: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := upgraded(t, state.ModeProxy)
			made := time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)
			for _, name := range []string{"zarf-registry-prepare", "zarf-registry-finish", "zarf-registry-cleanup"} {
				job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "zarf",
					CreationTimestamp: metav1.NewTime(made)}}
				if made = made.Add(c.apart); c.ended {
					job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue}}
				}
				if c.waited && strings.HasSuffix(name, "-prepare") {
					job.Status.CompletionTime = &metav1.Time{Time: made}
				}
				if name != c.without {
					require.Value(b.client.BatchV1().Jobs("zarf").Create(t.Context(), job, metav1.CreateOptions{}))(t)
				}
			}
			err := b.hook.Cleanup(t.Context())
			if !c.refused {
				if err != nil {
					t.Error(err)
				}
				return
			}
			b.mustFail(err, true, "prepare, finish and cleanup were created at the same time", "nothing was deleted",
				"--no-hooks")
			b.secret("zarf-registry-state")
		})
	}
}
