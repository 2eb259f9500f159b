package main

import (
	"bytes"
	"context"
	"os"
	"testing"

	"github.com/zarf-dev/zarf-registry/bench/internal/distribution"
	"github.com/zarf-dev/zarf-registry/bench/internal/registries/registriestest"
	"github.com/zarf-dev/zarf-registry/bench/internal/results"
	"github.com/zarf-dev/zarf-registry/cmd/registry/root"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// TestMain runs the registries, which are the test binary.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "serve":
			os.Exit(root.Run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
		case distribution.Mode:
			main()
			return
		}
	}
	os.Exit(m.Run())
}

func TestEverySubjectIsMeasuredInEveryRun(t *testing.T) {
	self := require.Value(os.Executable())(t)
	dir, written := registriestest.Memory(t), t.TempDir()
	args := []string{"-force", "-n", "2", "-size", "1000", "-registry", self, "-dir", dir, "-write", written}
	require.NoError(t, bench(t.Context(), args, new(bytes.Buffer)))
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	r := require.Value(results.Read(written))(t)
	for table, measures := range map[string][]string{
		tableCatalog: {"catalog", "CPU of pulls per GiB", "CPU of pushes per GiB", "memory"},
		tablePull:    {"1 MB", "10 MB", "100 MB", mixed, "100 MB, one client"},
		tablePush:    {"1 MB", "10 MB", "100 MB", mixed},
		tableChunks:  {"1 MB", "10 MB", "100 MB", mixed},
		tableBoth:    {"1 MB", "10 MB", "100 MB"},
	} {
		for _, what := range measures {
			for _, subject := range []string{nameOurs, nameTheirs} {
				m := r.Find(table, subject, what)
				if m == nil || len(m.Runs) != 2 || m.Runs[0] <= 0 || m.Runs[1] <= 0 {
					t.Errorf("%s, %s, %s: %+v, want two values", table, subject, what, m)
				}
			}
		}
	}
}

func TestMix(t *testing.T) {
	counts := map[int]int{}
	for _, size := range new(run).mix() {
		counts[size]++
	}
	if counts[0] != 4 || counts[1] != 14 || counts[2] != 2 {
		t.Errorf("%v", counts)
	}
}
