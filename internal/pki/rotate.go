package pki

import (
	"crypto/x509"
	"fmt"
	"maps"
	"slices"
)

// Action is what a rotation does next.
type Action string

// The actions.
const (
	// Done: nothing is left to do.
	Done Action = "done"
	// Observe: what the pods have loaded must be known first.
	Observe Action = "observe"
	// Wait: the pods named in Step.Waiting must load what is written first.
	Wait Action = "wait"
	// WriteTrust: write Step.Trust into the ca.crt of every Secret that has a leaf.
	WriteTrust Action = "write trust"
	// Reissue: replace the leaves of Step.Roles, each together with Step.Trust as its
	// ca.crt, in one write.
	Reissue Action = "reissue"
)

// Position is where a rotation stands. Its fields are what was read just now;
// nothing else is remembered between two steps.
type Position struct {
	// Want is the trust in which it shall end.
	Want Bundle
	// Held is what the Secrets hold, by role (the Organization constants).
	Held map[string]Held
	// Due are the roles whose leaf is to be replaced by one that Want trusts. Roles
	// of Held without a leaf are due in any case.
	Due []string
	// Settled says that no change of trust is recorded as under way: when the last
	// one ended, all pods had loaded what the Secrets trust. The record is made before
	// the first write of a change, and cleared after Done.
	Settled bool
	// Loaded is what the pods have loaded that are to be waited for; nil where it was
	// not looked at.
	Loaded []Loaded
	// Observed says that Loaded is known, empty as it may be.
	Observed bool
}

// Held is what a Secret holds.
type Held struct {
	// Leaf is nil where there is none that a pod could load: it is missing, cannot be
	// read, or has no private key of its own. Its pods go on with what they have, and
	// load nothing until there is one.
	Leaf *x509.Certificate
	// Trust is empty where there is none that can be read.
	Trust Bundle
}

// Loaded is what a pod has loaded.
type Loaded struct {
	// Pod names it in Step.Waiting.
	Pod string
	// Role is that of the Secret that it mounts.
	Role string
	// Leaf and Trust are fingerprints.
	Leaf  string
	Trust []string
	// Problem says why it could not be asked; then Leaf and Trust are empty, and the
	// pod holds up every step that depends on it.
	Problem string
}

// Step is what Next decides.
type Step struct {
	Action Action
	// Trust is what WriteTrust and Reissue write.
	Trust Bundle
	// Drops says of WriteTrust that it ends the overlap: Trust is Position.Want, and
	// lacks authorities that are trusted now.
	Drops bool
	// Roles are those whose leaves Reissue replaces. They can be fewer than are due.
	Roles []string
	// Waiting says of each pod that holds the rotation up what is missing.
	Waiting []string
	// Why explains the action, for the log.
	Why string
}

// Next decides the next step of a change of leaves and authorities in which no
// proxy and no registry ever meets a certificate that it does not trust: first all
// trust the former and the new authorities, then the leaves are replaced, then the
// former authorities are dropped, each once all pods have loaded the step before.
//
// A Secret can lose its leaf at any time, by deletion. Its pods cannot load a change
// of trust before it has one again, so it gets its leaf first, as soon as those pods
// trust it that can: the pods of the other Secrets.
//
// Two processes may follow Next at the same time, if a write fails where somebody else
// has written since that Secret was read: a new authority has to be written into every
// Secret, so whoever decided without knowing it fails. That is no help where Want goes
// back to an authority that all trust still: the process that changes Want to such a
// one must know that no other is about to drop it.
func Next(p Position) Step {
	due := p.due()
	union, same := Bundle{}, true
	for _, role := range slices.Sorted(maps.Keys(p.Held)) {
		held := p.Held[role]
		union = union.Union(held.Trust)
		// A Secret without anything says nothing about what its pods have loaded.
		same = same && (held.Trust.Equal(p.Want) || held.Leaf == nil && held.Trust.Empty())
	}
	union = union.Union(p.Want)

	for _, role := range slices.Sorted(maps.Keys(p.Held)) {
		// One without a leaf gets its ca.crt together with the leaf.
		if held := p.Held[role]; held.Leaf != nil && !held.Trust.Contains(p.Want) {
			// Nobody is asked: trusting more makes nobody refused.
			return Step{Action: WriteTrust, Trust: union, Why: fmt.Sprintf("the ca.crt for %s lacks authorities that are to be trusted", role)}
		}
	}
	switch {
	case p.Settled && same && len(due) != 0:
		// This must work where pods cannot be asked: it is what happens every half life.
		return Step{Action: Reissue, Trust: union, Roles: due, Why: "all pods have trusted the wanted authorities since the last change"}
	case p.Settled && same:
		return Step{Action: Done, Why: "the certificates and the authorities are the wanted ones"}
	case !p.Observed:
		return Step{Action: Observe, Why: "what the pods have loaded decides what comes next"}
	case len(due) != 0:
		return p.reissue(due, union)
	case !same:
		if waiting := p.waiting(p.lacksLeaf); len(waiting) != 0 {
			return Step{Action: Wait, Waiting: waiting, Why: "a former authority is dropped when no pod shows a certificate of it any more"}
		}
		return Step{Action: WriteTrust, Trust: p.Want, Drops: true, Why: "all pods show the present certificates: the former authorities are dropped"}
	}
	if waiting := p.waiting(p.lacksLeaf, p.lacksTrust, p.trustsMore); len(waiting) != 0 {
		return Step{Action: Wait, Waiting: waiting, Why: "the change has ended when all pods have loaded it"}
	}
	return Step{Action: Done, Why: "all pods have loaded the wanted certificates and authorities"}
}

