package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Statuses of a cell.
const (
	tested      = "tested"       // every step passed
	failed      = "known broken" // a step failed
	simulated   = "simulated"    // every step passed, on something that stands for the real one
	notRunnable = "reasoned"     // the machine cannot run it
)

// A result is that of a cell.
type result struct {
	Cell   string `json:"cell"`
	Status string `json:"status"`
	// Date is the day, as in 2006-01-02.
	Date string `json:"date"`
	// Source identifies the sources that the cell ran.
	Source   string   `json:"source"`
	Versions []string `json:"versions,omitempty"` // of the nodes
	Steps    []step   `json:"steps,omitempty"`
	Reason   string   `json:"reason,omitempty"` // of a cell that did not run, or cannot work
}

type step struct {
	Name   string `json:"name"`
	Passed bool   `json:"passed"`
	// Seconds are for readers, and differ between runs.
	Seconds float64 `json:"seconds"`
}

// sourceID returns an identifier of the sources, without documents and uncommitted files.
func sourceID(ctx context.Context) (string, error) {
	list, err := exec.CommandContext(ctx, "git", "ls-files", "-s", "charts", "cmd", "internal", "loader", "test", "go.mod",
		"go.sum").Output()
	if err != nil {
		return "", fmt.Errorf("listing the sources with git: %w", err)
	}
	sum := sha256.Sum256(list)
	return hex.EncodeToString(sum[:6]), nil
}

// A store is a directory with a result and a log for each cell.
type store struct{ dir, source string }

func (s store) path(c cell, extension string) string { return filepath.Join(s.dir, c.name()+extension) }

// load returns the last result of a cell, or nil.
func (s store) load(c cell) (*result, error) {
	data, err := os.ReadFile(s.path(c, ".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var r result
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("%s: %w; delete it to run the cell again", s.path(c, ".json"), err)
	}
	return &r, nil
}

func (s store) save(c cell, r result) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	temporary := s.path(c, ".json.tmp")
	if err := os.WriteFile(temporary, append(data, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(temporary, s.path(c, ".json"))
}

// all returns the last results of all cells that have one.
func (s store) all() ([]result, error) {
	var results []result
	for _, c := range cells() {
		r, err := s.load(c)
		if err != nil {
			return nil, err
		}
		if r != nil {
			results = append(results, *r)
		}
	}
	return results, nil
}

// runCell runs a cell and stores its result and its log. Its error means that the cell was not run.
func runCell(ctx context.Context, c cell, store store) (result, error) {
	r := result{Cell: c.name(), Date: time.Now().UTC().Format(time.DateOnly), Source: store.source}
	if err := os.MkdirAll(store.dir, 0o755); err != nil {
		return r, err
	}
	if c.KubeProxy == "ipvs" {
		if _, err := os.Stat("/proc/net/ip_vs"); err != nil {
			r.Status, r.Reason = notRunnable, "the kernel of the test machine has no IPVS (/proc/net/ip_vs)"
			return r, store.save(c, r)
		}
	}
	text, err := json.Marshal(map[string]any{"Cluster": c.cluster(), "Network": c.network(), "Up": c.arguments(),
		"Helm": c.Helm, "Storage": c.Storage})
	if err != nil {
		return r, err
	}
	log, err := os.Create(store.path(c, ".log"))
	if err != nil {
		return r, err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, "go", "test", "./test/e2e", "-run", "^TestCell$", "-count=1", "-timeout", "20m",
		"-json")
	cmd.Env = append(os.Environ(), "E2E_CELL="+string(text))
	// With the test that go test runs.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	var events bytes.Buffer
	cmd.Stdout, cmd.Stderr = &events, log
	runErr := cmd.Run()
	if ctx.Err() != nil {
		down := exec.Command(os.Getenv("E2E_TESTCLUSTER"), "down", "--name", c.cluster())
		return r, errors.Join(ctx.Err(), down.Run())
	}
	passed, err := r.read(&events, log)
	switch {
	case err != nil:
		return r, err
	case len(r.Steps) == 0:
		return r, fmt.Errorf("no step was run (%w): see %s", errors.Join(runErr, errors.New("go test")), log.Name())
	case passed && runErr != nil:
		return r, fmt.Errorf("all steps passed, but go test failed (%w): see %s", runErr, log.Name())
	case !passed && runErr == nil:
		return r, fmt.Errorf("TestCell did not pass, but go test did: see %s", log.Name())
	case passed && (c.Runtime == simulatedRuntime || c.Second == simulatedRuntime):
		r.Status = simulated
	case passed:
		r.Status = tested
	default:
		r.Status, r.Reason = failed, c.knownBroken()
	}
	return r, store.save(c, r)
}

var versionsLine = regexp.MustCompile(`versions: (.*)`)

// read reads the events of go test -json, copies the output to log, and reports whether the test passed.
func (r *result) read(events io.Reader, log io.Writer) (passed bool, err error) {
	decoder := json.NewDecoder(bufio.NewReader(events))
	for {
		var e struct {
			Action, Test, Output string
			Elapsed              float64
		}
		switch err := decoder.Decode(&e); {
		case errors.Is(err, io.EOF):
			return passed, nil
		case err != nil:
			return false, fmt.Errorf("reading the output of go test: %w", err)
		}
		if _, err := io.WriteString(log, e.Output); err != nil {
			return false, err
		}
		if match := versionsLine.FindStringSubmatch(e.Output); match != nil {
			r.Versions = append(r.Versions, match[1])
		}
		ended := e.Action == "pass" || e.Action == "fail" || e.Action == "skip"
		if e.Test == "TestCell" && ended {
			passed = e.Action == "pass"
		}
		name, isStep := strings.CutPrefix(e.Test, "TestCell/")
		if ended && isStep && !strings.Contains(name, "/") {
			r.Steps = append(r.Steps, step{strings.ReplaceAll(name, "_", " "), e.Action == "pass", e.Elapsed})
		}
	}
}

// compare fails if a cell that ran again differs from the report: in its status, or in the step that failed.
func compare(file string, results []result, chosen []cell) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var reported []result
	if err := json.Unmarshal(data, &reported); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	var errs []error
	for _, c := range chosen {
		first, again := find(reported, c), find(results, c)
		if first == nil || again == nil || first.Status != again.Status || outcome(*first) != outcome(*again) {
			errs = append(errs, fmt.Errorf("%s: the report says %s, and this run %s", c.name(), describe(first),
				describe(again)))
		}
	}
	return errors.Join(errs...)
}

func find(results []result, c cell) *result {
	if i := slices.IndexFunc(results, func(r result) bool { return r.Cell == c.name() }); i >= 0 {
		return &results[i]
	}
	return nil
}

// outcome returns the steps with their results, without times.
func outcome(r result) string {
	var text []string
	for _, s := range r.Steps {
		text = append(text, fmt.Sprintf("%s=%t", s.Name, s.Passed))
	}
	return strings.Join(text, ", ")
}

func describe(r *result) string {
	if r == nil {
		return "nothing"
	}
	return fmt.Sprintf("%s (%s)", r.Status, outcome(*r))
}
