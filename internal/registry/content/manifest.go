package content

import (
	"encoding/json"
	"fmt"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// maxType is the length of an artifact type: of two names with 127 characters (RFC 6838, section 4.2) and a slash.
const maxType = 255

// Described is what a manifest says about itself and others.
type Described struct {
	mediaType, artifactType string
	annotations             json.RawMessage
	Subject                 digest.Digest
	// Blobs are the configuration and the layers, children the manifests of an index.
	Blobs, Children []v1.Descriptor
}

// Describe returns an error if the content is not a manifest, refers to something with an invalid digest, or has a type
// that cannot be one.
func Describe(content []byte) (Described, error) {
	var m struct {
		MediaType    string          `json:"mediaType"`
		ArtifactType string          `json:"artifactType"`
		Config       *v1.Descriptor  `json:"config"`
		Layers       []v1.Descriptor `json:"layers"`
		Manifests    []v1.Descriptor `json:"manifests"`
		Subject      *v1.Descriptor  `json:"subject"`
		Annotations  json.RawMessage `json:"annotations"`
	}
	if err := json.Unmarshal(content, &m); err != nil {
		return Described{}, err
	}
	d := Described{mediaType: m.MediaType, artifactType: m.ArtifactType, annotations: m.Annotations}
	if d.artifactType == "" && m.Config != nil {
		d.artifactType = m.Config.MediaType
	}
	if max(len(d.artifactType), len(d.mediaType)) > maxType {
		return Described{}, fmt.Errorf("a media type or artifact type has more than %d characters", maxType)
	}
	if m.Subject != nil {
		if err := m.Subject.Digest.Validate(); err != nil {
			return Described{}, fmt.Errorf("subject %q: %w", m.Subject.Digest, err)
		}
		d.Subject = m.Subject.Digest
	}
	for _, child := range m.Manifests {
		if err := child.Digest.Validate(); err != nil {
			return Described{}, fmt.Errorf("manifest %q of the index: %w", child.Digest, err)
		}
		d.Children = append(d.Children, child)
	}
	if m.Config != nil {
		d.Blobs = append(d.Blobs, *m.Config)
	}
	for _, blob := range append(d.Blobs, m.Layers...) {
		if err := blob.Digest.Validate(); err != nil {
			return Described{}, fmt.Errorf("blob %q: %w", blob.Digest, err)
		}
	}
	d.Blobs = append(d.Blobs, m.Layers...)
	return d, nil
}

func annotationsOf(encoded json.RawMessage) (annotations map[string]string, err error) {
	if len(encoded) == 0 {
		return nil, nil
	}
	return annotations, json.Unmarshal(encoded, &annotations)
}

// References are the digests in a manifest.
type References struct {
	Needs   []digest.Digest
	Subject digest.Digest
}

// ParseReferences treats every digest in a manifest as needed, so that it also covers formats that it
// does not know. The exceptions are annotations, and the subject: a signature does not keep its image.
func ParseReferences(content []byte) (References, error) {
	var manifest map[string]any
	if err := json.Unmarshal(content, &manifest); err != nil {
		return References{}, err
	}
	var r References
	if subject, ok := manifest["subject"].(map[string]any); ok {
		text, _ := subject["digest"].(string)
		d, err := digest.Parse(text)
		if err != nil {
			return References{}, fmt.Errorf("invalid subject %q: %w", text, err)
		}
		r.Subject = d
		delete(manifest, "subject")
	}
	var visit func(any)
	visit = func(value any) {
		switch value := value.(type) {
		case map[string]any:
			for key, inner := range value {
				if key != "annotations" {
					visit(inner)
				}
			}
		case []any:
			for _, inner := range value {
				visit(inner)
			}
		case string:
			if d, err := digest.Parse(value); err == nil {
				r.Needs = append(r.Needs, d)
			}
		}
	}
	visit(manifest)
	return r, nil
}
