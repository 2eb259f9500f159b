package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"helm.sh/helm/v3/pkg/chart/loader"

	"github.com/zarf-dev/zarf-registry/internal/images"
	"github.com/zarf-dev/zarf-registry/internal/images/build"
	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/internal/payload/injector"
	"github.com/zarf-dev/zarf-registry/test/require"
	"github.com/zarf-dev/zarf-registry/tools/program"
)

const chartDir = "../../charts/zarf-registry"

// version is the chart's, as the release requires.
var version = func() string {
	c, err := loader.LoadDir(chartDir)
	if err != nil {
		panic(err)
	}
	return c.Metadata.Version
}()

var commitTime = time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)

// built creates the output of make images, with one small Go program in place of all programs.
func built(t *testing.T) release {
	t.Helper()
	dir := t.TempDir()
	r := release{
		version: version, registry: "example.com/zarf", chart: chartDir, darwin: true,
		archives: filepath.Join(dir, "images"), programs: filepath.Join(dir, "programs"),
		embedded: filepath.Join(dir, "embedded"),
		output:   filepath.Join(dir, "release"), source: source{time: commitTime},
		// The tool would have to be built.
		listModules: func(_ context.Context, program, version string) ([]byte, error) {
			content, err := os.ReadFile(program)
			return fmt.Appendf(nil, `{"bomFormat":"CycloneDX","metadata":{"timestamp":%q,"component":{"version":%q,"sum":"%x"}}}`,
				time.Now().Format(time.RFC3339Nano), version, sha256.Sum256(content)), err
		},
	}
	for _, folder := range []string{r.archives, r.programs, r.embedded} {
		require.NoError(t, os.Mkdir(folder, 0o755))
	}
	require.NoError(t, os.WriteFile(filepath.Join(r.embedded, program.LicensesText), []byte("terms"), 0o644))
	programs := map[string][]byte{}
	compile := func(platform, file string) {
		// A program with dependencies, like the real ones.
		require.NoError(t, program.Build(t.Context(), "github.com/zarf-dev/zarf-registry/tools/release/testdata/program", platform,
			version, file))
	}
	for _, arch := range build.Architectures {
		file := filepath.Join(dir, arch)
		compile("linux/"+arch, file)
		compile("darwin/"+arch, filepath.Join(r.programs, initHook+"-darwin-"+arch))
		content := require.Value(os.ReadFile(file))(t)
		programs[arch] = content
	}
	for _, name := range append([]string{initHook}, build.ProgramNames...) {
		store := &graph.Store{}
		var variants []build.Variant
		for _, arch := range build.Architectures {
			file := name + "-" + arch
			folder := r.embedded
			if name == initHook {
				folder = r.programs
			}
			content := programs[arch]
			require.NoError(t, os.WriteFile(filepath.Join(folder, file), content, 0o755))
			layer := require.Value(injector.BuildLayer(name, content))(t)
			packed := filepath.Join(r.archives, file+".tar.gz")
			require.NoError(t, os.WriteFile(packed, layer, 0o644))
			l := require.Value(build.GzipLayer(os.DirFS(r.archives), file+".tar.gz"))(t)
			variants = append(variants, build.Variant{Architecture: arch, Layers: []build.Layer{l}})
			require.NoError(t, os.WriteFile(filepath.Join(r.embedded, "loader-"+arch), []byte("in C"), 0o755))
		}
		image := require.Value(build.Image(store, build.NewSpec(r.registry, name, r.version), variants...))(t)
		require.NoError(t, images.WriteArchive(t.Context(), filepath.Join(r.archives, name+".tar"), store, image))
	}
	return r
}

