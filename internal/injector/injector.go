// Package injector defines the payload: the form in which a program travels to nodes that hold no image of it.
//
// The payload of a program is the gzip-compressed layer of the program's own image, cut into pieces that fit into ConfigMaps, and a
// manifest that says how to check each piece and the whole. In a pod whose image is the node's pause image, the loader (a
// freestanding C program, see the folder loader) puts the pieces together and executes what comes out.
//
// The package builds, cuts, names, parses and verifies payloads. It writes no ConfigMap, knows no Kubernetes type, does no I/O and
// does not build programs.
//
// # Layer
//
// A layer is one gzip member (RFC 1952, best compression, no name, no time) and nothing after it. It holds a USTAR archive: one header
// block of 512 bytes for a regular file with the program's name, mode 0555, uid and gid 0, time 0; the program; zeros up to a full
// block; two blocks of zeros. So the program begins at byte 512 of what the layer inflates to. The same program always
// gives the same layer.
//
// # Objects
//
// A layer is cut into chunks of [ChunkSize] bytes, of which the last may be smaller. Object NN (two decimal digits from 00) is the
// binary data of one ConfigMap, whose name [ConfigMapName] gives:
//
//	chunk-NN    the chunk
//	loader      object 00 only: the loader for the program's architecture
//	manifest    object 00 only: the manifest
//
// Object 00 is written last, so that whoever sees it can expect all the others.
//
// # Manifest
//
// ASCII text of at most [MaxManifestSize] bytes. Every line ends with one line feed, words are separated by one space. There is
// exactly one way to write a manifest: numbers are decimal without sign and without leading zeros, SHA-256 sums are 64 lower-case
// hexadecimal digits, NAME is 1 to 32 of a-z, 0-9 and '-'. In this order, nothing before, between or after:
//
//	zarf-registry payload 1
//	program NAME
//	architecture NAME
//	layer-size BYTES          1 to 64 MiB, the sum of the chunks
//	layer-sha256 HEX          of all chunks joined; the digest of the image layer
//	program-offset BYTES      0 to 65536, where the program begins in the inflated layer
//	program-size BYTES        1 to 256 MiB
//	program-sha256 HEX
//	chunks COUNT              1 to 64
//	chunk NN BYTES HEX        COUNT times, NN in order from 00; 1 to 1048576 bytes
//
// After the program the inflated layer may hold at most 10240 bytes more. The loader checks everything but layer-sha256, which follows from
// the chunks.
package injector

import (
	"fmt"
	"regexp"
	"strings"
)

const (
	// ChunkSize is the number of bytes of every chunk but the last. A ConfigMap holds at most 1 MiB in all its values, and object 00 holds
	// the loader and the manifest besides its chunk.
	ChunkSize = 1_000_000

	// MaxObjectSize is the most that Kubernetes accepts in the values of one ConfigMap, in bytes.
	MaxObjectSize = 1 << 20

	// MaxManifestSize is in bytes. The longest manifest that the other limits allow is about 5.7 KB.
	MaxManifestSize = 8192

	// MaxLoaderSize is what object 00 has left for the loader, in bytes: 40,384.
	MaxLoaderSize = MaxObjectSize - ChunkSize - MaxManifestSize

	// MaxProgramSize is in bytes. It bounds what a loader writes to a node on the word of a manifest.
	MaxProgramSize = 256 << 20

	// MaxChunks is the most chunks that a manifest can name, and the limit for programs that the chart does not know.
	MaxChunks = 64

	// MaxChunksRegistry and MaxChunksRegistryNode are how many ConfigMaps the chart's pod templates name as sources of the
	// payload volume of these two programs. A kubelet watches every one of them for every pod, whether it exists or not, so the
	// proxies, which are on all nodes, name one more than they need today.
	MaxChunksRegistry     = 16
	MaxChunksRegistryNode = 5
)

const (
	maxChunkSize     = MaxObjectSize
	maxProgramOffset = 65536
	maxTrailer       = 20 * tarBlock // some writers of tar archives fill up to 20 blocks
)

var nameForm = regexp.MustCompile(`^[a-z0-9-]{1,32}$`)

// The keys of an object's data. The key of a chunk comes from [ChunkKey].
const (
	LoaderKey   = "loader"
	ManifestKey = "manifest"
)

// ChunkKey returns the key of the chunk in the object of this index, 0 to 99.
func ChunkKey(index int) string { return fmt.Sprintf("chunk-%02d", index) }

// Program is what a payload carries.
type Program struct {
	Name         string // the file's name in the layer, such as registry-node
	Architecture string // as in GOARCH
}

func (p Program) String() string { return p.Name + " for " + p.Architecture }

// MaxChunks returns how many chunks a payload of the program may have.
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

// ConfigMapName returns the name of the ConfigMap that holds the object of this index (0 to 99). The prefix is the chart's full
// name, the id comes from [PayloadID].
func ConfigMapName(prefix, id string, p Program, index int) string {
	return fmt.Sprintf("%s-payload-%s-%s-%s-%02d", prefix, id, p.Name, p.Architecture, index)
}

// maxIDLength keeps the names of payload ConfigMaps readable in a terminal.
const maxIDLength = 20

var (
	// distribution/reference's grammar of a tag.
	tagForm    = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)
	digestForm = regexp.MustCompile(`^sha256:[a-f0-9]{64}$`)
	// A ConfigMap's name is a DNS subdomain: no label of it may be empty or begin or end with '-'.
	brokenLabel = regexp.MustCompile(`[-.]\.|\.[-.]`)
)

// PayloadID returns the part of the payload's names that tells one version's payload from another's, made of the tag or the digest of
// the init-hook image. Hook and chart must come to the same; in a template it is
//
//	{{ regexReplaceAll "[-.]+$" (.tag | lower | replace "_" "-" | trunc 20) "" }}    for a tag
//	{{ .digest | trimPrefix "sha256:" | trunc 12 }}                                  for a digest
//
// A tag that cannot become part of a name (such as "1..2") is an error.
func PayloadID(tagOrDigest string) (string, error) {
	if digestForm.MatchString(tagOrDigest) {
		return strings.TrimPrefix(tagOrDigest, "sha256:")[:12], nil
	}
	if !tagForm.MatchString(tagOrDigest) {
		return "", fmt.Errorf("%q is neither an image tag nor a sha256 digest", tagOrDigest)
	}
	id := strings.ReplaceAll(strings.ToLower(tagOrDigest), "_", "-")
	id = strings.TrimRight(id[:min(len(id), maxIDLength)], "-.")
	if id == "" || brokenLabel.MatchString(id) {
		return "", fmt.Errorf("image tag %q cannot be part of a ConfigMap's name: use another tag for the init-hook image", tagOrDigest)
	}
	return id, nil
}
