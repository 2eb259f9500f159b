package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/zarf-dev/zarf-registry/internal/images/build"
	"github.com/zarf-dev/zarf-registry/internal/images/source"
	"github.com/zarf-dev/zarf-registry/internal/payload/injector"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// layers are stand-ins for the programs' layers.
func layers(t *testing.T, names ...string) fstest.MapFS {
	t.Helper()
	files := fstest.MapFS{}
	for _, name := range names {
		for _, arch := range build.Architectures {
			layer := require.Value(injector.BuildLayer(name, []byte(name+" for "+arch)))(t)
			files[name+"-"+arch+".tar.gz"] = &fstest.MapFile{Data: layer}
		}
	}
	licenses := require.Value(injector.BuildLayer("licenses", []byte("terms")))(t)
	files[build.LicensesFile] = &fstest.MapFile{Data: licenses}
	return files
}

func TestArchives(t *testing.T) {
	const registry, version = "ghcr.io/zarf-dev/zarf-registry", "1.2.3"
	payload := layers(t, build.ProgramNames...)
	one, two := t.TempDir(), t.TempDir()
	var out bytes.Buffer
	var index string
	for _, dir := range []string{one, two} {
		var err error
		index, err = write(t.Context(), &out, layers(t, initHook), payload, registry, version, dir, build.Architectures)
		require.NoError(t, err)
	}
	for _, name := range append([]string{initHook}, build.ProgramNames...) {
		file := filepath.Join(one, name+".tar")
		first := require.Value(os.ReadFile(file))(t)
		second := require.Value(os.ReadFile(filepath.Join(two, name+".tar")))(t)
		if !bytes.Equal(first, second) {
			t.Errorf("%s: two archives of the same programs differ", name)
		}
		src := require.Value(source.Open(t.Context(), file))(t)
		list := require.Value(src.Items(""))(t)
		if len(list) != 1 || list[0].Reference != registry+"/"+name+":"+version || len(list[0].Platforms) != 2 {
			t.Errorf("%s: images %+v", name, list)
		}
		if digest := list[0].Descriptor.Digest.String(); strings.Count(out.String(), digest) != 2 {
			t.Errorf("%s: digest %s was not printed:\n%s", name, digest, out.String())
		} else if name == initHook && digest != index {
			t.Errorf("%s: the digest is %s, want %s", name, index, digest)
		}
		if err := src.Close(); err != nil {
			t.Error(err)
		}
	}
	entries, err := os.ReadDir(one)
	if err != nil || len(entries) != 4 {
		t.Errorf("files: %v, %v", entries, err)
	}

	delete(payload, "probe-arm64.tar.gz")
	_, err = write(t.Context(), &out, layers(t, initHook), payload, registry, version, one, build.Architectures)
	if err == nil || !strings.Contains(err.Error(), "image of probe for arm64") ||
		!strings.Contains(err.Error(), "make payload") {
		t.Errorf("error without a part of the payload: %v", err)
	}
}
