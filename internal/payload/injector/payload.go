package injector

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
)

// Payload is a program encoded for transport. Its chunks are slices of the layer, not copies.
type Payload struct {
	Program
	Manifest []byte
	Loader   []byte
	Chunks   [][]byte
}

// Object is the data of one ConfigMap of a payload.
type Object struct {
	Index int // see [ConfigMapName]
	Data  map[string][]byte
}

// Encode creates the payload of a program from its layer, built by [BuildLayer], and the loader for
// its architecture. It fails if it would not fit into the ConfigMaps, into the number of them that
// the chart lists, or into what a loader accepts. The payload refers to layer and loader, which
// must not be modified.
func Encode(p Program, layer, loader []byte) (*Payload, error) {
	return EncodeInflated(p, layer, loader, Inflated{})
}

// EncodeInflated is like [Encode], but does not inflate the layer if it is the one that content describes.
func EncodeInflated(p Program, layer, loader []byte, content Inflated) (*Payload, error) {
	if err := p.validate(); err != nil {
		return nil, err
	}
	if len(loader) < 1 || len(loader) > MaxLoaderSize {
		return nil, fmt.Errorf("loader for %s has %d bytes: must have 1 to %d", p.Architecture, len(loader), MaxLoaderSize)
	}
	layerSum := sha256.Sum256(layer)
	if content.LayerSHA256 != hex.EncodeToString(layerSum[:]) {
		var err error
		if content, err = Inflate(p.Name, layer); err != nil {
			return nil, fmt.Errorf("layer of %s: %w", p, err)
		}
	}
	programSum, err := hex.DecodeString(content.ProgramSHA256)
	if err != nil || len(programSum) != sha256.Size {
		return nil, fmt.Errorf("layer of %s: invalid SHA-256 of the program %q", p, content.ProgramSHA256)
	}
	chunks := slices.Collect(slices.Chunk(layer, ChunkSize))
	if len(chunks) > p.MaxChunks() {
		return nil, fmt.Errorf("layer of %s has %d bytes: must have at most %d (%d ConfigMaps)",
			p, len(layer), p.MaxChunks()*ChunkSize, p.MaxChunks())
	}
	manifest := Manifest{
		Program:       p,
		LayerSize:     len(layer),
		LayerSHA256:   layerSum,
		ProgramOffset: tarBlock,
		ProgramSize:   int(content.ProgramSize),
		ProgramSHA256: [sha256.Size]byte(programSum),
	}
	for _, chunk := range chunks {
		manifest.Chunks = append(manifest.Chunks, Chunk{Size: len(chunk), SHA256: sha256.Sum256(chunk)})
	}
	return &Payload{Program: p, Manifest: manifest.Bytes(), Loader: loader, Chunks: chunks}, nil
}

// Digest returns the SHA-256 of everything that the payload delivers, as 64 hexadecimal digits.
func (p *Payload) Digest() string {
	sum := sha256.New()
	sum.Write(p.Manifest) // has the sums of the chunks
	sum.Write(p.Loader)
	return hex.EncodeToString(sum.Sum(nil))
}

// Objects returns the data of the payload's ConfigMaps in the order in which they must be written:
// object 00, which contains the manifest, comes last.
func (p *Payload) Objects() []Object {
	objects := make([]Object, 0, len(p.Chunks))
	for i := 1; i < len(p.Chunks); i++ {
		objects = append(objects, Object{Index: i, Data: map[string][]byte{ChunkKey(i): p.Chunks[i]}})
	}
	return append(objects, Object{Index: 0, Data: map[string][]byte{
		ChunkKey(0): p.Chunks[0],
		LoaderKey:   p.Loader,
		ManifestKey: p.Manifest,
	}})
}
