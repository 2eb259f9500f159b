// Package deletion defines the API by which init-hook deletes many manifests in one request. Package spec implements
// it.
package deletion

import (
	"time"

	"github.com/opencontainers/go-digest"
)

// Path is the HTTP path of deletions. Requests are POSTs to the listener with mutual TLS, with the push credential. The
// body is a [Request] as JSON. The response has one line of JSON, an [Event], for each manifest. The last event is the
// end or an error. Closing the connection aborts the deletion.
const Path = "/zarf-registry/deletions"

// MaxRequest is the limit of a body in bytes, for some 500,000 manifests.
const MaxRequest = 64 << 20

// Request names manifests to delete, with all of their tags.
type Request struct {
	// Since is when the catalog was read that the manifests come from, by the storage's clock. What was pushed in that
	// second or later is kept, and what an index contains that is not deleted.
	Since time.Time `json:"since"`
	// Manifests are digests by repository.
	Manifests map[string][]digest.Digest `json:"manifests"`
}

// Event is a line of the response. Repository and Digest, End or Error is set.
type Event struct {
	Repository string        `json:"repository,omitempty"`
	Digest     digest.Digest `json:"digest,omitempty"`
	// Kept is why the manifest was not deleted. What does not exist is deleted.
	Kept string `json:"kept,omitempty"`
	End  bool   `json:"end,omitempty"`
	// Error is why the rest was not deleted.
	Error string `json:"error,omitempty"`
}
