package e2e

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// hostileImage tries to influence the program that is injected into it.
type hostileImage struct {
	config v1.Config
	links  map[string]string
	files  map[string]string
	// component is that of the pod that gets the image.
	component string
	// refused is part of the loader's message, or "" if the program must run unaffected.
	refused string
}

const hostileRepository = "example.com/hostile/pause"

func volume(path string) v1.Config { return v1.Config{Volumes: map[string]struct{}{path: {}}} }

var hostileImages = map[string]hostileImage{
	"variables": {component: "registry", config: v1.Config{Env: []string{
		"REGISTRY_STORAGE_FILESYSTEM_ROOTDIRECTORY=/tmp", "REGISTRY_STORAGE_MAINTENANCE={readonly: {enabled: true}}",
		"GODEBUG=netdns=9", "LD_PRELOAD=/image.so", "HTTPS_PROXY=http://192.0.2.1:1", "ZARF_REGISTRY_PROGRAM=image",
	}}},
	"an entrypoint, a user, a folder and a signal": {component: "registry", config: v1.Config{
		User: "0:0", Entrypoint: []string{"/image"}, Cmd: []string{"image"}, WorkingDir: "/var/lib/registry/image",
		StopSignal: "SIGQUIT",
	}},
	"users and groups": {component: "registry", files: map[string]string{
		"/etc/passwd": "image:x:65532:0::/image:/image\n", "/etc/group": "root:x:0:image\n",
	}},
	"a volume elsewhere": {component: "registry", config: volume("/image")},
	"a volume over the server's key": {
		component: "registry", config: volume("/etc/zarf-registry/tls/..data"), refused: "below /etc/zarf-registry/tls",
	},
	"a volume over the credentials": {
		component: "registry", config: volume("/etc/zarf-registry/credentials/..data"),
		refused: "below /etc/zarf-registry/credentials",
	},
	"a volume over the configuration": {
		component: "registry", config: volume("/etc/zarf-registry/config/..data"), refused: "below /etc/zarf-registry/config",
	},
	"a volume in the storage": {
		component: "registry", config: volume("/var/lib/registry/docker"), refused: "/var/lib/registry/docker is a mount below",
	},
	"a volume above the mounts": {
		component: "registry", config: volume("/etc/zarf-registry"), refused: "is a mount above",
	},
	"a link instead of the storage": {
		component: "registry", links: map[string]string{"/var/lib/registry": "/image"},
		refused: "/var/lib/registry is not mounted there",
	},
	"a link above the mounts": {
		component: "registry", links: map[string]string{"/etc/zarf-registry": "/image"}, refused: "is not mounted there",
	},
	"a link instead of the payload": {
		component: "registry", links: map[string]string{"/payload": "/image"}, refused: "/payload is not mounted there",
	},
	"a link for a volume over the key": {
		component: "registry", config: volume("/l/l/l/l"), links: map[string]string{"/l/l/l/l": "/etc/zarf-registry/tls"},
		refused: "/etc/zarf-registry/tls is mounted more than once",
	},
	"a volume over a node's key": {
		component: "proxy", config: volume("/etc/zarf-registry/tls/..data"), refused: "below /etc/zarf-registry/tls",
	},
	"variables for a proxy": {component: "proxy", config: v1.Config{
		Env:        []string{"ZARF_REGISTRY_SERVICE_HOST=192.0.2.1", "HTTPS_PROXY=http://192.0.2.1:1", "SSL_CERT_FILE=/image"},
		StopSignal: "SIGWINCH",
	}},
}

// TestHostileImage gives running pods hostile images, as the healer's token could: whatever chooses images is bypassed.
// Then a node is hostile.
//
// Claim (a node's static pod joins no Service): Root on a node cannot receive the requests of other nodes with a
// static pod.
func TestHostileImage(t *testing.T) {
	w := ownCluster(t, "e2e-hostile", layout{})
	testHostileImages(t, w, true)
	testHostileNode(t, w)
}

// TestHostileImageRuntimes is the same with older versions of containerd, and with CRI-O.
func TestHostileImageRuntimes(t *testing.T) {
	for _, name := range []string{"containerd-1.7", "containerd-2.1", "crio-1.34"} {
		t.Run(name, func(t *testing.T) {
			w := ownCluster(t, "e2e-hostile-"+strings.ReplaceAll(name, ".", "-"), layout{args: []string{"--runtime", name}})
			testHostileImages(t, w, !strings.HasPrefix(name, "crio-"))
		})
	}
}

