package loader_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/zarf-dev/zarf-registry/internal/payload/injector"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// podMounts are the mounts of a pod with each kind of volume, in the order in which runtimes mount them: from the root
// downwards. The last one is below another.
var podMounts = []string{
	"/payload", "/program", "/tmp", hosts, "/etc/zarf-registry/config", "/etc/zarf-registry/credentials",
	"/etc/zarf-registry/keys", "/etc/zarf-registry/tls", "/host/etc/rancher", "/var/lib/registry",
	"/host/etc/rancher/certs.d",
}

// hosts is mounted as a file.
const hosts = "/etc/hosts"

// container describes what a runtime makes of an image and a pod.
type container struct {
	Links  map[string]string // of the image
	Files  map[string]string // of the image
	First  []string          // volumes of the image that are mounted before those of the pod
	Mounts []string          // of the pod
	Last   []string          // volumes of the image that are mounted after those of the pod
	NoProc bool

	Root, Payload string            // folders of the test
	Programs      map[string]string // files of the test by their paths in the image
	Command       []string
}

// runContainer is the role of a test binary in a mount namespace: it makes the container and executes its command.
func runContainer(spec string) error {
	var c container
	err := errors.Join(
		json.Unmarshal([]byte(spec), &c),
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("none", c.Root, "tmpfs", 0, ""),
		os.MkdirAll(filepath.Join(c.Root, "proc"), 0o755),
	)
	if err == nil && !c.NoProc {
		err = unix.Mount("/proc", filepath.Join(c.Root, "proc"), "", unix.MS_BIND|unix.MS_REC, "")
	}
	for at, program := range c.Programs {
		data, failed := os.ReadFile(program)
		err = errors.Join(err, failed, put(filepath.Join(c.Root, at), data))
	}
	payload := map[string][]byte{}
	entries, failed := os.ReadDir(c.Payload)
	err = errors.Join(err, failed)
	for _, entry := range entries {
		data, failed := os.ReadFile(filepath.Join(c.Payload, entry.Name()))
		payload[entry.Name()] = data
		err = errors.Join(err, failed)
	}
	// From here on the image's links lead to paths in the container, as they do for a runtime.
	err = errors.Join(err, unix.Chroot(c.Root), unix.Chdir("/"))
	for link, to := range c.Links {
		err = errors.Join(err, os.MkdirAll(path.Dir(link), 0o755), os.Symlink(to, link))
	}
	for file, data := range c.Files {
		err = errors.Join(err, put(file, []byte(data)))
	}
	for _, point := range slices.Concat(c.First, c.Mounts, c.Last) {
		err = errors.Join(err, mount(point))
		if point == "/payload" {
			for name, data := range payload {
				err = errors.Join(err, put("/payload/"+name, data))
			}
		}
	}
	if err != nil {
		return err
	}
	return unix.Exec(c.Command[0], c.Command, nil)
}

func put(file string, data []byte) error {
	return errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, data, 0o755))
}

func mount(point string) error {
	at := point
	for range 8 { // MkdirAll does not follow a link to a folder that does not exist
		to, err := os.Readlink(at)
		if err != nil {
			break
		}
		at = to
	}
	if point == hosts {
		return errors.Join(put("/tmp/hosts", nil), put(at, nil), unix.Mount("/tmp/hosts", at, "", unix.MS_BIND, ""))
	}
	return errors.Join(os.MkdirAll(at, 0o755), unix.Mount("none", at, "tmpfs", 0, ""))
}

// run runs the container's command.
func (c container) run(t *testing.T) result {
	t.Helper()
	self := require.Value(os.Executable())(t)
	c.Root = t.TempDir()
	spec := require.Value(json.Marshal(c))(t)
	cmd := unshare(t, self, string(spec))
	cmd.Env = []string{roleVariable + "=container"}
	return run(t, cmd)
}

// load makes the container run the loader with the pod's mounts as arguments.
func (c container) load(t *testing.T, m machine, payload string, options ...string) result {
	t.Helper()
	for _, point := range c.Mounts {
		options = append(options, "--mount="+point)
	}
	c.Payload = payload
	c.Programs = map[string]string{"/loader": m.loader}
	m.loader = "/loader"
	if len(m.emulator) > 0 {
		emulator := require.Value(exec.LookPath(m.emulator[0]))(t)
		c.Programs["/emulator"] = emulator
		m.emulator = []string{"/emulator"}
	}
	c.Command = m.command(slices.Concat(options, []string{"-w", "0", "/payload", "/program/registry"})...).Args
	return c.run(t)
}

// refused is the result of a loader that found a mount of the image.
func refused(what string) result {
	return result{code: 110, stderr: "zarf-registry loader: the image influences the pod's mounts: " + what +
		": set injector.image to an image without volumes and links, such as the node's pause image\n"}
}

