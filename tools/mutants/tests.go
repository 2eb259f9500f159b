package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Results of a mutant.
const (
	caught   = "caught"
	timedOut = "timed out"
	survived = "SURVIVED"
)

// test is a test function.
type test struct {
	pkg     *pkg
	name    string
	seconds float64 // without mutants
}

// span is a block of statements in a coverage profile.
type span struct {
	file       string // import path and name
	start, end position
}

type position struct{ line, column int }

func (p position) before(q position) bool {
	return p.line < q.line || p.line == q.line && p.column < q.column
}

// coverage has the tests that execute each block, for all blocks.
type coverage map[span][]*test

// measure runs every test of the packages alone, and records what it executes. All tests must pass, one
// that is flaky in at most three attempts.
func measure(ctx context.Context, dir string, packages []*pkg, jobs int) (coverage, error) {
	var tests []*test
	var paths []string
	for _, p := range packages {
		paths = append(paths, p.path)
	}
	for _, p := range packages {
		if !p.tested {
			continue
		}
		program := filepath.Join(dir, path.Base(p.path)+".cover")
		if _, err := goOutput(ctx, "test", "-c", "-covermode", "set", "-coverpkg", strings.Join(paths, ","), "-o", program,
			p.path); err != nil {
			return nil, err
		}
		names, err := p.command(ctx, dir, program, "-test.list", "^(Test|Fuzz|Example)").Output()
		if err != nil {
			return nil, fmt.Errorf("list tests of %s: %w", p.path, err)
		}
		for name := range strings.FieldsSeq(string(names)) {
			tests = append(tests, &test{pkg: p, name: name})
		}
	}
	covered := coverage{}
	var mu sync.Mutex // guards covered
	err := each(ctx, tests, jobs, func(t *test) error {
		program := filepath.Join(dir, path.Base(t.pkg.path)+".cover")
		profile := program + "." + t.name
		for attempt := 1; ; attempt++ {
			began := time.Now()
			output, err := t.pkg.command(ctx, dir, program, "-test.short", "-test.run", "^"+t.name+"$",
				"-test.coverprofile", profile).CombinedOutput()
			t.seconds = time.Since(began).Seconds()
			if err == nil {
				break
			}
			if attempt == 3 || ctx.Err() != nil {
				return fmt.Errorf("%s of %s fails without a mutant: %w\n%s", t.name, t.pkg.path, err, output)
			}
		}
		spans, err := readProfile(profile)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		for s, executed := range spans {
			by := covered[s]
			if executed {
				by = append(by, t)
			}
			covered[s] = by
		}
		return os.Remove(profile)
	})
	return covered, err
}

var profileLine = regexp.MustCompile(`^(\S+):(\d+)\.(\d+),(\d+)\.(\d+) \d+ (\d+)$`)

// readProfile returns the blocks of a coverage profile and whether they were executed.
func readProfile(name string) (map[span]bool, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	spans := map[span]bool{}
	scanner := bufio.NewScanner(file)
	for scanner.Scan() {
		if m := profileLine.FindStringSubmatch(scanner.Text()); m != nil {
			number := func(i int) int { n, _ := strconv.Atoi(m[i]); return n }
			spans[span{m[1], position{number(2), number(3)}, position{number(4), number(5)}}] = m[6] != "0"
		}
	}
	return spans, scanner.Err()
}

// by returns the tests that execute the mutated statement, fastest first. What follows a function literal
// in a statement belongs to no block: then they are the tests that execute any part of the function.
func (c coverage) by(m *mutant) []*test {
	at := func(pos token.Pos) position {
		p := m.pkg.fset.Position(pos)
		return position{p.Line, p.Column}
	}
	where, first, last := at(m.start), at(m.function.Pos()), at(m.function.End())
	var inner *span
	var tests []*test
	for s, executing := range c {
		if s.file != path.Join(m.pkg.path, path.Base(m.File)) || s.start.before(first) || last.before(s.end) {
			continue
		}
		switch {
		case !where.before(s.start) && where.before(s.end):
			if inner == nil || inner.start.before(s.start) {
				inner, tests = &s, executing
			}
		case inner == nil:
			tests = slices.Concat(tests, executing)
		}
	}
	tests = slices.SortedFunc(slices.Values(tests), func(a, b *test) int {
		return cmp.Or(cmp.Compare(a.seconds, b.seconds), strings.Compare(a.name, b.name))
	})
	return slices.Compact(tests)
}

