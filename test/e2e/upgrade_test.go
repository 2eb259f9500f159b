package e2e

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// TestUpgrade upgrades the candidate of the release to this version while every node pulls, reads slowly, and connects
// every 20 ms, back with helm rollback, and again. Nothing may fail, and content and certificates stay. A failure means
// that a change of the state, of values or of names lacks a way to upgrade. Commands are this version's, which support
// the candidate, too. Then the proxies hand their listeners over to other programs.
func TestUpgrade(t *testing.T) {
	old := buildCandidate(t)
	w := ownCluster(t, "e2e-upgrade", layout{open: true,
		args: []string{"--load", "n1=" + filepath.Join(old.images, "init-hook.tar")}})
	var image string
	var content map[string]string
	var certificates held
	must(t, "the candidate is installed", func(t *testing.T) {
		output(t, w.command(t, w.helm, append([]string{"install", release, old.chart, "-n", namespace, "--create-namespace",
			"--timeout", "5m", proxyMode}, w.sets...)...))
		w.isIn(t, state.ModeProxy, state.SourceValue)
		image = w.pushHello(t)
		w.pushSmallAndSlow(t)
		w.pullEverywhere(t, image)
		certificates, content = w.certificates(t), w.digests(t)
	})
	replaces := func(name string, f func(t *testing.T)) {
		w.underLoad(t, name, nothingFails, func(t *testing.T) {
			f(t)
			w.isIn(t, state.ModeProxy, state.SourceValue)
		})
		must(t, name+": content and certificates are the same", func(t *testing.T) {
			w.isHealthy(t)
			w.changed(t, certificates)
			if got := w.digests(t); !maps.Equal(got, content) {
				t.Errorf("the registry has %v, and had %v", got, content)
			}
			w.pullEverywhere(t, image)
		})
	}
	replaces("helm upgrade", func(t *testing.T) { w.helmChart(t, "upgrade", proxyMode) })
	replaces("helm rollback", func(t *testing.T) { w.rollback(t, "1") })
	replaces("zarf-registry install", func(t *testing.T) { w.apply(t, proxyMode) })
	w.handsOver(t, func(t *testing.T) { w.helmChart(t, "upgrade", proxyMode) })
	w.isHealthy(t)
}

// digests returns the digests of the test's images in the registry, by reference.
func (w *world) digests(t *testing.T) map[string]string {
	t.Helper()
	var list struct {
		Items []struct{ Reference, Digest string }
	}
	out := output(t, w.command(t, w.hook, "images", "list", "-n", namespace, "--output=json"))
	require.NoError(t, json.Unmarshal([]byte(out), &list), out)
	found := map[string]string{}
	for _, image := range list.Items {
		if strings.Contains(image.Reference, "/e2e/") {
			found[image.Reference] = image.Digest
		}
	}
	if len(found) == 0 || slices.Contains(slices.Collect(maps.Values(found)), "") {
		t.Fatalf("no images of the test, or no digests: %s", out)
	}
	return found
}

// pushSmallAndSlow pushes the images that underLoad pulls.
func (w *world) pushSmallAndSlow(t *testing.T) {
	t.Helper()
	files := map[string][]byte{}
	for image, size := range map[string]int{"e2e/small:1": 200_000, slowImage: 4_000_000} {
		files["example.com/"+image] = make([]byte, size)
		rand.Read(files["example.com/"+image])
	}
	w.push(t, writeArchive(t, files))
}

// underLoad runs a step as must does, while every node pulls, reads slowly and connects.
func (w *world) underLoad(t *testing.T, name string, accept tolerated, f func(t *testing.T)) {
	t.Helper()
	during(t, name, func(t *testing.T) (stop func()) {
		return w.loop(t, accept, nil, func(stopFile string) []string {
			return []string{"pull", "http://" + w.address, "e2e/small:1", slowImage, stopFile, "100ms"}
		})
	}, f)
}

// otherVersion returns a copy of the chart that differs only in its versions.
func otherVersion(t *testing.T, chart string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "zarf-registry")
	require.NoError(t, os.CopyFS(dir, os.DirFS(chart)))
	if _, err := os.Stat(filepath.Join(dir, "files", "programs.json")); err != nil {
		t.Fatalf("%v: run make payload", err)
	}
	require.NoError(t, setVersion(dir, "99.0.0"))
	return dir
}

var versions = regexp.MustCompile(`(?m)^(version|appVersion): "?([^"\n]*)"?$`)

func chartVersion(t *testing.T, chart string) string {
	t.Helper()
	return require.Value(versionOf(chart))(t)
}

// versionOf returns the appVersion of a chart.
func versionOf(chart string) (string, error) {
	data, err := os.ReadFile(filepath.Join(chart, "Chart.yaml"))
	if err != nil {
		return "", err
	}
	for _, match := range versions.FindAllSubmatch(data, -1) {
		if string(match[1]) == "appVersion" {
			return string(match[2]), nil
		}
	}
	return "", fmt.Errorf("%s has no appVersion", chart)
}

// setVersion changes version and appVersion of a chart.
func setVersion(chart, version string) error {
	file := filepath.Join(chart, "Chart.yaml")
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	changed := versions.ReplaceAll(data, fmt.Appendf(nil, "$1: %q", version))
	if bytes.Equal(changed, data) {
		return fmt.Errorf("%s has no version", file)
	}
	return os.WriteFile(file, changed, 0o644)
}
