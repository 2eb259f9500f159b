package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// writeModule writes the files of a module and changes to its directory.
func writeModule(t *testing.T, files map[string]string) {
	t.Helper()
	t.Chdir(t.TempDir())
	files["go.mod"] = "module example.com/m\n\ngo 1.26\n"
	for name, content := range files {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// A package whose only tests are those of another package.
func TestRun(t *testing.T) {
	minTimeout = 2 * time.Second
	const limit = `package limit

import "errors"

var errNegative = errors.New("negative")

func Limit(n int) (int, error) {
	if n < 0 {
		return 0, errors.Join(errNegative)
	}
	for n != 10 {
		n--
	}
	return n, nil
}

func unused() int { return 1 }
`
	writeModule(t, map[string]string{"limit/limit.go": limit, "survivors.txt": "", "user/user.go": "package user\n",
		"user/user_test.go": `package user

import (
	"testing"

	"example.com/m/limit"
)

func TestLimit(t *testing.T) {
	if n, err := limit.Limit(12); n != 10 || err != nil {
		t.Fatal(n, err)
	}
}

func TestNegative(t *testing.T) {
	if _, err := limit.Limit(-1); err == nil {
		t.Fatal("no error")
	}
}

func TestOther(t *testing.T) {}
`})
	var out strings.Builder
	err := run(t.Context(), []string{"-survivors", "survivors.txt", "-output", "dist/mutants.json", "./limit",
		"./user"}, &out)
	if err == nil || !strings.Contains(err.Error(), "3 survivors are not explained") {
		t.Errorf("run: %v\n%s", err, &out)
	}
	data, err := os.ReadFile("dist/mutants.json")
	if err != nil {
		t.Fatal(err)
	}
	var results []mutant
	if err := json.Unmarshal(data, &results); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range results {
		got = append(got, fmt.Sprintf("%s => %s: %s %s", r.Before, r.After, r.Result, r.Test))
	}
	slices.Sort(got)
	want := []string{
		"for n != 10 { => for n != 11 {: caught TestLimit",
		"for n != 10 { => for n == 10 {: caught TestLimit",
		"if n < 0 { => if n < 1 {: SURVIVED ",
		"if n < 0 { => if n <= 0 {: SURVIVED ",
		"if n < 0 { => if n >= 0 {: caught TestLimit",
		"n-- => n++: timed out TestLimit",
		`return 0, errors.Join(errNegative) => return 0, nil: caught TestNegative`,
		`return 0, errors.Join(errNegative) => return 1, errors.Join(errNegative): SURVIVED `,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, line := range []string{"1 of them in statements that no unit test executes", "8 4 1 3 62 % limit",
		"limit/limit.go Limit\n- if n < 0 {\n+ if n < 1 {\nNOT EXPLAINED"} {
		if !strings.Contains(strings.Join(strings.Fields(out.String()), " "), strings.Join(strings.Fields(line), " ")) {
			t.Errorf("%q is missing in:\n%s", line, &out)
		}
	}
	if source, err := os.ReadFile("limit/limit.go"); err != nil || string(source) != limit {
		t.Errorf("the source has changed: %v\n%s", err, source)
	}
}

func TestReport(t *testing.T) {
	mutants := []*mutant{{File: "a/a.go", FunctionName: "F", Before: "x < 1", After: "x <= 1", Result: survived},
		{File: "a/a.go", FunctionName: "F", Before: "x < 1", After: "x >= 1", Result: caught}}
	list := filepath.Join(t.TempDir(), "survivors.txt")
	const entry = "# a comment\n\na/a.go F\n- x < 1\n+ x <= 1\nEqual: x is odd.\n"
	for name, test := range map[string]struct {
		list   string
		target float64
		want   string
	}{
		"explained":           {entry, 50, ""},
		"not explained":       {"", 50, "1 survivors are not explained"},
		"too few are caught":  {entry, 51, "50.0 % of the mutants were caught: want at least 51 %"},
		"the code is gone":    {entry + "\nb/b.go F\n- x\n+ y\nNo.\n", 50, "does not exist any more; remove it:\nb/b.go F"},
		"no reason":           {"a/a.go F\n- x < 1\n+ x <= 1\n", 50, "want FILE FUNCTION"},
		"no mutant":           {"a/a.go F\nEqual: x is odd.\n", 50, "want FILE FUNCTION"},
		"two, reasons differ": {entry + "\na/a.go F\n- x < 1\n+ x >= 1\nNo.\n", 50, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(list, []byte(test.list), 0o644); err != nil {
				t.Fatal(err)
			}
			explained, err := readExplanations(list)
			if err == nil {
				err = report(&strings.Builder{}, mutants, mutants, explained, test.target, 0)
			}
			if got := fmt.Sprint(err); test.want == "" && err != nil || !strings.Contains(got, test.want) && test.want != "" {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// Every kind of mutant, and what is not mutated.
func TestMutants(t *testing.T) {
	writeModule(t, map[string]string{"p/p.go": `package p

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

type logger struct{}

var errFixture = errors.New("fixture")

func (logger) warn(string, bool) {}

func (l *logger) conditions(ok bool, f func(int) bool) bool {
	if f(0x1f) && !ok {
		l.warn("not ok", true)
		return true
	}
	for ok {
		break
	}
	return "a"+"b" == "c"
}

func statements(ctx context.Context, c chan int, n int) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	defer close(c)
	list := make([]int, 7)
	n += -n
	slog.InfoContext(ctx, "n", "n", n<<3)
	c <- n
	go func() error {
		return errors.Join(errFixture)
	}()
	list[0] = n
	return len(list), ctx.Err()
}
`})
	packages, err := load(t.Context(), []string{"./p"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range packages[0].mutants() {
		if m.compiles() {
			got = append(got, fmt.Sprintf("%d %s: %s => %s", m.Line, m.FunctionName, m.Before, m.After))
		}
	}
	if diff := cmp.Diff([]string{
		"17 (*logger).conditions: if f(0x1f) && !ok { => if f(0x1f) || !ok {",
		"17 (*logger).conditions: if f(0x1f) && !ok { => if f(32) && !ok {",
		"17 (*logger).conditions: if f(0x1f) && !ok { => if f(0x1f) && ok {",
		"19 (*logger).conditions: return true => return false",
		"21 (*logger).conditions: for ok { => for !ok {",
		"22 (*logger).conditions: break => continue",
		`24 (*logger).conditions: return "a"+"b" == "c" => return "a"+"b" != "c"`,
		"30 statements: defer close(c) => (removed)",
		"32 statements: n += -n => n -= -n",
		"32 statements: n += -n => n += n",
		"34 statements: c <- n => (removed)",
		"35 statements: go func() error { return errors.Join(errFixture) }() => (removed)",
		"36 statements: return errors.Join(errFixture) => return nil",
		"38 statements: list[0] = n => (removed)",
		"38 statements: list[0] = n => list[1] = n",
		"39 statements: return len(list), ctx.Err() => return len(list), nil",
	}, got); diff != "" {
		t.Error(diff)
	}
	all := packages[0].mutants()
	for _, m := range all {
		m.tests = []*test{{}}
	}
	// The sample does not depend on other code.
	first := choose(all, 1, 5)
	second := choose(slices.DeleteFunc(slices.Clone(all), func(m *mutant) bool {
		return m.Line < 20 && !slices.Contains(first, m)
	}), 1, 5)
	if len(first) != 5 || !slices.Equal(first, second) {
		t.Errorf("%d mutants, %d mutants", len(first), len(second))
	}
	if slices.Equal(first, choose(all, 2, 5)) {
		t.Error("both seeds select the same mutants")
	}
}
