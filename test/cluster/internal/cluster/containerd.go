package cluster

import (
	"context"
	"fmt"
	"io"
	"strings"
)

const (
	containerdConfigPath = "/etc/containerd/config.toml"
	containerdSocket     = "/run/containerd/containerd.sock"
)

// containerd is a minor version of containerd, such as 2.4.
type containerd string

func (containerd) name() string   { return "containerd" }
func (containerd) socket() string { return containerdSocket }
func (containerd) command() []string {
	return []string{"containerd", "--config=" + containerdConfigPath}
}

func (containerd) environment() []string {
	return []string{
		"CONTAINERD_ADDRESS=" + containerdSocket,
		"CONTAINERD_NAMESPACE=k8s.io",
		"CONTAINERD_SUPPRESS_DEPRECATION_WARNINGS=1", // about cgroup version 1, at every call of ctr
	}
}

func (containerd) load(ctx context.Context, c *Cluster, n Node, archive io.Reader, _ []string) error {
	_, err := c.run(ctx, n.Name, archive, "ctr", "images", "import", "-")
	return err
}

func (containerd) tag(ctx context.Context, c *Cluster, n Node, image, name string) error {
	_, err := c.run(ctx, n.Name, nil, "ctr", "images", "tag", image, name)
	return err
}

func (r containerd) addFiles(files map[string][]byte, c *Cluster, n Node) {
	files[containerdConfigPath] = []byte(r.config(c, n))
}

func (r containerd) config(c *Cluster, n Node) string {
	if strings.HasPrefix(string(r), "1.") {
		return r.configV2(c, n)
	}
	return fmt.Sprintf(`version = 3
root = "/var/lib/containerd"
state = "/run/containerd"

[grpc]
  address = %[1]q

[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"

[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = %[2]q
%[4]s
[plugins."io.containerd.cri.v1.runtime"]
  # Where root lacks CAP_SYS_RESOURCE, lowering a process's score is refused.
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = [%[3]q]
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      SystemdCgroup = false
`, containerdSocket, n.PauseImage, c.path(binDir), r.registry())
}

// registry returns the section that makes containerd read hosts.toml. Since 2.2 it is absent, as in the configuration of
// kubeadm's nodes, because containerd then has a default.
func (r containerd) registry() string {
	if r == "2.1" {
		return `  [plugins."io.containerd.cri.v1.images".registry]
    config_path = "/etc/containerd/certs.d"
`
	}
	return ""
}

// configV2 is what containerd 1 reads.
func (containerd) configV2(c *Cluster, n Node) string {
	return fmt.Sprintf(`version = 2
root = "/var/lib/containerd"
state = "/run/containerd"

[grpc]
  address = %[1]q

[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %[2]q
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "/etc/containerd/certs.d"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %[3]q
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
`, containerdSocket, n.PauseImage, c.path(binDir))
}
