package images

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
)

// tarBlock is the unit of a tar archive (POSIX.1, ustar).
const tarBlock = 512

// fileHeader is a file in a tar that is the same whoever writes it and when.
func fileHeader(name string, size, mode int64) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: mode, ModTime: epoch}
}

// WriteArchive writes images, whole, as an OCI archive: a tar of an OCI layout,
// which ctr, nerdctl, docker (from 25 on), podman, skopeo and [Open] read. Each
// image has its name in the annotations io.containerd.image.name and, its tag
// alone, org.opencontainers.image.ref.name. Equal images give the same bytes.
func WriteArchive(ctx context.Context, w io.Writer, src content.ReadOnlyStorage, list ...Image) error {
	index := ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageIndex,
	}
	blobs := map[digest.Digest]ocispec.Descriptor{}
	for _, image := range list {
		nodes, err := graph(ctx, src, image.Descriptor)
		if err != nil {
			return fmt.Errorf("image %s: %w", image.name(), err)
		}
		for _, node := range nodes {
			blobs[node.Digest] = node
		}
		desc := image.Descriptor
		if image.Reference != "" {
			named, err := reference.ParseDockerRef(image.Reference)
			if err != nil {
				return fmt.Errorf("image reference %q: %w", image.Reference, err)
			}
			desc.Annotations = map[string]string{annotationContainerdName: named.String()}
			if tagged, ok := named.(reference.Tagged); ok {
				desc.Annotations[ocispec.AnnotationRefName] = tagged.Tag()
			}
		}
		index.Manifests = append(index.Manifests, desc)
	}

	tw := tar.NewWriter(w)
	for _, file := range []struct {
		name    string
		content any
	}{
		{ocispec.ImageLayoutFile, ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion}},
		{ocispec.ImageIndexFile, index},
	} {
		raw, err := json.Marshal(file.content)
		if err != nil {
			return fmt.Errorf("image archive: %s: %w", file.name, err)
		}
		if err := writeFile(tw, file.name, int64(len(raw)), bytes.NewReader(raw)); err != nil {
			return fmt.Errorf("image archive: %w", err)
		}
	}
	sorted := make([]ocispec.Descriptor, 0, len(blobs))
	for _, desc := range blobs {
		sorted = append(sorted, desc)
	}
	slices.SortFunc(sorted, func(a, b ocispec.Descriptor) int {
		return strings.Compare(string(a.Digest), string(b.Digest))
	})
	for _, desc := range sorted {
		if err := ctx.Err(); err != nil {
			return err
		}
		rc, err := src.Fetch(ctx, desc)
		if err != nil {
			return fmt.Errorf("image archive: %w", blame(desc, err))
		}
		err = writeFile(tw, blobPath(desc.Digest), desc.Size, rc)
		rc.Close()
		if err != nil {
			return fmt.Errorf("image archive: %w", err)
		}
	}
	if err := tw.Close(); err != nil {
		return fmt.Errorf("image archive: %w", err)
	}
	return nil
}

func writeFile(tw *tar.Writer, name string, size int64, r io.Reader) error {
	if err := tw.WriteHeader(fileHeader(name, size, 0o444)); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if _, err := io.Copy(tw, r); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// blobPath is where an OCI layout has a blob. The digest must be valid.
func blobPath(d digest.Digest) string {
	return ocispec.ImageBlobsDir + "/" + d.Algorithm().String() + "/" + d.Encoded()
}
