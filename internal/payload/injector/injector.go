// Package injector defines the payload: the format in which a program is delivered to nodes that
// have no image of it.
//
// The payload of a program consists of the gzip-compressed layer of the program's own image, cut
// into chunks that fit into ConfigMaps, and a manifest with the checksums of the chunks and the
// whole. The loader, a freestanding C program (see the folder loader), runs in a pod whose image is
// the node's pause image. It joins the chunks and executes the program.
//
// The package builds, splits and names payloads, and parses their manifests. It does no I/O, writes no
// ConfigMaps and does not build programs.
//
// # Layer
//
// A layer is one gzip member (RFC 1952, best compression, no name, no time) and nothing else. It
// contains a USTAR archive: one header block of 512 bytes for a regular file with the program's
// name, mode 0555, uid and gid 0, time 0; the program; zeros up to a full block; two blocks of
// zeros. The program therefore starts at byte 512 of the inflated layer. The same program always
// results in the same layer.
//
// # Objects
//
// A layer is cut into chunks of [ChunkSize] bytes; the last one may be smaller. Object NN (two
// decimal digits from 00) is the binary data of one ConfigMap, named by [ConfigMapName]:
//
//	chunk-NN    the chunk
//	loader      object 00 only: the loader for the program's architecture
//	manifest    object 00 only: the manifest
//
// Object 00 is written last: once it exists, so do all the others.
//
// # Manifest
//
// ASCII text of at most [MaxManifestSize] bytes. Every line ends with one line feed, and words are
// separated by one space. The encoding is canonical: numbers are decimal without sign and leading
// zeros, SHA-256 sums are 64 lower-case hexadecimal digits, NAME is 1 to 32 of a-z, 0-9 and '-'.
// The lines are, in this order:
//
//	zarf-registry payload 1
//	program NAME
//	architecture NAME
//	layer-size BYTES          1 to 64 MiB, the sum of the chunks
//	layer-sha256 HEX          of all chunks joined; the digest of the image layer
//	program-offset BYTES      0 to 65536, where the program starts in the inflated layer
//	program-size BYTES        1 to 256 MiB
//	program-sha256 HEX
//	chunks COUNT              1 to 64
//	chunk NN BYTES HEX        COUNT times, NN in order from 00; 1 to 1048576 bytes
//
// At most 10240 bytes may follow the program in the inflated layer. The loader verifies everything
// except layer-sha256, which follows from the chunks.
package injector

import (
	"fmt"
	"regexp"
)

const (
	// ChunkSize is the size of every chunk except the last. A ConfigMap holds at most 1 MiB in all its
	// values, and object 00 also contains the loader and the manifest.
	ChunkSize = 1_000_000

	// MaxObjectSize is the maximum size of the values of a ConfigMap in Kubernetes, in bytes.
	MaxObjectSize = 1 << 20

	// MaxManifestSize is in bytes. The other limits allow manifests of up to about 5.7 KB.
	MaxManifestSize = 8192

	// MaxLoaderSize is what remains for the loader in object 00, in bytes: 40,384.
	MaxLoaderSize = MaxObjectSize - ChunkSize - MaxManifestSize

	// MaxProgramSize is in bytes. It limits what a loader writes to a node because a manifest says so.
	MaxProgramSize = 256 << 20

	// MaxChunks is the maximum number of chunks in a manifest, and the limit for programs that the
	// chart does not know.
	MaxChunks = 64

	// MaxChunksRegistry and MaxChunksRegistryNode are the numbers of ConfigMaps that the chart's pod
	// templates list as sources of the payload volume. A kubelet watches each of them for each pod,
	// whether it exists or not, so the proxies, which run on all nodes, list only one more than they
	// currently need.
	MaxChunksRegistry     = 16
	MaxChunksRegistryNode = 5
)

const (
	maxChunkSize     = MaxObjectSize
	maxProgramOffset = 65536
)

var nameForm = regexp.MustCompile(`^[a-z0-9-]{1,32}$`)

// Keys of an object's data. [ChunkKey] returns those of chunks.
const (
	LoaderKey   = "loader"
	ManifestKey = "manifest"
)

// ChunkKey returns the key of the chunk in the object with this index, 0 to 99.
func ChunkKey(index int) string { return fmt.Sprintf("chunk-%02d", index) }

// Program identifies the program of a payload.
type Program struct {
	Name         string // the file name in the layer, such as registry-node
	Architecture string // as in GOARCH
}

func (p Program) String() string { return p.Name + " for " + p.Architecture }

// Key is the name of the program in file names and in the chart's list of digests.
func (p Program) Key() string { return p.Name + "-" + p.Architecture }

// MaxChunks returns the maximum number of chunks of the program's payload.
func (p Program) MaxChunks() int {
	switch p.Name {
	case "registry":
		return MaxChunksRegistry
	case "registry-node":
		return MaxChunksRegistryNode
	default:
		return MaxChunks
	}
}

func (p Program) validate() error {
	if !nameForm.MatchString(p.Name) {
		return fmt.Errorf("program name %q: must be 1 to 32 of a-z, 0-9 and '-'", p.Name)
	}
	if !nameForm.MatchString(p.Architecture) {
		return fmt.Errorf("architecture %q: must be 1 to 32 of a-z, 0-9 and '-'", p.Architecture)
	}
	return nil
}

// HandsOver reports whether running pods take over a changed program, because their loader supervises
// it. The names of its ConfigMaps, which a pod cannot change, are then always the same.
func (p Program) HandsOver() bool { return p.Name == "registry-node" }

// ConfigMapName returns the name of the ConfigMap for the object with this index (0 to 99). prefix
// is the chart's full name; id is that of settings.Injector, which the names of programs that hand
// over do not contain.
func ConfigMapName(prefix, id string, p Program, index int) string {
	if p.HandsOver() {
		return fmt.Sprintf("%s-payload-%s-%02d", prefix, p.Key(), index)
	}
	return fmt.Sprintf("%s-payload-%s-%s-%02d", prefix, id, p.Key(), index)
}