func TestRelease(t *testing.T) {
	r := built(t)
	var out bytes.Buffer
	require.NoError(t, r.make(t.Context(), &out))
	first := require.Value(sums(r.output))(t)
	want := []string{
		"LICENSES.txt", "SHA256SUMS",
		"zarf-registry-darwin-amd64", "zarf-registry-darwin-amd64.cdx.json",
		"zarf-registry-darwin-arm64", "zarf-registry-darwin-arm64.cdx.json",
		"zarf-registry-linux-amd64", "zarf-registry-linux-amd64.cdx.json",
		"zarf-registry-linux-arm64", "zarf-registry-linux-arm64.cdx.json",
		"init-hook.tar", "probe.tar", "registry-node.tar", "registry.tar",
		"registry-linux-amd64.cdx.json", "registry-linux-arm64.cdx.json",
		"registry-node-linux-amd64.cdx.json", "registry-node-linux-arm64.cdx.json",
		"zarf-registry-" + version + ".tgz",
	}
	bundle := []string{"zarf-registry-bundle-" + version + ".tar.gz", "zarf-registry-bundle-" + version + ".tar.gz.sha256"}
	want = slices.Sorted(slices.Values(append(want, bundle...)))
	if got := slices.Sorted(maps.Keys(first)); !slices.Equal(got, want) {
		t.Fatalf("files:\n%v\nnot\n%v", got, want)
	}

	t.Run("SHA256SUMS is valid", func(t *testing.T) {
		cmd := exec.Command("sha256sum", "--check", "--strict", fileSums)
		cmd.Dir = r.output
		if out, err := cmd.CombinedOutput(); err != nil || strings.Count(string(out), ": OK\n") != len(want)-3 {
			t.Errorf("%v\n%s", err, out)
		}
	})
	t.Run("the bundle holds all other files", func(t *testing.T) { bundled(t, r, first) })
	t.Run("a second run gives the same bytes", func(t *testing.T) {
		require.NoError(t, os.WriteFile(filepath.Join(r.output, "left over"), nil, 0o644))
		// The time of the checkout must not matter.
		require.NoError(t, r.make(t.Context(), io.Discard))
		again, err := sums(r.output)
		if err != nil || !maps.Equal(first, again) {
			t.Errorf("%v\n%v\n%v", err, first, again)
		}
	})
	t.Run("each bill of materials describes its program at the commit's time", func(t *testing.T) {
		for program, file := range map[string]string{
			"zarf-registry-linux-amd64": "programs/init-hook-amd64", "zarf-registry-darwin-arm64": "programs/init-hook-darwin-arm64",
			"registry-linux-arm64": "embedded/registry-arm64", "registry-node-linux-amd64": "embedded/registry-node-amd64",
		} {
			var b struct {
				Format   string `json:"bomFormat"`
				Metadata struct {
					Timestamp time.Time
					Component struct{ Version, Sum string }
				}
			}
			read(t, filepath.Join(r.output, program+suffixSBOM), &b)
			content := require.Value(os.ReadFile(filepath.Join(filepath.Dir(r.output), file)))(t)
			if c := b.Metadata.Component; b.Format != "CycloneDX" || !b.Metadata.Timestamp.Equal(commitTime) ||
				c.Version != version || c.Sum != fmt.Sprintf("%x", sha256.Sum256(content)) {
				t.Errorf("%s: %+v", program, b)
			}
		}
	})
	t.Run("after signing, the bundle has the signature", func(t *testing.T) {
		require.NoError(t, os.WriteFile(filepath.Join(r.output, fileSignature), []byte("{}"), 0o644))
		// Where files were downloaded, their modes are lost.
		require.NoError(t, errors.Join(os.Chmod(filepath.Join(r.output, "zarf-registry-linux-amd64"), 0o644),
			r.pack(r.output, io.Discard)))
		signed := require.Value(sums(r.output))(t)
		bundled(t, r, signed)
		require.NoError(t, errors.Join(os.Remove(filepath.Join(r.output, fileSignature)), r.pack(r.output, io.Discard)))
		if unsigned, err := sums(r.output); err != nil || !maps.Equal(unsigned, first) {
			t.Errorf("without a signature: %v, %v", err, unsigned)
		}
	})
	t.Run("a bundle of changed files is refused", func(t *testing.T) {
		name := filepath.Join(r.output, "probe.tar")
		require.NoError(t, os.WriteFile(name, []byte("changed"), 0o644))
		if err := r.pack(r.output, io.Discard); err == nil || !strings.Contains(err.Error(), "probe.tar does not match") {
			t.Errorf("error: %v", err)
		}
	})
	t.Run("inconsistent input is refused", func(t *testing.T) { refusals(t, r) })
}

