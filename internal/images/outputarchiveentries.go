package images

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/oci"
)

// tarBlock is the block size of a tar archive (POSIX.1, ustar).
const tarBlock = 512

// fileHeader returns a tar header that does not depend on user or time.
func fileHeader(name string, size, mode int64) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: mode, ModTime: epoch}
}

// annotationThin is the annotation of the index.json of a thin archive.
const annotationThin = "dev.zarf.registry.thin"

// archiveEntry is a file in an archive that is written.
type archiveEntry struct {
	name     string
	metadata []byte             // or nil, and the rest describes a blob or manifest
	desc     ocispec.Descriptor // the size is always set
}

// header returns the entry's header, as it is in the tar.
func (e archiveEntry) header() ([]byte, error) {
	var header bytes.Buffer
	if err := tar.NewWriter(&header).WriteHeader(fileHeader(e.name, e.desc.Size, 0o444)); err != nil {
		return nil, fmt.Errorf("%s: %w", e.name, err)
	}
	return header.Bytes(), nil
}

// padded returns how much of a tar the content of a file takes.
func padded(size int64) int64 { return (size + tarBlock - 1) / tarBlock * tarBlock }

// archiveEntries returns the files of an archive: its metadata, and then its content ordered by digest, without blobs
// that omit selects.
func archiveEntries(images []*imagePull, omit func(ocispec.Descriptor) bool) ([]archiveEntry, error) {
	index := ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageIndex,
		Manifests: []ocispec.Descriptor{},
	}
	var blobs []archiveEntry
	seen := map[digest.Digest]bool{}
	for _, image := range images {
		for _, node := range image.nodes {
			if omit(node) {
				index.Annotations = map[string]string{annotationThin: "true"}
				continue
			}
			if !seen[node.Digest] {
				seen[node.Digest] = true
				blobs = append(blobs, archiveEntry{name: oci.BlobPath(node.Digest), desc: node})
			}
		}
		desc, err := named(image.Image)
		if err != nil {
			return nil, err
		}
		addToIndex(&index, desc)
	}
	slices.SortFunc(blobs, func(a, b archiveEntry) int {
		return strings.Compare(string(a.desc.Digest), string(b.desc.Digest))
	})
	var entries []archiveEntry
	for _, file := range []struct {
		name    string
		content any
	}{
		{ocispec.ImageLayoutFile, ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion}},
		{ocispec.ImageIndexFile, index},
	} {
		raw, err := json.Marshal(file.content)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file.name, err)
		}
		entries = append(entries, archiveEntry{name: file.name, metadata: raw,
			desc: ocispec.Descriptor{Size: int64(len(raw))}})
	}
	return append(entries, blobs...), nil
}
