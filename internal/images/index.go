package images

import (
	"regexp"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/oci"
)

// list puts an image into an index in the place of the one that has its name, or
// of the nameless one that it is. One that has a tag and no name is another tool's,
// which finds it by that: it stays.
func list(index *ocispec.Index, desc ocispec.Descriptor) {
	kept := index.Manifests[:0]
	for _, other := range index.Manifests {
		name, own := layoutName(other.Annotations), layoutName(desc.Annotations)
		nameless := name == "" && other.Annotations[ocispec.AnnotationRefName] == ""
		if name != "" && name == own || nameless && other.Digest == desc.Digest {
			continue
		}
		kept = append(kept, other)
	}
	index.Manifests = append(kept, desc)
}

// named is the descriptor of an image with its name, where it has one, in all the
// annotations that tools look for it in: containerd and docker in their own, ORAS and
// skopeo in ref.name, and readers of layouts that crane's library made in base.name.
func named(image Image) (ocispec.Descriptor, error) {
	desc := oci.Plain(image.Descriptor)
	if image.Reference == "" {
		return desc, nil
	}
	name, err := parseReference(image.Reference)
	if err != nil {
		return desc, err
	}
	full := name.String()
	desc.Annotations = map[string]string{
		oci.AnnotationContainerdName:    full,
		ocispec.AnnotationRefName:       full,
		ocispec.AnnotationBaseImageName: full,
	}
	return desc, nil
}

// tagOnly matches what is a tag and no name.
// https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md#pulling-manifests
var tagOnly = regexp.MustCompile(`^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}$`)

// layoutName finds an image's name in the annotations of its descriptor in
// index.json. containerd and docker write the whole name and, as ref.name, the
// tag; skopeo writes the tag alone, which is no name; ORAS writes a whole name as
// ref.name; layouts from before that, made with crane's library, have nothing
// but base.name. That last one otherwise tells what an image was built on, so
// it counts only where ref.name is absent.
func layoutName(annotations map[string]string) string {
	if name := annotations[oci.AnnotationContainerdName]; name != "" {
		return name
	}
	name, ok := annotations[ocispec.AnnotationRefName]
	if !ok {
		return annotations[ocispec.AnnotationBaseImageName]
	}
	if tagOnly.MatchString(name) {
		return ""
	}
	return name
}
