package hook_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/hook"
	"github.com/zarf-dev/zarf-registry/internal/hook/credentials"
	"github.com/zarf-dev/zarf-registry/internal/hook/preflight"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/release/settings"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/golden"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// installed is a bench with a running registry in proxy mode.
func installed(t *testing.T, change ...func(*bench)) *bench {
	t.Helper()
	b := newBench(t)
	for _, c := range change {
		c(b)
	}
	b.upgrade(state.ModeProxy)
	b.forget()
	return b
}

func (b *bench) renew() error  { return b.hook.Renew(b.Context()) }
func (b *bench) rotate() error { return b.hook.Rotate(b.Context(), true) }

// writesButState returns the writes without those of the state, in which a renewal records why it failed.
func (b *bench) writesButState() []string {
	return slices.DeleteFunc(slices.Clone(b.writes()), func(w string) bool {
		return w == "update secrets zarf-registry-state"
	})
}

func (b *bench) must(err error) {
	b.Helper()
	require.NoError(b, err, b.log)
}

// asTheCronJobDoes limits the settings to those in the CronJob's command line.
func (b *bench) asTheCronJobDoes() {
	o := b.hook.Settings
	b.hook.Settings = settings.Settings{Namespace: o.Namespace, Release: o.Release, Name: o.Name}
	b.hook.Timeout = 10 * time.Minute
}

// checkTrust checks each write.
func TestCARotation(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := installed(t)
		b.asTheCronJobDoes()
		before := b.secret("zarf-registry-ca").Data["tls.crt"]
		b.must(b.rotate())
		b.checkConverged()
		if bytes.Equal(before, b.secret("zarf-registry-ca").Data["tls.crt"]) {
			t.Error("the CA is the previous one")
		}
		const state, ca, server, node, push = "update secrets zarf-registry-state", "update secrets zarf-registry-ca",
			"update secrets zarf-registry-server-tls", "update secrets zarf-registry-node-tls",
			"update secrets zarf-registry-push-tls"
		want := []string{ca, state, server, node, push, state, server, node, push, state, server, node, push, state}
		if got := slices.DeleteFunc(slices.Clone(b.writes()), func(w string) bool {
			return strings.HasPrefix(w, "patch pods")
		}); !slices.Equal(got, want) {
			t.Errorf("it wrote\n%q, want\n%q", got, want)
		}
		for _, pod := range []string{registryPod, "proxy-n1", "proxy-n2"} {
			if n := b.pods[pod].generation; n != 4 {
				t.Errorf("%s has loaded %d times, want 4: installed, trust, leaf, drop", pod, n)
			}
		}
	})
}

