package e2e

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// TestUpgrade upgrades a release to another version while every node pulls, reads slowly, and connects every 20 ms.
// Nothing may fail, and no pod may be replaced: the proxies hand their listeners over to the new program.
func TestUpgrade(t *testing.T) {
	w := ownCluster(t, "e2e-upgrade", layout{open: true})
	tag := chartVersion(t, built(t, "E2E_CHART"))
	must(t, "installed", func(t *testing.T) {
		w.apply(t, proxyMode)
		w.pushSmallAndSlow(t)
	})
	w.underLoad(t, "helm upgrade to a version with the same programs", nothingFails, func(t *testing.T) {
		w.restartsNothing(t, func() {
			output(t, w.command(t, w.helm, append([]string{"upgrade", release, otherVersion(t, built(t, "E2E_CHART")), "-n",
				namespace, "--timeout", "5m", proxyMode, "--set=initHook.image.tag=" + tag}, w.sets...)...))
			w.isIn(t, state.ModeProxy, state.SourceValue)
		})
	})
	w.handsOver(t, func(t *testing.T) { w.helmChart(t, "upgrade", proxyMode) })
	w.isHealthy(t)
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
	if err := os.CopyFS(dir, os.DirFS(chart)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "files", "programs.json")); err != nil {
		t.Fatalf("%v: run make payload", err)
	}
	setVersion(t, dir, "99.0.0")
	return dir
}

var versions = regexp.MustCompile(`(?m)^(version|appVersion): "?([^"\n]*)"?$`)

func chartVersion(t *testing.T, chart string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(chart, "Chart.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, match := range versions.FindAllSubmatch(data, -1) {
		if string(match[1]) == "appVersion" {
			return string(match[2])
		}
	}
	t.Fatalf("%s has no appVersion", chart)
	return ""
}

// setVersion changes version and appVersion of a chart.
func setVersion(t *testing.T, chart, version string) {
	t.Helper()
	file := filepath.Join(chart, "Chart.yaml")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	changed := versions.ReplaceAll(data, fmt.Appendf(nil, "$1: %q", version))
	if bytes.Equal(changed, data) {
		t.Fatalf("%s has no version", file)
	}
	if err := os.WriteFile(file, changed, 0o644); err != nil {
		t.Fatal(err)
	}
}
