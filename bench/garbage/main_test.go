package main

import (
	"bytes"
	"context"
	"os"
	"testing"

	"github.com/zarf-dev/zarf-registry/bench/internal/registries/registriestest"
	"github.com/zarf-dev/zarf-registry/bench/internal/results"
	"github.com/zarf-dev/zarf-registry/cmd/registry/root"
	"github.com/zarf-dev/zarf-registry/test/require"
	"github.com/zarf-dev/zarf-registry/test/s3test"
)

// TestMain runs the registry, which is the test binary.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		os.Exit(root.Run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

func TestEverythingIsMeasured(t *testing.T) {
	s3 := os.Getenv(s3test.ProgramVariable)
	if s3 == "" {
		t.Skip("it needs an S3 server: set " + s3test.ProgramVariable)
	}
	self := require.Value(os.Executable())(t)
	dir, written := registriestest.Memory(t), t.TempDir()
	args := []string{"-force", "-n", "1", "-registry", self, "-s3", s3, "-dir", dir, "-write", written, "-blobs", "400",
		"-delay", "1ms", "-alone", "2s"}
	require.NoError(t, bench(t.Context(), args, new(bytes.Buffer)))
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	r := require.Value(results.Read(written))(t)
	value := func(table, subject, what string) float64 {
		m := r.Find(table, subject, what)
		if m == nil || len(m.Runs) != 1 {
			t.Fatalf("%s, %s, %s: %+v, want one value", table, subject, what, m)
		}
		return m.Runs[0]
	}
	for _, row := range []string{rowCatalog, rowScrub, rowDelete, rowMark, rowRemark, rowSweep, rowCollection} {
		for _, what := range []string{"took", "requests to S3", "at 1,000,000 blobs", "memory"} {
			if value(tableSteps, row, what) <= 0 {
				t.Errorf("%s: no %s", row, what)
			}
		}
	}
	for _, row := range []string{rowAlone, rowMeanwhile} {
		if value(tableWaits, row, "pushed") < 1 || value(tableWaits, row, "longest") <= 0 ||
			value(tableWaits, row, "incomplete images") != 0 {
			t.Errorf("%s: %+v", row, r.Measures)
		}
	}
}
