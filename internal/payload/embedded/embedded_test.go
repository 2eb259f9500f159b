package embedded_test

import (
	"bytes"
	"debug/elf"
	"io/fs"
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/internal/payload/embedded"
	"github.com/zarf-dev/zarf-registry/internal/payload/injector"
)

func TestMissingPrograms(t *testing.T) {
	for want, load := range map[string]func() ([]byte, error){
		"this program was built without registry-riscv64.tar.gz: ": func() ([]byte, error) {
			return embedded.Load(
				"registry", "riscv64",
			)
		},
		"this program was built without nothing-amd64.tar.gz: ": func() ([]byte, error) {
			return embedded.Load("nothing",
				"amd64")
		},
		"this program was built without loader-riscv64: ": func() ([]byte,
			error) {
			return embedded.Loader("riscv64")
		},
	} {
		data, err := load()
		if err == nil || !strings.HasPrefix(err.Error(), want) || !strings.Contains(err.Error(), "make build") ||
			data != nil {
			t.Errorf("got %d bytes, %v\nwant %s...", len(data), err, want)
		}
	}
}

// TestProgramsMatchTheirArchitecture checks the output of make payload: a program under the wrong
// name would otherwise be noticed only on a node of that architecture.
func TestProgramsMatchTheirArchitecture(t *testing.T) {
	if files, err := fs.Glob(embedded.Layers(), "*.tar.gz"); err != nil || len(files) == 0 {
		t.Skip("needs embedded programs: run make payload")
	}
	machines := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
	for _, architecture := range embedded.Architectures {
		check := func(t *testing.T, program []byte) {
			t.Helper()
			f, err := elf.NewFile(bytes.NewReader(program))
			if err != nil {
				t.Fatal(err)
			}
			if f.Machine != machines[architecture] {
				t.Errorf("it is for %v", f.Machine)
			}
		}
		loader, err := embedded.Loader(architecture)
		if err != nil {
			t.Fatal(err)
		}
		t.Run("loader "+architecture, func(t *testing.T) { check(t, loader) })
		for _, name := range []string{"registry", "registry-node", "probe"} {
			t.Run(name+" "+architecture, func(t *testing.T) {
				layer, err := embedded.Load(name, architecture)
				if err != nil {
					t.Fatal(err)
				}
				content, err := injector.Inflate(name, layer)
				if err != nil {
					t.Fatal(err)
				}
				if recorded, err := embedded.Inflated(name, architecture); err != nil || recorded != content {
					t.Errorf("make payload recorded %+v (%v), the content is %+v", recorded, err, content)
				}
				payload, err := injector.EncodeInflated(injector.Program{Name: name, Architecture: architecture}, layer, loader,
					content)
				if err != nil {
					t.Fatal(err)
				}
				manifest, err := injector.ParseManifest(payload.Manifest)
				if err != nil {
					t.Fatal(err)
				}
				program, err := manifest.Decode(payload.Chunks)
				if err != nil {
					t.Fatal(err)
				}
				check(t, program)
			})
		}
	}
}

// TestSizes keeps what a cluster stores of the programs small: their compressed layers become ConfigMaps in etcd, whose
// quota is 2 GiB by default and whose backups contain them, and each node fetches registry-node before it can pull.
// The design aims at 13 MB in etcd and 3.5 MB for a node. The limits are what amd64, the larger one, needs today:
// 14.3 and 3.8 MB.
func TestSizes(t *testing.T) {
	for _, architecture := range embedded.Architectures {
		total := 0
		for _, name := range []string{"registry", "registry-node", "probe"} {
			layer, err := embedded.Load(name, architecture)
			if err != nil {
				t.Skipf("SKIPPED, NOTHING WAS TESTED: %v", err)
			}
			total += len(layer)
			if limit := 3_850_000; name == "registry-node" && len(layer) > limit {
				t.Errorf("registry-node for %s has %d bytes, the limit is %d", architecture, len(layer), limit)
			}
		}
		if limit := 14_500_000; total > limit {
			t.Errorf("all programs for %s have %d bytes, the limit is %d", architecture, total, limit)
		}
	}
}
