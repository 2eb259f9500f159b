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

	"github.com/zarf-dev/zarf-registry/internal/oci"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// tarBlock is the block size of a tar archive (POSIX.1, ustar).
const tarBlock = 512

// fileHeader returns a tar header that does not depend on user or time.
func fileHeader(name string, size, mode int64) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: mode, ModTime: epoch}
}

// WriteArchive writes whole images as an OCI archive, a tar of an OCI layout. ctr, nerdctl, docker
// (since 25), podman, skopeo and [Open] read it. Equal images give equal bytes.
func WriteArchive(ctx context.Context, w io.Writer, src Content, images ...Image) error {
	complete := func(ocispec.Descriptor) bool { return false }
	if err := writeArchive(ctx, w, Items(src, images...), complete); err != nil {
		return fmt.Errorf("image archive: %w", err)
	}
	return nil
}

// annotationThin is the annotation of the index.json of a thin archive.
const annotationThin = "dev.zarf.registry.thin"

// writeArchive leaves out blobs that omit selects.
func writeArchive(ctx context.Context, w io.Writer, items []Item, omit func(ocispec.Descriptor) bool) error {
	index, blobs, err := archived(ctx, items, omit)
	if err != nil {
		return err
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
			return fmt.Errorf("%s: %w", file.name, err)
		}
		if err := writeFile(tw, file.name, int64(len(raw)), bytes.NewReader(raw)); err != nil {
			return err
		}
	}
	for _, blob := range blobs {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := blob.write(ctx, tw); err != nil {
			return fmt.Errorf("image %s: %w", blob.image, err)
		}
	}
	return tw.Close()
}

// archivedBlob is a blob or a manifest of an archive.
type archivedBlob struct {
	ocispec.Descriptor
	from  Content
	image string // the first that contains it
}

func (b archivedBlob) write(ctx context.Context, tw *tar.Writer) error {
	rc, err := b.from.Fetch(ctx, b.Descriptor)
	if err != nil {
		return wrapDescriptor(b.Descriptor, err)
	}
	defer rc.Close()
	return writeFile(tw, oci.BlobPath(b.Digest), b.Size, rc)
}

// archived returns the index of an archive, and its content ordered by digest.
func archived(ctx context.Context, items []Item, omit func(ocispec.Descriptor) bool) (
	index ocispec.Index, blobs []archivedBlob, err error,
) {
	index = ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageIndex,
		Manifests: []ocispec.Descriptor{},
	}
	seen := map[digest.Digest]bool{}
	for _, item := range items {
		nodes, err := graph(ctx, item.Content, item.Descriptor)
		if err != nil {
			return index, nil, fmt.Errorf("image %s: %w", item.name(), err)
		}
		for _, node := range nodes {
			if omit(node) {
				index.Annotations = map[string]string{annotationThin: "true"}
				continue
			}
			if !seen[node.Digest] {
				seen[node.Digest] = true
				blobs = append(blobs, archivedBlob{node, item.Content, item.name()})
			}
		}
		desc, err := named(item.Image)
		if err != nil {
			return index, nil, err
		}
		addToIndex(&index, desc)
	}
	slices.SortFunc(blobs, func(a, b archivedBlob) int { return strings.Compare(string(a.Digest), string(b.Digest)) })
	return index, blobs, nil
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
