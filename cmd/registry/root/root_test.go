package root

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/zarf-dev/zarf-registry/internal/api/gc"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/test/require"
)

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func run(args ...string) (code int, stdout, stderr string) {
	var out, errors bytes.Buffer
	code = Run(context.Background(), append([]string{}, args...), &out, &errors) // nil would be those of go test
	return code, out.String(), errors.String()
}

func TestExitCodesAndMessages(t *testing.T) {
	config := write(t, "config.yml", "version: 0.1\nstorage: {filesystem: {rootdirectory: "+t.TempDir()+"}}\n")
	wrong := write(t, "wrong.yml", "version: 0.1\nstorage: inmemory\nhttp: {addr: ':1', prefix: /x}\n")
	inMemory := write(t, "memory.yml", "version: 0.1\nstorage: inmemory\n")
	unreadable := write(t, "unreadable.yml", "version: 0.1\nstorage: {filesystem: {rootdirectory: "+config+"}}\n")
	for description, tt := range map[string]struct {
		args []string
		code int
		want []string // on stderr
	}{
		"no command":         {nil, exitcode.Refused, []string{"missing command", `See "registry --help"`}},
		"an unknown command": {[]string{"nonsense"}, exitcode.Refused, []string{`"nonsense"`}},
		"an unknown flag": {[]string{"serve", "--nonsense"}, exitcode.Refused,
			[]string{"--nonsense", `See "registry serve --help"`}},
		"an unexpected argument": {[]string{"serve", "config.yml"}, exitcode.Refused,
			[]string{`unexpected argument "config.yml"`}},
		"an unknown log format": {[]string{"serve", "--log-format=xml"}, exitcode.Refused, []string{"--log-format", "xml"}},
		"an unknown log level":  {[]string{"serve", "--log-level=loud"}, exitcode.Refused, []string{"--log-level", "loud"}},
		"a missing configuration": {[]string{"serve", "--config=/nowhere/config.yml"},
			exitcode.Refused, []string{"/nowhere/config.yml", "no such file"}},
		"an invalid configuration": {[]string{"serve", "--config", wrong}, exitcode.Refused,
			[]string{wrong, "* http.addr", "* http.prefix"}},
		"missing certificates": {[]string{"serve", "--config", config, "--tls-dir=/nowhere"},
			exitcode.Refused, []string{"/nowhere"}},
		"pull users without a listener": {[]string{"serve", "--config", config, "--pull-htpasswd=users"},
			exitcode.Refused, []string{"--pull-htpasswd needs --plain-listen"}},
		"a loopback listener for everyone": {[]string{"serve", "--config", config, "--loopback-listen=:5001"},
			exitcode.Refused, []string{"invalid --loopback-listen :5001", "127.0.0.1:5001"}},
		"garbage collection in memory": {[]string{"garbage-collect", "--config", inMemory},
			exitcode.Refused, []string{"nothing to collect"}},
		"garbage collection of unreadable storage": {[]string{"garbage-collect", "--config", unreadable},
			exitcode.Failed, []string{"reading the storage"}},
		"a negative grace period": {[]string{"garbage-collect", "--grace-period=-1h"},
			exitcode.Refused, []string{"must not be negative"}},
		"garbage collection with an invalid configuration": {[]string{"garbage-collect", "--config", wrong}, exitcode.Refused,
			[]string{"* http.addr"}},
	} {
		t.Run(description, func(t *testing.T) {
			code, stdout, stderr := run(tt.args...)
			if code != tt.code || stdout != "" {
				t.Errorf("exit code %d, want %d; stdout %q", code, tt.code, stdout)
			}
			for _, want := range tt.want {
				if !strings.Contains(stderr, want) {
					t.Errorf("%q is not in %q", want, stderr)
				}
			}
		})
	}
}

