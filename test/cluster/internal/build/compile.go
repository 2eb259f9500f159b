package build

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// reportEvery is how often a long build reports progress.
const reportEvery = 20 * time.Second

// compile builds a recipe's programs in work/bin.
func (c *Cache) compile(ctx context.Context, r Recipe, work string) error {
	if r.C != "" {
		source := filepath.Join(work, r.Name+".c")
		if err := os.WriteFile(source, []byte(r.C), 0o644); err != nil {
			return err
		}
		return c.compileC(ctx, r, work, r.Name, []string{source})
	}
	module := filepath.Join(work, "module")
	if err := c.writeModule(ctx, r, module); err != nil {
		return err
	}
	// A single call for all programs named like their package, so that shared packages are compiled
	// once and linking overlaps.
	args := []string{"build", "-v", "-trimpath", "-ldflags", linkerFlags(r)}
	if len(r.Tags) > 0 {
		args = append(args, "-tags", strings.Join(r.Tags, ","))
	}
	packages := make(map[string]string)
	for name, pkg := range r.Programs {
		if filepath.Ext(pkg) != ".c" {
			packages[name] = pkg
			continue
		}
		sources, err := filepath.Glob(filepath.Join(module, pkg))
		if err != nil {
			return err
		}
		if err := c.compileC(ctx, r, work, name, sources); err != nil {
			return err
		}
	}
	if len(packages) == 1 {
		for name, pkg := range packages {
			args = append(args, "-o", filepath.Join(work, "bin", name), pkg)
		}
	} else {
		args = append(args, "-o", filepath.Join(work, "bin")+"/")
		for _, name := range slices.Sorted(maps.Keys(packages)) {
			args = append(args, packages[name])
		}
	}
	if err := c.run(ctx, r, module, goEnvironment(r), "go", args...); err != nil {
		return err
	}
	for name, links := range r.Links {
		for _, link := range links {
			if err := os.Link(filepath.Join(work, "bin", name), filepath.Join(work, "bin", link)); err != nil {
				return err
			}
		}
	}
	for _, name := range r.ProgramNames() {
		if _, err := os.Stat(filepath.Join(work, "bin", name)); err != nil {
			return fmt.Errorf("the build succeeded without writing %s: %w", name, err)
		}
	}
	return nil
}

func (c *Cache) compileC(ctx context.Context, r Recipe, work, name string, sources []string) error {
	args := append([]string{"-Os", "-static", "-s", "-o", filepath.Join(work, "bin", name)}, sources...)
	return c.run(ctx, r, work, os.Environ(), "gcc", args...)
}

func linkerFlags(r Recipe) string {
	flags := []string{"-s", "-w"}
	for _, v := range r.Variables {
		flags = append(flags, "-X", v)
	}
	return strings.Join(flags, " ")
}

// goEnvironment keeps the user's proxy and caches, but no setting that would change the result.
func goEnvironment(r Recipe) []string {
	cgo, mod := "0", "mod"
	if r.CGO {
		cgo = "1"
	}
	if r.Inside {
		mod = "readonly"
	}
	return append(os.Environ(),
		"CGO_ENABLED="+cgo, "GOFLAGS=-mod="+mod+" -buildvcs=false", "GOWORK=off", "GO111MODULE=on",
		"GOOS=linux", "GOEXPERIMENT=", "GOBIN=")
}

