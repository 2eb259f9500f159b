package pki

import (
	"crypto/x509"
	"fmt"
	"maps"
	"slices"
)

// Action is the next action of a rotation.
type Action string

// Actions.
const (
	// Done: nothing remains.
	Done Action = "done"
	// Observe: determine first what the pods have loaded.
	Observe Action = "observe"
	// Wait: the pods in Step.Waiting must first load what has been written.
	Wait Action = "wait"
	// WriteTrust: write Step.Trust to the ca.crt of every Secret that has a leaf.
	WriteTrust Action = "write trust"
	// Reissue: replace the leaves of Step.Roles, each in one write together with Step.Trust as its
	// ca.crt.
	Reissue Action = "reissue"
)

// Position is the state of a rotation. Its fields have just been read; nothing else is remembered
// between steps.
type Position struct {
	// Want is the trust bundle at the end of the rotation.
	Want Bundle
	// Held is the content of the Secrets, by role (the Organization constants).
	Held map[string]Held
	// Due are the roles whose leaf must be replaced by one that Want trusts. Roles without a leaf in
	// Held are always due.
	Due []string
	// Settled means that no change of trust is recorded as in progress: at the end of the last one,
	// all pods had loaded the trust bundles in the Secrets. The record is written before the first
	// write of a change, and cleared after Done.
	Settled bool
	// Loaded is what the relevant pods have loaded; nil if unknown.
	Loaded []Loaded
	// Observed means that Loaded is known, even if it is empty.
	Observed bool
	// Urgent means that a leaf that is due is about to expire. Pods that cannot be queried then block its
	// replacement no longer: otherwise no node could pull.
	Urgent bool
	// Overdue means that, besides, all pods had much longer than a kubelet takes. Then those that do not report
	// what was written block it no longer either: a compromised node may report anything.
	Overdue bool
}

// Held is the content of a Secret.
type Held struct {
	// Leaf is nil if no pod could load it: it is missing, invalid, or has no matching private key. Its
	// pods keep what they have, and load nothing until there is a leaf.
	Leaf *x509.Certificate
	// Trust is empty if there is no valid bundle.
	Trust Bundle
}

// Loaded is what a pod has loaded.
type Loaded struct {
	// Pod is its name in Step.Waiting.
	Pod string
	// Role is that of the Secret that the pod mounts.
	Role string
	// Leaf and Trust are fingerprints.
	Leaf  string
	Trust []string
	// LoadError is the pod's error about certificates that it could not load.
	LoadError string
	// Problem is the reason why the pod could not be queried. Leaf and Trust are then empty, and the
	// pod blocks every step that depends on it, unless Position.Urgent.
	Problem string
}

// Step is the decision of Next.
type Step struct {
	Action Action
	// Trust is what WriteTrust and Reissue write.
	Trust Bundle
	// Drops marks the WriteTrust that ends the overlap: Trust is Position.Want and lacks CAs that are
	// still trusted.
	Drops bool
	// Roles are those whose leaves Reissue replaces, possibly fewer than are due.
	Roles []string
	// Waiting describes what each blocking pod is missing. With Reissue, these pods block no longer.
	Waiting []string
	// Why explains the action, for the log.
	Why string
}

