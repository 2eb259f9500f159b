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

// TestMain runs the benchmark in its namespaces, and the registries, which are the test binary.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case insideMode, distributionMode:
			main()
			return
		case "serve":
			os.Exit(root.Run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
		}
	}
	os.Exit(m.Run())
}

func TestNodes(t *testing.T) {
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
	if _, err := exec.LookPath("nginx"); err != nil {
		t.Skip("NOT RUN: nginx is missing: hack/deps.sh bench installs it")
	}
	written := t.TempDir()
	if err := run(t.Context(), []string{"-force", "-registry", self, "-registry-node", node, "-write", written,
		"-divisor", "200", "-pulls", "3", "-run", "1 node,|50 nodes, [cn]|small"}); err != nil {
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
		return results.Median(m.Runs)
	}
	for _, tt := range []struct {
		crowd   crowd
		subject string
		most    int // copies
	}{
		{crowds[0], namePort, 1}, {crowds[0], nameProxy, 1}, {crowds[0], nameCaches, 1},
		{crowds[3], namePort, 50}, {crowds[3], nameCaches, 5}, {crowds[3], nameNginx, 5},
	} {
		table := tt.crowd.table
		if n := value(table, tt.subject, measureCopies, 1); n < 1 || n > float64(tt.most)*1.05 {
			t.Errorf("%s, %s: %v copies left the registry", table, tt.subject, n)
		}
		median, last := value(table, tt.subject, "median node done", 1), value(table, tt.subject, measureLast, 1)
		if median <= 0 || last < median || value(table, tt.subject, measureAllowed, 1) < 1 {
			t.Errorf("%s, %s: half were done after %v s, the last after %v s", table, tt.subject, median, last)
		}
	}
	for subject, what := range map[string]string{namePort: measureFresh, nameProxy: "after a pause, p50",
		nameDistribution: measureKept99, nameZarf: measureKept} {
		if value(tableSmall, subject, what, latencyRuns) <= 0 {
			t.Errorf("%s: no %s", subject, what)
		}
	}
}

func TestInvalidFlags(t *testing.T) {
	for _, args := range [][]string{{"-divisor", "0"}, {"-pulls", "0"}, {"-run", "("}, {"now"}} {
		if err := run(t.Context(), args); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
}
