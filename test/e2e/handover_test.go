package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/zarf-dev/zarf-registry/internal/api/loaded"
	"github.com/zarf-dev/zarf-registry/internal/payload/injector"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// handsOver changes the proxies' program in place, as prepare does, and upgrades back to the chart's own.
// No pod may restart, and nothing may fail meanwhile.
func (w *world) handsOver(t *testing.T, upgrade func(t *testing.T)) {
	t.Helper()
	program, loader := w.proxyProgram(t)
	own := encode(t, program, loader)
	other := encode(t, append(slices.Clone(program), 0), loader) // ELF ignores what follows
	broken := encode(t, append([]byte("no ELF"), program[6:]...), loader)

	w.underLoad(t, "another program of the proxies", nothingFails, func(t *testing.T) {
		w.restartsNothing(t, func() {
			w.plant(t, other)
			w.proxiesRun(t, other)
		})
	})
	w.underLoad(t, "helm upgrade to a version with another program of the proxies", nothingFails, func(t *testing.T) {
		w.restartsNothing(t, func() { upgrade(t) })
		w.proxiesRun(t, own)
	})
	w.underLoad(t, "a program of the proxies that does not start", nothingFails, func(t *testing.T) {
		w.restartsNothing(t, func() {
			w.plant(t, broken)
			eventually(t, "every proxy to keep its program", func() error {
				for _, p := range w.pods(t, names.ComponentProxy) {
					log := output(t, w.command(t, w.kubectl, "logs", "-n", namespace, p.Name))
					if !strings.Contains(log, "keeping the current") {
						return fmt.Errorf("the log of %s is\n%s", p.Name, log)
					}
				}
				return nil
			})
			w.proxiesRun(t, own)
			upgrade(t)
		})
	})
}

// proxyProgram returns the program of the proxies and the loader, as the chart's payload has them.
func (w *world) proxyProgram(t *testing.T) (program, loader []byte) {
	t.Helper()
	dist := filepath.Join("..", "..", "internal", "payload", "embedded", "dist")
	layer := require.Value(os.Open(filepath.Join(dist, "registry-node-"+runtime.GOARCH+".tar.gz")))(t)
	defer layer.Close()
	z, err := gzip.NewReader(layer)
	require.NoError(t, err)
	archive := tar.NewReader(z)
	require.Value(archive.Next())(t)
	program = require.Value(io.ReadAll(archive))(t)
	loader = require.Value(os.ReadFile(filepath.Join(dist, "loader-"+runtime.GOARCH)))(t)
	return program, loader
}

func encode(t *testing.T, program, loader []byte) *injector.Payload {
	t.Helper()
	layer := require.Value(injector.BuildLayer("registry-node", program))(t)
	p, err := injector.Encode(injector.Program{Name: "registry-node", Architecture: runtime.GOARCH}, layer, loader)
	require.NoError(t, err)
	return p
}

// plant writes a payload into the release's ConfigMaps, and makes kubelets show it to the proxies.
func (w *world) plant(t *testing.T, p *injector.Payload) {
	t.Helper()
	for _, o := range p.Objects() {
		name := injector.ConfigMapName(release, "", p.Program, o.Index)
		patch := require.Value(json.Marshal(map[string]any{"binaryData": o.Data}))(t)
		require.Value(w.client.CoreV1().ConfigMaps(namespace).Patch(t.Context(), name, types.MergePatchType, patch,
			metav1.PatchOptions{}))(t)
	}
	output(t, w.command(t, w.kubectl, "annotate", "pods", "-n", namespace, "-l", "app.kubernetes.io/component=proxy",
		"--overwrite", names.AnnotationRefreshed+"="+time.Now().Format(time.RFC3339)))
}

// proxiesRun waits until all proxies run the program of a payload.
func (w *world) proxiesRun(t *testing.T, p *injector.Payload) {
	t.Helper()
	manifest := require.Value(injector.ParseManifest(p.Manifest))(t)
	want := fmt.Sprintf("%x", manifest.ProgramSHA256)
	eventually(t, "the proxies to run program "+want, func() error {
		for _, pod := range w.pods(t, names.ComponentProxy) {
			if got := w.programOf(t, pod); got != want {
				return fmt.Errorf("%s runs %s", pod.Name, got)
			}
		}
		return nil
	})
}

func (w *world) programOf(t *testing.T, pod corev1.Pod) string {
	t.Helper()
	address := net.JoinHostPort(pod.Status.PodIP, pod.Annotations[names.AnnotationMetricsPort])
	page, err := w.onNode(t, pod.Spec.NodeName, w.tool, "get", "http://"+address+loaded.Path)
	var report loaded.State
	if start := strings.IndexByte(page, '{'); err == nil && start >= 0 {
		err = json.NewDecoder(bytes.NewReader([]byte(page[start:]))).Decode(&report)
	}
	if err != nil {
		return fmt.Sprintf("%v: %s", err, page)
	}
	return report.Program
}