// try finds a test that the mutant fails. Tests of its own package run first.
func (m *mutant) try(ctx context.Context, dir string) error {
	dir, err := tempDir(dir)
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{m.path(): filepath.Join(dir, "mutant.go")}})
	if err != nil {
		return err
	}
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "mutant.go"), m.source(), 0o644),
		os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o644)); err != nil {
		return err
	}
	byPackage := map[*pkg][]*test{}
	for _, t := range m.tests {
		byPackage[t.pkg] = append(byPackage[t.pkg], t)
	}
	m.Result = survived
	for _, p := range slices.SortedFunc(maps.Keys(byPackage), func(a, b *pkg) int {
		if a == m.pkg {
			return -1
		}
		return strings.Compare(a.path, b.path)
	}) {
		program := filepath.Join(dir, path.Base(p.path)+".test")
		if _, err := goOutput(ctx, "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay", filepath.Join(dir, "overlay.json"),
			"-o", program, p.path); err != nil {
			return err
		}
		for _, batch := range batches(byPackage[p]) {
			if err := m.run(ctx, dir, program, batch); err != nil || m.Result != survived {
				return err
			}
		}
	}
	return nil
}

// batches splits tests, fastest first, into those of the first second, of the next ten, and others.
func batches(tests []*test) [][]*test {
	list := make([][]*test, 3)
	var sum float64
	for _, t := range tests {
		sum += t.seconds
		switch {
		case sum < 1:
			list[0] = append(list[0], t)
		case sum < 10:
			list[1] = append(list[1], t)
		default:
			list[2] = append(list[2], t)
		}
	}
	return slices.DeleteFunc(list, func(batch []*test) bool { return len(batch) == 0 })
}

var (
	failedTest  = regexp.MustCompile(`(?m)^--- FAIL: (\S+)`)
	runningTest = regexp.MustCompile(`(?m)^panic: test timed out after .*\n\s*running tests:\n\s*(\S+)`)
)

// run runs tests until one fails or exceeds its timeout. If it passes alone, it is flaky: the others decide.
func (m *mutant) run(ctx context.Context, dir, program string, tests []*test) error {
	for len(tests) > 0 {
		failed, result, err := once(ctx, dir, program, tests)
		if err != nil {
			return err
		}
		if result != survived && failed != nil {
			_, again, err := once(ctx, dir, program, []*test{failed})
			if err != nil {
				return err
			}
			if again == survived {
				m.Flaky = append(m.Flaky, failed.name)
				tests = slices.DeleteFunc(slices.Clone(tests), func(t *test) bool { return t == failed })
				continue
			}
		}
		if m.Result = result; result == survived {
			return nil
		}
		m.Test = "a panic or an exit in one of: " + strings.Join(names(tests), " ")
		if failed != nil {
			m.Test = failed.name
		}
		return nil
	}
	return nil
}

func names(tests []*test) []string {
	var list []string
	for _, t := range tests {
		list = append(list, t.name)
	}
	return list
}

// minTimeout is the timeout of tests that take no time. Others add three times what they take.
var minTimeout = 10 * time.Second

// once runs tests once and returns the one that failed, or nil if the output does not name it.
func once(ctx context.Context, dir, program string, tests []*test) (*test, string, error) {
	timeout := minTimeout
	for _, t := range tests {
		timeout += time.Duration(3 * t.seconds * float64(time.Second))
	}
	limited, cancel := context.WithTimeout(ctx, timeout+5*time.Second)
	defer cancel()
	cmd := tests[0].pkg.command(limited, dir, program, "-test.short", "-test.failfast", "-test.timeout", timeout.String(),
		"-test.run", "^("+strings.Join(names(tests), "|")+")$")
	output, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return nil, "", ctx.Err()
	}
	named := func(expression *regexp.Regexp) *test {
		if found := expression.FindSubmatch(output); found != nil {
			if i := slices.Index(names(tests), string(found[1])); i >= 0 {
				return tests[i]
			}
		}
		return nil
	}
	var exit *exec.ExitError
	switch {
	case err == nil:
		return nil, survived, nil
	case limited.Err() != nil || bytes.Contains(output, []byte("panic: test timed out after")):
		return named(runningTest), timedOut, nil
	case errors.As(err, &exit):
		return named(failedTest), caught, nil
	}
	return nil, "", err
}

// command returns a run of the package's compiled tests. A mutant that allocates without end must not
// take the machine's memory.
func (p *pkg) command(ctx context.Context, dir, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "sh", append([]string{"-c", `ulimit -v 4194304; exec "$0" "$@"`, program}, args...)...)
	cmd.Dir = p.dir
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// tempDir creates a directory that tests of other users can read.
func tempDir(parent string) (string, error) {
	dir, err := os.MkdirTemp(parent, "mutants-")
	if err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o755)
}

func goOutput(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	output, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return output, nil
}
