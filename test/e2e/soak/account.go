package soak

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// Limit is how long a pull or a push may take, not counting outages.
const Limit = 30 * time.Second

// An Attempt is one pull or one push.
type Attempt struct {
	Node string `json:"node"` // empty for a push
	// Image is REPOSITORY:TAG or REPOSITORY@DIGEST.
	Image string `json:"image"`
	// Digest is what the registry returned for a tag.
	Digest string        `json:"digest,omitempty"`
	Begin  time.Time     `json:"begin"`
	Took   time.Duration `json:"took"` // ns
	Bytes  int64         `json:"bytes"`
	// Slow marks pulls by a slow reader.
	Slow bool   `json:"slow,omitempty"`
	Err  string `json:"error,omitempty"`
	// Corrupt means that content did not match its digest, or that a tag had the wrong digest. Nothing
	// excuses it.
	Corrupt bool `json:"corrupt,omitempty"`
}

// End is when the attempt ended.
func (a Attempt) End() time.Time { return a.Begin.Add(a.Took) }

func (a Attempt) String() string {
	who := "push"
	if a.Node != "" {
		who = "pull on " + a.Node
	}
	return fmt.Sprintf("%s of %s, started %s, ended after %.1f s: %s (%s)", who, a.Image, a.Begin.Format("15:04:05.0"),
		a.Took.Seconds(), a.Err, ClassOf(a.Err))
}

// An Excuse allows certain attempts to fail for some time.
type Excuse struct {
	Step                       Step
	Begin, Repaired, Recovered time.Time // zero until then
}

// covers reports whether the excuse applies to this failure.
func (e Excuse) covers(a Attempt) bool {
	class := ClassOf(a.Err)
	if a.Corrupt || !slices.Contains(e.Step.Kind.Classes, class) || a.End().Before(e.Begin) ||
		!e.Recovered.IsZero() && a.Begin.After(e.Recovered) {
		return false
	}
	failed := a.End()
	if class == Timeout || class == Unavailable {
		failed = a.Begin // clients wait for a timeout, and proxies hold a pull before they give up
	}
	if !e.Repaired.IsZero() && failed.After(e.Repaired.Add(e.Step.Kind.excused())) {
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

// delays reports whether attempts on that node, or pushes for "", may wait until the fault is repaired.
func (e Excuse) delays(node string) bool { return node == "" || e.Step.Kind.Outage }

// An Account counts attempts and decides which failures are excused. It is safe for concurrent use.
type Account struct {
	mu      sync.Mutex
	excuses []Excuse
	failed  []Attempt          // not judged yet
	long    []Attempt          // that took longer than [Limit], not judged yet
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
		return
	}
	if a.Took > Limit {
		c.long = append(c.long, a)
	}
	if l := (loop{a.Node, a.Slow}); a.Begin.After(c.success[l]) {
		c.success[l] = a.Begin
	}
}

// Begin records the start of a step.
func (c *Account) Begin(s Step, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.excuses = append(c.excuses, Excuse{Step: s, Begin: now})
}

// Repaired records that the faults of all steps are repaired.
func (c *Account) Repaired(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.excuses {
		if c.excuses[i].Repaired.IsZero() {
			c.excuses[i].Repaired = now
		}
	}
}

// Recovered records that everything works again.
func (c *Account) Recovered(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.excuses {
		if c.excuses[i].Recovered.IsZero() {
			c.excuses[i].Recovered = now
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

// Unexcused returns the failures that nothing excuses and the attempts that took too long, oldest first,
// and forgets both.
func (c *Account) Unexcused() []Attempt {
	c.mu.Lock()
	defer c.mu.Unlock()
	var bad []Attempt
	for _, a := range c.failed {
		if !slices.ContainsFunc(c.excuses, func(e Excuse) bool { return e.covers(a) }) {
			bad = append(bad, a)
		}
	}
	for _, a := range c.long {
		if took := a.Took - c.outage(a); took > Limit {
			a.Err = fmt.Sprintf("took %.1f s besides outages, at most %s", took.Seconds(), Limit)
			bad = append(bad, a)
		}
	}
	c.failed, c.long = nil, nil
	slices.SortFunc(bad, func(a, b Attempt) int { return a.Begin.Compare(b.Begin) })
	return bad
}

// outage returns for how much of an attempt a fault that delays it lasted.
func (c *Account) outage(a Attempt) (total time.Duration) {
	counted := a.Begin // steps of a burst overlap
	for _, e := range c.excuses {
		if !e.delays(a.Node) {
			continue
		}
		end := a.End()
		if !e.Repaired.IsZero() && e.Repaired.Before(end) {
			end = e.Repaired
		}
		if e.Begin.After(counted) {
			counted = e.Begin
		}
		if end.After(counted) {
			total += end.Sub(counted)
			counted = end
		}
	}
	return total
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
