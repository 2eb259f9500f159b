package graph

import (
	"regexp"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/images/name"
	"github.com/zarf-dev/zarf-registry/internal/oci"
)

// AnnotationThin is the annotation of the index.json of a thin archive.
const AnnotationThin = "dev.zarf.registry.thin"

// AddToIndex adds an image to an index and replaces the one of the same name, or the same unnamed one.
// Entries with a tag but no name belong to other tools, which find them by tag; they stay.
func AddToIndex(index *ocispec.Index, desc ocispec.Descriptor) {
	kept := index.Manifests[:0]
	for _, other := range index.Manifests {
		name, own := LayoutName(other.Annotations), LayoutName(desc.Annotations)
		nameless := name == "" && other.Annotations[ocispec.AnnotationRefName] == ""
		if name != "" && name == own || nameless && other.Digest == desc.Digest {
			continue
		}
		kept = append(kept, other)
	}
	index.Manifests = append(kept, desc)
}

// Named returns an image's descriptor with its name in all annotations that tools read: containerd and
// Docker use their own, ORAS and skopeo ref.name, and readers of layouts written by crane's library
// base.name.
func Named(image Image) (ocispec.Descriptor, error) {
	desc := oci.Plain(image.Descriptor)
	if image.Reference == "" {
		return desc, nil
	}
	named, err := name.Named(image.Reference)
	if err != nil {
		return desc, err
	}
	full := named.String()
	desc.Annotations = map[string]string{
		oci.AnnotationContainerdName:    full,
		ocispec.AnnotationRefName:       full,
		ocispec.AnnotationBaseImageName: full,
	}
	return desc, nil
}

// tagOnly matches a tag without a name.
// https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md#pulling-manifests
var tagOnly = regexp.MustCompile(`^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}$`)

// LayoutName returns an image's name from the annotations of its descriptor in index.json. containerd
// and Docker write the full name and, as ref.name, the tag. skopeo writes only the tag, which is not a
// name. ORAS writes the full name as ref.name. Old layouts of crane's library have only base.name. Its
// usual meaning is the base image, so it is used only if ref.name is missing.
func LayoutName(annotations map[string]string) string {
	if name := annotations[oci.AnnotationContainerdName]; name != "" {
		return name
	}
	name := annotations[ocispec.AnnotationRefName]
	if name == "" {
		return annotations[ocispec.AnnotationBaseImageName]
	}
	if tagOnly.MatchString(name) {
		return ""
	}
	return name
}
