package program

import (
	"bytes"
	"debug/buildinfo"
	"debug/elf"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/payload/injector"
	"github.com/zarf-dev/zarf-registry/test/require"
)

const hello = "github.com/zarf-dev/zarf-registry/tools/program/testdata/hello"

func read(t *testing.T, name string) []byte {
	t.Helper()
	return require.Value(os.ReadFile(name))(t)
}

func TestBuild(t *testing.T) {
	dir := t.TempDir()
	for architecture, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		t.Run(architecture, func(t *testing.T) {
			one, two, three := filepath.Join(dir, architecture), filepath.Join(dir, "again", architecture),
				filepath.Join(dir, architecture+"-3")
			require.NoError(t, Build(t.Context(), hello, "linux/"+architecture, "1.2.3", one))
			// Settings of the machine must not matter.
			t.Setenv("GOAMD64", "v3")
			t.Setenv("GOFLAGS", "-buildvcs=true")
			require.NoError(t, Build(t.Context(), hello, "linux/"+architecture, "1.2.3", two))
			require.NoError(t, Build(t.Context(), hello, "linux/"+architecture, "1.2.4", three))
			// Without a version, nothing in the program depends on the release or the commit.
			plain := filepath.Join(dir, architecture+"-plain")
			require.NoError(t, Build(t.Context(), hello, "linux/"+architecture, "", plain))
			if info, err := buildinfo.ReadFile(plain); err != nil || slices.ContainsFunc(info.Settings,
				func(s debug.BuildSetting) bool { return strings.HasPrefix(s.Key, "vcs") || s.Key == "-ldflags" }) {
				t.Errorf("build information: %v, %v", info, err)
			}
			if !bytes.Equal(read(t, one), read(t, two)) {
				t.Error("two builds of one version differ")
			}
			if !bytes.Contains(read(t, one), []byte("1.2.3")) || bytes.Contains(read(t, three), []byte("1.2.3")) {
				t.Error("the version is not in the program")
			}
			f := require.Value(elf.Open(one))(t)
			defer f.Close()
			if f.Machine != machine {
				t.Errorf("built for %v", f.Machine)
			}
			if libraries, err := f.ImportedLibraries(); err == nil && len(libraries) > 0 {
				t.Errorf("not static: it needs %v", libraries)
			}
		})
	}
	if err := Build(t.Context(), hello+"/nothing", "linux/amd64", "1", filepath.Join(dir, "x")); err == nil {
		t.Error("built a package that does not exist")
	}
}

func TestLayer(t *testing.T) {
	dir := t.TempDir()
	program, layer := filepath.Join(dir, "hello"), filepath.Join(dir, "hello.tar.gz")
	long := time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC)
	// written calls Layer and reports whether it wrote the layer.
	written := func() bool {
		t.Helper()
		if err := os.Chtimes(layer, long, long); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		require.NoError(t, Layer("hello", program, layer))
		return !require.Value(os.Stat(layer))(t).ModTime().Equal(long)
	}
	write := func(name, content string) {
		t.Helper()
		require.NoError(t, os.WriteFile(name, []byte(content), 0o644))
	}

	if err := Layer("hello", program, layer); err == nil {
		t.Error("no error without a program")
	}
	write(program, "program 1")
	if !written() {
		t.Error("the first layer was not written")
	}
	if written() {
		t.Error("nothing changed, but the layer was written")
	}
	write(program, "program 2")
	if !written() {
		t.Error("the program changed, but the layer was not written")
	}
	write(layer, "damaged")
	if !written() {
		t.Error("the layer changed, but was not written")
	}
	require.NoError(t, os.Remove(layer))
	if !written() {
		t.Error("the layer was removed, but not written again")
	}
	want := require.Value(injector.BuildLayer("hello", []byte("program 2")))(t)
	if !bytes.Equal(read(t, layer), want) {
		t.Error("the layer is not the payload's")
	}
}
