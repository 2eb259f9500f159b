package e2e

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// dockerHost is where the node's Docker engine listens for programs on this machine.
func (b *workbench) dockerHost() string { return "unix://" + filepath.Join(b.dir, "docker.sock") }

// pushesFromDocker pushes images of a real Docker engine.
func (b *workbench) pushesFromDocker(t *testing.T) {
	const image = "example.com/docker/layers:1"
	push := func(t *testing.T, host string, sources ...string) (stdout, stderr string, err error) {
		t.Helper()
		cmd := b.command(t, b.hook, append([]string{"images", "push"}, sources...)...)
		cmd.Env = append(cmd.Env, "DOCKER_HOST="+host)
		return try(cmd)
	}
	fails := func(t *testing.T, host, source string, words ...string) {
		t.Helper()
		out, errOut, err := push(t, host, source)
		for _, word := range words {
			if err == nil || !strings.Contains(errOut, word) {
				t.Errorf("pushing %s: %v, want an error with %q: %s%s", source, err, word, out, errOut)
			}
		}
	}
	id := ""
	must(t, "docker builds an image of several layers", func(t *testing.T) {
		context := filepath.Join(b.dir, "layers")
		require.NoError(t, os.Mkdir(context, 0o755))
		large := make([]byte, 64<<20)
		rand.Read(large)
		for name, content := range map[string][]byte{
			"Dockerfile": []byte("FROM scratch\nCOPY small /small\nCOPY large /large\nCOPY small /again\nENTRYPOINT [\"/small\"]\n"),
			"small":      fmt.Appendf(nil, "layer %d", time.Now().UnixNano()),
			"large":      large,
		} {
			require.NoError(t, os.WriteFile(filepath.Join(context, name), content, 0o644))
		}
		// The classic builder, because Debian's docker has no buildx.
		b.shell(t, b.node, `DOCKER_BUILDKIT=0 docker build --tag "$1" "$2"`, image, context)
		id = strings.TrimSpace(b.shell(t, b.node, `docker image inspect --format '{{.Id}}' "$1"`, image))
	})
	must(t, "an image of the engine in DOCKER_HOST is pushed by its name", func(t *testing.T) {
		out, errOut, err := push(t, b.dockerHost(), "docker-daemon:"+image)
		there := b.address + "/docker/layers:1"
		if err != nil || strings.TrimSpace(out) != there {
			t.Fatalf("zarf-registry images push: %v, printed %q, want %q: %s", err, out, there, errOut)
		}
		if !strings.Contains(errOut, "reading from the Docker engine") {
			t.Errorf("it does not say what it reads: %s", errOut)
		}
		t.Logf("progress: %s", errOut)
		if out, err := b.pull(t, b.node, there); err != nil {
			t.Fatalf("the node pulls it: %v: %s", err, out)
		}
		got, err := b.onNode(t, b.node, "crictl", "inspecti", "--output=go-template", "--template={{.status.id}}", there)
		if err != nil || !strings.Contains(got, id) {
			t.Errorf("the node has %q (%v), want the engine's ID %s", got, err, id)
		}
		out, errOut, err = push(t, b.dockerHost(), "docker-daemon:"+image)
		if err != nil || strings.TrimSpace(out) != there {
			t.Errorf("pushing it again: %v, %q: %s", err, out, errOut)
		}
	})
	t.Run("the engine at the default socket", func(t *testing.T) {
		// The node's socket, which this machine does not have.
		archive := filepath.Join(b.dir, "layers.tar")
		out := b.shell(t, b.node, `"$1" images pull "docker-daemon:$2" --out "$3" --store-dir "$3.store"`, b.hook, image, archive)
		if !strings.Contains(out, image) {
			t.Errorf("zarf-registry images pull printed %q", out)
		}
		if info, err := os.Stat(archive); err != nil || info.Size() < 64<<20 {
			t.Errorf("the archive: %v, %+v", err, info)
		}
	})
	t.Run("an image that the engine lacks", func(t *testing.T) {
		fails(t, b.dockerHost(), "docker-daemon:example.com/absent:1", b.dockerHost(),
			"not found: example.com/absent:1: run docker pull")
	})
	t.Run("no engine", func(t *testing.T) {
		nowhere := "unix://" + filepath.Join(b.dir, "nowhere.sock")
		fails(t, nowhere, "docker-daemon:"+image, nowhere, "start it, select another with DOCKER_HOST")
	})
	t.Run("docker save writes an archive that is pushed", func(t *testing.T) {
		archive := filepath.Join(b.dir, "saved.tar")
		b.shell(t, b.node, `docker save "$1" >"$2"`, image, archive)
		out, errOut, err := push(t, "", archive)
		if err != nil || !strings.Contains(out, "/docker/layers:1") {
			t.Errorf("zarf-registry images push: %v, %q: %s", err, out, errOut)
		}
	})
}
