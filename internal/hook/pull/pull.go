// Package pull brings images of the registry to where they are needed: into cache pods and onto nodes, ahead of a
// rollout; and it verifies that nodes can pull. It does not decide which images, caches or nodes.
package pull

import (
	"strings"
	"time"
)

// Outcome is how the transfer of one image to one place ended.
type Outcome string

// The outcomes.
const (
	// Filled means that a cache holds the image, whether it had to fetch it or not.
	Filled Outcome = "filled"
	// Pulled means that a node has pulled the image.
	Pulled Outcome = "pulled"
	// Present means that a node had the image already, under this reference.
	Present Outcome = "already there"
	// Failed means that the place lacks the image, or part of it.
	Failed Outcome = "failed"
)

// Result is about one image at one place.
type Result struct {
	// Name is that of the cache pod or of the node.
	Name string `json:"name"`
	// Image is the reference by which nodes pull it.
	Image   string  `json:"image"`
	Outcome Outcome `json:"result"`
	// Seconds is how long it took: for a node that pulled the duration that its kubelet reports, if any.
	Seconds float64 `json:"seconds"`
	// Message is why it failed, and Remedy what to do about it. Remedy may be empty.
	Message string `json:"message,omitempty"`
	Remedy  string `json:"remedy,omitempty"`
}

// seconds rounds a duration for people.
func seconds(d time.Duration) float64 { return d.Round(10 * time.Millisecond).Seconds() }

// oneLine joins the lines of a message, which is for a table.
func oneLine(message string) string { return strings.Join(strings.Fields(message), " ") }

// String returns the outcome, with message and remedy.
func (r Result) String() string {
	if reason := r.reason(); reason != "" {
		return string(r.Outcome) + ": " + reason
	}
	return string(r.Outcome)
}

// reason returns the message with the remedy.
func (r Result) reason() string {
	if r.Remedy == "" {
		return r.Message
	}
	return r.Message + "; " + r.Remedy
}
