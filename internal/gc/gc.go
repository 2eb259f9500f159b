// Package gc is the word between the registry, which collects its garbage, and
// init-hook, which asks it to: a request, and the lines of the answer. It collects
// nothing itself.
package gc

import (
	"fmt"
	"net/url"
	"strconv"
	"time"
)

// Path is where the registry takes requests, by POST at the listener with mutual TLS
// and with the push credential. The answer is a line of JSON, an [Event], for each thing
// that is removed, and some in between so that nothing on the way takes the connection
// for idle. The last one says how it ended. Who breaks the connection ends the
// collection.
const Path = "/zarf-registry/garbage-collection"

// Bounds of a request.
const (
	// DefaultGrace is a day: no push takes longer.
	DefaultGrace = 24 * time.Hour
	// DefaultTimeout is for a large bucket; the volume of a cluster takes seconds.
	DefaultTimeout = 30 * time.Minute
	maxTimeout     = 24 * time.Hour
)

// Request says what to collect.
type Request struct {
	// DryRun removes nothing and holds nobody up.
	DryRun bool
	// DeleteUntagged removes manifests that neither a tag nor an image index leads to.
	DeleteUntagged bool
	// Grace protects what was pushed, mounted or looked for within it.
	Grace time.Duration
	// Timeout bounds all of it. What is not done by then the next collection does.
	Timeout time.Duration
}

// Validate refuses what cannot be meant.
func (r Request) Validate() error {
	switch {
	case r.Grace < 0:
		return fmt.Errorf("the grace period is %s: it cannot be negative", r.Grace)
	case r.Timeout <= 0 || r.Timeout > maxTimeout:
		return fmt.Errorf("the timeout is %s: it must be more than nothing and at most %s", r.Timeout, maxTimeout)
	}
	return nil
}

// Query is the request as it is sent.
func (r Request) Query() url.Values {
	return url.Values{
		"dry-run":         {strconv.FormatBool(r.DryRun)},
		"delete-untagged": {strconv.FormatBool(r.DeleteUntagged)},
		"grace-period":    {r.Grace.String()},
		"timeout":         {r.Timeout.String()},
	}
}

// ParseQuery reads a request. What is missing has its default; what it does not know
// it refuses, because it might be what keeps something from being removed.
func ParseQuery(query url.Values) (Request, error) {
	r := Request{Grace: DefaultGrace, Timeout: DefaultTimeout}
	for key, values := range query {
		if len(values) != 1 {
			return Request{}, fmt.Errorf("%s is given %d times", key, len(values))
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
			err = fmt.Errorf("this registry knows no such setting")
		}
		if err != nil {
			return Request{}, fmt.Errorf("%s: %w", key, err)
		}
	}
	return r, r.Validate()
}

// Phases of a collection, in their order.
const (
	// Settling waits until no manifest is being written any more.
	Settling = "settling"
	Marking  = "marking"
	Sweeping = "sweeping"
)

// Event is a line of the answer. One of the fields is set.
type Event struct {
	Phase   string   `json:"phase,omitempty"`
	Removed *Removed `json:"removed,omitempty"`
	Result  *Result  `json:"result,omitempty"`
	// Error is why it failed, after which there is no other line.
	Error string `json:"error,omitempty"`
}

// Removed is a manifest or a blob that is gone, or would be.
type Removed struct {
	// Repository is of manifests only.
	Repository string `json:"repository,omitempty"`
	Digest     string `json:"digest"`
	// Bytes are of blobs only. A manifest is a blob, too, which follows.
	Bytes int64 `json:"bytes,omitempty"`
}

// String is a line for people.
func (r Removed) String() string {
	if r.Repository != "" {
		return fmt.Sprintf("manifest %s@%s", r.Repository, r.Digest)
	}
	return fmt.Sprintf("blob %s %d bytes", r.Digest, r.Bytes)
}

// Result is how much was removed, or would be.
type Result struct {
	Manifests int `json:"manifests"`
	Blobs     int `json:"blobs"`
	// Bytes are those of the blobs, manifests included.
	Bytes int64 `json:"bytes"`
	// Kept are blobs that nothing leads to and that the grace period protects.
	Kept int `json:"kept"`
}
