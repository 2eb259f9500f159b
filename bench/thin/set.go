package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/bench/internal/registries"
)

// An image has sharedLayers of one of the bases, ownLayers, and the layer of the application, which changes. So 1,000
// images have 12,060 blobs besides manifests. Layers are smaller than real ones, which makes the manifests weigh more.
const (
	bases        = 20
	sharedLayers = 3
	sharedBytes  = 100_000
	ownLayers    = 10
	ownBytes     = 5_000
)

// image is a version of an image.
type image struct {
	repository, tag string
	text            string // of the manifest
	manifest        ocispec.Descriptor
	blobs           []content // the configuration first
}

// content is a blob.
type content struct {
	ocispec.Descriptor
	open func() io.Reader
}

// makeSets returns images, and their newest versions, of which the given number differ. Layer is the size of the layer
// that does.
func makeSets(images, changed int, layer int64) (previous, next []image, err error) {
	bases, err := makeBases()
	if err != nil {
		return nil, nil, err
	}
	for n := range images {
		lower := bases[n%len(bases)]
		for l := range ownLayers {
			blob, err := random(seedOf("own", n, l), ownBytes)
			if err != nil {
				return nil, nil, err
			}
			lower = append(lower[:len(lower):len(lower)], blob)
		}
		one, err := makeImage(n, 1, lower, layer)
		if err != nil {
			return nil, nil, err
		}
		previous = append(previous, one)
		// Evenly over all images, and so over all bases.
		if (n+1)*changed/images > n*changed/images {
			if one, err = makeImage(n, 2, lower, layer); err != nil {
				return nil, nil, err
			}
		}
		next = append(next, one)
	}
	return previous, next, nil
}

func makeBases() (all [][]content, err error) {
	for base := range bases {
		var layers []content
		for l := range sharedLayers {
			blob, err := random(seedOf("shared", base, l), sharedBytes)
			if err != nil {
				return nil, err
			}
			layers = append(layers, blob)
		}
		all = append(all, layers)
	}
	return all, nil
}

func makeImage(n, version int, lower []content, layer int64) (image, error) {
	top, err := random(seedOf("top", n, version), layer)
	if err != nil {
		return image{}, err
	}
	layers := append(lower[:len(lower):len(lower)], top)
	config := ocispec.Image{Platform: ocispec.Platform{OS: "linux", Architecture: "amd64"},
		RootFS: ocispec.RootFS{Type: "layers"}}
	var descriptors []ocispec.Descriptor
	for l, blob := range layers {
		descriptors = append(descriptors, blob.Descriptor)
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, blob.Digest)
		config.History = append(config.History, ocispec.History{CreatedBy: fmt.Sprintf("layer %d", l)})
	}
	raw, err := json.Marshal(config)
	if err != nil {
		return image{}, err
	}
	configuration := content{ocispec.Descriptor{Digest: digest.FromBytes(raw), Size: int64(len(raw))},
		func() io.Reader { return bytes.NewReader(raw) }}
	i := image{repository: fmt.Sprintf("bench/app-%d", n), tag: fmt.Sprintf("v%d", version),
		blobs: append([]content{configuration}, layers...)}
	i.text, i.manifest, err = registries.Manifest(configuration.Descriptor, descriptors...)
	return i, err
}

func random(seed uint64, size int64) (content, error) {
	open := func() io.Reader { return registries.Random(seed, size) }
	d, err := digest.FromReader(open())
	return content{ocispec.Descriptor{Digest: d, Size: size}, open}, err
}

// seedOf returns a different seed for each layer.
func seedOf(kind string, a, b int) uint64 {
	return uint64(kind[0])<<56 | uint64(a)<<16 | uint64(b)
}

// blobsOf returns the sizes of the distinct layers and configurations of images.
func blobsOf(images []image) map[digest.Digest]int64 {
	all := map[digest.Digest]int64{}
	for _, i := range images {
		for _, b := range i.blobs {
			all[b.Digest] = b.Size
		}
	}
	return all
}

// sizeOf returns the size of the distinct layers and configurations of images.
func sizeOf(images []image) (sum int64) {
	for _, size := range blobsOf(images) {
		sum += size
	}
	return sum
}

// newBytes returns the size of the layers and configurations that only the next images have, and of all of their
// manifests.
func newBytes(previous, next []image) (sum int64) {
	had := blobsOf(previous)
	for d, size := range blobsOf(next) {
		if _, ok := had[d]; !ok {
			sum += size
		}
	}
	for _, i := range next {
		sum += i.manifest.Size
	}
	return sum
}
