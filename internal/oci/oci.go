// Package oci defines media types, annotations and limits that the OCI specifications do not, classifies
// descriptors by their media type, and knows the paths of an OCI layout. It reads no content.
package oci

import (
	_ "crypto/sha256" // for digest.SHA256
	_ "crypto/sha512" // for digest.SHA512
	"errors"
	"fmt"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Media types of Docker's image format, which predates OCI's. docker save and many registries still use them.
// https://distribution.github.io/distribution/spec/manifest-v2-2/
const (
	MediaTypeDockerManifest     = "application/vnd.docker.distribution.manifest.v2+json"
	MediaTypeDockerManifestList = "application/vnd.docker.distribution.manifest.list.v2+json"
	MediaTypeDockerConfig       = "application/vnd.docker.container.image.v1+json"
	MediaTypeDockerForeignLayer = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"

	mediaTypeDockerSchema1Prefix = "application/vnd.docker.distribution.manifest.v1"
)

// MediaTypeArtifactManifest was part of OCI 1.1's release candidates only. Signatures of that time use it.
const MediaTypeArtifactManifest = "application/vnd.oci.artifact.manifest.v1+json"

// AnnotationContainerdName is the annotation in index.json that holds an image's full name. containerd and Docker
// write it.
const AnnotationContainerdName = "io.containerd.image.name"

// Headers of registries, with the version of their API and the digest of their content.
const (
	HeaderAPIVersion = "Docker-Distribution-Api-Version"
	HeaderDigest     = "Docker-Content-Digest"
)

// MaxManifestSize is the limit in bytes that registries put on a manifest or index.
// https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md#pushing-manifests
const MaxManifestSize = 4 << 20

// Accept is the Accept header of a request for a manifest or index of any supported type.
var Accept = strings.Join([]string{
	ocispec.MediaTypeImageManifest, ocispec.MediaTypeImageIndex,
	MediaTypeDockerManifest, MediaTypeDockerManifestList, MediaTypeArtifactManifest,
}, ", ")

// IsIndex reports whether a media type is that of an OCI index or a Docker manifest list.
func IsIndex(mediaType string) bool {
	return mediaType == ocispec.MediaTypeImageIndex || mediaType == MediaTypeDockerManifestList
}

// IsManifest reports whether a media type is that of an image or artifact manifest.
func IsManifest(mediaType string) bool {
	switch mediaType {
	case ocispec.MediaTypeImageManifest, MediaTypeDockerManifest, MediaTypeArtifactManifest:
		return true
	}
	return false
}

// IsManifestOrIndex reports whether registries serve content of this media type under /manifests/, not /blobs/.
func IsManifestOrIndex(mediaType string) bool { return IsManifest(mediaType) || IsIndex(mediaType) }

// IsSchema1 reports whether a media type is that of Docker's first manifest format, which was replaced in 2016.
func IsSchema1(mediaType string) bool {
	return strings.HasPrefix(mediaType, mediaTypeDockerSchema1Prefix)
}

// IsConfig reports whether a media type is that of a container image's configuration.
func IsConfig(mediaType string) bool {
	return mediaType == ocispec.MediaTypeImageConfig || mediaType == MediaTypeDockerConfig
}

// IsNonDistributable reports whether a media type is that of a layer whose owner forbids redistribution.
// Registries do not expect to hold such layers.
func IsNonDistributable(mediaType string) bool {
	switch mediaType {
	case ocispec.MediaTypeImageLayerNonDistributable, //nolint:staticcheck // deprecated, but found in images
		ocispec.MediaTypeImageLayerNonDistributableGzip, //nolint:staticcheck // deprecated, but found in images
		ocispec.MediaTypeImageLayerNonDistributableZstd, //nolint:staticcheck // deprecated, but found in images
		MediaTypeDockerForeignLayer:
		return true
	}
	return false
}

// Kind names what a descriptor of this media type describes: "index", "manifest", "config" or "blob".
func Kind(mediaType string) string {
	switch {
	case IsIndex(mediaType):
		return "index"
	case IsManifest(mediaType):
		return "manifest"
	case IsConfig(mediaType):
		return "config"
	}
	return "blob"
}

// Plain returns desc with only its media type, digest and size, so that descriptors of equal content are equal
// wherever they come from.
func Plain(desc ocispec.Descriptor) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: desc.MediaType, Digest: desc.Digest, Size: desc.Size}
}

// CheckDigest returns an error unless d is a valid digest of a supported algorithm: SHA-256 or SHA-512, which are those
// that registries and clients know.
// https://github.com/opencontainers/image-spec/blob/v1.1.1/descriptor.md#registered-algorithms
func CheckDigest(d digest.Digest) error {
	err := d.Validate()
	if err != nil && !errors.Is(err, digest.ErrDigestUnsupported) {
		return err
	}
	if a := d.Algorithm(); a != digest.SHA256 && a != digest.SHA512 {
		return fmt.Errorf("digest algorithm %s is not supported: want %s or %s", a, digest.SHA256, digest.SHA512)
	}
	return err
}

// BlobPath returns the path of a blob in an OCI layout, relative to its root. The digest must be valid.
func BlobPath(d digest.Digest) string {
	return ocispec.ImageBlobsDir + "/" + d.Algorithm().String() + "/" + d.Encoded()
}