// changes are changes to a running cluster, each until nothing is left to do.
var changes = map[string]struct {
	before, change func(*bench)
	run            func(*bench) error
	// again repeats the change after a kill. If nil, run does.
	again func(*bench) error
}{
	"leaves at half of their lifetime": {
		change: func(b *bench) { b.now = b.now.Add(pki.DefaultLeafLifetime * 2 / 3) },
		run:    (*bench).renew,
	},
	"CA at half of its lifetime": {
		before: func(b *bench) { b.hook.Settings.PKI.CALifetime = 2 * b.hook.Settings.PKI.LeafLifetime },
		change: func(b *bench) {
			b.now = b.now.Add(pki.DefaultLeafLifetime * 2 / 3)
			b.must(b.renew())
			b.loadAll()
			b.now = b.now.Add(pki.DefaultLeafLifetime * 2 / 3)
		},
		run: (*bench).renew,
	},
	"forced CA rotation": {
		change: func(b *bench) { b.asTheCronJobDoes() },
		run:    (*bench).rotate,
		again:  (*bench).renew, // continues what rotate began
	},
	"forced leaf renewal": {
		run: func(b *bench) error { return b.hook.Rotate(b.Context(), false) },
	},
	"internal to existingSecret": {
		change: func(b *bench) { b.corp(); b.pki(state.PKIExistingSecret) },
		run:    (*bench).prepareAndFinish,
	},
	"existingSecret to certManager": {
		before: func(b *bench) { b.corp(); b.pki(state.PKIExistingSecret) },
		change: func(b *bench) { b.installed = true; b.pki(state.PKICertManager) },
		run:    (*bench).prepareAndFinish,
	},
	"certManager to internal": {
		before: func(b *bench) { b.installed = true; b.pki(state.PKICertManager) },
		change: func(b *bench) { b.pki(state.PKIInternal) },
		run:    (*bench).prepareAndFinish,
	},
	"certManager to existingSecret without a push certificate": {
		before: func(b *bench) { b.installed = true; b.pki(state.PKICertManager) },
		change: func(b *bench) {
			b.corp()
			b.pki(state.PKIExistingSecret)
			b.hook.Settings.PKI.Existing.Push = ""
		},
		run: (*bench).prepareAndFinish,
	},
	"new user certificates from another CA": {
		before: func(b *bench) { b.corp(); b.pki(state.PKIExistingSecret) },
		change: func(b *bench) { b.corp() },
		run:    (*bench).renew,
	},
	"one new user certificate from another CA": {
		before: func(b *bench) { b.corp(); b.pki(state.PKIExistingSecret) },
		change: func(b *bench) { b.userCA("corp 2").give("corp-server") },
		run:    (*bench).renew,
	},
	"caches are enabled":  {change: caches, run: (*bench).prepareAndFinish},
	"caches are disabled": {before: caches, change: noCaches, run: (*bench).prepareAndFinish},
	"forced CA rotation with caches": {
		before: caches,
		change: func(b *bench) { b.asTheCronJobDoes() },
		run:    (*bench).rotate,
		again:  (*bench).renew,
	},
	"the release replaces Zarf's registry": {change: asZarf, run: (*bench).prepareAndFinish},
	"Zarf replaces certificates and credentials": {
		before: asZarf,
		change: func(b *bench) { b.zarfIssues(); b.zarfSets("second") },
		run:    (*bench).prepareAndFinish,
	},
	"missing certificate": {
		change: func(b *bench) { b.remove("secrets", "zarf-registry-node-tls") },
		run:    (*bench).renew,
	},
	"missing certificate and CA": {
		change: func(b *bench) { b.remove("secrets", "zarf-registry-node-tls", "zarf-registry-ca") },
		run:    (*bench).renew,
	},
	"damaged CA": {
		change: func(b *bench) {
			b.changeSecret("zarf-registry-ca", func(s *corev1.Secret) { s.Data["tls.key"] = []byte("rubbish") })
		},
		run: (*bench).renew,
	},
	"damaged trust bundle": {
		change: func(b *bench) {
			b.changeSecret("zarf-registry-server-tls", func(s *corev1.Secret) { s.Data["ca.crt"] = []byte("rubbish") })
		},
		run: (*bench).renew,
	},
}

// caches and noCaches set what the chart would render with and without caches.
func caches(b *bench)   { b.hook.Settings.Cache.Enabled = true }
func noCaches(b *bench) { b.hook.Settings.Cache.Enabled = false }

// corp creates all Secrets of a user, signed by one new CA.
func (b *bench) corp() {
	b.Helper()
	a := b.userCA(fmt.Sprint("corp ", b.versions.Load()))
	for _, name := range []string{"corp-server", "corp-node", "corp-push"} {
		a.give(name)
	}
}

func (b *bench) prepareAndFinish() error {
	if err := b.hook.Prepare(b.Context()); err != nil {
		return err
	}
	b.helm()
	return b.hook.Finish(b.Context())
}

func (b *bench) ready(t *testing.T, name string) {
	t.Helper()
	if c := changes[name].change; c != nil {
		c(b)
	}
	b.forget()
}

func installedBefore(t *testing.T, name string) *bench {
	t.Helper()
	b := installed(t, func(b *bench) {
		if c := changes[name].before; c != nil {
			c(b)
		}
	})
	b.checkConverged()
	b.ready(t, name)
	return b
}

func TestChangeConverges(t *testing.T) {
	t.Parallel()
	for name, c := range changes {
		t.Run(name, func(t *testing.T) {
			for speed, slow := range map[string]time.Duration{"at once": 0, "late": 10 * time.Second} {
				subtest(t, speed, func(t *testing.T) {
					b := installedBefore(t, name)
					b.slow = map[string]time.Duration{registryPod: slow, "proxy-n2": slow * 2, cachePod: slow * 3}
					b.must(c.run(b))
					if len(b.writes()) == 0 {
						t.Error("it wrote nothing")
					}
					// These do not wait for pods.
					b.checkConverged()
					b.must(c.run(b))
					b.checkConverged()
					b.checkOnlyNeeded()
					b.forget()
					b.asTheCronJobDoes()
					b.must(b.renew())
					if w := b.writes(); len(w) != 0 {
						t.Errorf("a second run wrote %q", w)
					}
				})
			}
		})
	}
}