// Next decides the next step of a rotation of leaves and CAs. No proxy or registry ever meets a
// certificate that it does not trust: first all trust the previous and the new CAs, then the leaves
// are replaced, then the previous CAs are dropped. Each step starts once all pods have loaded the
// one before.
//
// A Secret can lose its leaf at any time, by deletion. Its pods cannot load a change of trust until
// it has one again. It therefore gets its leaf first, as soon as all pods that can load the change,
// those of the other Secrets, trust it.
//
// Two processes may follow Next concurrently if a write fails when somebody else has written the
// Secret since it was read: a new CA must be written to every Secret, so a process that does not
// know it fails. That does not help if Want returns to a CA that all still trust: the process that
// sets such a Want must know that no other process is about to drop it.
func Next(p Position) Step {
	due := p.due()
	union, same := Bundle{}, true
	for _, role := range slices.Sorted(maps.Keys(p.Held)) {
		held := p.Held[role]
		union = union.Union(held.Trust)
		// An empty Secret says nothing about what its pods have loaded.
		same = same && (held.Trust.Equal(p.Want) || held.Leaf == nil && held.Trust.Empty())
	}
	union = union.Union(p.Want)

	for _, role := range slices.Sorted(maps.Keys(p.Held)) {
		// One without a leaf gets its ca.crt together with the leaf.
		if held := p.Held[role]; held.Leaf != nil && !held.Trust.Contains(p.Want) {
			// No need to ask the pods: trusting more CAs breaks nothing.
			return Step{Action: WriteTrust, Trust: union,
				Why: fmt.Sprintf("the ca.crt for %s lacks CAs that must be trusted", role)}
		}
	}
	switch {
	case p.Settled && same && len(due) != 0:
		// This must work even if pods cannot be queried: it happens at every half-life.
		return Step{Action: Reissue, Trust: union, Roles: due,
			Why: "all pods have trusted the desired CAs since the last change"}
	case p.Settled && same:
		return Step{Action: Done, Why: "certificates and CAs are up to date"}
	case !p.Observed:
		return Step{Action: Observe, Why: "the next step depends on what the pods have loaded"}
	case len(due) != 0:
		return p.reissue(due, union)
	case !same:
		if waiting := p.waiting(p.lacksLeaf); len(waiting) != 0 {
			return Step{Action: Wait, Waiting: waiting, Why: "a previous CA is dropped once no pod presents a certificate of it"}
		}
		return Step{Action: WriteTrust, Trust: p.Want, Drops: true,
			Why: "all pods present the current certificates: the previous CAs are dropped"}
	}
	if waiting := p.waiting(p.lacksLeaf, p.lacksTrust, p.trustsMore); len(waiting) != 0 {
		return Step{Action: Wait, Waiting: waiting, Why: "the rotation ends once all pods have loaded it"}
	}
	return Step{Action: Done, Why: "all pods have loaded the desired certificates and CAs"}
}

func (p Position) reissue(due []string, trust Bundle) Step {
	waiting := p.waiting(p.lacksTrust)
	if len(waiting) == 0 {
		return Step{Action: Reissue, Trust: trust, Roles: due, Why: "all pods trust the desired CAs"}
	}
	if p.Urgent {
		known := p
		known.Loaded = slices.DeleteFunc(slices.Clone(p.Loaded), func(l Loaded) bool { return l.Problem != "" })
		if p.Overdue || len(known.waiting(p.lacksTrust)) == 0 {
			return Step{Action: Reissue, Trust: trust, Roles: due, Waiting: waiting,
				Why: "a certificate is about to expire, and the other pods trust the desired CAs"}
		}
	}
	first := slices.DeleteFunc(slices.Clone(due), func(role string) bool { return p.Held[role].Leaf != nil })
	if len(first) != 0 {
		others := p // pods of those roles can load nothing until their leaf exists
		others.Loaded = slices.DeleteFunc(slices.Clone(p.Loaded),
			func(l Loaded) bool { return slices.Contains(first, l.Role) })
		waiting = others.waiting(p.lacksTrust)
		if len(waiting) == 0 {
			return Step{Action: Reissue, Trust: trust, Roles: first,
				Why: "without these certificates their pods cannot load the new trust bundle"}
		}
	}
	return Step{Action: Wait, Waiting: waiting, Why: "certificates of the desired CAs are issued once all pods trust them"}
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

// waiting returns, for each pod, the first thing that it lacks.
func (p Position) waiting(lacks ...func(Loaded) string) []string {
	var out []string
	for _, l := range p.Loaded {
		what := l.Problem
		for i := 0; what == "" && i < len(lacks); i++ {
			what = lacks[i](l)
		}
		if what != "" && l.LoadError != "" {
			what += fmt.Sprintf(" (it reports: %s)", l.LoadError)
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
			return fmt.Sprintf("it still trusts the previous CA with SHA-256 %s", Short(fingerprint))
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
		return fmt.Sprintf("it still presents the certificate with SHA-256 %s, not %s", Short(l.Leaf), Short(fingerprint))
	}
	return ""
}

// Short shortens a fingerprint for display.
func Short(fingerprint string) string {
	const enough = 16
	return fingerprint[:min(enough, len(fingerprint))]
}
