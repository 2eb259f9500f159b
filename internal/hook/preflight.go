package hook

import "context"

// Severity is how much a finding matters.
type Severity string

// The severities.
const (
	// Blocker: what was asked for cannot work; nothing is changed.
	Blocker Severity = "blocker"
	// Warning: it can work, but not everywhere or not as expected.
	Warning Severity = "warning"
)

// Finding is something about the cluster that stands in the way.
type Finding struct {
	// Check is the name of the check, as Options.IgnorePreflight has it.
	Check    string   `json:"check"`
	Severity Severity `json:"severity"`
	// Object is what it is about: "Service default/web", "node n1".
	Object string `json:"object,omitempty"`
	// Cause is what is wrong and what would come of it, in a sentence.
	Cause string `json:"cause"`
	// Remedy is the command that mends it, or what else to do.
	Remedy string `json:"remedy"`
}

// Preflight looks for everything that would stand in the way of Prepare and
// Finish, and changes nothing. It returns all findings, blockers first; the error
// is of looking, not of what was found.
func (h *Hook) Preflight(ctx context.Context) ([]Finding, error) {
	return nil, nil
}
