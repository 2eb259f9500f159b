package output

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/internal/oci"
)

// tarBlock is the block size of a tar archive (POSIX.1, ustar).
const tarBlock = 512

// archiveEntry is a file in an archive that is written.
type archiveEntry struct {
	name     string
	metadata []byte             // or nil, and the rest describes a blob or manifest
	desc     ocispec.Descriptor // the size is always set
}

// header returns the entry's header, as it is in the tar. It does not depend on user or time.
func (e archiveEntry) header() ([]byte, error) {
	var header bytes.Buffer
	if err := tar.NewWriter(&header).WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: e.name, Size: e.desc.Size,
		Mode: 0o444, ModTime: time.Unix(0, 0)}); err != nil {
		return nil, fmt.Errorf("%s: %w", e.name, err)
	}
	return header.Bytes(), nil
}

// padded returns how much of a tar the content of a file takes.
func padded(size int64) int64 { return (size + tarBlock - 1) / tarBlock * tarBlock }

// archiveEntries returns the files of an archive: its metadata, and then its content ordered by digest, without blobs
// that omit selects.
func archiveEntries(images []Image, omit func(ocispec.Descriptor) bool) ([]archiveEntry, error) {
	index := ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageIndex,
		Manifests: []ocispec.Descriptor{},
	}
	var blobs []archiveEntry
	seen := map[digest.Digest]bool{}
	for _, image := range images {
		for _, node := range image.Nodes {
			if omit(node) {
				index.Annotations = map[string]string{graph.AnnotationThin: "true"}
				continue
			}
			if !seen[node.Digest] {
				seen[node.Digest] = true
				blobs = append(blobs, archiveEntry{name: oci.BlobPath(node.Digest), desc: node})
			}
		}
		desc, err := graph.Named(image.Image)
		if err != nil {
			return nil, err
		}
		graph.AddToIndex(&index, desc)
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
