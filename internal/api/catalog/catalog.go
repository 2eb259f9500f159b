// Package catalog describes what a registry contains: its manifests and blobs, how they refer to each other, and what
// a deletion would free. It defines the API by which init-hook reads that from the registry in one request. Package
// inspect implements the API; this package deletes nothing.
package catalog

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/opencontainers/go-digest"
)

// Path is the HTTP path of the catalog, on the listener with mutual TLS. It serves GET to clients whose certificate
// may push. The response has one line of JSON, an [Event], for each blob and then each manifest. The last event is the
// end or an error.
const Path = "/zarf-registry/catalog"

// Event is a line of the response. Exactly one field is set.
type Event struct {
	Blob     *Blob     `json:"blob,omitempty"`
	Manifest *Manifest `json:"manifest,omitempty"`
	// Problem is a damaged tag or link, and what to do.
	Problem string `json:"problem,omitempty"`
	// End is when the registry began to read its storage, by the storage's clock.
	End *time.Time `json:"end,omitempty"`
	// Error is why the catalog is incomplete. It is the last event.
	Error string `json:"error,omitempty"`
}

// Blob is stored content: a layer, a configuration or a manifest.
type Blob struct {
	Digest digest.Digest `json:"digest"` // SHA-256
	Size   int64         `json:"size"`   // in bytes
	// Written is when the blob was last written, or linked to a repository. Garbage collection keeps newer blobs.
	Written time.Time `json:"written"`
}

// Manifest is a manifest or index in a repository. A manifest that two repositories contain is in the catalog twice.
type Manifest struct {
	Repository string        `json:"repository"`
	Digest     digest.Digest `json:"digest"` // SHA-256
	// Aliases are other digests by which the manifest was pushed.
	Aliases   []digest.Digest `json:"aliases,omitempty"`
	MediaType string          `json:"mediaType,omitempty"`
	// ArtifactType is that of an artifact, and the media type of the configuration of other manifests.
	ArtifactType string `json:"artifactType,omitempty"`
	// Predicates are the types of in-toto statements in the manifest's layers, such as "https://spdx.dev/Document".
	Predicates []string  `json:"predicates,omitempty"`
	Pushed     time.Time `json:"pushed"` // last
	Tags       []string  `json:"tags,omitempty"`
	// Platforms are those of an image or of the images in an index, such as "linux/amd64". Attestations have none.
	Platforms []string `json:"platforms,omitempty"`
	// Subject is the manifest that a signature or another referrer belongs to.
	Subject digest.Digest `json:"subject,omitempty"`
	// Needs are the SHA-256 digests of the blobs and manifests that the manifest refers to, apart from its subject.
	Needs []digest.Digest `json:"needs,omitempty"`
	// Problem is why the manifest cannot be read. Such a manifest refers to nothing that is known.
	Problem string `json:"problem,omitempty"`
}

// Catalog is the content of a registry at one time.
type Catalog struct {
	Manifests []*Manifest
	Blobs     map[digest.Digest]Blob
	// Problems are damaged tags and links, and what to do.
	Problems []string
	// At is when the registry began to read its storage, by the storage's clock.
	At time.Time
}

// Read reads the response of the registry.
func Read(r io.Reader) (*Catalog, error) {
	c := &Catalog{Blobs: map[digest.Digest]Blob{}}
	events := json.NewDecoder(r)
	for {
		var e Event
		switch err := events.Decode(&e); {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return nil, errors.New("the registry stopped in the middle of its catalog: check its pod's log, then run the " +
				"command again")
		case err != nil:
			return nil, fmt.Errorf("reading the registry's catalog: %w", err)
		case e.Error != "":
			return nil, errors.New(e.Error)
		case e.Blob != nil:
			c.Blobs[e.Blob.Digest] = *e.Blob
		case e.Manifest != nil:
			c.Manifests = append(c.Manifests, e.Manifest)
		case e.Problem != "":
			c.Problems = append(c.Problems, e.Problem)
		case e.End != nil:
			c.At = *e.End
			return c, nil
		}
	}
}
