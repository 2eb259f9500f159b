package embedded_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/elf"
	"io"
	"io/fs"
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/internal/payload/embedded"
	"github.com/zarf-dev/zarf-registry/internal/payload/injector"
	"github.com/zarf-dev/zarf-registry/test/require"
)

func TestMissingPrograms(t *testing.T) {
	registry, registryErr := embedded.Load("registry", "riscv64")
	loader, loaderErr := embedded.Loader("riscv64")
	for file, err := range map[string]error{"registry-riscv64.tar.gz": registryErr, "loader-riscv64": loaderErr} {
		if want := "this program was built without " + file + ": build it with make build"; err == nil ||
			!strings.HasPrefix(err.Error(), want) {
			t.Errorf("error is %v, want %s...", err, want)
		}
	}
	if registry != nil || loader != nil {
		t.Errorf("got %d and %d bytes", len(registry), len(loader))
	}
}

// forEachArchitecture runs a test for each architecture that make payload has built programs for. make demo builds for
// one.
func forEachArchitecture(t *testing.T, f func(t *testing.T, architecture string)) {
	for _, architecture := range embedded.Architectures {
		t.Run(architecture, func(t *testing.T) {
			if files, err := fs.Glob(embedded.Layers(), "*-"+architecture+"*"); err != nil || len(files) == 0 {
				t.Skip("SKIPPED, NOTHING CHECKED: needs embedded programs for " + architecture + ": run make payload")
			}
			f(t, architecture)
		})
	}
}

// TestProgramsMatchTheirArchitecture checks the output of make payload: a program under the wrong
// name would otherwise be noticed only on a node of that architecture.
func TestProgramsMatchTheirArchitecture(t *testing.T) {
	machines := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
	forEachArchitecture(t, func(t *testing.T, architecture string) {
		check := func(t *testing.T, program []byte) {
			t.Helper()
			f := require.Value(elf.NewFile(bytes.NewReader(program)))(t)
			if f.Machine != machines[architecture] {
				t.Errorf("it is for %v", f.Machine)
			}
		}
		loader := require.Value(embedded.Loader(architecture))(t)
		t.Run("loader", func(t *testing.T) { check(t, loader) })
		for _, name := range []string{"registry", "registry-node", "probe"} {
			t.Run(name, func(t *testing.T) {
				layer := require.Value(embedded.Load(name, architecture))(t)
				content := require.Value(injector.Inflate(name, layer))(t)
				if recorded, err := embedded.Inflated(name, architecture); err != nil || recorded != content {
					t.Errorf("make payload recorded %+v (%v), the content is %+v", recorded, err, content)
				}
				inflated := require.Value(gzip.NewReader(bytes.NewReader(layer)))(t)
				archive := tar.NewReader(inflated)
				require.Value(archive.Next())(t)
				program := require.Value(io.ReadAll(archive))(t)
				check(t, program)
			})
		}
	})
}

// TestSizes keeps what a cluster stores of the programs small: their compressed layers become ConfigMaps in etcd, whose
// quota is 2 GiB by default and whose backups contain them, and each node fetches registry-node before it can pull.
// The design aims at 13 MB in etcd and 3.5 MB for a node. The limits are what amd64, the larger one, needs today:
// 14.3 and 3.8 MB.
func TestSizes(t *testing.T) {
	forEachArchitecture(t, func(t *testing.T, architecture string) {
		total := 0
		for _, name := range []string{"registry", "registry-node", "probe"} {
			layer := require.Value(embedded.Load(name, architecture))(t)
			total += len(layer)
			if limit := 3_850_000; name == "registry-node" && len(layer) > limit {
				t.Errorf("registry-node has %d bytes, the limit is %d", len(layer), limit)
			}
		}
		if limit := 14_500_000; total > limit {
			t.Errorf("all programs have %d bytes, the limit is %d", total, limit)
		}
	})
}