// writeModule writes a module that requires the recipe's module, or a copy of that: `go install
// path@version` refuses modules with replace directives.
func (c *Cache) writeModule(ctx context.Context, r Recipe, dir string) error {
	if r.Inside {
		module, err := download(ctx, r, filepath.Dir(dir))
		if err != nil {
			return err
		}
		if err := os.CopyFS(dir, os.DirFS(module.Dir)); err != nil {
			return err
		}
		for _, edit := range r.Edits {
			if err := edit.apply(dir); err != nil {
				return err
			}
		}
		return writeFiles(dir, r.Sources)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var gomod bytes.Buffer
	fmt.Fprintf(&gomod, "module build.invalid/%s\n\ngo %s\n\nrequire %s %s\n", r.Name, goLanguageVersion, r.Module,
		r.Version)
	files := map[string]string{"go.sum": strings.Join(append(r.Sums, ""), "\n")}
	maps.Copy(files, r.Sources)
	if r.StagingVersion != "" {
		// go mod download needs a module: this one, before its replacements are known.
		files["go.mod"] = gomod.String()
		if err := writeFiles(dir, files); err != nil {
			return err
		}
		staging, err := stagingModules(ctx, r, dir)
		if err != nil {
			return err
		}
		fmt.Fprintf(&gomod, "\nreplace (\n")
		for _, module := range staging {
			fmt.Fprintf(&gomod, "\t%s => %s %s\n", module, module, r.StagingVersion)
		}
		fmt.Fprintf(&gomod, ")\n")
	}
	files["go.mod"] = gomod.String()
	return writeFiles(dir, files)
}

func (e Edit) apply(dir string) error {
	path := filepath.Join(dir, e.File)
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if n := strings.Count(string(content), e.Old); n != 1 {
		return fmt.Errorf("editing %s: it has %d of %q, not one", e.File, n, e.Old)
	}
	return os.WriteFile(path, []byte(strings.Replace(string(content), e.Old, e.New, 1)), 0o644)
}

// goLanguageVersion is the language version of this program's own module.
const goLanguageVersion = "1.26.0"

func writeFiles(dir string, files map[string]string) error {
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// stagingModules returns the modules that the recipe's module replaces by directories of its own
// repository.
func stagingModules(ctx context.Context, r Recipe, dir string) ([]string, error) {
	module, err := download(ctx, r, dir)
	if err != nil {
		return nil, err
	}
	content, err := os.ReadFile(module.GoMod)
	if err != nil {
		return nil, fmt.Errorf("reading the go.mod of %s: %w", r.Module, err)
	}
	staging := localReplacements(string(content))
	if len(staging) == 0 {
		return nil, fmt.Errorf("the go.mod of %s %s replaces no module by a directory", r.Module, r.Version)
	}
	return staging, nil
}

// ModuleFile returns the path of a file in the module of a recipe that was built.
func (c *Cache) ModuleFile(ctx context.Context, r Recipe, name string) (string, error) {
	module, err := download(ctx, r, filepath.Join(c.dir, r.Key(), "module"))
	return filepath.Join(module.Dir, name), err
}

// A downloaded module, in the Go tool's module cache.
type downloaded struct{ Error, Dir, GoMod string }

// download runs go mod download for the recipe's module, in a directory of the build.
func download(ctx context.Context, r Recipe, dir string) (downloaded, error) {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", r.Module+"@"+r.Version)
	cmd.Dir, cmd.Env = dir, goEnvironment(r)
	out, runErr := cmd.Output() // the output explains a failure, as JSON
	var module downloaded
	if err := json.Unmarshal(out, &module); err != nil {
		return module, fmt.Errorf("downloading %s %s: %w", r.Module, r.Version, errors.Join(runErr, err))
	}
	if module.Error != "" {
		return module, fmt.Errorf("downloading %s %s: %s", r.Module, r.Version, module.Error)
	}
	return module, nil
}

// localReplacements returns the modules that a go.mod replaces by a directory.
func localReplacements(gomod string) []string {
	var modules []string
	for line := range strings.Lines(gomod) {
		fields := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "replace "))
		if len(fields) >= 3 && fields[1] == "=>" && strings.HasPrefix(fields[2], "./") {
			modules = append(modules, fields[0])
		}
	}
	return modules
}

// run runs a build tool, writes its output to a log file in the cache, and reports progress
// periodically. An error includes the end of the log.
func (c *Cache) run(ctx context.Context, r Recipe, dir string, env []string, name string, args ...string) error {
	logPath := filepath.Join(c.dir, "work", r.Key()+".log")
	logFile, err := os.Create(logPath)
	if err != nil {
		return err
	}
	defer logFile.Close()
	counter := &lineCounter{w: logFile}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, env, counter, counter
	// An interrupt lets the Go tool remove its temporary files.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	start := time.Now()
	ended := make(chan struct{})
	go func() {
		for {
			select {
			case <-ended:
				return
			case <-time.After(reportEvery):
				c.log("%s %s: %s, %d packages", r.Name, r.Version, time.Since(start).Round(time.Second), counter.lines.Load())
			}
		}
	}()
	err = cmd.Run()
	close(ended)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%s: %w\n%s\n(full log: %s)", name, err, lastLines(logPath, 20), logPath)
}

// lineCounter forwards what is written and counts lines that are not about downloads.
type lineCounter struct {
	w     io.Writer
	lines atomic.Int64
}

func (l *lineCounter) Write(p []byte) (int, error) {
	l.lines.Add(int64(bytes.Count(p, []byte("\n")) - bytes.Count(p, []byte("go: downloading"))))
	return l.w.Write(p)
}

func lastLines(path string, n int) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSuffix(string(content), "\n"), "\n")
	return "  " + strings.Join(lines[max(0, len(lines)-n):], "\n  ")
}
