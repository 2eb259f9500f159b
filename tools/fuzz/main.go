// Command fuzz runs every fuzz target of the module for a limited time. With -corpus it adds inputs that
// fuzzing has found to the committed corpora.
//
//	go run ./tools/fuzz -time 1m -jobs 2
//	go run ./tools/fuzz -run 'FuzzMask|FuzzParse' -time 10m ./internal/noderuntime
//	go run ./tools/fuzz -corpus
//
// It parses the sources to find targets, because "go test -list" would compile and run all tests of the
// module. Each target has one worker, so -jobs is the number of cores in use.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("fuzz", flag.ContinueOnError)
	limit := flags.String("time", "1m", "duration or number of executions for each target: 1m, 1000x")
	jobs := flags.Int("jobs", 2, "number of targets to fuzz at a time")
	only := flags.String("run", "", "regular expression that selects targets by name")
	corpus := flags.Bool("corpus", false,
		"do not fuzz; add inputs that previous fuzzing on this machine found and that reach new statements to the "+
			"committed corpora")
	if err := flags.Parse(args); err != nil {
		return err
	}
	wanted, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("-run: %w", err)
	}
	patterns := flags.Args()
	if len(patterns) == 0 {
		patterns = []string{"./..."}
	}
	targets, err := discover(ctx, patterns, wanted)
	if err != nil {
		return err
	}
	if len(targets) == 0 {
		return fmt.Errorf("no fuzz target in %s has a name that matches %q", strings.Join(patterns, " "), *only)
	}
	dir, err := os.MkdirTemp("", "fuzz-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	cache, err := goOutput(ctx, "env", "GOCACHE")
	if err != nil {
		return err
	}
	for i, t := range targets {
		targets[i].found = filepath.Join(strings.TrimSpace(string(cache)), "fuzz", filepath.FromSlash(t.path))
		targets[i].program = filepath.Join(dir, strings.ReplaceAll(t.path, "/", "-"))
	}
	work, compile := func(ctx context.Context, t target) (string, error) { return t.fuzz(ctx, *limit) },
		target.compileToFuzz
	if *corpus {
		work, compile = func(ctx context.Context, t target) (string, error) { return t.refresh(ctx) }, target.compileToCover
	}
	// One package at a time, because the go command uses all cores.
	for _, t := range targets {
		if _, err := os.Stat(t.program); err == nil {
			continue
		}
		if err := compile(t, ctx); err != nil {
			return err
		}
	}
	return each(ctx, targets, *jobs, out, work)
}

// target is one fuzz target.
type target struct {
	pkg  string // relative to the module: "./internal/state"
	dir  string // absolute
	path string // import path
	name string

	program string // path of the package's compiled tests
	found   string // directory of the package in Go's fuzz cache
}

func (t target) String() string { return strings.TrimPrefix(t.pkg, "./") + " " + t.name }

// each does work for every target, jobs at a time, and prints one line per target.
func each(ctx context.Context, targets []target, jobs int, out io.Writer,
	work func(context.Context, target) (string, error)) error {
	var (
		running sync.WaitGroup
		mu      sync.Mutex // guards out
		failed  atomic.Int64
		slots   = make(chan struct{}, max(jobs, 1))
	)
	for _, t := range targets {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			if ctx.Err() != nil {
				return
			}
			began := time.Now()
			summary, err := work(ctx, t)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed.Add(1)
				fmt.Fprintf(out, "FAIL  %s: %v\n", t, err)
				return
			}
			fmt.Fprintf(out, "ok    %-42s %4.0f s  %s\n", t, time.Since(began).Seconds(), summary)
		})
	}
	running.Wait()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case failed.Load() > 0:
		return fmt.Errorf("%d of %d fuzz targets failed", failed.Load(), len(targets))
	}
	return nil
}