// Claim (forced CA rotation): A CA rotation that is killed at any write leaves no component that distrusts
// another.
func TestChangeKilledAtAnyWriteConvergesOnTheNextRun(t *testing.T) {
	t.Parallel()
	for name, c := range changes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				killedAtEachWrite(t, func() *bench { return installedBefore(t, name) }, c.run, func(b *bench) {
					b.checkTrust("after the kill")
					b.loadAll()
					b.checkTrust("after the kill")
					again := c.again
					if again == nil {
						again = c.run
					}
					b.must(again(b))
					b.must(b.renew())
					b.checkConverged()
					b.checkOnlyNeeded()
				})
			})
		})
	}
}

// Wherever a PKI mode change is killed, the user can return to the previous mode or choose another.
func TestChangeKilledAtAnyWriteCanBeReverted(t *testing.T) {
	simulate(t, func(t *testing.T) {
		const name = "internal to existingSecret"
		killedAtEachWrite(t, func() *bench { return installedBefore(t, name) }, (*bench).prepareAndFinish, func(b *bench) {
			b.pki(state.PKIInternal)
			b.must(b.prepareAndFinish())
			b.checkConverged()
			b.checkOnlyNeeded()
		})
	})
}

// Otherwise the CronJob would undo a change after which prepare was killed.
func TestPKISettingsAreSavedBeforeCertificatesChange(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := installedBefore(t, "internal to existingSecret")
		b.after = func(write string) {
			if mode := b.state().PKI.Mode; strings.HasSuffix(write, "-tls") && mode != state.PKIExistingSecret {
				t.Errorf("the saved PKI mode is %s after %s", mode, write)
			}
		}
		b.must(b.prepareAndFinish())
	})
}

func TestInstallationKilledAtAnyWrite(t *testing.T) {
	t.Parallel()
	for name, c := range changes {
		if c.before == nil {
			continue
		}
		subtest(t, name, func(t *testing.T) {
			killedAtEachWrite(t, func() *bench {
				b := newBench(t)
				c.before(b)
				return b
			}, (*bench).prepareAndFinish, func(b *bench) {
				b.must(b.prepareAndFinish())
				b.checkConverged()
				b.checkOnlyNeeded()
			})
		})
	}
}

// The CronJob and an upgrade run at the same time; one starts at each write of the other.
func TestConcurrentRuns(t *testing.T) {
	t.Parallel()
	for name, c := range changes {
		subtest(t, name, func(t *testing.T) {
			whole := installedBefore(t, name)
			whole.must(c.run(whole))
			total := 0
			for _, w := range whole.writes() {
				if strings.Contains(w, "secrets") {
					total++
				}
			}
			for n := range total {
				if shortened(n) {
					continue
				}
				b := installedBefore(t, name)
				other := *b.hook.Hook
				seen, meeting := 0, false
				b.interfere = func(write string) {
					if meeting || !strings.Contains(write, "secrets") {
						return
					}
					if seen++; seen == n+1 {
						meeting = true
						// The fake calls this with its lock held, so use another client.
						b.elsewhere(func(cluster hook.Cluster) {
							other.Cluster = cluster
							other.Settings = settings.Settings{Namespace: "zarf", Release: "zarf-registry", Name: "zarf-registry"}
							other.Timeout = 4 * time.Minute
							if err := other.Renew(context.Background()); err != nil {
								t.Logf("the other run: %v", err)
							}
						})
						meeting = false
					}
				}
				b.must(c.run(b))
				b.interfere = nil
				b.must(b.renew())
				b.checkConverged()
				b.checkOnlyNeeded()
				if t.Failed() {
					t.Fatalf("at write %d of %d\n%s", n+1, total, b.log)
				}
			}
		})
	}
}

