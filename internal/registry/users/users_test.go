package users

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/crypto/bcrypt"

	"github.com/zarf-dev/zarf-registry/test/require"
)

func openUsers(t *testing.T, push []byte, pull ...byte) *Users {
	t.Helper()
	dir := t.TempDir()
	pushFile, pullFile := write(t, filepath.Join(dir, "push"), push), ""
	if pull != nil {
		pullFile = write(t, filepath.Join(dir, "pull"), pull)
	}
	return openFiles(t, pushFile, pullFile, "")
}

func openFiles(t *testing.T, push, pull, exposed string) *Users {
	t.Helper()
	return require.Value(Open(slog.New(slog.DiscardHandler), push, pull, exposed))(t)
}

// inside is a client of the plain listener.
var inside = Origin{Listener: "plain", Source: netip.MustParseAddr("10.0.0.1")}

// login returns the role of a user, RoleNone if the login fails.
func (c *Users) login(name, password string) (Role, error) {
	u, err := c.Verify(context.Background(), inside, name, password)
	if u == nil {
		return RoleNone, err
	}
	return u.Role, err
}

// line returns a line of an htpasswd file, whose hash is cheap.
func line(t testing.TB, user, password string) []byte {
	t.Helper()
	return costlyUser(t, user, password, bcrypt.MinCost)
}

func write(t testing.TB, path string, data []byte) string {
	t.Helper()
	require.NoError(t, os.WriteFile(path, data, 0o600))
	return path
}

// costlyUser returns a line of an htpasswd file.
func costlyUser(t testing.TB, name, password string, cost int) []byte {
	t.Helper()
	return fmt.Appendf(nil, "%s:%s\n", name, require.Value(bcrypt.GenerateFromPassword([]byte(password), cost))(t))
}

func TestVerify(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", maxPassword)
	c := openUsers(t,
		append([]byte("# users\n\n"), append(line(t, "push", "secret"),
			append(line(t, "long", long), line(t, "empty", "")...)...)...),
		line(t, "pull", "secret!")...)
	for desc, tt := range map[string]struct {
		name, password string
		want           Role
	}{
		"password of a push user":              {"push", "secret", RolePush},
		"password of a pull user":              {"pull", "secret!", RolePull},
		"wrong password":                       {"push", "Secret", RoleNone},
		"no password":                          {"push", "", RoleNone},
		"password of another user":             {"push", "secret!", RoleNone},
		"unknown user":                         {"root", "secret", RoleNone},
		"no user":                              {"", "secret", RoleNone},
		"name and password split elsewhere":    {"pus", "hsecret", RoleNone},
		"password of the maximum length":       {"long", long, RolePush},
		"longer password with the same prefix": {"long", long + "y", RoleNone},
		"password repeated after a NUL":        {"push", "secret\x00secret", RoleNone},
		"user with an empty password":          {"empty", "", RolePush},
	} {
		t.Run(desc, func(t *testing.T) {
			for range 2 { // the second time from the cache
				if got, err := c.login(tt.name, tt.password); got != tt.want || err != nil {
					t.Errorf("verify() = %d, %v, want %d", got, err, tt.want)
				}
			}
		})
	}
	if matched, remembered := c.Checks[checkMatched].Load(), c.Checks[checkCached].Load(); matched != 4 ||
		remembered != 4 {
		t.Errorf("%d passwords verified by bcrypt and %d by the cache, want 4 and 4", matched, remembered)
	}
}

// The first requests of a push are concurrent.
func TestVerifyCachesPasswords(t *testing.T) {
	t.Parallel()
	c := openUsers(t, costlyUser(t, "push", "secret", bcrypt.DefaultCost)) // as a person's password
	var checks sync.WaitGroup
	for range 8 {
		checks.Go(func() {
			if got, err := c.login("push", "secret"); got != RolePush || err != nil {
				t.Errorf("verify() = %d, %v", got, err)
			}
		})
	}
	checks.Wait()
	if matched, remembered := c.Checks[checkMatched].Load(), c.Checks[checkCached].Load(); matched != 1 ||
		remembered != 7 {
		t.Errorf("%d passwords verified by bcrypt and %d by the cache, want 1 and 7", matched, remembered)
	}
}

func TestWaitingForACheckEndsWithTheRequest(t *testing.T) {
	t.Parallel()
	c := openUsers(t, line(t, "push", "secret"))
	if _, err := c.login("push", "wrong"); err != nil { // further checks take their turns
		t.Fatal(err)
	}
	lane := c.budgets.all[budgetKey{listener: "plain", user: "push"}].lane
	lane <- struct{}{}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := c.Verify(ctx, inside, "push", "secret"); got != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("verify() = %v, %v", got, err)
	}
	<-lane
	if got, err := c.login("push", "secret"); got != RolePush || err != nil {
		t.Errorf("verify() = %d, %v", got, err)
	}
}

