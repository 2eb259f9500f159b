// Package show puts the report of package status into words for people: lines about the release, and tables of nodes.
// It does not know whether they are printed or shown on a web page.
package show

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/api/space"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/internal/status"
)

// Fact is a line about the release. Its label is empty where it continues the line above.
type Fact struct{ Label, Text string }

// Facts returns what the report says about the release as a whole, in the order of the status command.
func Facts(r *status.Report) []Fact {
	return slices.Concat(modeFacts(r), componentFacts(r), certificateFacts(r))
}

// under returns the facts below one label.
func under(label string, lines ...string) (facts []Fact) {
	for _, line := range lines {
		facts = append(facts, Fact{label, line})
		label = ""
	}
	return facts
}

// modeFacts are what the state records, and the release.
func modeFacts(r *status.Report) []Fact {
	facts := under("mode", "unknown")
	if s := r.State; s != nil {
		phase, network := "verified", ""
		switch {
		case s.Switching():
			phase = fmt.Sprintf("switching from %s", s.Current.Mode)
		case s.Phase != state.PhaseReady:
			phase = "not verified yet"
		}
		if s.Desired.HostNetwork {
			network = ", host network"
		}
		facts = []Fact{{"mode", fmt.Sprintf("%s, %s", s.Desired.Mode, phase)},
			{"address", fmt.Sprintf("%s (%s%s)", s.Desired.Address, s.Desired.IPFamily, network)},
			{"source", fmt.Sprintf("%s; written %s by zarf-registry %s", s.Desired.DecidedBy,
				s.UpdatedAt.Format(time.RFC3339), s.UpdatedBy)}}
		var images []string
		for _, architecture := range slices.Sorted(maps.Keys(s.PauseImages)) {
			image := s.PauseImages[architecture]
			images = append(images, fmt.Sprintf("%s: %s (%s)", architecture, image.Reference, image.Reason))
		}
		facts = append(facts, under("pause image", images...)...)
	}
	release := "not managed by Helm"
	if h := r.Helm; h != nil {
		release = fmt.Sprintf("revision %d, %s", h.Revision, h.Status)
	}
	return append(facts, Fact{"release", r.Release + ", " + release})
}

// componentFacts are the pods of the release and what they use.
func componentFacts(r *status.Report) (facts []Fact) {
	if g := r.Registry; g != nil {
		facts = under("registry", registryLines(g)...)
	}
	if c := r.Caches; c != nil {
		lines := []string{readyOf(c.Ready, c.Desired, c.Message)}
		for _, p := range c.Pods {
			lines = append(lines, cacheLine(p))
		}
		facts = append(facts, under("caches", lines...)...)
	}
	facts = append(facts, Fact{"healer", healerLine(r.Healer)})
	if r.Rewriting != nil {
		facts = append(facts, Fact{"rewriting", rewritingLine(r.Rewriting)})
	}
	var payloads []string
	for _, p := range r.Payloads {
		line := fmt.Sprintf("complete, %d ConfigMaps", p.Desired)
		if !p.Complete {
			line = "incomplete: " + p.Message
		}
		payloads = append(payloads, p.Name+": "+line)
	}
	return append(facts, under("payload", payloads...)...)
}

// certificateFacts are how long the certificates are valid.
func certificateFacts(r *status.Report) []Fact {
	if len(r.Certificates) == 0 {
		return nil
	}
	lines := []string{pkiLine(r.State)}
	for _, c := range r.Certificates {
		line := status.Remaining(c.Left) + " left"
		if !c.Valid {
			line = "not usable: " + c.Message
		}
		lines = append(lines, c.Secret+": "+line)
	}
	return under("certificates", lines...)
}

// pkiLine describes the source of certificates and the progress of a CA rotation.
func pkiLine(s *status.State) string {
	switch {
	case s == nil || s.PKI == nil:
		return "unknown"
	case s.Rotation == nil:
		return string(s.PKI.Mode) + ", no CA rotation in progress"
	}
	return fmt.Sprintf("%s, CA rotation since %s, phase %s", s.PKI.Mode, s.Rotation.Since.Format(time.RFC3339),
		s.Rotation.Phase)
}

func registryLines(r *status.Registry) []string {
	lines := []string{readyLine(r)}
	if c := r.Claim; c != nil {
		line := "claim " + c.Name + ": " + cmp.Or(c.Phase, "missing")
		if c.Volume != "" {
			line += " to volume " + c.Volume
		}
		if c.StorageClass != "" {
			line += ", StorageClass " + c.StorageClass
		}
		lines = append(lines, line)
	}
	if r.Space != nil {
		lines = append(lines, "storage: "+r.Space.String())
	}
	if s := r.Scrub; s != nil {
		problems := fmt.Sprintf("%d problems", s.Problems)
		if s.Problems == 1 {
			problems = "1 problem"
		}
		lines = append(lines, fmt.Sprintf("content: verified %s, %s", s.FinishedAt.Format(time.DateOnly), problems))
	}
	return lines
}

func readyLine(r *status.Registry) string {
	ready := r.ReadyPods()
	if !r.Ready && ready == 0 {
		return "not ready: " + r.Message
	}
	var nodes []string
	for _, p := range r.Pods {
		if p.Ready && !slices.Contains(nodes, p.Node) {
			nodes = append(nodes, p.Node)
		}
	}
	notes := ""
	if r.GarbageCollection != nil && r.GarbageCollection.Running {
		notes = "; collecting garbage"
	}
	switch on := strings.Join(nodes, ", "); {
	case !r.Ready:
		return fmt.Sprintf("%d of %d pods ready, on node %s: %s", ready, r.Desired, on, r.Message) + notes
	case ready > 1:
		return fmt.Sprintf("%d pods ready, on node %s", ready, on) + notes
	default:
		return "ready on node " + on + notes
	}
}

func readyOf(ready, wanted int, why string) string {
	line := fmt.Sprintf("%d of %d pods ready", ready, wanted)
	if why != "" {
		line += ": " + why
	}
	return line
}

func cacheLine(c status.Cache) string {
	line := c.Name
	if c.Node != "" {
		line += " on node " + c.Node
	}
	if !c.Ready {
		return line + ": not ready: " + cmp.Or(c.Message, "no reason reported")
	}
	u := c.Use
	if u == nil {
		return line + ": ready"
	}
	line += fmt.Sprintf(": %s of %s used; %d hits, %d misses", space.FormatBytes(u.Used), space.FormatBytes(u.Size),
		u.Hits, u.Misses)
	if u.Stale > 0 {
		line += fmt.Sprintf(", %d stale answers", u.Stale)
	}
	return line
}

func healerLine(h *status.Healer) string {
	if h == nil {
		return "off"
	}
	line := readyOf(h.Ready, h.Desired, h.Message)
	if len(h.Waiting) > 0 {
		line += "; without an image: " + strings.Join(h.Waiting, ", ")
	}
	return line
}

func rewritingLine(r *status.Rewriting) string {
	switch {
	case r.Effective == nil:
		return fmt.Sprintf("%s, not tried: %s", r.Policy, r.Message)
	case *r.Effective:
		return r.Policy + ", takes effect"
	}
	return fmt.Sprintf("%s, does not take effect: %s", r.Policy, r.Message)
}