func TestEndlessConflictIsAnError(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := installed(t)
		b.now = b.now.Add(pki.DefaultLeafLifetime * 2 / 3)
		b.interfere = func(write string) {
			if name, ok := strings.CutPrefix(write, "update secrets "); ok && strings.HasSuffix(name, "-tls") {
				b.changeSecret(name, func(*corev1.Secret) {})
			}
		}
		b.mustFail(b.renew(), false, "updating Secret zarf/zarf-registry-server-tls", "modified")
	})
}

func TestLeafRenewalDoesNotWaitForPods(t *testing.T) {
	t.Parallel()
	b := installed(t)
	b.now = b.now.Add(pki.DefaultLeafLifetime * 2 / 3)
	b.mute = map[string]error{registryPod: errors.New("no")}
	clear(b.asked)
	b.must(b.renew())
	if len(b.asked) != 0 {
		t.Errorf("queried pods %v", b.asked)
	}
	b.checkConverged()
}

// Two runs with different settings would replace each other's certificates.
func TestCommandsEndWhenAnUpgradeChangesTheSettings(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := installed(t)
		b.asTheCronJobDoes()
		b.deaf = map[string]bool{"proxy-n2": true}
		begin := time.Now()
		time.AfterFunc(30*time.Second, func() {
			s := b.state()
			changed := *s.PKI
			changed.CALifetime *= 2
			s.PKI = &changed
			data, err := state.Encode(s, nil)
			b.must(err)
			b.changeSecret("zarf-registry-state", func(s *corev1.Secret) { s.Data["state.json"] = data })
		})
		b.mustFail(b.rotate(), false, "an upgrade has changed the PKI settings in Secret zarf/zarf-registry-state")
		checkTook(t, begin, 30*time.Second, time.Minute)
	})
}

// A pod that nobody can query must not make the certificates of all nodes expire during a CA rotation.
func TestPodsThatCannotBeQueriedAreSkippedBeforeExpiry(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := installed(t)
		b.asTheCronJobDoes()
		b.mute = map[string]error{"proxy-n2": errors.New("i/o timeout")}
		b.checkSkippedBeforeExpiry("pod zarf/proxy-n2 on node n2: cannot query what it has loaded: i/o timeout",
			"no longer waiting for these pods")
		clear(b.mute)
		b.must(b.renew())
		b.checkConverged()
	})
}

// Nor may a node that reports again and again that it has loaded nothing. It is excluded to end the rotation.
//
// Claim: A node that lies stops no renewal, and no CA rotation that excludes it.
func TestNodesThatLieStopNoRotation(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := installed(t)
		b.unwatched = true
		b.deaf = map[string]bool{"proxy-n2": true}
		b.hook.Timeout = 10 * time.Minute
		b.checkSkippedBeforeExpiry("pod zarf/proxy-n2 on node n2: it ", "no longer waiting for these pods")
		b.mustFail(b.hook.Rotate(t.Context(), true, "n9"), true, "node n9 not found")
		b.must(b.hook.Rotate(t.Context(), true, "n2"))
		if r := b.state().Rotation; r != nil {
			t.Errorf("the rotation has not ended: %+v", r)
		}
		if trust := filesOf(b.get("secrets", "zarf-registry-node-tls")).trust; bytes.Count(trust, []byte("BEGIN")) != 1 {
			t.Errorf("more than one CA is trusted:\n%s", trust)
		}
	})
}

func TestPrepareDoesNotWaitForPodsAndFinishContinuesRotation(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := installed(t)
		b.corp()
		b.pki(state.PKIExistingSecret)
		for _, pod := range []string{registryPod, "proxy-n1", "proxy-n2"} {
			b.slow = map[string]time.Duration{pod: 30 * time.Second}
		}
		begin := time.Now()
		b.mustPrepare()
		checkTook(t, begin, 0, time.Second)
		r := b.state().Rotation
		if r == nil || r.Phase != state.RotationTrust || !strings.Contains(r.Reason,
			"zarf-registry-server-tls is due: Secret zarf/corp-server has another certificate") ||
			!strings.Contains(r.Waiting, "pod zarf/proxy-n2 on node n2: it does not trust") {
			t.Errorf("the state records %+v", r)
		}
		b.mustLog("finish continues the CA rotation, which waits for: pod zarf/")
		b.helm()
		b.mustFinish()
		b.checkConverged()
		b.checkOnlyNeeded()
	})
}

