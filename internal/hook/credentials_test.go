package hook_test

import (
	"bytes"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	kubetesting "k8s.io/client-go/testing"

	"github.com/zarf-dev/zarf-registry/internal/hook/credentials"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/golden"
)

// give creates or replaces the user's Secret with the push credential.
func (b *bench) give(username, password string) {
	b.Helper()
	b.hook.Settings.Push.Secret = "corp-credential"
	b.putSecret(&corev1.Secret{ObjectMeta: foreignMeta("corp-credential"),
		Data: map[string][]byte{"username": []byte(username), "password": []byte(password)}})
}

// checkCredential checks which credential the registry accepts for pushing.
func (b *bench) checkCredential(username, password string) {
	b.Helper()
	d := b.secret("zarf-registry-credentials").Data
	user, hash, _ := strings.Cut(strings.TrimSpace(string(d["htpasswd"])), ":")
	if user != username || string(d["username"]) != username || password != "" && string(d["password"]) != password {
		b.Errorf("the credential is for %q, htpasswd for %q; want %q", d["username"], user, username)
	}
	if err := bcrypt.CompareHashAndPassword([]byte(hash), d["password"]); err != nil {
		b.Error(err)
	}
	if cost, _ := bcrypt.Cost([]byte(hash)); (cost >= bcrypt.DefaultCost) != (username != "zarf-push") {
		b.Errorf("the bcrypt cost is %d", cost)
	}
	for _, secret := range []string{string(d["password"]), hash} {
		if strings.Contains(b.log.String(), secret) {
			b.Error("a secret was logged")
		}
	}
}

func TestUserPushCredentialIsCopiedAndUpdated(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := installed(t)
		b.checkCredential("zarf-push", "")
		b.give("robot", "correct horse")
		b.must(b.prepareAndFinish())
		b.checkCredential("robot", "correct horse")
		if got := b.state().PushSecret; got != "corp-credential" {
			t.Errorf("the state records %q", got)
		}
		b.forget()
		b.must(b.prepareAndFinish())
		if w := strings.Join(b.writes(), " "); strings.Contains(w, "credential") {
			t.Errorf("a current Secret was written again: %s", w)
		}

		b.give("robot", "battery staple")
		options := b.hook.Settings
		b.asTheCronJobDoes()
		b.must(b.renew())
		b.checkCredential("robot", "battery staple")
		source := b.secret("corp-credential")
		if len(source.Data) != 2 || source.Labels != nil {
			t.Error("the user's Secret was written")
		}

		// Finish pushes with the new one.
		b.hook.Settings = options
		b.give("robot", "paper clip")
		b.slow = map[string]time.Duration{registryPod: 15 * time.Second}
		b.must(b.prepareAndFinish())
		b.checkCredential("robot", "paper clip")

		b.hook.Settings.Push.Secret = ""
		b.must(b.prepareAndFinish())
		b.checkCredential("zarf-push", "")
		if password := b.secret("zarf-registry-credentials").Data["password"]; len(password) < 40 {
			t.Error("the password is still the user's")
		}
		if got := b.state().PushSecret; got != "" {
			t.Errorf("the state records %q", got)
		}
	})
}

func TestRejectsInvalidUserPushCredentials(t *testing.T) {
	t.Parallel()
	golden := golden.Open(t, "credentials")
	for name, change := range map[string]func(*bench){
		"missing":                         func(b *bench) { b.remove("secrets", "corp-credential") },
		"no username":                     func(b *bench) { b.give("", "p") },
		"no password":                     func(b *bench) { b.give("robot", "") },
		"a colon":                         func(b *bench) { b.give("ro:bot", "p") },
		"leading #":                       func(b *bench) { b.give("#robot", "p") },
		"surrounding spaces":              func(b *bench) { b.give(" robot", "p") },
		"username of the pull credential": func(b *bench) { b.give("zarf-pull", "p") },
		"password of 73 bytes":            func(b *bench) { b.give("robot", strings.Repeat("x", 73)) },
		"a line break":                    func(b *bench) { b.give("robot", "p\n") },
		"invalid UTF-8":                   func(b *bench) { b.give("robot\xff", "p") },
		"Secret created by init-hook":     func(b *bench) { b.hook.Settings.Push.Secret = "zarf-registry-credentials" },
		"two problems":                    func(b *bench) { b.give("ro:bot", "") },
	} {
		subtest(t, name, func(t *testing.T) {
			b := installed(t, func(b *bench) { b.give("robot", "good") })
			change(b)
			b.forget()
			object := "Secret zarf/" + b.hook.Settings.Push.Secret
			b.mustFail(b.hook.Prepare(t.Context()), true, "credentials: "+object+": it ")
			b.mustNotWrite()
			b.hook.Settings.Preflight.Ignore = []string{"credentials"}
			b.mustRefuse(golden, name, b.hook.Prepare(t.Context()))
			b.checkCredential("robot", "good")
			if b.hook.Settings.Push.Secret != "corp-credential" {
				return
			}
			// Certificates are renewed nevertheless.
			b.asTheCronJobDoes()
			b.now = b.now.Add(8 * 30 * 24 * time.Hour)
			before := b.secret("zarf-registry-node-tls").Data["tls.crt"]
			b.mustFail(b.renew(), true, "renew: copy the push credential: "+object)
			if bytes.Equal(before, b.secret("zarf-registry-node-tls").Data["tls.crt"]) {
				t.Error("the certificates were not renewed")
			}
			b.checkCredential("robot", "good")
		})
	}
}

