package ready_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/internal/node/ready"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// serverVariable makes this test binary a server that listens until its stdin ends.
const serverVariable = "READY_TEST_FILE"

func TestMain(m *testing.M) {
	path := os.Getenv(serverVariable)
	if path == "" {
		os.Exit(m.Run())
	}
	file, err := ready.Open(path)
	if err == nil {
		err = file.Listening()
	}
	if err != nil {
		panic(err)
	}
	os.Stdout.WriteString("listening\n")
	bufio.NewReader(os.Stdin).ReadString('\n')
}

// serve starts a server and returns how to kill it.
func serve(t *testing.T, path string) (kill func()) {
	t.Helper()
	server := exec.Command(os.Args[0])
	server.Env = append(os.Environ(), serverVariable+"="+path)
	require.Value(server.StdinPipe())(t)
	out := require.Value(server.StdoutPipe())(t)
	require.NoError(t, server.Start())
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("%q, %v", line, err)
	}
	return func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	}
}

func TestCheck(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ready")
	check := func(when, want string) {
		t.Helper()
		if err := ready.Check(path); err != nil && want == "" || want != "" && (err == nil ||
			!strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", when, err, want)
		}
	}
	check("before the server", "has not started yet")
	file := require.Value(ready.Open(path))(t)
	check("before it listens", "has not started to listen")
	require.NoError(t, file.Waiting("127.0.0.1:31999 is in use"))
	check("while it waits", "not listening: 127.0.0.1:31999 is in use")

	killPrevious := serve(t, path)
	check("while it listens", "")
	killNext := serve(t, path) // in place, beside the previous one
	check("while both listen", "")
	killPrevious()
	check("after the previous one has ended", "")
	killNext()
	check("after a kill, with what it left", "not listening")

	defer serve(t, path)()
	check("after a restart", "")
}
