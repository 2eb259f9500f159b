// Package images copies container images and other OCI artifacts between registries, OCI layouts, archives and the
// Docker engine: [Push] sends them to a registry, and [Pull] writes them to a layout or an archive.
//
// Package source finds images, and package output writes them to files. An image is what package graph says.
// Package build makes the project's own images. Package name parses the names of images, package remote speaks to
// registries, and package blobstore keeps blobs. None of them unpacks layers or knows Kubernetes.
package images

import (
	"context"
	"errors"

	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/internal/images/output"
)

// WriteArchive writes whole images as an OCI archive, a tar of an OCI layout. ctr, nerdctl, docker
// (since 25), podman and skopeo read it. Equal images give equal bytes.
func WriteArchive(ctx context.Context, path string, src graph.Content, images ...graph.Image) error {
	archive, err := output.CreateArchive(path)
	if err != nil {
		return err
	}
	_, err = Pull(ctx, graph.Items(src, images...), archive, Options{FailFast: true})
	return errors.Join(err, archive.Close())
}
