package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/distribution/distribution/v3/registry/api/errcode"
	"golang.org/x/crypto/bcrypt"
)

func openUsers(t *testing.T, push []byte, pull ...byte) *credentials {
	t.Helper()
	dir := t.TempDir()
	pushFile, pullFile := writeFile(t, filepath.Join(dir, "push"), push), ""
	if pull != nil {
		pullFile = writeFile(t, filepath.Join(dir, "pull"), pull)
	}
	c, err := openCredentials(slog.New(slog.DiscardHandler), pushFile, pullFile, "")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestVerify(t *testing.T) {
	long := strings.Repeat("x", maxPassword)
	c := openUsers(t,
		append([]byte("# users\n\n"), append(htpasswd(t, "push", "secret"),
			append(htpasswd(t, "long", long), htpasswd(t, "empty", "")...)...)...),
		htpasswd(t, "pull", "secret!")...)
	for desc, tt := range map[string]struct {
		name, password string
		want           role
	}{
		"password of a push user":              {"push", "secret", rolePush},
		"password of a pull user":              {"pull", "secret!", rolePull},
		"wrong password":                       {"push", "Secret", roleNone},
		"no password":                          {"push", "", roleNone},
		"password of another user":             {"push", "secret!", roleNone},
		"unknown user":                         {"root", "secret", roleNone},
		"no user":                              {"", "secret", roleNone},
		"name and password split elsewhere":    {"pus", "hsecret", roleNone},
		"password of the maximum length":       {"long", long, rolePush},
		"longer password with the same prefix": {"long", long + "y", roleNone},
		"password repeated after a NUL":        {"push", "secret\x00secret", roleNone},
		"user with an empty password":          {"empty", "", rolePush},
	} {
		t.Run(desc, func(t *testing.T) {
			for range 2 { // the second time from the cache
				if got, err := c.verify(context.Background(), tt.name, tt.password); got != tt.want || err != nil {
					t.Errorf("verify() = %d, %v, want %d", got, err, tt.want)
				}
			}
		})
	}
	if matched, remembered := c.checks[checkMatched].Load(), c.checks[checkCached].Load(); matched != 4 ||
		remembered != 4 {
		t.Errorf("%d passwords verified by bcrypt and %d by the cache, want 4 and 4", matched, remembered)
	}
}

// The first requests of a push are concurrent.
func TestVerifyCachesPasswords(t *testing.T) {
	c := openUsers(t, htpasswd(t, "push", "secret"))
	c.running = make(chan struct{}, 1)
	c.running <- struct{}{} // occupies the only slot while the requests arrive
	var checks sync.WaitGroup
	for range 8 {
		checks.Go(func() {
			if got, err := c.verify(context.Background(), "push", "secret"); got != rolePush || err != nil {
				t.Errorf("verify() = %d, %v", got, err)
			}
		})
	}
	eventually(t, "all wait", func() bool { return c.waiting.Load() == 8 })
	<-c.running
	checks.Wait()
	if got := c.checks[checkMatched].Load(); got != 1 {
		t.Errorf("bcrypt ran %d times", got)
	}
}

func TestVerifyIsBounded(t *testing.T) {
	c := openUsers(t, htpasswd(t, "push", "secret"))
	if _, err := c.verify(context.Background(), "push", "secret"); err != nil {
		t.Fatal(err)
	}
	c.running = make(chan struct{}, 1)
	c.running <- struct{}{}
	ctx, cancel := context.WithCancel(context.Background())
	var flood sync.WaitGroup
	for range maxWaiting {
		flood.Go(func() {
			if got, err := c.verify(ctx, "push", "wrong"); got != roleNone || !errors.Is(err, context.Canceled) {
				t.Errorf("verify() = %d, %v", got, err)
			}
		})
	}
	eventually(t, "all wait", func() bool { return c.waiting.Load() == maxWaiting })

	got, err := c.verify(context.Background(), "push", "wrong")
	var coded errcode.Error
	if got != roleNone || !errors.As(err, &coded) || coded.Code != errcode.ErrorCodeTooManyRequests {
		t.Errorf("one more: verify() = %d, %v", got, err)
	}
	if got, err := c.verify(context.Background(), "push", "secret"); got != rolePush || err != nil {
		t.Errorf("a cached password is not accepted: %d, %v", got, err)
	}
	cancel()
	flood.Wait()
	<-c.running
	if got, err := c.verify(context.Background(), "push", "wrong"); got != roleNone || err != nil ||
		c.waiting.Load() != 0 {
		t.Errorf("after the flood: verify() = %d, %v, %d wait", got, err, c.waiting.Load())
	}
}

func TestUnknownUsersCostAsMuchAsWrongPasswords(t *testing.T) {
	hash, err := bcrypt.GenerateFromPassword([]byte("x"), bcrypt.MinCost+1)
	if err != nil {
		t.Fatal(err)
	}
	c := openUsers(t, append(htpasswd(t, "cheap", "x"), []byte("dear:"+string(hash)+"\n")...))
	cost, err := bcrypt.Cost(c.current.Load().dummyUser.hash)
	if err != nil || cost != bcrypt.MinCost+1 {
		t.Errorf("the dummy user costs %d, %v", cost, err)
	}
	if _, err := c.verify(context.Background(), "nobody", "x"); err != nil || c.checks[checkRefused].Load() != 1 {
		t.Errorf("no password was compared: %v", err)
	}
}

func TestInvalidHtpasswd(t *testing.T) {
	good := string(htpasswd(t, "a", "secret"))
	for name, tt := range map[string]struct{ data, want string }{
		"no user":                   {"# nobody\n", "no users"},
		"a line without a colon":    {good + "secret", "line 2 is not USER:HASH"},
		"a line without a user":     {":" + good, "line 1 is not USER:HASH"},
		"a plain password":          {"a:secret", "line 1: not a bcrypt hash"},
		"an MD5 hash":               {"a:$apr1$lZL6V/ci$eIMz/iKDkbtys/uU7LEK00", "htpasswd -B"},
		"a SHA-1 hash":              {"a:{SHA}fEqNCco3Yq9h5ZUglD3CZJT4lBs=", "htpasswd -B"},
		"a truncated hash":          {strings.TrimSpace(good)[:50], "not a bcrypt hash"},
		"text after the hash":       {strings.TrimSpace(good) + ":x", "not a bcrypt hash"},
		"a cost that takes forever": {strings.Replace(good, "$04$", "$31$", 1), "cost 31"},
		"a user twice":              {good + good, `line 2: duplicate user "a"`},
	} {
		t.Run(name, func(t *testing.T) {
			path := writeFile(t, filepath.Join(t.TempDir(), "push"), []byte(tt.data))
			_, err := openCredentials(slog.New(slog.DiscardHandler), path, "", "")
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
func TestCredentialFilesReloadIndependently(t *testing.T) {
	dir := t.TempDir()
	push, pull := writeFile(t, filepath.Join(dir, "push"), htpasswd(t, "push", "1")),
		filepath.Join(dir, "pull", "htpasswd")
	c, err := openCredentials(slog.New(slog.DiscardHandler), push, pull, "")
	if err != nil {
		t.Fatal(err)
	}
	secret := c.secret("x")
	put := func(path string, data []byte) func() {
		return func() {
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			writeFile(t, path, data)
		}
	}
	remove := func(path string) func() {
		return func() {
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
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
		{"the pull file is missing", func() {}, "push:1:3", false, false, ""},
		{"the pull file appears", put(pull, htpasswd(t, "pull", "1")), "push:1:3 pull:1:2", true, true, ""},
		{"nothing happens", func() {}, "push:1:3 pull:1:2", true, false, ""},
		{"it changes", put(pull, htpasswd(t, "pull", "2")), "push:1:3 pull:2:2", true, true, ""},
		{"it breaks", put(pull, []byte("rubbish")), "push:1:3 pull:2:2", true, false, "USER:HASH"},
		{"the push file changes while the pull file is invalid", put(push, htpasswd(t, "push", "2")), "push:2:3 pull:2:2", true, true,
			"USER:HASH"},
		{"the pull file is empty", put(pull, nil), "push:2:3 pull:2:2", true, false, "no user"},
		{"it goes", remove(pull), "push:2:3", false, true, ""},
		{"the pull file appears and is invalid", put(pull, []byte("rubbish")), "push:2:3", false, false, "USER:HASH"},
		{"the pull file appears with a push user", put(pull, htpasswd(t, "push", "1")), "push:2:3", false, false,
			`user "push" may already push`},
		{"the pull file is valid", put(pull, htpasswd(t, "pull", "1")), "push:2:3 pull:1:2", true, true, ""},
		{"a pull user becomes a push user", put(push, htpasswd(t, "pull", "2")), "pull:2:3", true, true,
			`user "pull" may already push`},
		{"the user is no longer a push user", put(push, htpasswd(t, "push", "1")), "push:1:3 pull:1:2", true, true, ""},
		{"the push file is removed", remove(push), "push:1:3 pull:1:2", true, false, "no such file"},
		{"the directory of the pull file is removed", remove(filepath.Dir(pull)), "push:1:3", false, true, "no such file"},
		{"the push file is back", put(push, htpasswd(t, "push", "2")), "push:2:3", false, true, ""},
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
				if has, err := c.verify(context.Background(), name, password); err != nil || has != roleNone {
					users = append(users, fmt.Sprintf("%s:%s:%d", name, password, has))
				}
			}
		}
		if got := strings.Join(users, " "); got != step.users {
			t.Errorf("%s: users %q, want %q", step.desc, got, step.users)
		}
		if c.hasPullUsers() != step.hasPullUsers {
			t.Errorf("%s: hasPullUsers() = %t", step.desc, c.hasPullUsers())
		}
	}
	put(push, htpasswd(t, "push", "1"))()
	if c.secret("x") == secret {
		t.Error("the secret does not depend on the push users")
	}
}

func TestSecretDependsOnThePushFileOnly(t *testing.T) {
	push, pull := htpasswd(t, "push", "secret"), htpasswd(t, "pull", "secret")
	secret := openUsers(t, push).secret("x")
	for name, tt := range map[string]struct {
		of   *credentials
		same bool
	}{
		"same push users":                  {openUsers(t, push), true},
		"same push users, with pull users": {openUsers(t, push, pull...), true},
		"other push users":                 {openUsers(t, htpasswd(t, "push", "secret")), false},
		"push and pull users swapped":      {openUsers(t, pull, push...), false},
	} {
		if got := tt.of.secret("x") == secret; got != tt.same {
			t.Errorf("%s: same secret %t", name, got)
		}
	}
	if openUsers(t, push).secret("y") == secret {
		t.Error("another purpose has the same secret")
	}
}

func TestCachedPasswordsSurviveOtherUsers(t *testing.T) {
	dir := t.TempDir()
	pull := filepath.Join(dir, "pull")
	c, err := openCredentials(slog.New(slog.DiscardHandler), writeFile(t, filepath.Join(dir, "push"),
		htpasswd(t, "push", "secret")), pull, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, pullers := range []string{"", "pull"} {
		if pullers != "" {
			writeFile(t, pull, htpasswd(t, pullers, "secret"))
			if changed, err := c.reload(); !changed || err != nil {
				t.Fatalf("reload() = %t, %v", changed, err)
			}
		}
		if got, err := c.verify(context.Background(), "push", "secret"); got != rolePush || err != nil {
			t.Errorf("verify() = %d, %v", got, err)
		}
	}
	if matched, remembered := c.checks[checkMatched].Load(), c.checks[checkCached].Load(); matched != 1 ||
		remembered != 1 {
		t.Errorf("%d passwords verified by bcrypt and %d by the cache, want 1 and 1", matched, remembered)
	}
}
