package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// goTest returns what go test -json prints for a module of the packages, which have a test file each.
func goTest(t *testing.T, packages map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	files := map[string]string{"go.mod": "module " + strings.TrimSuffix(module, "/") + "\n\ngo 1.25\n"}
	for name, text := range packages {
		files[name+"/x_test.go"] = "package " + name + "\n" + text
	}
	for name, text := range files {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	cmd := exec.Command("go", "test", "-json", "-vet=off", "./...")
	cmd.Dir = dir
	out, _ := cmd.Output() // an error is the result of failing tests
	if !bytes.Contains(out, []byte(`"Action":`)) {
		t.Fatalf("go test -json printed %q", out)
	}
	return string(out)
}

const (
	passes = `
import "testing"
func TestPass(t *testing.T) { t.Log("quiet") }`
	skips = `
import "testing"
func TestAll(t *testing.T) { t.Run("sub", func(t *testing.T) { t.Skip("SKIPPED:\nno root") }) }`
	fails = `
import ("fmt"; "testing")
func TestQuiet(t *testing.T) { t.Log("quiet") }
func TestFail(t *testing.T) {
	t.Log("logged")
	fmt.Println("printed")
	t.Run("sub", func(t *testing.T) { t.Fatal("wrong") })
}`
	panics = `
import "testing"
var running = make(chan struct{})
func TestPass(t *testing.T) { go func() { <-running; panic("late") }() }
func TestSlow(t *testing.T) { close(running); select {} }`
	hangs = `
import ("flag"; "os"; "testing")
func TestMain(m *testing.M) { flag.Parse(); flag.Set("test.timeout", "10s"); os.Exit(m.Run()) }
func TestPass(t *testing.T) {}
func TestHang(t *testing.T) { t.Log("begin"); select {} }`
	exits = `
import ("os"; "testing")
func TestPass(t *testing.T) {}
func TestExit(t *testing.T) { os.Exit(3) }`
	noBuild = `
import "testing"
func TestNever(t *testing.T) { undefined() }`
)

func TestSummary(t *testing.T) {
	all := map[string]string{"passes": passes, "skips": skips, "fails": fails, "panics": panics, "hangs": hangs,
		"exits": exits, "nobuild": noBuild}
	var out strings.Builder
	if run(strings.NewReader(goTest(t, all)), &out) {
		t.Error("failures are accepted")
	}
	for _, want := range []string{
		"ok  \tgithub.com/zarf-dev/zarf-registry/passes\t",
		"skipped: skips TestAll/sub: SKIPPED: no root\n",
		"logged\n", "\nprinted\n", "wrong\n", "--- FAIL: TestFail/sub", "FAIL\tgithub.com/zarf-dev/zarf-registry/fails\t",
		"panic: late\n", "goroutine ", "FAIL\tgithub.com/zarf-dev/zarf-registry/panics\t",
		"panic: test timed out after 10s\n", "begin\n", "FAIL\tgithub.com/zarf-dev/zarf-registry/hangs\t",
		"undefined: undefined\n", "FAIL\tgithub.com/zarf-dev/zarf-registry/nobuild [build failed]\n",
		"\nfailed: fails TestFail\n", "\nfailed: fails TestFail/sub\n", "\nfailed: panics TestSlow (did not end)\n",
		"\nfailed: hangs TestHang (did not end)\n", "\nfailed: exits TestExit (did not end)\n",
		"\nfailed: nobuild (package)\n", "\n6 passed, 6 failed, 1 skipped\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output lacks %q", want)
		}
	}
	if strings.Contains(out.String(), "quiet") || strings.Contains(out.String(), "=== ") {
		t.Error("output of a test that passed")
	}
	if t.Failed() {
		t.Log(out.String())
	}
}

func TestResult(t *testing.T) {
	good := goTest(t, map[string]string{"passes": passes, "skips": skips})
	end := strings.LastIndex(good, `{"Time"`)
	for name, c := range map[string]struct {
		results, end string
		good         bool
	}{
		"passed":      {good, "2 passed, 0 failed, 1 skipped\n", true},
		"only skips":  {strings.ReplaceAll(good, `"pass"`, `"skip"`), "0 passed, 0 failed, 3 skipped\n", false},
		"nothing ran": {"", "0 passed, 0 failed, 0 skipped\n", false},
		"go test failed": {good + `{"Action":"exit"}`, "\nfailed: go test, without a failed test: see above\n2 passed, 1 failed, 1 skipped\n",
			false},
		"go test stopped": {good[:end], " (package)\n2 passed, 1 failed, 1 skipped\n", false},
		"half a line":     {good[:end+20], " (package)\n2 passed, 1 failed, 1 skipped\n", false},
		"other output":    {"go: warning\n" + good, "2 passed, 0 failed, 1 skipped\n", true},
	} {
		var out strings.Builder
		if ok := run(strings.NewReader(c.results), &out); ok != c.good || !strings.HasSuffix(out.String(), c.end) {
			t.Errorf("%s: %v, want %v and %q at the end:\n%s", name, ok, c.good, c.end, &out)
		}
	}
}