func TestFinishWarnsOnWaitTimeoutAndCronJobContinuesRotation(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := installed(t)
		b.corp()
		b.pki(state.PKIExistingSecret)
		b.deaf = map[string]bool{"proxy-n2": true}
		b.mustPrepare()
		begin := time.Now()
		b.mustFinish()
		checkTook(t, begin, 2*time.Minute, 3*time.Minute)
		if r := b.state().Rotation; r == nil || !strings.Contains(r.Waiting, "pod zarf/proxy-n2 on node n2") ||
			strings.Contains(r.Waiting, "proxy-n1") {
			t.Errorf("the state records %+v", r)
		}
		b.mustLog(`"level":"WARN","msg":"the CA rotation is not finished`)
		b.secret("zarf-registry-ca") // it is still needed
		b.checkFinished()
		b.deaf = nil
		b.asTheCronJobDoes()
		b.must(b.renew())
		b.checkConverged()
		b.checkOnlyNeeded()
	})
}

func TestRenewWaitTimeoutNamesThePods(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*bench)
		want   []string
	}{
		"pods do not load": {func(b *bench) { b.deaf = map[string]bool{"proxy-n2": true} },
			[]string{"pod zarf/proxy-n2 on node n2: it does not trust"}},
		"pods cannot be asked": {func(b *bench) { b.mute = map[string]error{registryPod: errors.New("i/o timeout")} },
			[]string{"pod zarf/zarf-registry-1 on node n1: cannot query what it has loaded: i/o timeout"}},
		"pods report an error": {func(b *bench) {
			b.deaf = map[string]bool{"proxy-n2": true}
			b.pods["proxy-n2"].problem = "permission denied"
		}, []string{"pod zarf/proxy-n2", "(it reports: permission denied)"}},
	} {
		subtest(t, name, func(t *testing.T) {
			b := installed(t)
			c.change(b)
			b.hook.Timeout = 3 * time.Minute
			begin := time.Now()
			b.mustFail(b.rotate(), false, append(c.want, "all of them keep working", "zarf-registry certs renew")...)
			checkTook(t, begin, 0, 3*time.Minute)
			if r := b.state().Rotation; r == nil || !strings.Contains(r.Waiting, c.want[0]) {
				t.Errorf("the state records %+v", r)
			}
			clear(b.deaf)
			clear(b.mute)
			b.must(b.renew())
			b.checkConverged()
		})
	}
}

// change changes a pod in the tracker.
func (b *bench) change(pod string, change func(*corev1.Pod)) {
	b.Helper()
	p := b.get("pods", pod).(*corev1.Pod).DeepCopy()
	change(p)
	b.update("pods", p)
}

func TestPodsThatServeNoClientDoNotBlockRotation(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*bench)
		log    string
	}{
		"on a node that is down": {func(b *bench) {
			b.update("nodes", node("n2", notReady))
		}, "a pod on a node that is not ready, or excluded, does not block the rotation"},
		"neither ready nor reachable": {func(b *bench) {
			b.change("proxy-n2", func(p *corev1.Pod) { p.Status.Conditions = nil })
			b.mute = map[string]error{"proxy-n2": errors.New("connection refused")}
		}, "a pod that is not ready and cannot be queried does not block the rotation"},
		"being deleted": {func(b *bench) {
			b.change("proxy-n2", func(p *corev1.Pod) { p.DeletionTimestamp, p.Finalizers = &metav1Now, []string{"x"} })
		}, ""},
		"not running": {func(b *bench) { b.change("proxy-n2", func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }) },
			""},
	} {
		subtest(t, name, func(t *testing.T) {
			b := installed(t)
			b.unwatched = true
			c.change(b)
			b.deaf = map[string]bool{"proxy-n2": true}
			b.must(b.rotate())
			b.mustLog(c.log)
			clear(b.deaf)
			b.checkConverged()
		})
	}
}

func TestMissingPermissionToAnnotatePodsIsNoError(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := installed(t)
		b.mayNot("patch", "pods", "")
		b.asTheCronJobDoes()
		begin := time.Now()
		b.must(b.rotate())
		b.checkConverged()
		if took := time.Since(begin); took < byThemselves {
			t.Errorf("it took %s, less than kubelets need to update volumes", took)
		}
		if n := strings.Count(b.log.String(), "cannot annotate pods"); n != 1 {
			t.Errorf("the warning was logged %d times", n)
		}
	})
}