// discover returns the fuzz targets of the packages whose names match wanted.
func discover(ctx context.Context, patterns []string, wanted *regexp.Regexp) ([]target, error) {
	format := `{{$p := .}}{{range .TestGoFiles}}{{$p.ImportPath}}{{"\t"}}{{$p.Module.Dir}}{{"\t"}}{{$p.Dir}}` +
		`{{"\t"}}{{.}}{{"\n"}}{{end}}` +
		`{{range .XTestGoFiles}}{{$p.ImportPath}}{{"\t"}}{{$p.Module.Dir}}{{"\t"}}{{$p.Dir}}{{"\t"}}{{.}}{{"\n"}}{{end}}`
	list, err := goOutput(ctx, append([]string{"list", "-f", format}, patterns...)...)
	if err != nil {
		return nil, err
	}
	var targets []target
	for line := range strings.Lines(string(list)) {
		fields := strings.Split(strings.TrimSpace(line), "\t")
		if len(fields) != 4 {
			continue // blank lines between packages
		}
		path, module, dir, file := fields[0], fields[1], fields[2], fields[3]
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, file), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		relative, err := filepath.Rel(module, dir)
		if err != nil {
			return nil, err
		}
		for _, name := range fuzzTargets(parsed) {
			if wanted.MatchString(name) {
				targets = append(targets, target{pkg: "./" + filepath.ToSlash(relative), dir: dir, path: path, name: name})
			}
		}
	}
	return targets, nil
}

// fuzzTargets returns the names of a file's fuzz targets: func FuzzX(*testing.F).
func fuzzTargets(file *ast.File) []string {
	var names []string
	for _, decl := range file.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Recv != nil || !strings.HasPrefix(f.Name.Name, "Fuzz") || f.Type.Params.NumFields() != 1 {
			continue
		}
		if star, ok := f.Type.Params.List[0].Type.(*ast.StarExpr); ok {
			if s, ok := star.X.(*ast.SelectorExpr); ok && s.Sel.Name == "F" {
				names = append(names, f.Name.Name)
			}
		}
	}
	return names
}

// minimize limits the attempts to make an input smaller. With Go's default of a minute, minimizing takes
// most of the time.
const minimize = "100x"

func (t target) compileToFuzz(ctx context.Context) error {
	_, err := goOutput(ctx, "test", "-c", "-fuzz", ".", "-o", t.program, t.path)
	return err
}

// fuzz fuzzes a target and returns a summary. Its error contains the command that reproduces a failure.
func (t target) fuzz(ctx context.Context, limit string) (string, error) {
	cmd := exec.CommandContext(ctx, t.program, "-test.run", "^$", "-test.fuzz", "^"+t.name+"$", "-test.fuzzcachedir",
		t.found,
		"-test.fuzztime", limit, "-test.fuzzminimizetime", minimize, "-test.parallel", "1")
	cmd.Dir = t.dir
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // so that it stops its worker
	cmd.WaitDelay = 10 * time.Second
	output, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if err != nil {
		return "", t.failure(output, err)
	}
	return summary(output)
}

var (
	// statusLine matches the line that the test program prints every three seconds and at the end.
	statusLine = regexp.MustCompile(
		`^fuzz: elapsed: \S+, execs: (\d+) \(\d+/sec\), new interesting: (\d+) \(total: (\d+)\)`)
	failedLine = regexp.MustCompile(`Failing input written to (testdata/fuzz/\S+)`)
)

// summary summarizes the last status line. A target that executed nothing is an error.
func summary(output []byte) (string, error) {
	var last []string
	for scanner := bufio.NewScanner(bytes.NewReader(output)); scanner.Scan(); {
		if found := statusLine.FindStringSubmatch(scanner.Text()); found != nil {
			last = found
		}
	}
	if last == nil || last[1] == "0" {
		return "", fmt.Errorf("no executions:\n%s", output)
	}
	return fmt.Sprintf("%9s executions, %s new interesting inputs, %s in total", last[1], last[2], last[3]), nil
}

// failure returns an error with the output, the path of the failing input, and the command that
// reproduces the failure.
func (t target) failure(output []byte, err error) error {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return err
	}
	where := "a seed or a committed input fails; to reproduce: go test " + t.pkg + " -run '^" + t.name + "$'"
	if found := failedLine.FindSubmatch(output); found != nil {
		file := string(found[1])
		where = fmt.Sprintf("the input is %s: commit it with the fix; to reproduce: go test %s -run '^%s$/^%s$'",
			filepath.ToSlash(filepath.Join(t.pkg, file)), t.pkg, t.name, filepath.Base(file))
	}
	return fmt.Errorf("%w\n%s\n%s", err, bytes.TrimSpace(output), where)
}

func goOutput(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	output, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w\n%s", args[0], err, bytes.TrimSpace(stderr.Bytes()))
	}
	return output, nil
}