// bundled checks that the bundle holds the files with these hashes, except itself.
func bundled(t *testing.T, r release, want map[string]string) {
	t.Helper()
	name := r.bundleName() + suffixBundle
	cmd := exec.Command("sha256sum", "--check", "--strict", name+suffixSum)
	cmd.Dir = r.output
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	want = maps.Clone(want)
	delete(want, name)
	delete(want, name+suffixSum)
	// As the guide does.
	dir := t.TempDir()
	if out, err := exec.Command("tar", "-xzf", filepath.Join(r.output, name), "-C", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	got, err := sums(filepath.Join(dir, r.bundleName()))
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%v\n%v\nnot\n%v", err, got, want)
	}
	for file := range got {
		info := require.Value(os.Stat(filepath.Join(dir, r.bundleName(), file)))(t)
		program := strings.HasPrefix(file, "zarf-registry-") && filepath.Ext(file) == ""
		if !info.ModTime().Equal(commitTime) || (info.Mode().Perm() == 0o755) != program {
			t.Errorf("%s: %v, mode %v", file, info.ModTime(), info.Mode())
		}
	}
}

func TestChartPackage(t *testing.T) {
	dir := t.TempDir()
	name := require.Value(packageChart(chartDir, "", dir, commitTime))(t)
	packed := require.Value(loader.Load(filepath.Join(dir, name)))(t)
	source := require.Value(loader.LoadDir(chartDir))(t)
	if len(packed.Raw) != len(source.Raw) || len(packed.Templates) == 0 {
		t.Errorf("%d files, not %d", len(packed.Raw), len(source.Raw))
	}
	f := require.Value(os.Open(filepath.Join(dir, name)))(t)
	defer f.Close()
	z := require.Value(gzip.NewReader(f))(t)
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		if !h.ModTime.Equal(commitTime) || !strings.HasPrefix(h.Name, "zarf-registry/") || strings.Contains(h.Name, "/ci/") {
			t.Errorf("%s of %s", h.Name, h.ModTime)
		}
	}
}

func refusals(t *testing.T, r release) {
	t.Helper()
	for what, c := range map[string]struct {
		change func(*release)
		want   string
	}{
		"another version than the chart's": {func(r *release) { r.version += "-rc.1" }, "change Chart.yaml"},
		"no version":                       {func(r *release) { r.version = "" }, "-version is missing"},
		"images for another registry": {func(r *release) { r.registry = "example.com/other" },
			"run make images again"},
		"images that were not built": {func(r *release) { r.archives = t.TempDir() }, "make images builds it"},
		"a program for another system": {func(r *release) {
			r.programs = filepath.Join(t.TempDir(), "programs")
			require.NoError(t, os.CopyFS(r.programs, os.DirFS(filepath.Join(filepath.Dir(r.output), "programs"))))
			require.NoError(t, os.Rename(filepath.Join(r.programs, "init-hook-darwin-arm64"),
				filepath.Join(r.programs, "init-hook-darwin-amd64")))
		}, "not a program for CpuAmd64"},
		"programs that were not built":          {func(r *release) { r.programs = t.TempDir() }, "make images builds it"},
		"embedded programs that were not built": {func(r *release) { r.embedded = t.TempDir() }, "make images builds it"},
	} {
		t.Run(what, func(t *testing.T) {
			changed := r
			c.change(&changed)
			if err := changed.make(t.Context(), io.Discard); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error: %v", err)
			}
			if left, _ := filepath.Glob(filepath.Join(filepath.Dir(r.output), ".release-*")); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func read(t *testing.T, name string, into any) {
	t.Helper()
	content := require.Value(os.ReadFile(name))(t)
	d := json.NewDecoder(bytes.NewReader(content))
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(into), name)
}
