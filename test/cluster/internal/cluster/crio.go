package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
)

const (
	crioConfigPath = "/etc/crio/crio.conf"
	crioSocket     = "/run/crio/crio.sock"
	crioRuncPath   = "/etc/crio/runc"
)

// crio is a minor version of CRI-O, such as 1.34.
type crio string

func (crio) name() string   { return "crio" }
func (crio) socket() string { return crioSocket }
func (crio) command() []string {
	return []string{"crio", "--config=" + crioConfigPath, "--config-dir="}
}
func (crio) environment() []string { return nil }

// load copies images to CRI-O's storage, because CRI-O itself only pulls.
func (crio) load(ctx context.Context, c *Cluster, n Node, archive io.Reader, images []string) error {
	file, err := os.CreateTemp(c.nodePath(n.Name), "load-*.tar") // at the same path on the node
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	_, err = io.Copy(file, archive)
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}
	for _, image := range images {
		copyFrom := func(source string) error {
			_, err := c.run(ctx, n.Name, nil, "skopeo", "--insecure-policy", "copy", "--quiet", source,
				"containers-storage:"+image)
			return err
		}
		// An OCI layout can be read without a name only if it has one image; docker save names all.
		err := errors.New("an OCI layout with several images")
		if len(images) == 1 {
			err = copyFrom("oci-archive:" + file.Name())
		}
		if err != nil {
			if err2 := copyFrom("docker-archive:" + file.Name() + ":" + image); err2 != nil {
				return errors.Join(err, err2)
			}
		}
	}
	return nil
}

// tag does nothing for a digest, the only second name in use: CRI-O's images have one for each of their names.
func (crio) tag(context.Context, *Cluster, Node, string, string) error { return nil }

func (r crio) addFiles(files map[string][]byte, c *Cluster, n Node) {
	files[crioConfigPath] = []byte(r.config(c, n))
	files[crioRuncPath] = []byte(crioRunc)
	// For skopeo and podman too.
	files["/etc/containers/storage.conf"] = []byte(`[storage]
driver = "overlay"
graphroot = "/var/lib/containers/storage"
runroot = "/run/containers/storage"
`)
	files["/etc/containers/policy.json"] = []byte(`{"default": [{"type": "insecureAcceptAnything"}]}` + "\n")
	files["/etc/containers/registries.conf"] = []byte("unqualified-search-registries = []\n")
}

func (crio) config(c *Cluster, n Node) string {
	return fmt.Sprintf(`[crio.api]
listen = %[1]q

[crio.runtime]
default_runtime = "runc"
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
pinns_path = %[2]q
irqbalance_config_restore_file = "disable"
[crio.runtime.runtimes.runc]
runtime_path = %[3]q
runtime_root = "/run/runc"
monitor_path = "/usr/bin/conmon"

[crio.image]
pause_image = %[4]q

[crio.network]
network_dir = "/etc/cni/net.d"
plugin_dirs = [%[5]q]

[crio.nri]
enable_nri = false
`, crioSocket, c.path(binDir, n.Runtime, "pinns"), crioRuncPath, n.PauseImage, c.path(binDir))
}

// crioRunc runs runc for CRI-O with what containerd has options for: where root lacks CAP_SYS_RESOURCE, lowering a
// process's score is refused, and where the hugetlb controller is not mounted, so are its limits.
const crioRunc = `#!/bin/sh
for argument; do
	case $option in
	--bundle) file=$argument/config.json ;;
	--process) file=$argument ;;
	esac
	option=$argument
done
[ -z "$file" ] || sed -i '
	s/"oomScoreAdj": *-[0-9]*/"oomScoreAdj": 0/
	/"hugepageLimits": \[/,/\]/ { /[][]/!d; }' "$file"
exec runc "$@"
`