func TestResultsGoToStdout(t *testing.T) {
	config := write(t, "config.yml", "version: 0.1\nstorage: {filesystem: {rootdirectory: "+t.TempDir()+"}}\n")
	for description, tt := range map[string]struct {
		args []string
		want string // a regular expression
	}{
		"the version": {[]string{"version"}, `^registry go\S+ \w+/\w+\n$`},
		"the result of a collection": {[]string{"garbage-collect", "--config", config},
			`^freed 0 bytes: 0 blobs, 0 manifests\n$`},
		"the result of a dry run": {[]string{"garbage-collect", "--config", config, "--dry-run",
			"--delete-untagged"}, `^would free 0 bytes: 0 blobs, 0 manifests\n$`},
		"help that explains waiting pushes": {[]string{"garbage-collect", "--help"}, `pushes\s+of what is about to be removed wait`},
		"help with examples":                {[]string{"serve", "--help"}, `Examples:`},
		"help that explains the plain listener": {[]string{"serve", "--help"},
			`--plain-listen is open only while that file exists`},
	} {
		t.Run(description, func(t *testing.T) {
			code, stdout, stderr := run(tt.args...)
			if code != 0 || stderr != "" || !regexp.MustCompile(tt.want).MatchString(stdout) {
				t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
			}
		})
	}
}

func TestRemovalsAreLogged(t *testing.T) {
	const digest = "sha256:2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
	for dryRun, want := range map[bool]string{true: `^$`,
		false: `^{.*"msg":"audit","action":"prune","digest":"` + digest + `","program":"garbage-collect"}\n$`} {
		var out, log bytes.Buffer
		command := garbageCollectCommand()
		command.SetContext(t.Context())
		command.SetOut(&out)
		report := reportRemoved(command, slog.New(slog.NewJSONHandler(&log, nil)), dryRun)
		report(gc.Event{Phase: gc.Sweeping})
		report(gc.Event{Removed: &gc.Removed{Digest: digest}})
		if !strings.Contains(out.String(), digest) || !regexp.MustCompile(want).Match(log.Bytes()) {
			t.Errorf("dry run %t: printed %q, logged %q", dryRun, out.String(), log.String())
		}
	}
}

type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// TestServe runs the whole program, from flags to shutdown.
func TestServe(t *testing.T) {
	hash := require.Value(bcrypt.GenerateFromPassword([]byte("secret"), bcrypt.MinCost))(t)
	t.Setenv("REGISTRY_STORAGE", "inmemory")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var stdout, stderr lockedBuffer
	ended := make(chan int)
	go func() {
		ended <- Run(ctx, []string{
			"serve", "--config", write(t, "config.yml", "version: 0.1\nstorage: {filesystem: {}}\n"),
			"--listen=", "--plain-listen=127.0.0.1:0", "--health-listen=", "--metrics-listen=",
			"--htpasswd", write(t, "htpasswd", "me:"+string(hash)+"\n"),
		}, &stdout, &stderr)
	}()
	listening := regexp.MustCompile(`"listener":"plain","address":"([^"]+)"`)
	var address string
	for address == "" {
		select {
		case code := <-ended:
			t.Fatalf("exit code %d: %s", code, stderr.String())
		default:
		}
		if found := listening.FindStringSubmatch(stderr.String()); found != nil {
			address = found[1]
		}
		time.Sleep(time.Millisecond)
	}
	request := require.Value(http.NewRequest(http.MethodGet, "http://"+address+"/v2/", nil))(t)
	request.SetBasicAuth("me", "secret")
	response := require.Value(http.DefaultClient.Do(request))(t)
	if body, err := io.ReadAll(response.Body); err != nil || response.StatusCode != http.StatusOK || string(body) != "{}" {
		t.Errorf("status %d, body %q, %v", response.StatusCode, body, err)
	}
	response.Body.Close()
	cancel()
	if code := <-ended; code != 0 {
		t.Errorf("exit code %d: %s", code, stderr.String())
	}
	if stdout.String() != "" {
		t.Errorf("stdout %q", stdout.String())
	}
	for _, line := range strings.Split(strings.TrimSpace(stderr.String()), "\n") {
		if !strings.HasPrefix(line, `{"time":`) {
			t.Errorf("a log line is not JSON: %s", line)
		}
	}
}
