package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// volumesSize is enough for the project's own images, 90 MB, and those of the scenario, with most of it free.
const volumesSize = 600 << 20

// fullVolume fills the volume, which must have volumesSize: zarf-registry status and metrics tell, pushes are refused while
// there is space left, and on a volume without any, nodes pull and garbage collection makes room.
func (w *world) fullVolume(t *testing.T) {
	t.Helper()
	const noise = 100 << 20
	node := w.nodes[0]
	volumes := w.stateOf("volumes")
	filler := filepath.Join(volumes, "filler")
	t.Cleanup(func() { os.Remove(filler) })
	archive := w.makeArchive(t, "example.com/e2e/new:1", 1<<20)
	says := func(t *testing.T, words ...string) {
		t.Helper()
		step := w.advises(t, append(words, "of the volume is used", "zarf-registry images garbage-collect", "registry.persistence.size")...)
		t.Logf("figure: zarf-registry status: %s", step)
	}
	must(t, "a volume of which 86 % are used is reported", func(t *testing.T) {
		w.push(t, w.makeArchive(t, "example.com/e2e/last:1", 1<<20))
		w.push(t, w.makeArchive(t, "example.com/e2e/huge:1", noise))
		w.isHealthy(t)
		fillTo(t, filler, 86)
		says(t, "The registry's storage is nearly full (86.", "refused from 95 %")
		used, limit := w.volumeMetric(t, "used"), w.volumeMetric(t, "limit")
		t.Logf("figure: %.0f of %.0f bytes are used", used, limit)
		if limit != volumesSize || used/limit < .855 || used/limit > .88 {
			t.Errorf("%.0f of %.0f bytes are used", used, limit)
		}
	})
	must(t, "an image that does not fit is refused before it is sent", func(t *testing.T) {
		before := w.stored(t)
		large := w.makeArchive(t, "example.com/e2e/large:1", noise)
		out, errOut, err := try(w.command(t, w.hook, "images", "push", large))
		t.Logf("figure: zarf-registry images push: %s", errOut)
		if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 3 || !strings.Contains(errOut, "nothing was sent") ||
			!strings.Contains(errOut, "that the registry does not have") {
			t.Errorf("%v: %s%s", err, out, errOut)
		}
		if after := w.stored(t); after != before {
			t.Errorf("%+v are stored, %+v were before", after, before)
		}
		w.push(t, archive) // it fits
	})
	client := w.pushClient(t, w.pods(t, "registry")[0])
	must(t, "a volume of which 96 % are used refuses pushes", func(t *testing.T) {
		fillTo(t, filler, 96)
		says(t, "The registry's storage is full (96.", "pushes are refused")
		_, body := client.do(t, http.StatusInsufficientStorage, http.MethodPost, "/v2/e2e/new/blobs/uploads/", nil)
		t.Logf("figure: a client: %s", body)
		for _, want := range []string{`"INSUFFICIENT_STORAGE"`, "the storage is full: 96.", "registry.persistence.size"} {
			if !strings.Contains(string(body), want) {
				t.Errorf("%s lacks %s", body, want)
			}
		}
		w.push(t, archive) // it is there
	})
	must(t, "on a volume without any space, nodes pull and garbage collection makes room", func(t *testing.T) {
		fill(t, filler)
		says(t, "The registry's storage is full (100.0 %", "pushes are refused")
		w.runsEverywhere(t, "last", w.address+"/e2e/last:1")
		huge, _ := client.do(t, http.StatusOK, http.MethodHead, "/v2/e2e/huge/manifests/1", nil)
		client.do(t, http.StatusAccepted, http.MethodDelete,
			"/v2/e2e/huge/manifests/"+huge.Header.Get("Docker-Content-Digest"), nil)
		// What the deletion has freed is used up, too.
		fill(t, filler)
		var collected collectedJSON
		decode(t, output(t, w.command(t, w.hook, "images", "garbage-collect", "--delete-untagged", "--grace-period=0s",
			"--output=json")), &collected)
		t.Logf("figure: %d bytes were freed on a full volume", collected.Bytes)
		if collected.Bytes < noise {
			t.Errorf("%+v", collected)
		}
	})
	must(t, "pushes work again", func(t *testing.T) {
		eventually(t, "a registry that accepts pushes", func() error {
			if report, text := w.status(t); report.Registry.Space == nil || report.Registry.Space.Percent() > 90 {
				return fmt.Errorf("output: %s", text)
			}
			return nil
		})
		w.push(t, w.makeArchive(t, "example.com/e2e/new:2", 1<<20))
		if out, err := w.pull(t, node, w.address+"/e2e/new:2"); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		require.NoError(t, os.Remove(filler))
		w.becomesHealthy(t)
	})
}

// fillTo writes a file until so many percent of its file system are used.
func fillTo(t *testing.T, path string, percent uint64) {
	t.Helper()
	var stat syscall.Statfs_t
	require.NoError(t, syscall.Statfs(filepath.Dir(path), &stat))
	f := require.Value(os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600))(t)
	defer f.Close()
	rest := int64(stat.Blocks*percent/100-(stat.Blocks-stat.Bfree)) * stat.Bsize
	if rest < 0 {
		t.Fatalf("more than %d %% of %s are used", percent, filepath.Dir(path))
	}
	require.Value(io.CopyN(f, zeros{}, rest+1<<20))(t)
}

// zeros never end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// volumeMetric returns zarf_registry_storage_…_bytes of the volume.
func (w *world) volumeMetric(t *testing.T, name string) float64 {
	t.Helper()
	page := w.scrape(t, w.pods(t, "registry")[0], "5090")
	m := regexp.MustCompile(`(?m)^zarf_registry_storage_` + name + `_bytes\{limit="volume"\} (\S+)$`).FindStringSubmatch(page)
	if m == nil {
		t.Fatalf("the metric is missing: %s", page)
	}
	return require.Value(strconv.ParseFloat(m[1], 64))(t)
}
