package main

import (
	"context"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/zarf-dev/zarf-registry/bench/internal/results"
	"github.com/zarf-dev/zarf-registry/cmd/registry/root"
)

// TestMain runs the benchmark in its namespaces, and the registry, which are the test binary.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case insideMode:
			main()
			return
		case "serve":
			os.Exit(root.Run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
		}
	}
	os.Exit(m.Run())
}

func TestHerd(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("NOT RUN: network namespaces need root")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	node := filepath.Join(t.TempDir(), "registry-node")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", node, "./cmd/registry-node")
	build.Dir = "../.." // the module of the program
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building registry-node: %v\n%s", err, out)
	}
	written := t.TempDir()
	// A slow cache is given up after ten seconds only.
	if err := run(t.Context(), []string{"-force", "-n", "1", "-registry", self, "-registry-node", node,
		"-write", written, "-nodes", "3", "-image", "4000000", "-rate", "0", "-run", "^no|^1|^3|killed|corrupt|full"}); err != nil {
		t.Fatal(err)
	}
	r, err := results.Read(written)
	if err != nil {
		t.Fatal(err)
	}
	value := func(table, subject, what string, runs int) float64 {
		m := r.Find(table, subject, what)
		if m == nil || len(m.Runs) != runs {
			t.Errorf("%s, %s, %s: %+v, want %d values", table, subject, what, m, runs)
			return math.NaN()
		}
		median, _, _ := m.Spread()
		return median
	}
	for _, s := range r.Subjects {
		if s.Name == subjectAll {
			continue
		}
		if first, last := value(tablePulls, s.Name, "first done", 1), value(tablePulls, s.Name, "last done", 1); first <= 0 ||
			last < first {
			t.Errorf("%s: the first was done after %v s, the last after %v s", s.Name, first, last)
		}
		for _, what := range []string{"CPUs busy", "CPU of the registry", "memory of the registry", "CPU of a proxy, median",
			"memory of a proxy, median"} {
			if value(tableResources, s.Name, what, 1) <= 0 {
				t.Errorf("%s: there is no %s", s.Name, what)
			}
		}
	}
	for _, what := range []string{measureFailed, measureWrong} {
		if n := value(tablePulls, subjectAll, what, 1); n != 0 {
			t.Errorf("%s: %v", what, n)
		}
	}
	for subject, want := range map[string]struct{ least, most float64 }{
		"no cache": {3, 3.05}, "1 cache": {1, 1.05}, "3 caches": {1, 3.05},
		"5 caches, one full": {1, 3.05}, "5 caches, one corrupt": {0, 4.05},
	} {
		if copies := value(tablePulls, subject, "copies from the registry", 1); copies < want.least || copies > want.most {
			t.Errorf("%s: %v copies left the registry, want %v to %v", subject, copies, want.least, want.most)
		}
	}
	if _, err := exec.LookPath("nginx"); err == nil {
		if copies := value(tablePulls, "1 nginx", "copies from the registry", 1); copies < 1 || copies > 1.05 {
			t.Errorf("%v copies left the registry through nginx", copies)
		}
	}
	if cpu := value(tableResources, "5 caches, one killed", "CPU of all caches", 1); cpu <= 0 {
		t.Errorf("caches used %v s", cpu)
	}
}

func TestInvalidFlags(t *testing.T) {
	for _, args := range [][]string{{"-nodes", "0"}, {"-nodes", "251"}, {"-layers", "0"}, {"-image", "3"}, {"-rate", "-1"},
		{"-run", "("}, {"now"}} {
		if err := run(t.Context(), args); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
}

func TestFlip(t *testing.T) {
	path := filepath.Join(t.TempDir(), "blob")
	if err := os.WriteFile(path, []byte("abcde"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := flip(path); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "abbde" {
		t.Errorf("%q, %v", got, err)
	}
}
