package soak

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// An Attempt is one pull or one push.
type Attempt struct {
	Node  string        `json:"node"` // empty for a push
	Image string        `json:"image"`
	Begin time.Time     `json:"begin"`
	Took  time.Duration `json:"took"` // ns
	Bytes int64         `json:"bytes"`
	// Slow marks pulls with a limited rate.
	Slow bool   `json:"slow,omitempty"`
	Err  string `json:"error,omitempty"`
	// Corrupt means that content did not match its digest, which is never excused.
	Corrupt bool `json:"corrupt,omitempty"`
}

// End is when the attempt ended.
func (a Attempt) End() time.Time { return a.Begin.Add(a.Took) }

func (a Attempt) String() string {
	who := "push"
	if a.Node != "" {
		who = "pull on " + a.Node
	}
	return fmt.Sprintf("%s of %s, started %s, ended after %.1f s: %s", who, a.Image, a.Begin.Format("15:04:05.0"),
		a.Took.Seconds(), a.Err)
}

// An Excuse allows certain attempts to fail for some time.
type Excuse struct {
	Step       Step
	Begin, End time.Time // zero while the fault lasts
}

// covers reports whether the excuse applies to such attempts and overlaps with this one.
func (e Excuse) covers(a Attempt) bool {
	if a.Corrupt || a.End().Before(e.Begin) || !e.End.IsZero() && a.Begin.After(e.End) {
		return false
	}
	if a.Node == "" {
		return e.Step.Kind.Pushes
	}
	switch e.Step.Pulls() {
	case Everywhere:
		return true
	case OnTarget:
		return a.Node == e.Step.Node
	}
	return false
}

// An Account counts attempts and decides which failures are excused. It is safe for concurrent use.
type Account struct {
	mu      sync.Mutex
	excuses []Excuse
	failed  []Attempt          // not judged yet
	success map[loop]time.Time // start of the last successful attempt
	counts  map[string]*Count
	// Since the last Report.
	recent map[string]*Count
}

// loop is a sequence of attempts, one after the other.
type loop struct {
	node string
	slow bool
}

// A Count summarizes attempts.
type Count struct {
	Attempts, Failed int
	Bytes            int64
	Longest          time.Duration // of successful attempts
}

func (c *Count) add(a Attempt) {
	c.Attempts++
	c.Bytes += a.Bytes
	if a.Err != "" {
		c.Failed++
	} else {
		c.Longest = max(c.Longest, a.Took)
	}
}

// NewAccount returns an empty account.
func NewAccount() *Account {
	return &Account{success: map[loop]time.Time{}, counts: map[string]*Count{}, recent: map[string]*Count{}}
}

// Add records an attempt that has ended.
func (c *Account) Add(a Attempt) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, counts := range []map[string]*Count{c.counts, c.recent} {
		if counts[a.Node] == nil {
			counts[a.Node] = &Count{}
		}
		counts[a.Node].add(a)
	}
	if a.Err != "" {
		c.failed = append(c.failed, a)
	} else if l := (loop{a.Node, a.Slow}); a.Begin.After(c.success[l]) {
		c.success[l] = a.Begin
	}
}

// Begin opens the excuse of a step.
func (c *Account) Begin(s Step, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.excuses = append(c.excuses, Excuse{Step: s, Begin: now})
}

// Repaired limits all open excuses to [ExcuseGrace] from now.
func (c *Account) Repaired(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.excuses {
		if c.excuses[i].End.IsZero() {
			c.excuses[i].End = now.Add(ExcuseGrace)
		}
	}
}

// Recovered ends all excuses, because everything works again.
func (c *Account) Recovered(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.excuses {
		if end := c.excuses[i].End; end.IsZero() || end.After(now) {
			c.excuses[i].End = now
		}
	}
}

// Works reports whether a node, or pushes for "", succeeded with an attempt that started after since.
func (c *Account) Works(node string, since time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.success[loop{node, false}].After(since) || c.success[loop{node, true}].After(since)
}

// Renewed reports whether all pulls of a node that started before since have ended.
func (c *Account) Renewed(node string, since time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.success[loop{node, false}].After(since) && c.success[loop{node, true}].After(since)
}

// Unexcused returns the failures that nothing excuses, oldest first, and forgets all failures.
func (c *Account) Unexcused() []Attempt {
	c.mu.Lock()
	defer c.mu.Unlock()
	var bad []Attempt
	for _, a := range c.failed {
		if !slices.ContainsFunc(c.excuses, func(e Excuse) bool { return e.covers(a) }) {
			bad = append(bad, a)
		}
	}
	c.failed = nil
	slices.SortFunc(bad, func(a, b Attempt) int { return a.Begin.Compare(b.Begin) })
	return bad
}

// Report returns the counts since the last Report: pulls by node, pushes under "".
func (c *Account) Report() map[string]Count {
	c.mu.Lock()
	defer c.mu.Unlock()
	counts := values(c.recent)
	c.recent = map[string]*Count{}
	return counts
}

// Total returns the counts since the start.
func (c *Account) Total() map[string]Count {
	c.mu.Lock()
	defer c.mu.Unlock()
	return values(c.counts)
}

func values(counts map[string]*Count) map[string]Count {
	all := map[string]Count{}
	for node, count := range counts {
		all[node] = *count
	}
	return all
}