func TestUnknownUsersCostAsMuchAsWrongPasswords(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	push := write(t, filepath.Join(dir, "push"), append(line(t, "cheap", "x"), costlyUser(t, "dear", "x", 5)...))
	outside := write(t, filepath.Join(dir, "outside"), costlyUser(t, "outside", "x", 6))
	c := openFiles(t, push, "", outside)
	table := c.current.Load()
	for _, dummy := range []struct {
		*User
		want int
	}{{table.inside.dummy, 5}, {table.outside.dummy, 6}} {
		if cost, err := bcrypt.Cost(dummy.hash); err != nil || cost != dummy.want || dummy.cost != cost {
			t.Errorf("a dummy user costs %d, %v, want %d", cost, err, dummy.want)
		}
	}
	if _, err := c.login("nobody", "x"); err != nil || c.Checks[checkRefused].Load() != 1 {
		t.Errorf("no password was compared: %v", err)
	}
	exposed := Origin{Listener: "exposed", Exposed: true}
	for from, want := range map[Origin]bool{inside: false, exposed: true} {
		if got, err := c.Verify(t.Context(), from, "outside", "x"); err != nil || (got != nil) != want {
			t.Errorf("the user of the exposed listener at %s: %v, %v", from.Listener, got, err)
		}
	}
}

func TestInvalidHtpasswd(t *testing.T) {
	t.Parallel()
	good := string(line(t, "a", "secret"))
	for name, tt := range map[string]struct{ data, want string }{
		"no user":                   {"# nobody\n", "no users"},
		"a line without a colon":    {good + "secret", "line 2 is not USER:HASH"},
		"a line without a user":     {":" + good, "line 1 is not USER:HASH"},
		"a plain password":          {"a:secret", "line 1: not a bcrypt hash"},
		"an MD5 hash":               {"a:$apr1$lZL6V/ci$eIMz/iKDkbtys/uU7LEK00", "htpasswd -B"},
		"a SHA-1 hash":              {"a:{SHA}fEqNCco3Yq9h5ZUglD3CZJT4lBs=", "htpasswd -B"},
		"a truncated hash":          {strings.TrimSpace(good)[:50], "not a bcrypt hash"},
		"text after the hash":       {strings.TrimSpace(good) + " x", "not a bcrypt hash"},
		"a cost that takes forever": {strings.Replace(good, "$04$", "$31$", 1), "cost 31"},
		"a user twice":              {good + good, `line 2: duplicate user "a"`},
	} {
		t.Run(name, func(t *testing.T) {
			path := write(t, filepath.Join(t.TempDir(), "push"), []byte(tt.data))
			_, err := Open(slog.New(slog.DiscardHandler), path, "", "")
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), path) {
				t.Fatalf("openCredentials() = %v, want an error with %q", err, tt.want)
			}
			if strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "$") {
				t.Errorf("the error contains a secret: %v", err)
			}
		})
	}
}

// The steps build on each other.
//
// Claim: Damaged files of users change nothing in a running registry.
func TestCredentialFilesReloadIndependently(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	push, pull := write(t, filepath.Join(dir, "push"), line(t, "push", "1")),
		filepath.Join(dir, "pull", "htpasswd")
	c := openFiles(t, push, pull, "")
	put := func(path string, data []byte) func() {
		return func() {
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
			write(t, path, data)
		}
	}
	remove := func(path string) func() {
		return func() {
			require.NoError(t, os.RemoveAll(path))
		}
	}
	for _, step := range []struct {
		desc         string
		change       func()
		users        string // NAME:PASSWORD:ROLE of accepted users
		hasPullUsers bool
		changed      bool
		failure      string
	}{
		{"the pull file is missing", func() {}, "push:1:2", false, false, ""},
		{"the pull file appears", put(pull, line(t, "pull", "1")), "push:1:2 pull:1:1", true, true, ""},
		{"nothing happens", func() {}, "push:1:2 pull:1:1", true, false, ""},
		{"it changes", put(pull, line(t, "pull", "2")), "push:1:2 pull:2:1", true, true, ""},
		{"it breaks", put(pull, []byte("rubbish")), "push:1:2 pull:2:1", true, false, "USER:HASH"},
		{"the push file changes while the pull file is invalid", put(push, line(t, "push", "2")), "push:2:2 pull:2:1", true, true,
			"USER:HASH"},
		{"the pull file is empty", put(pull, nil), "push:2:2 pull:2:1", true, false, "no user"},
		{"it goes", remove(pull), "push:2:2", false, true, ""},
		{"the pull file appears and is invalid", put(pull, []byte("rubbish")), "push:2:2", false, false, "USER:HASH"},
		{"the pull file appears with a push user", put(pull, line(t, "push", "1")), "push:2:2", false, false,
			`user "push" may already push`},
		{"the pull file is valid", put(pull, line(t, "pull", "1")), "push:2:2 pull:1:1", true, true, ""},
		{"a pull user becomes a push user", put(push, line(t, "pull", "2")), "pull:2:2", true, true,
			`user "pull" may already push`},
		{"the user is no longer a push user", put(push, line(t, "push", "1")), "push:1:2 pull:1:1", true, true, ""},
		{"the push file is removed", remove(push), "push:1:2 pull:1:1", true, false, "no such file"},
		{"the directory of the pull file is removed", remove(filepath.Dir(pull)), "push:1:2", false, true, "no such file"},
		{"the push file is back", put(push, line(t, "push", "2")), "push:2:2", false, true, ""},
	} {
		step.change()
		changed, err := c.reload()
		if changed != step.changed || (err == nil) != (step.failure == "") || err != nil &&
			!strings.Contains(err.Error(), step.failure) {
			t.Errorf("%s: reload() = %t, %v", step.desc, changed, err)
		}
		var users []string
		for _, name := range []string{"push", "pull"} {
			for _, password := range []string{"1", "2"} {
				if has, err := c.login(name, password); err != nil || has != RoleNone {
					users = append(users, fmt.Sprintf("%s:%s:%d", name, password, has))
				}
			}
		}
		if got := strings.Join(users, " "); got != step.users {
			t.Errorf("%s: users %q, want %q", step.desc, got, step.users)
		}
		if c.HasPullUsers() != step.hasPullUsers {
			t.Errorf("%s: hasPullUsers() = %t", step.desc, c.HasPullUsers())
		}
	}
}

