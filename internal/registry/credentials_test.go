package registry

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/distribution/distribution/v3/registry/api/errcode"
	"golang.org/x/crypto/bcrypt"
)

func openUsers(t *testing.T, data ...[]byte) *credentials {
	t.Helper()
	var files []htpasswdFile
	for n, d := range data {
		files = append(files, htpasswdFile{writeFile(t, filepath.Join(t.TempDir(), "htpasswd"), d), []role{rolePush, rolePull}[n]})
	}
	c, err := openCredentials(slog.New(slog.DiscardHandler), files...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestVerify(t *testing.T) {
	long := strings.Repeat("x", maxPassword)
	c := openUsers(t,
		append([]byte("# users\n\n"), append(htpasswd(t, "push", "secret"), append(htpasswd(t, "long", long), htpasswd(t, "empty", "")...)...)...),
		htpasswd(t, "pull", "secret!"))
	for sentence, tt := range map[string]struct {
		name, password string
		want           role
	}{
		"the right password of a pusher":              {"push", "secret", rolePush},
		"the right password of a puller":              {"pull", "secret!", rolePull},
		"a wrong password":                            {"push", "Secret", roleNone},
		"no password":                                 {"push", "", roleNone},
		"the password of another user":                {"push", "secret!", roleNone},
		"a user that does not exist":                  {"root", "secret", roleNone},
		"no user":                                     {"", "secret", roleNone},
		"a name and a password cut in another place":  {"pus", "hsecret", roleNone},
		"a password as long as bcrypt sees":           {"long", long, rolePush},
		"a longer one that begins alike":              {"long", long + "y", roleNone},
		"a password that bcrypt takes for its repeat": {"push", "secret\x00secret", roleNone},
		"a user whose password is empty on purpose":   {"empty", "", rolePush},
	} {
		t.Run(sentence, func(t *testing.T) {
			for range 2 { // the second time from memory
				if got, err := c.verify(context.Background(), tt.name, tt.password); got != tt.want || err != nil {
					t.Errorf("verify() = %d, %v, want %d", got, err, tt.want)
				}
			}
		})
	}
	if matched, remembered := c.checks[checkMatched].Load(), c.checks[checkRemembered].Load(); matched != 4 || remembered != 4 {
		t.Errorf("%d passwords matched by bcrypt and %d from memory, want 4 and 4", matched, remembered)
	}
}

// The first requests of a push come together.
func TestVerifyPaysOnce(t *testing.T) {
	c := openUsers(t, htpasswd(t, "push", "secret"))
	c.running = make(chan struct{}, 1)
	c.running <- struct{}{} // the only place is taken while they arrive
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
		t.Errorf("who was here before is not let in: %d, %v", got, err)
	}
	cancel()
	flood.Wait()
	<-c.running
	if got, err := c.verify(context.Background(), "push", "wrong"); got != roleNone || err != nil || c.waiting.Load() != 0 {
		t.Errorf("after the flood: verify() = %d, %v, %d wait", got, err, c.waiting.Load())
	}
}

func TestUnknownUsersCostAsMuchAsWrongPasswords(t *testing.T) {
	hash, err := bcrypt.GenerateFromPassword([]byte("x"), bcrypt.MinCost+1)
	if err != nil {
		t.Fatal(err)
	}
	c := openUsers(t, append(htpasswd(t, "cheap", "x"), []byte("dear:"+string(hash)+"\n")...))
	cost, err := bcrypt.Cost(c.current.Load().stranger.hash)
	if err != nil || cost != bcrypt.MinCost+1 {
		t.Errorf("a stranger costs %d, %v", cost, err)
	}
	if _, err := c.verify(context.Background(), "nobody", "x"); err != nil || c.checks[checkRefused].Load() != 1 {
		t.Errorf("no password was compared: %v", err)
	}
}

func TestHtpasswdRefusals(t *testing.T) {
	good := string(htpasswd(t, "a", "secret"))
	for sentence, tt := range map[string]struct{ push, pull, want string }{
		"no user":                         {"# nobody\n", "", "there is no user"},
		"a line without a colon":          {good + "secret", "", "line 2 is not USER:HASH"},
		"a line without a user":           {":" + good, "", "line 1 is not USER:HASH"},
		"a plain password":                {"a:secret", "", "line 1: the hash is not bcrypt"},
		"an MD5 hash":                     {"a:$apr1$lZL6V/ci$eIMz/iKDkbtys/uU7LEK00", "", "htpasswd -B"},
		"a SHA-1 hash":                    {"a:{SHA}fEqNCco3Yq9h5ZUglD3CZJT4lBs=", "", "htpasswd -B"},
		"a hash that is cut":              {strings.TrimSpace(good)[:50], "", "not bcrypt"},
		"something after the hash":        {strings.TrimSpace(good) + ":x", "", "not bcrypt"},
		"a cost that takes forever":       {strings.Replace(good, "$04$", "$31$", 1), "", "cost 31"},
		"a user twice":                    {good + good, "", `line 2: user "a" is there already`},
		"a user who may push and may not": {good, good, `line 1: user "a" is there already`},
	} {
		t.Run(sentence, func(t *testing.T) {
			dir := t.TempDir()
			files := []htpasswdFile{{writeFile(t, filepath.Join(dir, "push"), []byte(tt.push)), rolePush}}
			if tt.pull != "" {
				files = append(files, htpasswdFile{writeFile(t, filepath.Join(dir, "pull"), []byte(tt.pull)), rolePull})
			}
			_, err := openCredentials(slog.New(slog.DiscardHandler), files...)
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), files[len(files)-1].path) {
				t.Fatalf("openCredentials() = %v, want something about %q", err, tt.want)
			}
			if strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "$") {
				t.Errorf("the error holds what is secret: %v", err)
			}
		})
	}
}
