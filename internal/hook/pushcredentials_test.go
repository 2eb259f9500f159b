package hook_test

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/bcrypt"
	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/hook/certs"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

const generatedSecret = "zarf-registry-credentials-ci"

// named sets the named push credentials: ci is generated, team is a copy.
func named(b *bench) {
	b.Helper()
	b.giveTeam("team-user", "correct horse")
	b.hook.Settings.Push.Credentials = []state.PushCredential{
		{Name: "ci", Repositories: []string{"team-a", "shared/base"}}, {Name: "team", Secret: "team-credential"},
	}
}

func (b *bench) giveTeam(username, password string) {
	b.Helper()
	b.putSecret(&corev1.Secret{ObjectMeta: foreignMeta("team-credential"),
		Data: map[string][]byte{"username": []byte(username), "password": []byte(password)}})
}

// accepts returns what the registry's file says, with the passwords that match: USER/PASSWORD:NAME:REPOSITORIES.
func (b *bench) accepts(passwords ...[]byte) (lines []string) {
	b.Helper()
	for line := range bytes.Lines(b.secret("zarf-registry-auth").Data["htpasswd"]) {
		fields := strings.SplitN(strings.TrimSpace(string(line)), ":", 3)
		found := "?"
		for _, password := range passwords {
			if bcrypt.CompareHashAndPassword([]byte(fields[1]), password) == nil {
				found = string(password)
			}
		}
		lines = append(lines, strings.Join(append([]string{fields[0] + "/" + found}, fields[2:]...), ":"))
	}
	return lines
}

func (b *bench) password(secret string) []byte { return b.secret(secret).Data["password"] }

// checkNamed checks that the registry accepts the push credential and the named ones.
func (b *bench) checkNamed(teamPassword string) {
	b.Helper()
	push, ci := b.password("zarf-registry-credentials"), b.password(generatedSecret)
	user := string(b.secret("zarf-registry-credentials").Data["username"])
	want := []string{user + "/" + string(push), "ci/" + string(ci) + ":ci:team-a,shared/base",
		"team-user/" + teamPassword + ":team"}
	if diff := cmp.Diff(want, b.accepts(push, ci, []byte(teamPassword))); diff != "" {
		b.Errorf("the registry accepts (-want +got):\n%s", diff)
	}
	for _, secret := range [][]byte{push, ci, []byte(teamPassword)} {
		if strings.Contains(b.log.String(), string(secret)) {
			b.Error("a password was logged")
		}
	}
	// Zarf reads this Secret.
	if data := b.secret("zarf-registry-credentials").Data; bytes.Count(data["htpasswd"], []byte("\n")) != 1 ||
		!slices.Equal(slices.Sorted(maps.Keys(data)), []string{"htpasswd", "password", "upload-secret", "username"}) {
		b.Errorf("the Secret of the push credential changed: %q", slices.Sorted(maps.Keys(data)))
	}
}

// The CronJob copies the others, and the registry accepts what their Secrets have.
func TestOneCopyThatFailsBlocksNoOther(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := installed(t, func(b *bench) { b.give("robot", "good") })
		named(b)
		b.must(b.prepareAndFinish())
		b.asTheCronJobDoes()
		b.give("robot", "better")
		b.giveTeam("team-user", "")
		b.mustFail(b.renew(), true, "Secret zarf/team-credential has no key password")
		b.checkCredential("robot", "better")
		b.checkNamed("correct horse")

		b.give("robot", "")
		b.giveTeam("team-user", "battery staple")
		b.mustFail(b.renew(), true, "Secret zarf/corp-credential has no key password")
		b.checkCredential("robot", "better")
		b.checkNamed("battery staple")
	})
}

