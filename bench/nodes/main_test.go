package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/zarf-dev/zarf-registry/bench/internal/distribution"
	"github.com/zarf-dev/zarf-registry/bench/internal/results"
	"github.com/zarf-dev/zarf-registry/cmd/registry/root"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// TestMain runs the benchmark in its namespaces, and the registries, which are the test binary.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case insideMode, distribution.Mode:
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
	self := require.Value(os.Executable())(t)
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
		"-divisor", "200", "-pulls", "3", "-run", "1 node:|50 nodes: [cn]|small"}); err != nil {
		t.Fatal(err)
	}
	r := require.Value(results.Read(written))(t)
	const one, fifty = "1 GB on 1 node", "200 MB on 50 nodes"
	const copies, allowed = "copies from the registry", "× what the links allow"
	for _, tt := range []struct {
		table, subject, what string
		least, most          float64
	}{
		{one, "node port", copies, 1, 1.05}, {one, "proxy", copies, 1, 1.05}, {one, "caches", copies, 1, 1.05},
		{fifty, "node port", copies, 50, 52}, {fifty, "caches", copies, 1, 5.2}, {fifty, "nginx", copies, 1, 5.2},
		{one, "proxy", allowed, 1, 1e6}, {fifty, "caches", allowed, 1, 1e6},
		{tableSmall, "node port", "new connections, p50", 0.1, 1e6}, {tableSmall, "distribution", "their p99", 0.1, 1e6},
		{tableSmall, "distribution, password", "open connections, p50", 10, 1e6},
		{tableSmall, "proxy", "after a pause, p50", 0.1, 1e6},
	} {
		m := r.Find(tt.table, tt.subject, tt.what)
		if m == nil || slices.Min(m.Runs) < tt.least || slices.Max(m.Runs) > tt.most {
			t.Errorf("%s, %s, %s: %+v, want %v to %v", tt.table, tt.subject, tt.what, m, tt.least, tt.most)
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