func TestOnlyOutdatedPodsAreQueriedAgain(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := installed(t)
		b.slow = map[string]time.Duration{"proxy-n2": 30 * time.Second}
		clear(b.asked)
		b.must(b.rotate())
		if b.asked["proxy-n1"] > 12 || b.asked["proxy-n2"] < 40 {
			t.Errorf("queried pods are %v", b.asked)
		}
	})
}

func TestForcedRotationContinuesOneInProgress(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := installed(t)
		b.deaf = map[string]bool{"proxy-n2": true}
		b.mustFail(b.rotate(), false, "not all pods have loaded the certificates")
		oldCA := b.secret("zarf-registry-ca").Data["tls.crt"]
		clear(b.deaf)
		b.must(b.rotate())
		b.checkConverged()
		if !bytes.Equal(oldCA, b.secret("zarf-registry-ca").Data["tls.crt"]) ||
			!strings.Contains(b.log.String(), "does not start another") {
			t.Errorf("another rotation started, or the log lacks the message:\n%s", b.log)
		}
		b.must(b.rotate())
		if bytes.Equal(oldCA, b.secret("zarf-registry-ca").Data["tls.crt"]) {
			t.Error("no new rotation started after the first")
		}
	})
}

func TestForcedLeafRenewalReplacesLeavesOnce(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := installed(t)
		b.asTheCronJobDoes()
		before := map[string][]byte{}
		for _, role := range []string{"ca", "server-tls", "node-tls", "push-tls"} {
			before[role] = b.secret("zarf-registry-" + role).Data["tls.crt"]
		}
		b.must(b.hook.Rotate(t.Context(), false))
		for role, old := range before {
			if same := bytes.Equal(old, b.secret("zarf-registry-" + role).Data["tls.crt"]); same != (role == "ca") {
				t.Errorf("%s is the same: %t", role, same)
			}
		}
		b.checkConverged()
		for pod, p := range b.pods {
			if p.generation != 2 {
				t.Errorf("%s has loaded %d times", pod, p.generation)
			}
		}
	})
}

func TestRotationRefusals(t *testing.T) {
	t.Parallel()
	foreign := func(name string) func(*bench) {
		return func(b *bench) { b.changeSecret(name, func(s *corev1.Secret) { s.Labels = nil }) }
	}
	rotateCredential := func(which credentials.Credential) func(*bench) error {
		return func(b *bench) error { return b.hook.RotateCredential(b.Context(), which) }
	}
	golden := golden.Open(t, "rotation")
	for name, c := range map[string]struct {
		before func(*bench)
		run    func(*bench) error
	}{
		"no state": {func(b *bench) { b.remove("secrets", "zarf-registry-state") }, (*bench).renew},
		"state without certificates": {func(b *bench) {
			s := b.state()
			s.PKI = nil
			data, _ := state.Encode(s, nil)
			b.changeSecret("zarf-registry-state", func(s *corev1.Secret) { s.Data["state.json"] = data })
		}, (*bench).renew},
		"certificates of the user": {func(b *bench) { b.corp(); b.pki(state.PKIExistingSecret); b.upgrade(state.ModeProxy) },
			(*bench).rotate},
		"a credential of the user": {func(b *bench) { b.give("robot", "good"); b.upgrade(state.ModeProxy) },
			rotateCredential(credentials.Push)},
		"no pull credential": {func(*bench) {},
			rotateCredential(credentials.Pull)},
		"no push credential": {func(b *bench) { b.remove("secrets", "zarf-registry-credentials") },
			rotateCredential(credentials.Push)},
		"foreign Secret with our name":    {foreign("zarf-registry-node-tls"), (*bench).renew},
		"foreign CA Secret with our name": {foreign("zarf-registry-ca"), (*bench).renew},
	} {
		subtest(t, name, func(t *testing.T) {
			b := installed(t)
			c.before(b)
			b.forget()
			b.mustRefuse(golden, name, c.run(b))
			if w := b.writesButState(); len(w) != 0 {
				t.Errorf("it wrote %q", w)
			}
		})
	}
}

