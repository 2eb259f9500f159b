package soak

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// Tags remembers what was pushed to each tag, one push after the other. It is safe for concurrent use.
type Tags struct {
	mu     sync.Mutex
	pushes map[string][]tagged
}

// tagged is a push. One that was not acknowledged may have reached the registry nevertheless.
type tagged struct {
	digest       string
	begin, acked time.Time
}

// NewTags returns Tags without pushes.
func NewTags() *Tags { return &Tags{pushes: map[string][]tagged{}} }

// Push records the start of a push.
func (t *Tags) Push(tag, digest string, begin time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pushes[tag] = append(t.pushes[tag], tagged{digest: digest, begin: begin})
}

// Acknowledge records that the last push to a tag was acknowledged.
func (t *Tags) Acknowledge(tag string, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pushes[tag][len(t.pushes[tag])-1].acked = at
}

// Check returns an error unless digest is what a pull between begin and end may find: that of the last push
// acknowledged before it, or of a later push.
func (t *Tags) Check(tag, digest string, begin, end time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range slices.Backward(t.pushes[tag]) {
		if p.begin.After(end) {
			continue
		}
		if p.digest == digest {
			return nil
		}
		if !p.acked.IsZero() && p.acked.Before(begin) {
			return fmt.Errorf("tag %s has digest %q, but %s was acknowledged last", tag, digest, p.digest)
		}
	}
	return fmt.Errorf("tag %s has digest %q, which was never pushed to it", tag, digest)
}
