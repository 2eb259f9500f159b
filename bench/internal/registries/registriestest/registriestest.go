// Package registriestest provides test fixtures for benchmarks that start registries.
package registriestest

import (
	"os"
	"testing"

	"github.com/zarf-dev/zarf-registry/bench/internal/registries"
)

// Memory returns a temporary directory, in memory if possible, because a registry waits for the disk at
// every push.
func Memory(t testing.TB) string {
	t.Helper()
	dir, err := registries.StorageDir("", "bench-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}
