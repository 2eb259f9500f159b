package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/zarf-dev/zarf-registry/test/cluster/internal/image"
)

const kubeRouterImage = "docker.io/cloudnativelabs/kube-router:latest"

// kubeadmVersion returns the version of kubeadm in a directory: v1.36.3.
func (c *Cluster) kubeadmVersion(ctx context.Context, programs string) (string, error) {
	out, err := exec.CommandContext(ctx, filepath.Join(programs, kubeadm), "version", "--output=short").Output()
	if err != nil {
		return "", fmt.Errorf("asking kubeadm for its version: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// kubeadmImages returns the images that kubeadm names, and that of the network of pods. Kubernetes' programs are those of
// a directory, and the rest the cluster's.
func (c *Cluster) kubeadmImages(ctx context.Context, programs string) ([]image.Image, error) {
	version, err := c.kubeadmVersion(ctx, programs)
	if err != nil {
		return nil, err
	}
	list, err := exec.CommandContext(ctx, filepath.Join(programs, kubeadm), "config", "images", "list",
		"--kubernetes-version="+version).Output()
	if err != nil {
		return nil, fmt.Errorf("asking kubeadm for its images: %w", err)
	}
	debian, err := debianLayer(ctx)
	if err != nil {
		return nil, err
	}
	// One program for all of Kubernetes, which finds its name in its first argument.
	kubernetes, err := programLayer(programs, apiServer, manager, scheduler, kubeProxy)
	if err != nil {
		return nil, err
	}
	var images []image.Image
	for _, reference := range append(strings.Fields(string(list)), kubeRouterImage) {
		i := image.Image{Reference: reference}
		name, _, _ := strings.Cut(path.Base(reference), ":")
		switch name {
		case apiServer, manager, scheduler:
			i.Layers = []image.Layer{kubernetes}
		case kubeProxy:
			i.Layers = []image.Layer{debian, kubernetes}
		default:
			own, err := programLayer(c.path(binDir), name)
			if err != nil {
				return nil, err
			}
			i.Layers, i.Entrypoint = []image.Layer{own}, []string{"/usr/local/bin/" + name}
			switch name {
			case kubeRouter:
				i.Layers = []image.Layer{debian, own}
			case pauseProgram:
				i.User = pauseUser
			}
		}
		images = append(images, i)
	}
	return images, nil
}

// programLayer returns a layer with a program of a directory, and with links to it of other names.
func programLayer(dir, name string, links ...string) (image.Layer, error) {
	content, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return image.Layer{}, fmt.Errorf("packing an image: %w", err)
	}
	files := []image.File{{Name: "usr/local/bin/" + name, Content: content}}
	for _, link := range links {
		files = append(files, image.File{Name: "usr/local/bin/" + link, Link: name})
	}
	return image.NewLayer(files...)
}

// debianLayer returns a layer with what kube-proxy and kube-router call, from this machine, and the libraries of those
// programs.
func debianLayer(ctx context.Context) (image.Layer, error) {
	var files []string
	for _, program := range []string{"iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save",
		"ip6tables-restore", "nft", "conntrack", "ipset", "ip", "/bin/sh", "cp", "mv", "rm"} {
		found, err := exec.LookPath(program)
		if err != nil {
			return image.Layer{}, fmt.Errorf("packing an image: %w", err)
		}
		files = append(files, found)
	}
	extensions, err := filepath.Glob("/usr/lib/*/xtables/*.so")
	if err != nil {
		return image.Layer{}, err
	}
	files = append(files, extensions...)
	out, err := exec.CommandContext(ctx, "ldd", files...).Output()
	if err != nil {
		return image.Layer{}, fmt.Errorf("looking for the libraries of %s: %w", files[0], err)
	}
	for line := range strings.Lines(string(out)) { // "name => /path (address)", "/path (address)" or "/program:"
		for _, word := range strings.Fields(line) {
			if strings.HasPrefix(word, "/") && !strings.HasSuffix(word, ":") {
				files = append(files, word)
			}
		}
	}
	// Without names of protocols, nft prints their numbers, and a kube-proxy that starts again deletes the rules of its
	// Services in nftables mode.
	files = append(files, "/etc/protocols")
	if tables, err := filepath.Glob("/etc/iproute2/rt_tables"); err == nil { // kube-router adds one of its own
		files = append(files, tables...)
	}
	slices.Sort(files)
	var content []image.File
	for _, file := range slices.Compact(files) {
		data, err := os.ReadFile(file)
		if err != nil {
			return image.Layer{}, fmt.Errorf("packing an image: %w", err)
		}
		content = append(content, image.File{Name: strings.TrimPrefix(file, "/"), Content: data})
	}
	return image.NewLayer(content...)
}
