package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/zarf-dev/zarf-registry/test/cluster/internal/image"
)

const (
	containerd           = "containerd"
	containerdConfigPath = "/etc/containerd/config.toml"
	containerdSocket     = "/run/containerd/containerd.sock"
	pauseProgram         = "pause"
)

func (c *Cluster) containerdConfig(n Node) string {
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
  [plugins."io.containerd.cri.v1.images".registry]
    config_path = "/etc/containerd/certs.d"

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
`, containerdSocket, n.PauseImage, c.path(binDir))
}

// cniConfig configures the network of a node's pods: a bridge, addresses from the node's range, and
// host ports.
func (c *Cluster) cniConfig(n Node) string {
	type object = map[string]any
	var ranges [][]object
	var routes []object
	for _, pods := range c.Options.Family.NodePods(n.Index) {
		ranges = append(ranges, []object{{"subnet": pods.String()}})
		everything := "0.0.0.0/0"
		if pods.Addr().Is6() {
			everything = "::/0"
		}
		routes = append(routes, object{"dst": everything})
	}
	content, err := json.MarshalIndent(object{
		"cniVersion": "1.0.0",
		"name":       "testcluster",
		"plugins": []object{
			{
				"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
				"ipam": object{"type": "host-local", "ranges": ranges, "routes": routes},
			},
			{"type": "portmap", "backend": c.Options.PortMap, "capabilities": object{"portMappings": true}},
		},
	}, "", "  ")
	if err != nil { // only maps and strings
		panic(err)
	}
	return string(content) + "\n"
}

// startContainerd starts a node's container runtime.
func (c *Cluster) startContainerd(ctx context.Context, n Node) error {
	id := processID(containerd, n.Name)
	if err := c.start(Process{ID: id, Node: n.Name, Args: []string{containerd,
		"--config=" + containerdConfigPath}}); err != nil {
		return err
	}
	return c.waitForContainerd(ctx, n.Name)
}

func (c *Cluster) loadPauseImage(ctx context.Context, n Node) error {
	program, err := os.ReadFile(c.path(binDir, pauseProgram))
	if err != nil {
		return fmt.Errorf("reading the pause program: %w", err)
	}
	var archive bytes.Buffer
	digest, err := image.Write(&archive, n.PauseImage, pauseProgram, program)
	if err != nil {
		return err
	}
	if _, err := c.run(ctx, n.Name, &archive, "ctr", "images", "import", "-"); err != nil {
		return fmt.Errorf("loading the pause image: %w", err)
	}
	// A node that has pulled an image also knows it by digest.
	repository := n.PauseImage[:strings.LastIndex(n.PauseImage, ":")]
	if _, err := c.run(ctx, n.Name, nil, "ctr", "images", "tag", n.PauseImage, repository+"@"+digest); err != nil {
		return fmt.Errorf("naming the pause image by its digest: %w", err)
	}
	return nil
}

func (c *Cluster) waitForContainerd(ctx context.Context, node string) error {
	return c.waitFor(ctx, processID(containerd, node), "a response", 30*time.Second, func(ctx context.Context) error {
		// By way of CRI, which is initialized later than containerd itself: without it, a kubelet exits.
		_, err := c.run(ctx, node, nil, "crictl", "version")
		return err
	})
}
