package hook_test

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/hook/credentials"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// checkAuth checks that the registry's Secret has what the registry checks credentials with, and no password.
func (b *bench) checkAuth(open bool) {
	b.Helper()
	push, auth := b.secret("zarf-registry-credentials").Data, b.secret("zarf-registry-auth").Data
	want := map[string][]byte{"htpasswd": push["htpasswd"], "upload-secret": push["upload-secret"]}
	if open {
		want["pull-htpasswd"] = b.secret("zarf-registry-pull").Data["htpasswd"]
	}
	if !maps.EqualFunc(auth, want, bytes.Equal) {
		b.Errorf("the registry's Secret has %q, want %q", slices.Sorted(maps.Keys(auth)), slices.Sorted(maps.Keys(want)))
	}
	for key, value := range auth {
		if len(value) == 0 || bytes.Contains(value, push["password"]) {
			b.Errorf("key %s is empty or has the password", key)
		}
	}
}

func TestTheRegistrysSecretHasHashesOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := upgraded(t, state.ModeProxy)
		b.checkAuth(false)
		b.upgrade(state.ModeNodePort)
		b.checkAuth(true)
		b.asTheCronJobDoes()
		for _, credential := range []credentials.Credential{credentials.Push, credentials.Pull} {
			b.must(b.hook.RotateCredential(t.Context(), credential))
			b.checkAuth(true)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		b := installed(t, func(b *bench) { b.give("robot", "correct horse") })
		b.checkAuth(false)
		b.give("robot", "battery staple")
		b.asTheCronJobDoes()
		b.must(b.renew())
		b.checkAuth(false)
	})
}

// The registry serves the node port until finish has switched.
func TestASwitchWritesTheRegistrysSecretThatWasDeleted(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := upgraded(t, state.ModeNodePort)
		b.remove("secrets", "zarf-registry-auth")
		b.begin(state.ModeProxy)
		b.checkAuth(true)
		b.mustFinish()
		b.checkAuth(false)
	})
}

func TestTheCronJobReportsMissingSecretsAndCreatesNone(t *testing.T) {
	t.Parallel()
	for missing, renewed := range map[string][]string{
		"server-tls": {"node-tls", "push-tls"},
		"node-tls":   {"server-tls", "push-tls"},
		"push-tls":   {"server-tls", "node-tls"},
		"ca":         nil, // the others cannot be issued without it
	} {
		subtest(t, missing, func(t *testing.T) {
			b := installed(t)
			b.asTheCronJobDoes()
			b.now = b.now.Add(8 * 30 * 24 * time.Hour) // all are due
			before := map[string][]byte{}
			for _, name := range renewed {
				before[name] = b.secret("zarf-registry-" + name).Data["tls.crt"]
			}
			b.remove("secrets", "zarf-registry-"+missing)
			b.mayNot("create", "secrets", "")
			message := fmt.Sprintf("Secret zarf/zarf-registry-%s is missing", missing)
			b.mustFail(b.renew(), true, message, "run helm upgrade")
			for name, certificate := range before {
				if bytes.Equal(certificate, b.secret("zarf-registry-" + name).Data["tls.crt"]) {
					t.Errorf("%s was not renewed", name)
				}
			}
			// The CronJob's pod, and its log, do not stay.
			recorded := b.state().RenewalFailed
			if !strings.Contains(recorded, message) || !strings.HasPrefix(recorded, b.now.UTC().Format(time.RFC3339)+": ") {
				t.Errorf("the state Secret records %q", recorded)
			}
			b.forbid = nil
			b.must(b.renew())
			if left := b.state().RenewalFailed; left != "" {
				t.Errorf("after a successful renewal the state Secret records %q", left)
			}
		})
	}
}

// Who may annotate pods may also change their images.
func TestTheCronJobAnnotatesNoPods(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := installed(t)
		b.asTheCronJobDoes()
		b.now = b.now.Add(8 * 30 * 24 * time.Hour) // all are due
		b.hook.CronJob = true
		b.must(b.renew())
		writes := b.writes()
		if len(writes) < 3 || slices.ContainsFunc(writes, func(w string) bool { return !strings.Contains(w, " secrets ") }) {
			t.Errorf("it wrote %q", writes)
		}
	})
}

func TestTheCronJobNeedsTheRegistrysSecretToCopyACredential(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := installed(t, func(b *bench) { b.give("robot", "correct horse") })
		b.give("robot", "battery staple")
		b.remove("secrets", "zarf-registry-auth")
		options := b.hook.Settings
		b.asTheCronJobDoes()
		b.mayNot("create", "secrets", "")
		b.mustFail(b.renew(), true, "Secret zarf/zarf-registry-auth is missing: run helm upgrade")
		b.forbid, b.hook.Settings = nil, options
		b.must(b.prepareAndFinish())
		b.checkAuth(false)
	})
}
