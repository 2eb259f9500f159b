// Package scrub defines the API by which init-hook lets the registry read all that it stores: the request and the
// events of the response. Package inspect implements it.
package scrub

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/api/space"
)

// Path is the HTTP path. Requests are POSTs to the listener with mutual TLS, with the push credential. The response has
// one line of JSON, an [Event], for each problem, and for the progress at least every few seconds. The last event is
// the result or an error. A request after one that was interrupted continues where that ended.
const Path = "/zarf-registry/scrub"

// DefaultRate is half of what a link of 1 Gbit/s carries, and a third of what a hard disk reads.
const DefaultRate = 50 << 20

// Request says how to read.
type Request struct {
	// Rate limits what is read, in bytes per second. It must be positive.
	Rate int64
}

// Validate returns an error if the rate is not positive.
func (r Request) Validate() error {
	if r.Rate <= 0 {
		return fmt.Errorf("invalid rate %d: must be positive", r.Rate)
	}
	return nil
}

// Query encodes the request as URL query parameters.
func (r Request) Query() url.Values { return url.Values{"rate": {strconv.FormatInt(r.Rate, 10)}} }

// ParseQuery decodes a request. A missing rate is [DefaultRate]. Unknown parameters are errors.
func ParseQuery(query url.Values) (Request, error) {
	r := Request{Rate: DefaultRate}
	for key, values := range query {
		if key != "rate" || len(values) != 1 {
			return Request{}, errors.New("want one parameter, rate, in bytes per second")
		}
		var err error
		if r.Rate, err = strconv.ParseInt(values[0], 10, 64); err != nil {
			return Request{}, fmt.Errorf("rate: %w", err)
		}
	}
	return r, r.Validate()
}

// Event is a line of the response. Exactly one field is set.
type Event struct {
	Progress *Progress `json:"progress,omitempty"`
	Problem  *Problem  `json:"problem,omitempty"`
	Result   *Result   `json:"result,omitempty"`
	// Error is why the registry could not read everything. It is the last event.
	Error string `json:"error,omitempty"`
}

// Progress is how many bytes of blobs have been read, with those that were before an interruption, of how many.
type Progress struct {
	Bytes int64 `json:"bytes"`
	Total int64 `json:"total"`
}

// The kinds of problems.
const (
	// Missing content is needed and not stored, or not linked to a repository.
	Missing = "missing"
	// Damaged content has another digest.
	Damaged = "damaged"
)

// Problem is about stored content, or about a tag.
type Problem struct {
	Kind string `json:"kind"`
	// Digest is that of a manifest or blob. It is empty if a tag is damaged: then Images is the tag.
	Digest digest.Digest `json:"digest,omitempty"`
	// Images need the content. It is garbage if there are none.
	Images []Image `json:"images"`
}

// String returns a human-readable line.
func (p Problem) String() string {
	text := p.Kind + " " + p.Digest.String()
	if p.Digest == "" {
		text = p.Kind + " tag"
	}
	for _, image := range p.Images {
		text += " " + image.String()
	}
	if len(p.Images) == 0 {
		text += " (no image needs it)"
	}
	return text
}

// Image is a tag of a repository, or, without a tag, a manifest that no tag and no index refers to.
type Image struct {
	Repository string `json:"repository"`
	Tag        string `json:"tag,omitempty"`
	// Digest is the manifest's. It is empty if the tag is damaged.
	Digest digest.Digest `json:"digest,omitempty"`
}

// String returns the image's name without a registry.
func (i Image) String() string {
	if i.Tag != "" {
		return i.Repository + ":" + i.Tag
	}
	return i.Repository + "@" + i.Digest.String()
}

// Result counts what was read.
type Result struct {
	// Blobs include manifests. Bytes is their size.
	Blobs int   `json:"blobs"`
	Bytes int64 `json:"bytes"`
	// Problems counts the events with a problem.
	Problems int `json:"problems"`
}

// String returns a human-readable line.
func (r Result) String() string {
	return fmt.Sprintf("read %d blobs (%s): %d problems", r.Blobs, space.FormatBytes(r.Bytes), r.Problems)
}
