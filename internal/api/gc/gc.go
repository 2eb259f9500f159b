// Package gc defines the garbage-collection API between the registry and init-hook: the request and the
// events of the response. Package collect implements the collection.
package gc

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"time"
)

// Path is the HTTP path of garbage collection. Requests are POSTs to the listener with mutual TLS, with
// the push credential. The response has one line of JSON, an [Event], for each phase and each removed
// object; phases are repeated so that the connection is never idle for long. The last event is the
// result or an error. Closing the connection aborts the collection.
const Path = "/zarf-registry/garbage-collection"

// Defaults and limits of a request.
const (
	// DefaultGrace is a day, because no push takes longer.
	DefaultGrace = 24 * time.Hour
	// DefaultTimeout is enough for a large bucket; a volume takes seconds.
	DefaultTimeout = 30 * time.Minute
	maxTimeout     = 24 * time.Hour
)

// Request says what to collect.
type Request struct {
	// DryRun reports what would be removed, without removing it.
	DryRun bool
	// DeleteUntagged also removes manifests that neither a tag nor an image index refers to.
	DeleteUntagged bool
	// Grace is the minimum age before collection: the time since a blob or manifest was last pushed, mounted
	// or checked for existence.
	Grace time.Duration
	// Timeout bounds the whole collection. The next collection removes the rest.
	Timeout time.Duration
}

// Validate returns an error if a duration is out of range.
func (r Request) Validate() error {
	switch {
	case r.Grace < 0:
		return fmt.Errorf("invalid grace period %s: must not be negative", r.Grace)
	case r.Timeout <= 0 || r.Timeout > maxTimeout:
		return fmt.Errorf("invalid timeout %s: must be positive and at most %s", r.Timeout, maxTimeout)
	}
	return nil
}

// Query encodes the request as URL query parameters.
func (r Request) Query() url.Values {
	return url.Values{
		"dry-run":         {strconv.FormatBool(r.DryRun)},
		"delete-untagged": {strconv.FormatBool(r.DeleteUntagged)},
		"grace-period":    {r.Grace.String()},
		"timeout":         {r.Timeout.String()},
	}
}

// ParseQuery decodes a request. Missing parameters have their defaults. Unknown parameters are errors,
// because they might restrict what is removed.
func ParseQuery(query url.Values) (Request, error) {
	r := Request{Grace: DefaultGrace, Timeout: DefaultTimeout}
	for key, values := range query {
		if len(values) != 1 {
			return Request{}, fmt.Errorf("%s is set %d times", key, len(values))
		}
		var err error
		switch key {
		case "dry-run":
			r.DryRun, err = strconv.ParseBool(values[0])
		case "delete-untagged":
			r.DeleteUntagged, err = strconv.ParseBool(values[0])
		case "grace-period":
			r.Grace, err = time.ParseDuration(values[0])
		case "timeout":
			r.Timeout, err = time.ParseDuration(values[0])
		default:
			err = errors.New("unknown parameter")
		}
		if err != nil {
			return Request{}, fmt.Errorf("%s: %w", key, err)
		}
	}
	return r, r.Validate()
}

// Phases of a collection, in order. Without garbage, and in a dry run, marking is followed by sweeping.
const (
	Marking = "marking"
	// Settling waits until no manifest is being written that may rely on what is to be removed.
	Settling = "settling"
	// Remarking marks again what has become needed.
	Remarking = "remarking"
	Sweeping  = "sweeping"
)

// Event is a line of the response. Exactly one field is set.
type Event struct {
	Phase   string   `json:"phase,omitempty"`
	Removed *Removed `json:"removed,omitempty"`
	// Problem is a damaged tag or link, and what to do. It does not prevent the collection.
	Problem string  `json:"problem,omitempty"`
	Result  *Result `json:"result,omitempty"`
	// Error is why the collection failed. It is the last event.
	Error string `json:"error,omitempty"`
}

// Removed is a removed manifest or blob; in a dry run, one that would be removed.
type Removed struct {
	// Repository is empty for blobs.
	Repository string `json:"repository,omitempty"`
	Digest     string `json:"digest"`
	// Bytes is 0 for manifests: each manifest is also a blob, with an event of its own.
	Bytes int64 `json:"bytes,omitempty"`
}

// String returns a human-readable line.
func (r Removed) String() string {
	if r.Repository != "" {
		return fmt.Sprintf("manifest %s@%s", r.Repository, r.Digest)
	}
	return fmt.Sprintf("blob %s %d bytes", r.Digest, r.Bytes)
}

// Result counts what was removed; in a dry run, what would be removed.
type Result struct {
	Manifests int `json:"manifests"`
	Blobs     int `json:"blobs"`
	// Bytes is the size of the blobs, including manifests.
	Bytes int64 `json:"bytes"`
	// Kept counts unreferenced blobs that the grace period protects.
	Kept int `json:"kept"`
}
