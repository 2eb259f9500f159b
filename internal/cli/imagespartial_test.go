package cli

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/cli/render"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// One of three images cannot be pulled: pull, copy and push complete the others, name it and fail.
func TestOneBadImageStopsNoOther(t *testing.T) {
	c := newImageCommand(t, nil)
	from, to := newTestRegistry(t, false, "", ""), newTestRegistry(t, false, "", "")
	var refs []string
	for _, name := range []string{"aa:1", "bad:1", "cc:1"} {
		from.put(t, name, runtime.GOARCH)
		refs = append(refs, from.Host()+"/"+name)
	}
	deny := func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasPrefix(r.URL.Path, "/v2/bad/blobs/") || strings.HasPrefix(r.URL.Path, "/v2/missing/") {
			w.WriteHeader(http.StatusNotFound)
			return true
		}
		return false
	}
	from.SetFront(deny)
	refs = append(refs, from.Host()+"/missing:1")
	archive, layout := filepath.Join(c.home, "a.tar"), filepath.Join(c.home, "layout")
	for _, args := range [][]string{
		{"pull", "--plain-http", "--out", archive},
		{"pull", "--plain-http", "--out", layout},
		{"copy", "--from-plain-http", "--to-plain-http", "--to", to.Host()},
	} {
		message, out := c.fails(exitcode.Failed, "", append(append(args, "--retries", "0"), refs...)...)
		if strings.Count(out, "\n") != 2 || !strings.Contains(out, "/aa:1\n") || !strings.Contains(out, "/cc:1\n") {
			t.Errorf("%v prints\n%s", args, out)
		}
		_, named, _ := strings.Cut(message, "Error: ")
		if strings.Count(named, "\n") != 2 || !strings.Contains(named, "/bad:1: ") || !strings.Contains(named, "/missing:1: ") {
			t.Errorf("%v says\n%s", args, message)
		}
	}
	_, out := c.fails(exitcode.Failed, "", append([]string{"copy", "--from-plain-http", "--to-plain-http", "--to", to.Host(),
		"--retries", "0", "--output", "json"}, refs...)...)
	var results render.List[struct{ Reference string }]
	if err := json.Unmarshal([]byte(out), &results); err != nil || len(results.Items) != 2 ||
		results.Items[1].Reference != to.Host()+"/cc:1" {
		t.Errorf("JSON is %s (%v)", out, err)
	}
	for _, source := range []string{archive, layout} {
		if out := c.run("list", source); strings.Count(out, "\n") != 3 {
			t.Errorf("%s has\n%s", source, out)
		}
	}
	c.fails(exitcode.Failed, "", append([]string{"pull", "--plain-http", "--out", filepath.Join(c.home, "none.tar"),
		"--fail-fast"}, refs...)...)
	if _, err := os.Stat(filepath.Join(c.home, "none.tar")); err == nil {
		t.Error("--fail-fast writes an archive")
	}

	// A damaged source: the other image is listed and pushed.
	blobs := require.Value(filepath.Glob(filepath.Join(layout, "blobs", "sha256", "*")))(t)
	var largest string
	for _, path := range blobs {
		if info, err := os.Stat(path); err == nil && info.Size() > 4000 {
			largest = path
		}
	}
	require.NoError(t, os.Remove(largest))
	for _, args := range [][]string{{"list", layout}, {"push", layout, "--to", to.Host(), "--plain-http"}} {
		message, out := c.fails(exitcode.Failed, "", args...)
		if got := strings.Count(out, from.Host()) + strings.Count(out, to.Host()); got != 1 ||
			!strings.Contains(message, filepath.Base(largest)) {
			t.Errorf("%v prints\n%s%s", args, message, out)
		}
	}
}

