// Command fuzz runs every fuzz target of the module for a bounded time, or adds to their committed corpora what fuzzing
// has found (-corpus).
//
//	go run ./tools/fuzz -time 1m -jobs 2
//	go run ./tools/fuzz -run 'FuzzMask|FuzzParse' -time 10m ./internal/noderuntime
//	go run ./tools/fuzz -corpus
//
// It finds targets by reading the sources, where "go test -list" would compile and start every test of the module. It
// fuzzes nothing by itself: the tests do, as with "go test -fuzz", one worker for each target, so that as many targets as there are jobs
// use as many processors.
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
	limit := flags.String("time", "1m", "how long each target is fuzzed, or how often: 1m, 1000x")
	jobs := flags.Int("jobs", 2, "how many targets are fuzzed at a time")
	only := flags.String("run", "", "regular expression: only the targets whose names match")
	corpus := flags.Bool("corpus", false, "fuzz nothing: add to the committed corpora what past fuzzing on this machine found and no committed input covers")
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
		return fmt.Errorf("there is no fuzz target in %s with a name that matches %q", strings.Join(patterns, " "), *only)
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
	// Each package once, and one after the other: the go command uses all processors by itself.
	work, compile := func(ctx context.Context, t target) (string, error) { return t.fuzz(ctx, *limit) }, target.compileToFuzz
	if *corpus {
		work, compile = func(ctx context.Context, t target) (string, error) { return t.refresh(ctx) }, target.compileToCover
	}
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
	pkg  string // as the go command takes it, relative to the module: "./internal/state"
	dir  string // absolute
	path string // import path
	name string

	program string // the package's tests, compiled
	found   string // the directory where the go command keeps what fuzzing the package has found, by target
}

func (t target) String() string { return strings.TrimPrefix(t.pkg, "./") + " " + t.name }

// each does the work for every target, jobs at a time, and prints one line for each that is done. The error says how many
// failed.
func each(ctx context.Context, targets []target, jobs int, out io.Writer, work func(context.Context, target) (string, error)) error {
	var (
		running sync.WaitGroup
		mu      sync.Mutex // of out
		failed  atomic.Int64
		places  = make(chan struct{}, max(jobs, 1))
	)
	for _, t := range targets {
		places <- struct{}{}
		running.Go(func() {
			defer func() { <-places }()
			if ctx.Err() != nil {
				return
			}
			began := time.Now()
			said, err := work(ctx, t)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed.Add(1)
				fmt.Fprintf(out, "FAIL  %s: %v\n", t, err)
				return
			}
			fmt.Fprintf(out, "ok    %-42s %4.0f s  %s\n", t, time.Since(began).Seconds(), said)
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

// discover finds the fuzz targets of the packages, in the order of packages and files.
func discover(ctx context.Context, patterns []string, wanted *regexp.Regexp) ([]target, error) {
	format := `{{$p := .}}{{range .TestGoFiles}}{{$p.ImportPath}}{{"\t"}}{{$p.Module.Dir}}{{"\t"}}{{$p.Dir}}{{"\t"}}{{.}}{{"\n"}}{{end}}` +
		`{{range .XTestGoFiles}}{{$p.ImportPath}}{{"\t"}}{{$p.Module.Dir}}{{"\t"}}{{$p.Dir}}{{"\t"}}{{.}}{{"\n"}}{{end}}`
	list, err := goOutput(ctx, append([]string{"list", "-f", format}, patterns...)...)
	if err != nil {
		return nil, err
	}
	var targets []target
	for line := range strings.Lines(string(list)) {
		fields := strings.Split(strings.TrimSpace(line), "\t")
		if len(fields) != 4 {
			continue // between two packages
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

// fuzzTargets are the names of a file's fuzz targets: func FuzzX(*testing.F).
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

// minimize bounds how often an input is tried to make it smaller. Go's default of a minute would take all of the time
// where much is found, and nearly all of it where the coverage of an input is not the same each time.
const minimize = "100x"

func (t target) compileToFuzz(ctx context.Context) error {
	_, err := goOutput(ctx, "test", "-c", "-fuzz", ".", "-o", t.program, t.path)
	return err
}

// fuzz fuzzes a target and returns what came of it. An error has all that is needed to do it again.
func (t target) fuzz(ctx context.Context, limit string) (string, error) {
	cmd := exec.CommandContext(ctx, t.program, "-test.run", "^$", "-test.fuzz", "^"+t.name+"$", "-test.fuzzcachedir", t.found,
		"-test.fuzztime", limit, "-test.fuzzminimizetime", minimize, "-test.parallel", "1")
	cmd.Dir = t.dir
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // so that it ends its worker
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
	// statusLine is what is printed every three seconds and at the end.
	statusLine = regexp.MustCompile(`^fuzz: elapsed: \S+, execs: (\d+) \(\d+/sec\), new interesting: (\d+) \(total: (\d+)\)`)
	failedLine = regexp.MustCompile(`Failing input written to (testdata/fuzz/\S+)`)
)

// summary says what the last status line says. A target that ran nothing is an error: it has checked nothing.
func summary(output []byte) (string, error) {
	var last []string
	for scanner := bufio.NewScanner(bytes.NewReader(output)); scanner.Scan(); {
		if found := statusLine.FindStringSubmatch(scanner.Text()); found != nil {
			last = found
		}
	}
	if last == nil || last[1] == "0" {
		return "", fmt.Errorf("nothing was executed:\n%s", output)
	}
	return fmt.Sprintf("%9s executions, %s new interesting inputs, %s in all", last[1], last[2], last[3]), nil
}

// failure has the output, where the failing input is, and how to run it again.
func (t target) failure(output []byte, err error) error {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return err
	}
	where := "the input is one that is committed or that the target itself adds; again: go test " + t.pkg + " -run '^" + t.name + "$'"
	if found := failedLine.FindSubmatch(output); found != nil {
		file := string(found[1])
		where = fmt.Sprintf("the input is %s: commit it with what mends it; again: go test %s -run '^%s$/^%s$'", filepath.ToSlash(filepath.Join(t.pkg, file)), t.pkg, t.name, filepath.Base(file))
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