func (p Position) reissue(due []string, trust Bundle) Step {
	waiting := p.waiting(p.lacksTrust)
	if len(waiting) == 0 {
		return Step{Action: Reissue, Trust: trust, Roles: due, Why: "all pods trust the wanted authorities"}
	}
	first := slices.DeleteFunc(slices.Clone(due), func(role string) bool { return p.Held[role].Leaf != nil })
	if len(first) != 0 {
		others := p // Pods of those roles can load nothing before their leaf is there.
		others.Loaded = slices.DeleteFunc(slices.Clone(p.Loaded), func(l Loaded) bool { return slices.Contains(first, l.Role) })
		waiting = others.waiting(p.lacksTrust)
		if len(waiting) == 0 {
			return Step{Action: Reissue, Trust: trust, Roles: first, Why: "without these certificates their pods cannot load what they are to trust"}
		}
	}
	return Step{Action: Wait, Waiting: waiting, Why: "certificates of the wanted authorities are issued when all pods trust those"}
}

func (p Position) due() []string {
	due := slices.Clone(p.Due)
	for role, held := range p.Held {
		if held.Leaf == nil {
			due = append(due, role)
		}
	}
	slices.Sort(due)
	return slices.Compact(due)
}

// waiting says of each pod what it lacks first.
func (p Position) waiting(lacks ...func(Loaded) string) []string {
	var out []string
	for _, l := range p.Loaded {
		what := l.Problem
		for i := 0; what == "" && i < len(lacks); i++ {
			what = lacks[i](l)
		}
		if what != "" {
			out = append(out, l.Pod+": "+what)
		}
	}
	return out
}

func (p Position) lacksTrust(l Loaded) string {
	for _, cert := range p.Want.certs {
		if fingerprint := Fingerprint(cert); !slices.Contains(l.Trust, fingerprint) {
			return fmt.Sprintf("it does not trust %q (SHA-256 %s) yet", cert.Subject, Short(fingerprint))
		}
	}
	return ""
}

func (p Position) trustsMore(l Loaded) string {
	wanted := p.Want.Fingerprints()
	for _, fingerprint := range l.Trust {
		if !slices.Contains(wanted, fingerprint) {
			return fmt.Sprintf("it still trusts the former authority with SHA-256 %s", Short(fingerprint))
		}
	}
	return ""
}

func (p Position) lacksLeaf(l Loaded) string {
	leaf := p.Held[l.Role].Leaf
	if leaf == nil {
		return fmt.Sprintf("there is no certificate for its role %q", l.Role)
	}
	if fingerprint := Fingerprint(leaf); l.Leaf != fingerprint {
		return fmt.Sprintf("it still shows the certificate with SHA-256 %s, not %s", Short(l.Leaf), Short(fingerprint))
	}
	return ""
}

// Short is as much of a fingerprint as tells people one from another.
func Short(fingerprint string) string {
	const enough = 16
	return fingerprint[:min(enough, len(fingerprint))]
}
