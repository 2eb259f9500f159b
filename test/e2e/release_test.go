package e2e

import (
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/images"
	"github.com/zarf-dev/zarf-registry/internal/images/build"
	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/distributiontest"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// The values for a mode. noMode is another value: helm upgrade without any reuses those of the last
// revision.
const (
	proxyMode    = "--set=registryProxy=true"
	nodePortMode = "--set=registryProxy=false"
	noMode       = "--set=initHook.resources.requests.cpu=40m"
)

// namedPause names the nodes' pause image, which is trusted by its name: with rewriting, pulls from its registry may
// reach this release's registry.
const namedPause = "--set=injector.image=" + knownPause

// noRotation keeps the hourly CronJob from running at any time, also while nothing serves its image.
const noRotation = "--set=pki.rotation.schedule=@yearly"

// chart returns the command for helm install or upgrade of the chart.
func (w *world) chart(t *testing.T, verb string, args ...string) *exec.Cmd {
	t.Helper()
	base := []string{verb, release, built(t, "E2E_CHART"), "-n", w.namespace, "--create-namespace", "--timeout", "5m"}
	return w.command(t, w.helm, slices.Concat(base, w.sets, args)...)
}

// helmChart runs helm install or upgrade, which must succeed.
func (w *world) helmChart(t *testing.T, verb string, args ...string) {
	t.Helper()
	begin := time.Now()
	output(t, w.chart(t, verb, args...))
	t.Logf("figure: helm %s %s returned after %.1f s, including the verified pull on every node", verb,
		strings.Join(args, " "), time.Since(begin).Seconds())
}

// helmChartFails runs helm install or upgrade, which must fail with a message that contains all of
// those words, and returns the output.
func (w *world) helmChartFails(t *testing.T, words []string, verb string, args ...string) string {
	t.Helper()
	begin := time.Now()
	out, errOut, err := try(w.chart(t, verb, args...))
	text := out + errOut
	if err == nil {
		t.Fatalf("the command succeeded: %s", text)
	}
	t.Logf("failed after %.1f s: %s", time.Since(begin).Seconds(), strings.TrimSpace(text))
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("the message lacks %q", word)
		}
	}
	return text
}

// saved returns the state that the hook saved.
func (w *world) saved(t *testing.T) state.State {
	t.Helper()
	secret, err := w.client.CoreV1().Secrets(w.namespace).Get(t.Context(), release+"-state", metav1.GetOptions{})
	require.NoError(t, err)
	return require.Value(state.Decode(secret.Data[state.Key]))(t)
}

// isIn fails unless the cluster is in that mode, chosen by that source, and verified on every node.
func (w *world) isIn(t *testing.T, mode state.Mode, decidedBy state.Source) {
	t.Helper()
	s := w.saved(t)
	t.Logf("state: %s", mustJSON(s))
	if s.Desired.Mode != mode || s.Desired.DecidedBy != decidedBy || s.Desired.Address != w.address {
		t.Errorf("desired is %s at %s, source %s; want %s at %s, source %s", s.Desired.Mode, s.Desired.Address,
			s.Desired.DecidedBy, mode, w.address, decidedBy)
	}
	if s.Phase != state.PhaseReady || s.Current == nil || s.Current.Mode != mode {
		t.Errorf("phase is %s and current is %s, want %s", s.Phase, mustJSON(s.Current), mode)
	}
	if !slices.Equal(s.VerifiedNodes, w.nodes) {
		t.Errorf("verified on the nodes %v, want %v", s.VerifiedNodes, w.nodes)
	}
}

// push pushes an archive with init-hook and returns its output.
func (w *world) push(t *testing.T, archive string) string {
	t.Helper()
	return strings.TrimSpace(output(t, w.command(t, w.hook, "images", "push", "-n", w.namespace, archive)))
}

// pushHello carries an image of the test program over an air gap: pulled from a registry outside
// into an archive, and pushed from there. It returns the image's reference.
func (w *world) pushHello(t *testing.T) string {
	t.Helper()
	_, carried := w.carry(t, "e2e/hello:1")
	want := w.address + "/e2e/hello:1"
	if got := w.push(t, carried); got != want {
		t.Errorf("push printed %q, want %q", got, want)
	}
	return want
}

// carry pulls an image of the test program from a registry outside into an archive. It returns the image's
// reference there, and the archive.
func (w *world) carry(t *testing.T, image string) (there, archive string) {
	t.Helper()
	connected := connectedRegistry(t)
	there, archive = connected+"/"+image, filepath.Join(t.TempDir(), "carried.tar")
	for _, args := range [][]string{
		{"push", w.makeArchive(t, "example.com/"+image, 8), "--to", connected},
		{"pull", there, "--out", archive, "--store-dir", t.TempDir()},
	} {
		if got := strings.TrimSpace(output(t, w.command(t, w.hook,
			append([]string{"images"}, append(args, "--plain-http")...)...))); got != there {
			t.Errorf("zarf-registry images %s printed %q, want %q", strings.Join(args, " "), got, there)
		}
	}
	return there, archive
}

