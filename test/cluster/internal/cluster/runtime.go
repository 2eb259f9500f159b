package cluster

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/zarf-dev/zarf-registry/test/cluster/internal/image"
)

const (
	pauseProgram = "pause"
	pauseUser    = "65535:65535" // as in Kubernetes' pause image
)

// A containerRuntime is the container runtime of a node. Names of runtimes are those of recipes: containerd-2.4.
type containerRuntime interface {
	// name is that of its process, without the node.
	name() string
	// socket is the path of its CRI socket on the node.
	socket() string
	// command is its program with arguments.
	command() []string
	// environment is for its process and for commands on the node.
	environment() []string
	// addFiles adds its configuration to the files of a node.
	addFiles(files map[string][]byte, c *Cluster, n Node)
	// load imports an image archive, whose images have the given names.
	load(ctx context.Context, c *Cluster, n Node, archive io.Reader, images []string) error
	// tag gives an image of the node a second name.
	tag(ctx context.Context, c *Cluster, n Node, image, name string) error
}

// runtimeOf returns the runtime that a name such as containerd-2.4 stands for.
func runtimeOf(name string) (containerRuntime, error) {
	program, version, _ := strings.Cut(name, "-")
	switch {
	case version == "":
	case program == "containerd":
		return containerd(version), nil
	case program == "crio":
		return crio(version), nil
	}
	return nil, fmt.Errorf("invalid container runtime %q: want a name such as containerd-2.4 or crio-1.34", name)
}

// runtime returns the node's container runtime. Options.Validate and AddNode have checked its name.
func (n Node) runtime() containerRuntime {
	r, err := runtimeOf(n.Runtime)
	if err != nil {
		panic(err)
	}
	return r
}

// startRuntime starts a node's container runtime.
func (c *Cluster) startRuntime(ctx context.Context, n Node) error {
	r := n.runtime()
	if err := c.start(Process{ID: processID(r.name(), n.Name), Node: n.Name, Args: r.command()}); err != nil {
		return err
	}
	return c.waitForRuntime(ctx, n)
}

func (c *Cluster) waitForRuntime(ctx context.Context, n Node) error {
	id := processID(n.runtime().name(), n.Name)
	return c.waitFor(ctx, id, "a response", startTimeout, func(ctx context.Context) error {
		// By way of CRI, which containerd initializes later than itself: without it, a kubelet exits.
		_, err := c.run(ctx, n.Name, nil, "cri-version", n.runtime().socket())
		return err
	})
}

func (c *Cluster) loadPauseImage(ctx context.Context, n Node) error {
	program, err := os.ReadFile(c.path(binDir, pauseProgram))
	if err != nil {
		return fmt.Errorf("reading the pause program: %w", err)
	}
	layer, err := image.NewLayer(image.File{Name: pauseProgram, Content: program})
	if err != nil {
		return err
	}
	return c.loadImages(ctx, n, image.Image{
		Reference: n.PauseImage, Layers: []image.Layer{layer}, Entrypoint: []string{"/" + pauseProgram},
		User: pauseUser,
	})
}

// loadImages writes images and loads them on a node.
func (c *Cluster) loadImages(ctx context.Context, n Node, images ...image.Image) error {
	var archive bytes.Buffer
	digests, err := image.Write(&archive, images...)
	if err != nil {
		return err
	}
	var names []string
	for _, i := range images {
		names = append(names, i.Reference)
	}
	if err := n.runtime().load(ctx, c, n, &archive, names); err != nil {
		return fmt.Errorf("loading %s: %w", strings.Join(names, ", "), err)
	}
	// A node that has pulled an image also knows it by digest.
	for i, name := range names {
		repository := name[:strings.LastIndex(name, ":")]
		if err := n.runtime().tag(ctx, c, n, name, repository+"@"+digests[i]); err != nil {
			return fmt.Errorf("naming %s by its digest: %w", name, err)
		}
	}
	return nil
}