func TestRotatePushCredentialWaitsForRegistry(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := installed(t)
		b.asTheCronJobDoes()
		b.slow = map[string]time.Duration{registryPod: 15 * time.Second}
		before := b.secret("zarf-registry-credentials").Data["password"]
		begin := time.Now()
		b.must(b.hook.RotateCredential(t.Context(), credentials.Push))
		if bytes.Equal(before, b.secret("zarf-registry-credentials").Data["password"]) {
			t.Error("the password is the previous one")
		}
		b.checkCredential("zarf-push", "")
		checkTook(t, begin, 15*time.Second, 20*time.Second)
		for name, c := range map[string]struct {
			change func()
			want   string
		}{
			"not loaded": {func() { b.deaf = map[string]bool{registryPod: true} },
				"pod zarf/zarf-registry-1: it has loaded another one"},
			"no status": {func() { b.mute = map[string]error{registryPod: errors.New("i/o timeout")} },
				"pod zarf/zarf-registry-1: cannot query what it has loaded: i/o timeout"},
		} {
			c.change()
			b.hook.Timeout = 2 * time.Minute
			begin = time.Now()
			b.mustFail(b.hook.RotateCredential(t.Context(), credentials.Push), false,
				"Secret zarf/zarf-registry-credentials is written, but not every registry pod has loaded it", c.want)
			if took := time.Since(begin); took > 2*time.Minute {
				t.Errorf("%s: it took %s", name, took)
			}
			clear(b.deaf)
			clear(b.mute)
		}
		busy := true
		b.client.PrependReactor("list", "pods", func(kubetesting.Action) (bool, runtime.Object, error) {
			defer func() { busy = false }()
			return busy, nil, apierrors.NewServiceUnavailable("etcd is electing a leader")
		})
		b.must(b.hook.RotateCredential(t.Context(), credentials.Push))
		if busy {
			t.Error("no pods were listed")
		}
		// A pod that is not ready serves no client.
		b.deaf = map[string]bool{registryPod: true}
		b.change(registryPod, func(p *corev1.Pod) { p.Status.Conditions = nil })
		b.must(b.hook.RotateCredential(t.Context(), credentials.Push))
	})
}

func TestRotatePullCredentialKeepsListenerState(t *testing.T) {
	t.Parallel()
	for _, mode := range []state.Mode{state.ModeNodePort, state.ModeProxy} {
		subtest(t, string(mode), func(t *testing.T) {
			b := upgraded(t, state.ModeNodePort)
			if mode == state.ModeProxy {
				b.upgrade(mode)
			}
			before := maps.Clone(b.secret("zarf-registry-pull").Data)
			options := b.hook.Settings
			b.asTheCronJobDoes()
			b.must(b.hook.RotateCredential(t.Context(), credentials.Pull))
			after := b.secret("zarf-registry-pull")
			if bytes.Equal(before["password"], after.Data["password"]) {
				t.Error("the password is the previous one")
			}
			checkPull(b, after, mode == state.ModeNodePort)
			b.mustLog("copies of the pull Secret in other namespaces")
			if strings.Contains(b.log.String(), string(after.Data["password"])) {
				t.Error("the password was logged")
			}
			b.hook.Settings = options
			b.upgrade(mode)
			b.checkFinished()
			if !bytes.Equal(after.Data["password"], b.secret("zarf-registry-pull").Data["password"]) {
				t.Error("an upgrade generated a new password")
			}
		})
	}
}

func TestACredentialWithoutDataIsReplaced(t *testing.T) {
	t.Parallel()
	b := upgraded(t, state.ModeNodePort)
	b.changeSecret("zarf-registry-credentials", func(s *corev1.Secret) { s.Data = nil })
	b.upgrade(state.ModeNodePort)
	b.checkCredential("zarf-push", "")
}

func TestCredentialIsReadAgainAfterAConflict(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := installed(t)
		once := true
		b.interfere = func(write string) {
			if once && write == "update secrets zarf-registry-credentials" {
				once = false
				b.changeSecret("zarf-registry-credentials",
					func(s *corev1.Secret) { s.Annotations = map[string]string{"somebody": "else"} })
			}
		}
		b.must(b.hook.RotateCredential(t.Context(), credentials.Push))
		b.checkCredential("zarf-push", "")
		if once || b.secret("zarf-registry-credentials").Annotations["somebody"] != "else" {
			t.Error("the other writer's change was lost")
		}
	})
}