// connectedRegistry runs a registry on this machine, which no cluster reaches.
func connectedRegistry(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(distributiontest.NewApp(t))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// makeArchive writes an OCI archive of an image with the test program, made unique by some bytes of
// noise.
func (w *world) makeArchive(t *testing.T, reference string, noise int) string {
	t.Helper()
	program := require.Value(os.ReadFile(w.tool))(t)
	x := uint64(time.Now().UnixNano())
	for range noise / 8 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		program = append(program, byte(x), byte(x>>8), byte(x>>16), byte(x>>24), byte(x>>32), byte(x>>40), byte(x>>48),
			byte(x>>56))
	}
	return writeArchive(t, map[string][]byte{reference: program})
}

// makeTinyArchive writes an OCI archive of n unique images of a few bytes: IMAGE-0 and so on.
func makeTinyArchive(t *testing.T, image string, n int) string {
	t.Helper()
	files := map[string][]byte{}
	for i := range n {
		files[fmt.Sprintf("%s-%d", image, i)] = fmt.Appendf(nil, "%s %d %d", image, i, time.Now().UnixNano())
	}
	return writeArchive(t, files)
}

// writeArchive writes an OCI archive with an image for each file, by reference.
func writeArchive(t *testing.T, files map[string][]byte) string {
	t.Helper()
	dir := t.TempDir()
	store := &graph.Store{}
	var list []graph.Image
	for reference, content := range files {
		file := filepath.Join(dir, fmt.Sprint(len(list)))
		require.NoError(t, os.WriteFile(file, content, 0o755))
		layer := require.Value(build.FileLayer("tool", file))(t)
		image, err := build.Image(store, build.Spec{Reference: reference, Entrypoint: []string{"/tool"}},
			build.Variant{Architecture: "amd64", Layers: []build.Layer{layer}})
		require.NoError(t, err)
		list = append(list, image)
	}
	return writeImages(t, store, list...)
}

// writeImages writes an OCI archive of images.
func writeImages(t *testing.T, store *graph.Store, list ...graph.Image) string {
	t.Helper()
	archive := filepath.Join(t.TempDir(), "image.tar")
	require.NoError(t, images.WriteArchive(t.Context(), archive, store, list...))
	return archive
}

// helmUninstall uninstalls the release.
func (w *world) helmUninstall(t *testing.T) {
	t.Helper()
	begin := time.Now()
	output(t, w.command(t, w.helm, "uninstall", release, "-n", w.namespace, "--timeout", "3m", "--wait"))
	t.Logf("figure: helm uninstall returned after %.1f s", time.Since(begin).Seconds())
}

// uninstall uninstalls the release and fails unless only its volume claim, if it had one, is left.
func (w *world) uninstall(t *testing.T) {
	t.Helper()
	volumes := strings.Fields(output(t, w.command(t, w.kubectl, "get", "pvc", "-n", w.namespace, "-o", "name")))
	w.helmUninstall(t)
	w.nothingLeft(t, append(volumes, w.kept...)...)
	if w.name == "" {
		return
	}
	for _, node := range w.nodes {
		if w.dial(t, node, w.address) == nil {
			t.Errorf("something still answers at %s of node %s", w.address, node)
		}
	}
}

// nothingLeft waits until the release's namespace holds nothing but the named objects, and no
// object elsewhere has the release's name.
func (w *world) nothingLeft(t *testing.T, but ...string) {
	t.Helper()
	kinds := map[string]string{} // by whether they are in namespaces
	for _, namespaced := range []string{"true", "false"} {
		list := strings.Fields(output(t, w.command(t, w.kubectl, "api-resources", "--verbs=list,delete", "-o", "name",
			"--namespaced="+namespaced)))
		if len(list) < 10 {
			t.Fatalf("the cluster lists only %v", list)
		}
		kinds[namespaced] = strings.Join(list, ",")
	}
	eventually(t, "everything to be gone", func() error {
		// Pods go last, and listing them is cheap.
		if pods, err := w.client.CoreV1().Pods(w.namespace).List(t.Context(), metav1.ListOptions{}); err != nil ||
			len(pods.Items) > 0 {
			return fmt.Errorf("%d pods are left (%v)", len(pods.Items), err)
		}
		var left []string
		for namespaced, list := range kinds {
			for line := range strings.SplitSeq(output(t, w.command(t, w.kubectl, "get", list, "-n", w.namespace, "-o", "name",
				"--ignore-not-found")), "\n") {
				line = strings.TrimSpace(line)
				if line != "" && !ofTheNamespace(line) && (strings.Contains(line, release) || namespaced == "true") {
					left = append(left, line)
				}
			}
		}
		// The hosting ConfigMap and the permission to write it are in another namespace.
		for line := range strings.Lines(output(t, w.command(t, w.kubectl, "get", "configmaps,roles,rolebindings", "-n",
			"kube-public", "-o", "name"))) {
			if line = strings.TrimSpace(line); strings.Contains(line, release) ||
				strings.HasSuffix(line, "/local-registry-hosting") {
				left = append(left, "kube-public "+line)
			}
		}
		slices.Sort(left)
		if want := slices.Sorted(slices.Values(but)); !slices.Equal(left, want) {
			return fmt.Errorf("%v are left, want %v", left, want)
		}
		return nil
	})
	t.Logf("left: %v", but)
}

// ofTheNamespace reports whether kubectl printed an object that Kubernetes itself creates in every
// namespace, or an event.
func ofTheNamespace(object string) bool {
	return slices.ContainsFunc([]string{"event", "serviceaccount/default", "configmap/kube-root-ca.crt", "lease",
		"podmetrics"},
		func(prefix string) bool { return strings.HasPrefix(object, prefix) })
}