func TestSecretDependsOnThePushFileOnly(t *testing.T) {
	t.Parallel()
	push, pull := line(t, "push", "secret"), line(t, "pull", "secret")
	secret := openUsers(t, push).Secret("x")
	for name, tt := range map[string]struct {
		of   *Users
		same bool
	}{
		"same push users":                  {openUsers(t, push), true},
		"same push users, with pull users": {openUsers(t, push, pull...), true},
		"other push users":                 {openUsers(t, line(t, "push", "secret")), false},
		"push and pull users swapped":      {openUsers(t, pull, push...), false},
	} {
		if got := tt.of.Secret("x") == secret; got != tt.same {
			t.Errorf("%s: same secret %t", name, got)
		}
	}
	if openUsers(t, push).Secret("y") == secret {
		t.Error("another purpose has the same secret")
	}
}

func TestCachedPasswordsSurviveChangesOfTheFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, pull := filepath.Join(dir, "push"), filepath.Join(dir, "pull")
	mine := line(t, "mine", "secret")
	c := openFiles(t, write(t, path, mine), pull, "")
	for _, others := range [][]byte{nil, line(t, "other", "1"), line(t, "other", "2")} {
		write(t, path, append(bytes.Clone(mine), others...))
		write(t, pull, line(t, "pull", rand.Text()))
		if _, err := c.reload(); err != nil {
			t.Fatal(err)
		}
		if got, err := c.login("mine", "secret"); got != RolePush || err != nil {
			t.Errorf("verify() = %d, %v", got, err)
		}
	}
	if got := c.Checks[checkMatched].Load(); got != 1 {
		t.Errorf("the password of a user who did not change was checked %d times", got)
	}
	write(t, path, line(t, "mine", "new"))
	if _, err := c.reload(); err != nil {
		t.Fatal(err)
	}
	if got, err := c.login("mine", "secret"); got != RoleNone || err != nil {
		t.Errorf("the previous password is accepted: %d, %v", got, err)
	}
}

// The SHA-256 of the push file is public, so secrets must not be derived from it.
func TestSecretsDoNotDependOnTheReport(t *testing.T) {
	t.Parallel()
	data := line(t, "push", "secret")
	c := openUsers(t, data)
	reported := sha256.Sum256(data)
	const purpose = "a purpose"
	got := c.Secret(purpose)
	for name, key := range map[string][]byte{"the sum": reported[:],
		"the sum as text": []byte(hex.EncodeToString(reported[:])), "the file as a long key, which HMAC sums": data} {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(purpose))
		if got == hex.EncodeToString(mac.Sum(nil)) {
			t.Errorf("the secret is derived from %s", name)
		}
	}
	mac := hmac.New(sha256.New, reported[:])
	mac.Write([]byte("zarf-registry: seed of secrets"))
	if c.current.Load().push.seed == [sha256.Size]byte(mac.Sum(nil)) {
		t.Error("the seed is derived from the reported digest")
	}
	c.current.Load().push.sum = [sha256.Size]byte{}
	if c.Secret(purpose) != got {
		t.Error("the secret depends on the reported digest")
	}
}
