package e2e

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/state"
)

const (
	// previousCommit is the release that TestUpgrade upgrades from. Its proxies do not drain, and the
	// version is linked into its programs.
	previousCommit = "7b59d96"
	// previousVersion is not the commit's own, which is that of the current chart.
	previousVersion = "0.0.9"
)

// TestUpgrade upgrades a release of another commit to the current one, rolls it back, and upgrades it
// with init-hook. Meanwhile every node pulls, reads slowly, and connects every 20 ms. Where only
// the proxies' program changes, or with host network, nothing may fail. With host ports, a node refuses
// connections while its proxy is replaced, and with host network while its user changes; figures tell how
// long. A proxy of the current release that ends still delivers all responses.
func TestUpgrade(t *testing.T) {
	previous := previousRelease(t)
	w := ownCluster(t, "e2e-upgrade", layout{
		long: true, open: true, args: []string{"--load", "n1=" + filepath.Join(previous, "init-hook.tar")}})
	here, tag := built(t, "E2E_CHART"), chartVersion(t, built(t, "E2E_CHART"))
	w.waitForImage(t, w.nodes[0], "init-hook:"+previousVersion)
	helm := func(t *testing.T, args ...string) {
		t.Helper()
		output(t, w.command(t, w.helm, append(args, "-n", namespace, "--timeout", "5m")...))
	}
	upgrade := func(t *testing.T, chart string, args ...string) {
		t.Helper()
		helm(t, append([]string{"upgrade", "--install", "--create-namespace", release, chart, proxyMode,
			noRotation}, args...)...)
		w.isIn(t, state.ModeProxy, state.SourceValue)
	}
	const hostNetwork = "--set=proxy.hostNetwork=true"

	must(t, "installed from the previous commit, with host network", func(t *testing.T) {
		upgrade(t, filepath.Join(previous, "chart"), hostNetwork)
		w.pushSmallAndSlow(t)
	})
	w.underLoad(t, "helm upgrade with host network", nothingFails, func(t *testing.T) { upgrade(t, here, hostNetwork) })
	w.proxiesRunAs(t, 65532) // a rollback to the previous commit needs its user
	if long() {
		w.underLoad(t, "helm upgrade to the proxies' own user", refusals,
			func(t *testing.T) { upgrade(t, here, hostNetwork) })
		w.proxiesRunAs(t, 60847)
		w.underLoad(t, "helm rollback to the previous user", refusals,
			func(t *testing.T) { helm(t, "rollback", release, "2") })
		w.proxiesRunAs(t, 65532)
	} else {
		t.Log("SHORTENED: on the host network, the proxies' user does not change; no rollback with host ports")
	}
	w.underLoad(t, "helm rollback with host network", nothingFails, func(t *testing.T) { helm(t, "rollback", release, "1") })
	must(t, "the previous commit with host ports", func(t *testing.T) {
		upgrade(t, filepath.Join(previous, "chart"), "--set=proxy.hostNetwork=false")
	})
	revision := w.revision(t)
	w.underLoad(t, "helm upgrade with host ports", refusals|losses, func(t *testing.T) { upgrade(t, here) })
	w.underLoad(t, "helm upgrade with host ports to a version with the same programs", nothingFails, func(t *testing.T) {
		w.restartsNothing(t, func() { upgrade(t, otherVersion(t, here), "--set=initHook.image.tag="+tag) })
	})
	w.handsOver(t, func(t *testing.T) { upgrade(t, here) })
	if long() {
		w.underLoad(t, "helm rollback with host ports", refusals, func(t *testing.T) {
			helm(t, "rollback", release, revision)
		})
		w.underLoad(t, "init-hook install with host ports", refusals|losses, func(t *testing.T) {
			w.mustInstall(t)
			w.isIn(t, state.ModeProxy, state.SourceValue)
		})
	}
	w.isHealthy(t)
	t.Run("the previous payload is gone", func(t *testing.T) {
		payloads := output(t, w.command(t, w.kubectl, "get", "configmaps", "-n", namespace, "-o", "name", "-l",
			"app.kubernetes.io/component=payload"))
		if !strings.Contains(payloads, "-payload-registry-node-") || strings.Contains(payloads, "-payload-"+previousVersion) {
			t.Errorf("the payloads are %s", payloads)
		}
	})
	must(t, "helm uninstall leaves only the volume", w.uninstall)
}

// proxiesRunAs checks the user of all proxies. On the node's network they share their port with successors
// of the same user only.
func (w *world) proxiesRunAs(t *testing.T, user int64) {
	t.Helper()
	for _, p := range w.pods(t, "proxy") {
		if c := p.Spec.SecurityContext; p.DeletionTimestamp == nil && (c.RunAsUser == nil || *c.RunAsUser != user) {
			t.Errorf("pod %s does not run as %d: %+v", p.Name, user, c)
		}
	}
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

// previousRelease returns a folder with chart and init-hook.tar of previousCommit, built from its own
// tree. It is kept beside the programs of the test cluster, because building takes minutes.
func previousRelease(t *testing.T) string {
	t.Helper()
	built(t, "E2E_CHART")
	commit, errOut, err := try(exec.Command("git", "rev-parse", "--verify", "--quiet", previousCommit+"^{commit}"))
	if err != nil {
		t.Skipf("SKIPPED, NOTHING CHECKED: this clone does not have commit %s (git fetch --unshallow): %v %s", previousCommit,
			err, errOut)
	}
	cache := cmp.Or(os.Getenv("ZARF_REGISTRY_CACHE"), "/var/cache/zarf-registry")
	dir := filepath.Join(cache, "previous-"+strings.TrimSpace(commit))
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	begin := time.Now()
	tree, err := os.MkdirTemp(cache, "previous-tree-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(tree)
	archive := exec.Command("git", "archive", "--format=tar", strings.TrimSpace(commit))
	archive.Dir = strings.TrimSpace(run(t, "git", "rev-parse", "--show-toplevel"))
	unpack := exec.Command("tar", "-x", "-C", tree)
	unpack.Stdin = strings.NewReader(output(t, archive))
	output(t, unpack)
	chart := filepath.Join(tree, "charts", "zarf-registry")
	setVersion(t, chart, previousVersion)
	build := exec.Command("make", "--no-print-directory", "images", "VERSION="+previousVersion)
	build.Dir = tree
	// Do not inherit the flags of a make that runs this test.
	build.Env = append(os.Environ(), "MAKEFLAGS=", "MAKELEVEL=")
	output(t, build)
	finished := filepath.Join(tree, "finished")
	if err := errors.Join(os.Mkdir(finished, 0o755), os.Rename(chart, filepath.Join(finished, "chart")),
		os.Rename(filepath.Join(tree, "dist", "images", "init-hook.tar"), filepath.Join(finished, "init-hook.tar")),
		os.Rename(finished, dir)); err != nil {
		t.Fatal(err)
	}
	t.Logf("figure: commit %s built in %.0f s", previousCommit, time.Since(begin).Seconds())
	return dir
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
