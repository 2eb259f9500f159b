// Package pulltest verifies that nodes can pull from the registry. It does not decide what follows from a failure.
package pulltest

import "strings"

// Outcome is how the pull of one node ended.
type Outcome string

// The outcomes.
const (
	// Pulled means that the node has pulled the image and run its program.
	Pulled Outcome = "pulled"
	// Failed means that the node could not pull the image, or not run its program.
	Failed Outcome = "failed"
	// skipped means that the pull could not be verified, which fails no verification.
	skipped Outcome = "skipped"
)

// Result is about one node.
type Result struct {
	// Node is the node's name.
	Node    string
	Outcome Outcome
	// Message is why it failed, and Remedy what to do about it. Remedy may be empty.
	Message, Remedy string
}

func oneLine(message string) string { return strings.Join(strings.Fields(message), " ") }

// reason returns the message with the remedy.
func (r Result) reason() string {
	if r.Remedy == "" {
		return r.Message
	}
	return r.Message + "; " + r.Remedy
}