func TestRenewInExternalModeDoesNothing(t *testing.T) {
	t.Parallel()
	b := upgraded(t, state.ModeExternal)
	b.forget()
	b.asTheCronJobDoes()
	for _, run := range []func() error{b.renew, b.rotate, func() error {
		return b.hook.RotateCredential(t.Context(), credentials.Push)
	}} {
		b.must(run())
	}
	b.mustNotWrite()
	b.mustLog("external mode needs no certificates and credentials")
}

func TestWaitForPodsSurvivesAPIServerRestart(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := installed(t)
		b.slow = map[string]time.Duration{"proxy-n2": 30 * time.Second}
		failures := 3
		b.forbid = func(write string) error {
			if failures > 0 && strings.HasPrefix(write, "update secrets zarf-registry-node") {
				failures--
				return errors.New("connection refused")
			}
			return nil
		}
		b.must(b.rotate())
		b.checkConverged()
		if failures != 0 {
			t.Error("nothing failed")
		}
	})
}

func TestRotationWithCertManager(t *testing.T) {
	t.Parallel()
	for name, replacesCA := range map[string]bool{"leaves": false, "after the issuer's CA was replaced": true} {
		subtest(t, name, func(t *testing.T) {
			b := installed(t, func(b *bench) { b.installed = true; b.pki(state.PKICertManager) })
			before := filesOf(b.secret("zarf-registry-node-tls"))
			b.asTheCronJobDoes()
			b.mustFail(b.rotate(), true, "the CA belongs to ClusterIssuer corp, not to this release")
			if replacesCA {
				b.issuer = nil
			}
			b.must(b.hook.Rotate(t.Context(), false))
			b.checkConverged()
			after := filesOf(b.secret("zarf-registry-node-tls"))
			if bytes.Equal(before.certificate, after.certificate) {
				t.Error("the certificate is the previous one")
			}
			if same := bytes.Equal(before.trust, after.trust); same == replacesCA {
				t.Errorf("the CA is the previous one: %t", same)
			}
		})
	}
}

