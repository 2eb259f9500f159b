package content

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// maxType is the length of an artifact type: of two names with 127 characters (RFC 6838, section 4.2) and a slash.
const maxType = 255

// Described is what a manifest says about itself and others.
type Described struct {
	MediaType     string `json:"mediaType"`
	SchemaVersion int    `json:"schemaVersion"`
	// ArtifactType is that of an image's configuration if the manifest has none of its own.
	ArtifactType string            `json:"artifactType"`
	Config       *v1.Descriptor    `json:"config"`
	Layers       []v1.Descriptor   `json:"layers"`
	Manifests    []v1.Descriptor   `json:"manifests"` // of an index
	Subject      *v1.Descriptor    `json:"subject"`
	Annotations  map[string]string `json:"annotations"`
	// Needs are those of [ParseReferences].
	Needs []digest.Digest `json:"-"`

	size int64
}

// Describe returns an error if the content is not a manifest with valid digests and types, within the limits.
func Describe(content []byte) (d Described, err error) {
	references, err := parseReferences(content, true)
	if err == nil {
		err = json.Unmarshal(content, &d)
	}
	if err != nil {
		return Described{}, err
	}
	d.Needs, d.size = references.Needs, int64(len(content))
	if d.Config != nil {
		d.ArtifactType = cmp.Or(d.ArtifactType, d.Config.MediaType)
	}
	if max(len(d.ArtifactType), len(d.MediaType)) > maxType {
		return Described{}, fmt.Errorf("a media type or artifact type has more than %d characters", maxType)
	}
	refers := slices.Concat(d.Blobs(), d.Manifests)
	if d.Subject != nil {
		refers = append(refers, *d.Subject)
	}
	for _, to := range refers {
		if err := to.Digest.Validate(); err != nil {
			return Described{}, fmt.Errorf("it refers to %q: %w", to.Digest, err)
		}
	}
	return d, nil
}

// Blobs are the configuration and the layers.
func (d Described) Blobs() []v1.Descriptor {
	if d.Config == nil {
		return d.Layers
	}
	return slices.Concat([]v1.Descriptor{*d.Config}, d.Layers)
}

// Type returns the media type, which is optional in OCI manifests.
func (d Described) Type() string {
	switch {
	case d.MediaType != "":
		return d.MediaType
	case d.Manifests != nil:
		return v1.MediaTypeImageIndex
	}
	return v1.MediaTypeImageManifest
}

// CheckType returns an error if clients must not read the manifest as one of a media type.
func (d Described) CheckType(mediaType string) error {
	switch {
	case !oci.IsIndex(mediaType) && mediaType != v1.MediaTypeImageManifest && mediaType != oci.MediaTypeDockerManifest:
		return fmt.Errorf("manifests of the type %q are not supported", mediaType)
	case d.MediaType != mediaType && (d.MediaType != "" || !strings.HasPrefix(mediaType, "application/vnd.oci.")):
		return fmt.Errorf("its media type is %q, not %q", d.MediaType, mediaType)
	case oci.IsIndex(mediaType) && (d.Config != nil || d.Layers != nil):
		return errors.New("an index has neither a configuration nor layers")
	case mediaType == v1.MediaTypeImageManifest && d.Manifests != nil:
		return errors.New("it has the media type of an image and the manifests of an index")
	}
	return nil
}

// References are the digests in a manifest.
type References struct {
	Needs   []digest.Digest
	Subject digest.Digest
}

// The limits of a manifest. One that exceeds them is refused, and does not exist if it is stored: decoding 4 MiB of
// empty elements takes a hundred times as much memory. Real images have a few hundred digests.
const (
	maxDigests  = 10_000
	maxElements = 50_000 // of all arrays
	maxDepth    = 32
	// maxParsed is the depth to which any content is parsed, as by encoding/json.
	maxParsed = 10_000
)

// largeManifest is the size in bytes above which a manifest waits until few others are in memory.
const largeManifest = 64 << 10

var largeManifests = make(chan struct{}, storage.ManifestConcurrency)