// Claim: Volumes and links of an image neither move nor cover the mounts of the pod.
func TestRefusesMountsOfTheImage(t *testing.T) {
	type test struct {
		container
		want result
	}
	special := append(slices.Clone(podMounts), "/with space/\\134\t\n")
	tests := map[string]test{
		"no mount of the image": {},
		"volumes elsewhere": {
			container: container{First: []string{"/data", "/etc/zarf"}, Last: []string{"/var/run/secrets/x", "/payloads"}},
		},
		"a mount of the pod with special characters": {container: container{Mounts: special}},
		"a volume below one with special characters": {
			container{Mounts: special, Last: []string{special[len(podMounts)] + "/a b"}},
			refused("/with space/\\134??/a b is a mount below /with space/\\134??"),
		},
		"a volume with a long path": {container: container{Last: []string{strings.Repeat("/"+strings.Repeat("x", 200), 18)}}},
		"a volume that the pod mounts again": {
			container{First: []string{"/payload"}}, refused("/payload is mounted more than once"),
		},
	}
	for _, point := range podMounts {
		if slices.Contains(podMounts, path.Dir(point)) { // what the image has there is covered by the pod's mount above
			tests["a link instead of "+point] = test{container: container{Links: map[string]string{point: "/image"}}}
			continue
		}
		tests["a link instead of "+point] = test{
			container{Links: map[string]string{point: "/image" + point}}, refused(point + " is not mounted there"),
		}
		if point != hosts {
			tests["a link that leads a volume over "+point] = test{
				container{Links: map[string]string{"/l": point}, Last: []string{"/l"}},
				refused(point + " is mounted more than once"),
			}
			tests["a volume below "+point] = test{
				container{Last: []string{point + "/..data"}}, refused(point + "/..data is a mount below " + point),
			}
		}
		parent := path.Dir(point)
		if parent == "/" {
			continue
		}
		first := podMounts[slices.IndexFunc(podMounts, func(p string) bool { return strings.HasPrefix(p, parent+"/") })]
		tests["a link above "+point] = test{
			container{Links: map[string]string{parent: "/image"}, Files: map[string]string{"/image/x": ""}},
			refused(first + " is not mounted there"),
		}
		above := refused(parent + " is a mount above " + first)
		tests["a volume above "+point+", mounted before"] = test{container{First: []string{parent}}, above}
		tests["a volume above "+point+", mounted after"] = test{container{Last: []string{parent}}, above}
	}
	program := built(t, runtime.GOARCH, "probe-"+runtime.GOARCH) // the kernel executes what an emulated loader does
	onEachMachine(t, func(t *testing.T, m machine) {
		p := newPod(t, encode(t, m, layerOf(t, readFile(t, program))))
		for _, name := range slices.Sorted(maps.Keys(tests)) {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test := tests[name]
				if test.Mounts == nil {
					test.Mounts = podMounts
				}
				wantResult(t, test.load(t, m, p.payload), test.want)
			})
		}
	})
}

func TestRefusesMountsWhenItSupervises(t *testing.T) {
	onThisMachine(t, func(t *testing.T, m machine) {
		p := newPod(t, encode(t, m, layerOf(t, readFile(t, m.probe))))
		wantResult(t, container{Mounts: podMounts}.load(t, m, p.payload, "-s"), result{})
		c := container{Mounts: podMounts, Last: []string{"/payload/..data"}}
		wantResult(t, c.load(t, m, p.payload, "-s"), refused("/payload/..data is a mount below /payload"))
	})
}

func TestReadsMountsFromTheKernelOnly(t *testing.T) {
	onThisMachine(t, func(t *testing.T, m machine) { // an emulator needs /proc
		p := newPod(t, encode(t, m, layerOf(t, readFile(t, m.probe))))
		want := result{code: 110, stderr: "zarf-registry loader: /proc/self/mountinfo: no such file or directory: " +
			"the loader needs the container's own /proc\n"}
		c := container{Mounts: podMounts, NoProc: true}
		wantResult(t, c.load(t, m, p.payload), want)
		c.Files = map[string]string{"/proc/self/mountinfo": "1 0 0:1 / /payload rw - tmpfs none rw\n"}
		wantResult(t, c.load(t, m, p.payload), want)
	})
}

// Claim (amd64): Variables of an image do not reach an injected program.
func TestPassesOnTheVariablesOfThePodOnly(t *testing.T) {
	self := require.Value(os.Executable())(t)
	layer := layerOf(t, readFile(t, self))
	onEachMachine(t, func(t *testing.T, m machine) {
		payload := encode(t, m, layer)
		p := newPod(t, payload)
		cmd := m.command(
			"--mount=/media", "--env=KEPT", "--env="+roleVariable, "--env=ABSENT", "--env=EMPTY", p.payload, p.target, "x",
		)
		cmd.Args = append([]string{
			"env", "-i", roleVariable + "=print", "KEPT=a=b", "KEPT_NOT=1", "KEP=1", "EMPTY=", "PATH=/image", "HOME=/image",
			"LD_PRELOAD=/image.so", "GODEBUG=netdns=1", "GOTRACEBACK=crash", "SSL_CERT_FILE=/image", "HTTPS_PROXY=http://image",
			"REGISTRY_STORAGE_FILESYSTEM_ROOTDIRECTORY=/image", "AWS_CONFIG_FILE=/image", "ZARF_REGISTRY_PROGRAM=image",
		}, append([]string{cmd.Path}, cmd.Args[1:]...)...)
		wantResult(t, inMountNamespace(t, `mount -t tmpfs none /media; exec "$@"`, cmd), result{stdout: fmt.Sprintf(
			"%q\n%q\n", []string{p.target, "x"},
			[]string{
				"EMPTY=", "KEPT=a=b", roleVariable + "=print",
				fmt.Sprintf("ZARF_REGISTRY_PROGRAM=%x", programSum(t, payload)),
			},
		)})
	})
}

func programSum(t *testing.T, payload *injector.Payload) [32]byte {
	t.Helper()
	return require.Value(injector.ParseManifest(payload.Manifest))(t).ProgramSHA256
}