// Claim: Names and messages from registries and archives do not reach a terminal with control characters.
func TestNothingControlsTheTerminal(t *testing.T) {
	const evil = "\x1b]52;c;ZXZpbA==\x07\u009b31m\u202e"
	c := newImageCommand(t, nil)
	from := newTestRegistry(t, false, "", "")
	from.put(t, "app:1", runtime.GOARCH)
	layout := filepath.Join(c.home, "layout")
	c.run("pull", from.Host()+"/app:1", "--plain-http", "--out", layout)
	index := filepath.Join(layout, "index.json")
	raw := require.Value(os.ReadFile(index))(t)
	name := require.Value(json.Marshal("evil/" + evil + "\nFAKE\tROW"))(t)
	raw = bytes.ReplaceAll(raw, []byte(`"`+from.Host()+`/app:1"`), name)
	require.NoError(t, os.WriteFile(index, raw, 0o600))
	say := func(w http.ResponseWriter, r *http.Request) bool {
		w.WriteHeader(http.StatusForbidden)
		text, _ := json.Marshal(evil + "\nError: forged")
		_, _ = io.WriteString(w, `{"errors":[{"code":"DENIED","message":`+string(text)+`}]}`)
		return true
	}
	from.SetFront(say)
	for _, args := range [][]string{
		{"list", layout}, {"list", layout, "--output", "json"}, {"list", layout, "--output", "yaml"},
		{"push", layout, "--to", from.Host(), "--plain-http"},
		{"push", layout, "--to", from.Host(), "--plain-http", "--reference", "a:1"},
		{"pull", from.Host() + "/app:1", "--plain-http", "--out", layout},
	} {
		_, out, errOut := c.context(t.Context(), "", args...)
		if text := out + errOut; strings.ContainsAny(text, "\x1b\x07\u009b\u202e") || text == "" {
			t.Errorf("%v prints %q", args, text)
		}
		if strings.Contains(out, "\nFAKE") || strings.Contains(errOut, "\nError: forged") {
			t.Errorf("%v prints a forged line: %q", args, out+errOut)
		}
		if len(args) == 4 && args[3] == "json" && !json.Valid([]byte(out)) {
			t.Errorf("it is not JSON any more: %s", out)
		}
	}
}

// Ctrl-C ends a command that waits for a pipe that nobody writes to.
func TestCtrlCEndsWhatBlocks(t *testing.T) {
	c := newImageCommand(t, nil)
	pipe := filepath.Join(c.home, "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	var out bytes.Buffer
	ended := make(chan int, 1)
	go func() {
		ended <- Run("zarf-registry", []string{"images", "pull", "-f", pipe, "--out", filepath.Join(c.home, "a.tar")}, &out, &out)
	}()
	time.Sleep(200 * time.Millisecond)
	begin := time.Now()
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGINT))
	select {
	case code := <-ended:
		if took := time.Since(begin); code != exitcode.Failed || took > time.Second ||
			!strings.Contains(out.String(), "interrupted") {
			t.Errorf("exit code %d after %s: %s", code, took, out.String())
		}
	case <-time.After(10 * time.Second):
		t.Error("it does not end")
	}
	if w, err := os.OpenFile(pipe, os.O_WRONLY, 0); err == nil { // ends the reader
		w.Close()
	}
}

func TestPipesAndDevicesAreRefused(t *testing.T) {
	c := newImageCommand(t, nil)
	pipe := filepath.Join(c.home, "pipe.tar")
	layout := filepath.Join(c.home, "layout")
	for _, path := range []string{pipe, filepath.Join(layout, "oci-layout"), filepath.Join(c.home, "inventory")} {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, syscall.Mkfifo(path, 0o600))
	}
	for _, args := range [][]string{
		{"push", pipe, "--to", "127.0.0.1:1"}, {"push", "/dev/zero", "--to", "127.0.0.1:1"},
		{"push", layout, "--to", "127.0.0.1:1"},
		{"list", pipe}, {"list", "/dev/zero"}, {"list", layout},
		{"pull", "127.0.0.1:1/a:1", "--out", pipe},
		{"pull", "127.0.0.1:1/a:1", "--out", layout},
		{"pull", "127.0.0.1:1/a:1", "--out", filepath.Join(c.home, "a.tar"), "--have", filepath.Join(c.home, "inventory")},
	} {
		code, _, errOut := c.context(t.Context(), "", append(args, "--retries", "0")...)
		if code == 0 || !strings.Contains(errOut, "regular file") && !strings.Contains(errOut, "neither a file nor a directory") &&
			!strings.Contains(errOut, "contains no image") {
			t.Errorf("%v: exit code %d\n%s", args, code, errOut)
		}
	}
}

func TestLimitRate(t *testing.T) {
	c := newImageCommand(t, nil)
	from, to := newTestRegistry(t, false, "", ""), newTestRegistry(t, false, "", "")
	from.put(t, "app:1", runtime.GOARCH) // 10 kB
	archive := filepath.Join(c.home, "a.tar")
	for _, args := range [][]string{
		{"pull", from.Host() + "/app:1", "--plain-http", "--out", archive},
		{"push", archive, "--to", to.Host(), "--plain-http"},
		{"copy", from.Host() + "/app:1", "--from-plain-http", "--to-plain-http", "--to", to.Host(), "--prefix", "again"},
	} {
		begin := time.Now()
		c.run(append(args, "--limit-rate", "8kB")...)
		// A part passes at once.
		if took := time.Since(begin); took < 400*time.Millisecond || took > 20*time.Second {
			t.Errorf("%s takes %s", args[0], took)
		}
	}
}
