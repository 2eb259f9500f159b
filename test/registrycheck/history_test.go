package registrycheck

import (
	"encoding/json"
	"os"
	"slices"
	"sync"
	"time"
)

// Kinds of events. Those of uploads count when they finish.
const (
	putManifest    = "put manifest"
	getManifest    = "get manifest"
	askManifest    = "ask for manifest" // HEAD, answered with 404: it is missing, or something that it needs
	deleteTag      = "delete tag"
	deleteManifest = "delete manifest"
	uploadBlob     = "upload blob"
	mountBlob      = "mount blob"
	readBlob       = "read blob"
	deleteBlob     = "delete blob"
	listTags       = "list tags"
	listReferrers  = "list referrers"
	collectGarbage = "collect garbage"
)

// outcome is what the client knows about an event's effect.
type outcome string

const (
	done    outcome = "done"
	refused outcome = "refused" // it had no effect, and never will
	unknown outcome = "unknown" // it may have had an effect
	absent  outcome = "absent"  // a 404: what a read or a deletion asked for does not exist
)

// event is a request to the registry, or the pages of one list.
type event struct {
	Kind       string   `json:"kind"`
	Client     int      `json:"client"`
	Server     int      `json:"server"` // viaProxy, offline, or a process
	Epoch      int      `json:"epoch"`  // how often that process had ended before
	Repository string   `json:"repository,omitempty"`
	Tag        string   `json:"tag,omitempty"`
	Digest     string   `json:"digest,omitempty"` // also of what a tag was found to refer to; of manifests, SHA-256
	List       []string `json:"list,omitempty"`   // tags, or digests of referrers
	Head       bool     `json:"head,omitempty"`
	// Conditional means that a deletion keeps what indexes refer to.
	Conditional bool    `json:"conditional,omitempty"`
	Outcome     outcome `json:"outcome"`
	Status      int     `json:"status,omitempty"` // of the HTTP response
	Error       string  `json:"error,omitempty"`

	// Untagged and Cutoff belong to a collection. Content touched after Cutoff is within the grace period.
	Untagged bool          `json:"untagged,omitempty"`
	Cutoff   time.Duration `json:"cutoff,omitempty"`

	// Call and Return are times since the start of the run. If there was no response, Return is when the process
	// that may have received the request ended.
	Call   time.Duration `json:"call"`
	Return time.Duration `json:"return"`
}

// happened reports whether the event has or may have an effect.
func (e *event) happened() bool { return e.Outcome == done || e.Outcome == unknown }

// reads reports whether the event changes nothing.
func (e *event) reads() bool {
	return slices.Contains([]string{getManifest, readBlob, listTags, listReferrers}, e.Kind)
}

// overlaps reports whether some moment of the event is in the interval.
func (e *event) overlaps(from, to time.Duration) bool { return e.Return >= from && e.Call <= to }

// history records events. It is safe for concurrent use.
type history struct {
	start time.Time

	mu         sync.Mutex
	events     []*event
	violations []violation
	requests   int
}

// violation is a contradiction between the registry's behavior and its contract.
type violation struct {
	rule    string
	message string
	// events are those that concern the same object.
	events []*event
	// page is the path of a visualization, or empty.
	page string
}

func newHistory() *history { return &history{start: time.Now()} }

func (h *history) now() time.Duration { return time.Since(h.start) }

func (h *history) add(e *event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, e)
}

func (h *history) violate(rule, message string, events ...*event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.violations = append(h.violations, violation{rule: rule, message: message, events: events})
}

// write writes the events as lines of JSON.
func write(path string, events []*event) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	encoder := json.NewEncoder(file)
	for _, e := range events {
		if err := encoder.Encode(e); err != nil {
			return err
		}
	}
	return nil
}
