package main

import (
	"bytes"
	"context"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestEveryTargetIsFound(t *testing.T) {
	// The tests of this package contain targets as text.
	grep := exec.Command("git", "grep", "-hoE", `^func Fuzz[A-Za-z0-9]+\(f \*testing\.F\)`, "--", "*_test.go",
		":!tools/fuzz")
	grep.Dir = "../.."
	written, err := grep.Output()
	if err != nil {
		t.Skipf("needs a git checkout (%v): clone the repository", err)
	}
	t.Chdir("../..")
	targets, err := discover(t.Context(), []string{"./..."}, regexp.MustCompile(""))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, target := range targets {
		names = append(names, target.name)
		if info, err := os.Stat(filepath.Join(target.dir, "testdata", "fuzz", target.name)); err != nil || !info.IsDir() {
			t.Errorf("%s has no committed corpus: make fuzz, then make fuzz-corpus", target)
		}
	}
	for line := range strings.Lines(string(written)) {
		if name := strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(line), "func "),
			"(f *testing.F)"); !slices.Contains(names, name) {
			t.Errorf("%s was not found", name)
		}
	}
	if len(names) == 0 {
		t.Error("no target was found")
	}
}

func TestFuzzTargetsOfAFile(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "x_test.go", `package x
func FuzzOne(f *testing.F) {}
func FuzzHelper(b []byte) {}
func Fuzziness(f *testing.T) {}
func (r receiver) FuzzTwo(f *testing.F) {}
func TestThree(t *testing.T) {}
`, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := fuzzTargets(file); !slices.Equal(got, []string{"FuzzOne"}) {
		t.Errorf("found %q", got)
	}
}

// module writes a module to the current directory, with a fuzz target that fails for inputs that
// begin with x.
func module(t *testing.T) {
	t.Helper()
	t.Chdir(t.TempDir())
	for name, content := range map[string]string{
		"go.mod": "module example.com/m\n\ngo 1.26\n",
		"a/a.go": "package a\n\n// Is says whether b begins with an x.\nfunc Is(b []byte) bool {\n\tif len(b) > 0 && b[0] " +
			"== 'x' {\n\t\treturn true\n\t}\n\treturn false\n}\n",
		"a/a_test.go": `package a

import "testing"

func FuzzBad(f *testing.F) {
	f.Add([]byte("ab"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if Is(b) {
			t.Error("it is")
		}
	})
}

func FuzzGood(f *testing.F) {
	f.Add([]byte("ab"))
	f.Fuzz(func(t *testing.T, b []byte) { Is(b) })
}
`,
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFailuresAreReproducible(t *testing.T) {
	module(t)
	var out bytes.Buffer
	err := run(context.Background(), []string{"-time", "100000x"}, &out)
	if err == nil || err.Error() != "1 of 2 fuzz targets failed" {
		t.Errorf("error %v", err)
	}
	for _, want := range []string{
		`(?m)^FAIL  a FuzzBad: exit status 1$`,
		`the input is a/testdata/fuzz/FuzzBad/[0-9a-f]+: commit it with the fix; ` +
			`to reproduce: go test ./a -run '\^FuzzBad\$/\^[0-9a-f]+\$'`,
		`(?m)^ok    a FuzzGood .* \d+ executions, \d+ new interesting inputs, \d+ in total$`,
	} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("%s is not in\n%s", want, out.String())
		}
	}
	// One input reaches the statement that the seed does not.
	out.Reset()
	if err := run(context.Background(), []string{"-corpus", "-run", "Good"}, &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	added, err := filepath.Glob("a/testdata/fuzz/FuzzGood/*")
	if err != nil || len(added) != 1 || !strings.Contains(out.String(), " 1 added;") {
		t.Errorf("added %q, %v\n%s", added, err, out.String())
	}
}

func TestNoTargetAndNoExecutionAreErrors(t *testing.T) {
	module(t)
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-run", "Nothing"}, &out); err == nil ||
		!strings.Contains(err.Error(), "no fuzz target") {
		t.Errorf("error %v", err)
	}
	if _, err := summary([]byte(
		"fuzz: elapsed: 0s, execs: 0 (0/sec), new interesting: 0 (total: 1)\nPASS\n")); err == nil {
		t.Error("a target that executed nothing counts as passed")
	}
}
