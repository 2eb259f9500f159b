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
	// Slow says that it is one of those that take their time.
	Slow bool   `json:"slow,omitempty"`
	Err  string `json:"error,omitempty"`
	// Corrupt says that bytes came which are not what was pushed. Nothing excuses that.
	Corrupt bool `json:"corrupt,omitempty"`
}

// End is when it was over.
func (a Attempt) End() time.Time { return a.Begin.Add(a.Took) }

func (a Attempt) String() string {
	who := "push"
	if a.Node != "" {
		who = "pull on " + a.Node
	}
	return fmt.Sprintf("%s of %s, begun %s, over after %.1f s: %s", who, a.Image, a.Begin.Format("15:04:05.0"), a.Took.Seconds(), a.Err)
}

// An Excuse is what may fail, and when.
type Excuse struct {
	Step       Step
	Begin, End time.Time // End is zero as long as it is not known
}

// covers says whether the excuse is one for that attempt: it is about such attempts, and
// the two overlap.
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

// An Account counts attempts and judges those that failed. It may be used by several
// goroutines.
type Account struct {
	mu      sync.Mutex
	excuses []Excuse
	failed  []Attempt          // not judged yet
	success map[loop]time.Time // when the last one that succeeded was begun
	counts  map[string]*Count
	// Those since the last Report.
	recent map[string]*Count
}

// loop is one of those that attempt one thing after the other.
type loop struct {
	node string
	slow bool
}

// A Count sums up attempts.
type Count struct {
	Attempts, Failed int
	Bytes            int64
	Longest          time.Duration // of those that succeeded
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

// NewAccount returns an empty one.
func NewAccount() *Account {
	return &Account{success: map[loop]time.Time{}, counts: map[string]*Count{}, recent: map[string]*Count{}}
}

// Add counts an attempt that is over.
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

// Begin opens the excuses of a step.
func (c *Account) Begin(s Step, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.excuses = append(c.excuses, Excuse{Step: s, Begin: now})
}

// Mended closes the excuses that are open: they hold for [Settle] longer.
func (c *Account) Mended(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.excuses {
		if c.excuses[i].End.IsZero() {
			c.excuses[i].End = now.Add(Settle)
		}
	}
}

// Settled ends excuses at once, because everything works again.
func (c *Account) Settled(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.excuses {
		if end := c.excuses[i].End; end.IsZero() || end.After(now) {
			c.excuses[i].End = now
		}
	}
}

// Works says whether a node, or for "" a push, has succeeded with something that it
// began after a moment.
func (c *Account) Works(node string, since time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.success[loop{node, false}].After(since) || c.success[loop{node, true}].After(since)
}

// Renewed says whether all pulls of a node that had begun before a moment are over.
func (c *Account) Renewed(node string, since time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.success[loop{node, false}].After(since) && c.success[loop{node, true}].After(since)
}

// Unexcused takes the failures that nothing excuses out of the account, the oldest
// first; those that something does are done with.
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

// Report returns what was counted since the last one: of pushes under "", of pulls by
// node.
func (c *Account) Report() map[string]Count {
	c.mu.Lock()
	defer c.mu.Unlock()
	counts := values(c.recent)
	c.recent = map[string]*Count{}
	return counts
}

// Total returns what was counted from the beginning.
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