func TestNamedPushCredentials(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := installed(t)
		push := bytes.Clone(b.password("zarf-registry-credentials"))
		named(b)
		b.must(b.prepareAndFinish())
		b.checkNamed("correct horse")
		ci := bytes.Clone(b.password(generatedSecret))
		b.forget()
		b.must(b.prepareAndFinish())
		if w := strings.Join(b.writes(), " "); strings.Contains(w, "-auth") || strings.Contains(w, "credential") {
			t.Errorf("current credentials were written again: %s", w)
		}
		if !bytes.Equal(push, b.password("zarf-registry-credentials")) || !bytes.Equal(ci, b.password(generatedSecret)) {
			t.Error("an upgrade generated a new password")
		}

		options := b.hook.Settings
		b.asTheCronJobDoes()
		b.giveTeam("team-user", "battery staple")
		b.must(b.renew())
		b.checkNamed("battery staple")

		// Each is rotated alone.
		team := bytes.Clone(b.secret("zarf-registry-auth").Data["htpasswd"])
		begin := time.Now()
		b.slow = map[string]time.Duration{registryPod: 15 * time.Second}
		b.must(b.hook.Certs().RotateCredential(t.Context(), "ci"))
		if took := time.Since(begin); took < 15*time.Second {
			t.Errorf("it did not wait for the registry: %s", took)
		}
		b.checkNamed("battery staple")
		if bytes.Equal(ci, b.password(generatedSecret)) || !bytes.Equal(push, b.password("zarf-registry-credentials")) {
			t.Error("rotating one credential did not change it, or changed another")
		}
		if after := b.secret("zarf-registry-auth").Data["htpasswd"]; !bytes.Equal(lastLine(team), lastLine(after)) {
			t.Error("the hash of another credential changed")
		}
		b.must(b.hook.Certs().RotateCredential(t.Context(), certs.PushCredential))
		b.checkNamed("battery staple")
		b.mustFail(b.hook.Certs().RotateCredential(t.Context(), "team"), true,
			"the credential team is a copy of Secret zarf/team-credential: change it there, then run zarf-registry certs renew")
		b.mustFail(b.hook.Certs().RotateCredential(t.Context(), "nobody"), true,
			`unknown credential "nobody": see zarf-registry credentials list`)

		list, err := b.hook.Certs().ListCredentials(t.Context())
		b.must(err)
		want := []certs.CredentialInfo{
			{Name: "push", User: "zarf-push", Secret: "zarf-registry-credentials", Writes: true, Repositories: []string{}},
			{Name: "ci", User: "ci", Secret: generatedSecret, Writes: true, Repositories: []string{"team-a", "shared/base"}},
			{Name: "team", User: "team-user", Secret: "team-credential", Copied: true, Writes: true, Repositories: []string{}},
		}
		if diff := cmp.Diff(want, list); diff != "" {
			t.Errorf("the list (-want +got):\n%s", diff)
		}

		// A removed credential is refused as soon as prepare has run; its Secret stays until finish, for a rollback.
		b.hook.Settings = options
		b.hook.Settings.Push.Credentials = options.Push.Credentials[1:]
		b.must(b.hook.Prepare(t.Context()))
		if got := b.accepts([]byte("battery staple")); len(got) != 2 || got[1] != "team-user/battery staple:team" {
			t.Errorf("the registry accepts %q", got)
		}
		if b.get("secrets", generatedSecret) == nil {
			t.Error("the Secret was deleted before the upgrade was verified")
		}
		b.must(b.hook.Finish(t.Context()))
		if b.get("secrets", generatedSecret) != nil {
			t.Error("the Secret of a removed credential remains")
		}
		b.hook.Settings = options
		b.must(b.prepareAndFinish())
		b.must(b.hook.Cleanup(t.Context()))
		if b.get("secrets", generatedSecret) != nil || b.get("secrets", "team-credential") == nil {
			t.Error("cleanup left a generated credential, or deleted the user's")
		}
	})
}

func lastLine(text []byte) []byte {
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return lines[len(lines)-1]
}

func TestNamedPushCredentialsThatCannotWork(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*bench)
		want   string
	}{
		"a missing Secret": {func(b *bench) { b.remove("secrets", "team-credential") },
			"credentials: Secret zarf/team-credential: it does not exist"},
		"an invalid one": {func(b *bench) { b.giveTeam("a:b", "p") },
			"credentials: Secret zarf/team-credential: it has a username with a colon"},
		"two of one user": {func(b *bench) { b.giveTeam("ci", "p") },
			`the credentials ci and team have the same user name "ci": change one`},
		"the user of the push credential": {func(b *bench) { b.giveTeam("zarf-push", "p") },
			`the credentials push and team have the same user name "zarf-push": change one`},
	} {
		subtest(t, name, func(t *testing.T) {
			b := installed(t)
			before := b.secret("zarf-registry-auth").Data
			named(b)
			c.change(b)
			b.mustFail(b.hook.Prepare(t.Context()), true, c.want)
			if !maps.EqualFunc(before, b.secret("zarf-registry-auth").Data, bytes.Equal) {
				t.Error("the registry's Secret was written")
			}
		})
	}
}

// A chart that was rendered without the cluster does not grant the deletion.
func TestARemovedCredentialThatCannotBeDeletedIsNamed(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := installed(t, named)
		b.hook.Settings.Push.Credentials = nil
		b.mayNot("delete", "secrets", generatedSecret)
		b.must(b.prepareAndFinish())
		b.mustLog("its Secret remains: delete it", generatedSecret)
		if got := b.accepts(); len(got) != 1 {
			t.Errorf("the registry accepts %q", got)
		}
	})
}