// Mistakes of the user are reported before anything changes, and change nothing later.
func TestRejectsInvalidUserCertificates(t *testing.T) {
	t.Parallel()
	edit := func(name string, change func(*corev1.Secret)) func(*bench) {
		return func(b *bench) { b.changeSecret(name, change) }
	}
	give := func(name string, change func(*pki.Leaf)) func(*bench) {
		return func(b *bench) { b.userCA("corp").give(name, change) }
	}
	golden := golden.Open(t, "user-certificates")
	for name, change := range map[string]func(*bench){
		"a Secret is missing": func(b *bench) { b.remove("secrets", "corp-server") },
		"all are missing":     func(b *bench) { b.remove("secrets", "corp-server", "corp-node", "corp-push") },
		"two keys are missing": edit("corp-server",
			func(s *corev1.Secret) { s.Data = map[string][]byte{"ca.crt": s.Data["ca.crt"]} }),
		"no ca.crt anywhere": edit("corp-server", func(s *corev1.Secret) { delete(s.Data, "ca.crt") }),
		"missing CA Secret":  func(b *bench) { b.hook.Settings.PKI.Existing.CA = "corp-ca" },
		"invalid CA Secret": func(b *bench) {
			b.putSecret(&corev1.Secret{ObjectMeta: foreignMeta("corp-ca"), Data: map[string][]byte{"ca.crt": []byte("rubbish")}})
			b.hook.Settings.PKI.Existing.CA = "corp-ca"
		},
		"another type":                edit("corp-node", func(s *corev1.Secret) { s.Type = corev1.SecretTypeDockerConfigJson }),
		"Secret created by init-hook": func(b *bench) { b.hook.Settings.PKI.Existing.Server = "zarf-registry-server-tls" },
		"key of another certificate": func(b *bench) {
			key := b.secret("corp-node").Data["tls.key"]
			b.changeSecret("corp-server", func(s *corev1.Secret) { s.Data["tls.key"] = key })
		},
		"other names":                    give("corp-server", func(l *pki.Leaf) { l.DNSNames = []string{"registry.example.com"} }),
		"another usage":                  give("corp-server", func(l *pki.Leaf) { l.Usages = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }),
		"another role":                   give("corp-node", func(l *pki.Leaf) { l.Organization = "Example Inc." }),
		"node certificate that can push": func(b *bench) { b.hook.Settings.PKI.Existing.Node = "corp-push" },
		"node certificate with the registry's name": give("corp-node", func(l *pki.Leaf) {
			l.DNSNames, l.Usages = []string{"zarf-registry.zarf.svc"},
				[]x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
		}),
		"node certificate with the caches' name": give("corp-node", func(l *pki.Leaf) {
			l.DNSNames, l.Usages = []string{"zarf-registry-cache.zarf.svc"},
				[]x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
		}),
		"no loopback names although proxies serve TLS": func(b *bench) { b.hook.Settings.PKI.ServeTLS = true },
		"CA certificate without CA flag": func(b *bench) {
			leaf := b.secret("corp-server").Data["tls.crt"]
			b.changeSecret("corp-server", func(s *corev1.Secret) { s.Data["ca.crt"] = leaf })
		},
		"leaf of another CA": func(b *bench) {
			other := b.userCA("corp other").KeyPair().Certificate
			b.changeSecret("corp-push", func(s *corev1.Secret) { s.Data["ca.crt"] = other })
		},
		"two invalid Secrets": func(b *bench) {
			b.remove("secrets", "corp-push")
			b.changeSecret("corp-node", func(s *corev1.Secret) { s.Data["tls.key"] = []byte("x") })
		},
	} {
		subtest(t, name, func(t *testing.T) {
			for _, running := range []bool{false, true} {
				b := installed(t, func(b *bench) {
					if running {
						b.corp()
						b.pki(state.PKIExistingSecret)
					}
				})
				b.corp()
				b.pki(state.PKIExistingSecret)
				if running {
					b.must(b.renew())
				}
				change(b)
				b.forget()
				b.mustFail(b.hook.Prepare(t.Context()), true, "nothing was changed, because of:\n  certificates: ")
				found, err := b.hook.Preflight(t.Context())
				if err != nil || len(found) == 0 || found[0].Check != "certificates" || found[0].Severity != preflight.Blocker ||
					found[0].Remedy == "" {
					t.Errorf("preflight finds %+v (%v)", found, err)
				}
				b.hook.Settings.Preflight.Ignore = []string{"certificates"}
				err = b.hook.Prepare(t.Context())
				b.mustRefuse(golden, fmt.Sprintf("%s, running: %t", name, running), err)
				if running && *b.state().PKI.Existing == *b.hook.Settings.PKI.Existing &&
					b.state().PKI.ServeTLS == b.hook.Settings.PKI.ServeTLS {
					b.mustFail(b.renew(), true, strings.TrimPrefix(err.Error(), "prepare: check the sources of certificates: "))
				}
				if w := b.writesButState(); len(w) != 0 {
					t.Errorf("it wrote %q", w)
				}
				if strings.Contains(b.log.String(), "PRIVATE KEY") {
					t.Error("a key was logged")
				}
			}
		})
	}
}

// Messages and the state stay readable in a large cluster.
func TestOnlyTheFirstOfManyPodsAreNamed(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := installed(t)
		for n := range 40 {
			pod := proxyPod(proxyName, "n1")
			pod.Name = fmt.Sprintf("proxy-%02d", n)
			b.add(pod)
		}
		b.deaf = map[string]bool{}
		for pod := range b.pods {
			b.deaf[pod] = true
		}
		b.hook.Timeout = time.Minute
		err := b.rotate()
		b.mustFail(err, false, "and 33 more")
		if n := len(err.Error()); n > 3000 {
			t.Errorf("the error has %d characters", n)
		}
		if n := len(b.state().Rotation.Waiting); n > 3000 {
			t.Errorf("the state has %d characters", n)
		}
	})
}

// Two runs with different goals would continue forever.
func TestRunGivesUpIfItsChangesAreRevertedEachTime(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := installed(t)
		b.unwatched = true
		b.now = b.now.Add(pki.DefaultLeafLifetime * 2 / 3)
		old := b.secret("zarf-registry-node-tls").DeepCopy()
		b.after = func(write string) {
			if write == "update secrets zarf-registry-node-tls" {
				b.putSecret(old.DeepCopy())
			}
		}
		b.mustFail(b.renew(), false, "the certificates are still not current after 50 writes", "zarf-registry-node-tls",
			"does something else write them?")
	})
}