// AwaitMemory waits until a manifest of a size may be read into memory. The caller calls done when it no longer needs
// the content, and reads no other manifest before.
func AwaitMemory(ctx context.Context, size int64) (done func(), err error) {
	if size <= largeManifest {
		return func() {}, nil
	}
	select {
	case largeManifests <- struct{}{}:
		return func() { <-largeManifests }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Receive reads a manifest, whose next bytes may come late: until it is known to be large, it waits for nobody.
func Receive(ctx context.Context, body io.Reader) (content []byte, done func(), err error) {
	content, err = io.ReadAll(io.LimitReader(body, largeManifest+1))
	if err != nil {
		return nil, nil, err
	}
	if done, err = AwaitMemory(ctx, int64(len(content))); err != nil || len(content) <= largeManifest {
		return content, done, err
	}
	content = append(make([]byte, 0, oci.MaxManifestSize+bytes.MinRead), content...)
	buffer := bytes.NewBuffer(content)
	if _, err := buffer.ReadFrom(io.LimitReader(body, oci.MaxManifestSize+1-largeManifest)); err != nil {
		done()
		return nil, nil, err
	}
	return buffer.Bytes(), done, nil
}

// errLimits is the error of a manifest that exceeds a limit.
var errLimits = fmt.Errorf("it has more than %d digests, more than %d elements, or more than %d levels", maxDigests,
	maxElements, maxDepth)

// ParseReferences treats every digest in a manifest as needed, so that it also covers formats that it
// does not know. The exceptions are annotations, and the subject: a signature does not keep its image.
//
// It takes little memory, whatever the content, and every stored manifest keeps what it needs: the limits are for
// pushes, and for decoding the rest.
func ParseReferences(content []byte) (References, error) { return parseReferences(content, false) }

// parseReferences with limits fails if one is exceeded: otherwise, the content can be decoded.
func parseReferences(content []byte, limited bool) (References, error) {
	p := referenceParser{Decoder: json.NewDecoder(bytes.NewReader(content)), limited: limited}
	if !bytes.HasPrefix(bytes.TrimLeft(content, " \t\r\n"), []byte("{")) {
		return References{}, errors.New("it is not a JSON object")
	}
	err := p.value(needed, 0)
	if err == nil {
		if _, err = p.Token(); err == nil {
			err = errors.New("something follows the JSON object")
		} else if errors.Is(err, io.EOF) {
			err = nil
		}
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return References{}, err
	}
	if p.hasSubject {
		if err := p.found.Subject.Validate(); err != nil {
			return References{}, fmt.Errorf("invalid subject %q: %w", p.found.Subject, err)
		}
	}
	return p.found, nil
}

// role is what digests in a part of a manifest mean.
type role int

const (
	needed        role = iota
	ignored            // annotations, and what the subject says apart from its digest
	subject            // the descriptor of the subject
	subjectDigest      // its digest
)

// of returns the role of an entry of an object.
func (r role) of(key string, depth int) role {
	switch {
	case r == needed && depth == 1 && key == "subject":
		return subject
	case r == subject && key == "digest":
		return subjectDigest
	case r == needed && key != "annotations":
		return needed
	}
	return ignored
}

type referenceParser struct {
	*json.Decoder
	limited    bool
	found      References
	hasSubject bool
	elements   int
}

// value parses a value at a depth.
func (p *referenceParser) value(r role, depth int) error {
	token, err := p.Token()
	if err != nil {
		return err
	}
	switch token := token.(type) {
	case string:
		return p.text(token, r)
	case json.Delim:
		if depth++; p.limited && depth > maxDepth || depth > maxParsed {
			return errLimits
		}
		switch {
		case r == subject && token == '{':
			p.hasSubject, p.found.Subject = true, ""
		case r == subject:
			r = needed
		case r == subjectDigest:
			r = ignored
		}
		for p.More() {
			inner := r
			if token == '{' {
				key, err := p.Token()
				if err != nil {
					return err
				}
				inner = r.of(key.(string), depth)
			} else if p.elements++; p.limited && p.elements > maxElements {
				return errLimits
			}
			if err := p.value(inner, depth); err != nil {
				return err
			}
		}
		_, err = p.Token()
	}
	return err
}

func (p *referenceParser) text(text string, r role) error {
	switch r {
	case subjectDigest:
		p.found.Subject = digest.Digest(text)
	case needed, subject:
		d, err := digest.Parse(text)
		if err != nil {
			return nil //nolint:nilerr // another text
		}
		if p.found.Needs = append(p.found.Needs, d); p.limited && len(p.found.Needs) > maxDigests {
			return errLimits
		}
	}
	return nil
}
