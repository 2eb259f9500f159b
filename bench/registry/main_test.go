package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/bench/internal/registries/registriestest"
	"github.com/zarf-dev/zarf-registry/bench/internal/results"
	"github.com/zarf-dev/zarf-registry/cmd/registry/root"
)

// TestMain runs the registry and the benchmark's child processes, which are the test binary.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch {
		case os.Args[1] == "serve":
			os.Exit(root.Run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
		case children[os.Args[1]] != nil:
			main()
			return
		}
	}
	os.Exit(m.Run())
}

func TestEverySubjectIsMeasuredInEveryRun(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, written := registriestest.Memory(t), t.TempDir()
	args := []string{"-force", "-n", "2", "-size", "100000", "-small", "50ms", "-registry", self, "-dir", dir, "-write", written}
	if err := bench(t.Context(), args, new(bytes.Buffer)); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	r, err := results.Read(written)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{
		tablePush: {"one at a time", "four at a time", "one: CPU per GiB", "four: CPU per GiB", "one: memory",
			"four: memory"},
		tableSmall: {"requests", "p50", "p99", "CPU per request"},
	}
	want[tablePull] = want[tablePush]
	for _, s := range subjects(self) {
		for table, measures := range want {
			for _, what := range measures {
				m := r.Find(table, s.Name, what)
				if m == nil || len(m.Runs) != 2 || m.Runs[0] <= 0 || m.Runs[1] <= 0 {
					t.Errorf("%s, %s, %s: %+v, want two values", table, s.Name, what, m)
				}
			}
		}
	}
	if len(r.Subjects) != 4 || r.Subjects[0].Name != nameOurs || r.Subjects[1].Name != nameTheirs ||
		!strings.HasPrefix(r.Subjects[1].Version, "v3.") && r.Subjects[1].Version != "" {
		t.Errorf("the subjects are %+v", r.Subjects)
	}
}

func TestOneSubject(t *testing.T) {
	var out bytes.Buffer
	if err := bench(t.Context(), []string{"-force", "-n", "1", "-size", "1000", "-small", "10ms", "-subjects", nameFloor,
		"-dir", registriestest.Memory(t)}, &out); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), nameFloor) || strings.Contains(out.String(), nameOurs) {
		t.Errorf("measured %s", &out)
	}
	if err := bench(t.Context(), []string{"-force", "-subjects", "nobody", "-dir", registriestest.Memory(t), "-size", "1"},
		&out); err == nil || !strings.Contains(err.Error(), "nobody") {
		t.Errorf("error is %v", err)
	}
}

func TestQuantile(t *testing.T) {
	took := []time.Duration{1, 2, 3, 4}
	for q, want := range map[float64]time.Duration{0: 1, 0.25: 1, 0.5: 2, 0.51: 3, 0.99: 4, 1: 4} {
		if got := quantile(took, q); got != want {
			t.Errorf("the %v quantile is %v, want %v", q, got, want)
		}
	}
}