// testHostileImages tries all images. Without volumes, the runtime makes folders instead of an image's volumes, as CRI-O
// does by default (image_volumes).
func testHostileImages(t *testing.T, w *world, volumes bool) {
	image := ""
	must(t, "installed", func(t *testing.T) {
		w.helmChart(t, "install", "--wait", proxyMode)
		image = w.pushHello(t)
	})
	references := map[string]string{}
	must(t, "all nodes have the images", func(t *testing.T) {
		args := []string{"load", "--name", w.name}
		for title, hostile := range hostileImages {
			reference := fmt.Sprint(hostileRepository, ":", len(references))
			references[title] = reference
			args = append(args, hostile.archive(t, reference))
		}
		run(t, w.testcluster, args...)
	})
	for title, hostile := range hostileImages {
		if !volumes && hostile.config.Volumes != nil {
			hostile.refused = ""
		}
		t.Run(title, func(t *testing.T) {
			target := w.pods(t, hostile.component)[0]
			ours := target.Spec.Containers[0].Image
			defer func() {
				w.deletePod(t, target.Name, 0)
				w.rolloutsEnd(t)
			}()
			w.setImage(t, target, references[title])
			eventually(t, target.Name+" to run or to be refused", func() error {
				pod, err := w.client.CoreV1().Pods(w.namespace).Get(t.Context(), target.Name, metav1.GetOptions{})
				if err != nil {
					return err
				}
				if len(pod.Status.ContainerStatuses) == 0 {
					return errors.New("it has no status yet")
				}
				status := pod.Status.ContainerStatuses[0]
				if hostile.refused == "" {
					// CRI-O gives any name of the image, and two of them have the same content.
					if !strings.HasPrefix(status.Image, hostileRepository) || !status.Ready {
						return fmt.Errorf("the container is %s", mustJSON(status))
					}
					return nil
				}
				for _, ended := range []*corev1.ContainerStateTerminated{
					status.State.Terminated, status.LastTerminationState.Terminated,
				} {
					if ended != nil && ended.ExitCode == 110 && strings.Contains(ended.Message, hostile.refused) {
						return nil
					}
				}
				return fmt.Errorf("the container is %s", mustJSON(status))
			})
			if hostile.refused == "" {
				w.pullEverywhere(t, image)
			}
			if ours == references[title] {
				t.Error("the pod had the image before")
			}
		})
	}
}

// setImage changes the image of a running pod: the kubelet restarts the container with it.
func (w *world) setImage(t *testing.T, pod corev1.Pod, image string) {
	t.Helper()
	patch := fmt.Sprintf(`[{"op":"replace","path":"/spec/containers/0/image","value":%q}]`, image)
	_, err := w.client.CoreV1().Pods(pod.Namespace).Patch(t.Context(), pod.Name, types.JSONPatchType, []byte(patch),
		metav1.PatchOptions{})
	require.NoError(t, err)
}

// archive writes the image to an archive and returns its path.
func (h hostileImage) archive(t *testing.T, reference string) string {
	t.Helper()
	var content bytes.Buffer
	w := tar.NewWriter(&content)
	add := func(header tar.Header, data string) {
		header.Name = strings.TrimPrefix(header.Name, "/")
		header.Size = int64(len(data))
		require.NoError(t, w.WriteHeader(&header))
		require.Value(io.WriteString(w, data))(t)
	}
	added := map[string]bool{} // CRI-O refuses a layer with a path twice
	folders := func(file string) {
		var parents []string
		for dir := path.Dir(file); dir != "/" && !added[dir]; dir = path.Dir(dir) {
			parents = append([]string{dir}, parents...)
			added[dir] = true
		}
		for _, dir := range parents {
			add(tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755}, "")
		}
	}
	folders("/image/x")
	for file, data := range h.files {
		folders(file)
		add(tar.Header{Typeflag: tar.TypeReg, Name: file, Mode: 0o644}, data)
	}
	for link, to := range h.links {
		folders(link)
		add(tar.Header{Typeflag: tar.TypeSymlink, Name: link, Linkname: to, Mode: 0o777}, "")
	}
	require.NoError(t, w.Close())
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content.Bytes())), nil
	})
	require.NoError(t, err)
	image := require.Value(mutate.AppendLayers(empty.Image, layer))(t)
	file, err := image.ConfigFile()
	require.NoError(t, err)
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Config = "linux", runtime.GOARCH, h.config
	image = require.Value(mutate.ConfigFile(image, file))(t)
	tag := require.Value(name.NewTag(reference))(t)
	archive := filepath.Join(t.TempDir(), "image.tar")
	require.NoError(t, tarball.WriteToFile(archive, tag, image))
	return archive
}
