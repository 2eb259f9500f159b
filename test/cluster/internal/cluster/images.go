package cluster

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// An Archive is an image archive and the node to load it on.
type Archive struct {
	Path string
	// Node is empty for all nodes.
	Node string
}

// ValidateArchive checks the path of an image archive.
func ValidateArchive(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("image archive: %w", err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("image archive %s is not a file: want a tar of an OCI layout or from docker save", path)
	}
	return nil
}

// Load imports image archives into the container runtime of nodes. With wait, it returns once the
// nodes report the images, which takes up to half a minute.
func (c *Cluster) Load(ctx context.Context, archives, nodes []string, wait bool) error {
	var errs []error
	for _, archive := range archives {
		errs = append(errs, ValidateArchive(archive))
	}
	for _, name := range nodes {
		_, err := c.node(name)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, node := range nodes {
		group.Go(func() error {
			var loaded []string
			for _, archive := range archives {
				images, err := c.loadImage(ctx, node, archive)
				if err != nil {
					return err
				}
				loaded = append(loaded, images...)
			}
			if !wait {
				return nil
			}
			return c.waitForReport(ctx, client, node, loaded)
		})
	}
	return group.Wait()
}

// loadImage imports an archive into a node's container runtime and returns the names of its images.
func (c *Cluster) loadImage(ctx context.Context, node, archive string) ([]string, error) {
	n, err := c.node(node)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(archive)
	if err != nil {
		return nil, fmt.Errorf("loading an image: %w", err)
	}
	defer f.Close()
	images, err := archiveImages(f)
	if err != nil {
		return nil, fmt.Errorf("loading %s: %w (want a tar of an OCI layout or from docker save)", archive, err)
	}
	if len(images) == 0 {
		return nil, fmt.Errorf("loading %s: no image has a name", archive)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("loading %s: %w", archive, err)
	}
	if err := n.runtime().load(ctx, c, n, f, images); err != nil {
		return nil, fmt.Errorf("loading %s: %w", archive, err)
	}
	c.log("%s: loaded %s", node, strings.Join(images, ", "))
	return images, nil
}

// archiveImages reads image names from the archive's index, because ctr formats its output for display,
// with spaces instead of hyphens.
func archiveImages(archive io.Reader) ([]string, error) {
	var images []string
	tr := tar.NewReader(archive)
	for {
		header, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return images, nil
		}
		if err != nil {
			return nil, err
		}
		switch header.Name {
		case "index.json":
			var index struct {
				Manifests []struct{ Annotations map[string]string }
			}
			if err := json.NewDecoder(tr).Decode(&index); err != nil {
				return nil, fmt.Errorf("index.json: %w", err)
			}
			for _, m := range index.Manifests {
				if name := m.Annotations["io.containerd.image.name"]; name != "" && !slices.Contains(images, name) {
					images = append(images, name)
				}
			}
		case "manifest.json":
			var manifests []struct{ RepoTags []string }
			if err := json.NewDecoder(tr).Decode(&manifests); err != nil {
				return nil, fmt.Errorf("manifest.json: %w", err)
			}
			for _, m := range manifests {
				for _, name := range m.RepoTags {
					if !slices.Contains(images, name) {
						images = append(images, name)
					}
				}
			}
		}
	}
}

func (c *Cluster) waitForReport(ctx context.Context, client kubernetes.Interface, name string, images []string) error {
	return c.waitFor(ctx, processID(kubelet, name), "the report of new images", startTimeout,
		func(ctx context.Context) error {
			node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			var reported []string
			for _, image := range node.Status.Images {
				reported = append(reported, image.Names...)
			}
			for _, image := range images {
				if !slices.Contains(reported, image) {
					return fmt.Errorf("node %s does not report %s", name, image)
				}
			}
			return nil
		})
}
