package hook

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/zarf-dev/zarf-registry/internal/state"
)

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
	// Check is the name of the check, as Settings.Preflight.Ignore has it.
	Check    string   `json:"check"`
	Severity Severity `json:"severity"`
	// Object is what it is about: "Service default/web", "node n1".
	Object string `json:"object,omitempty"`
	// Cause is what is wrong and what would come of it, in a sentence.
	Cause string `json:"cause"`
	// Remedy is the command that mends it, or what else to do.
	Remedy string `json:"remedy"`
}

// String is the finding in one line.
func (f Finding) String() string {
	parts := []string{f.Check, f.Object, f.Cause}
	line := strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), ": ")
	if f.Remedy != "" {
		line += "; " + f.Remedy
	}
	return strings.ReplaceAll(line, "\n", " ")
}

// The names of the checks.
const (
	checkPodSecurity = "pod-security"
	checkAdmission   = "admission"
	checkAlwaysPull  = "always-pull-images"
	checkPort        = "port"
	checkPortRange   = "port-range"
	checkIPFamily    = "ip-family"
	checkCRIO        = "cri-o"
	checkArch        = "architecture"
	checkPauseImage  = "pause-image"
	checkAddress     = "address"
	// What the user provides.
	checkCertificates = "certificates"
	checkCredentials  = "credentials"
	checkNodeConfig   = "nodeConfig"
	checkExpose       = "expose"
)

// ignoreAll stands for all checks in Settings.Preflight.Ignore.
const ignoreAll = "all"

// Checks are the names of all checks, which Settings.Preflight.Ignore chooses from.
func Checks() []string {
	return []string{
		checkPodSecurity, checkAdmission, checkAlwaysPull, checkPort, checkPortRange,
		checkIPFamily, checkCRIO, checkArch, checkPauseImage, checkAddress,
		checkCertificates, checkCredentials, checkNodeConfig, checkExpose,
	}
}

// Preflight looks for everything that would stand in the way of Prepare and
// Finish, and changes nothing. It returns all findings, blockers first; the error
// is of looking, not of what was found, or says why the decision itself is refused.
func (h *Hook) Preflight(ctx context.Context) ([]Finding, error) {
	if h.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, h.Timeout)
		defer cancel()
	}
	i := &inspection{Hook: h}
	for _, look := range []work{i.look, i.readState, i.decide} {
		if _, err := look(ctx); err != nil {
			return nil, err
		}
	}
	return i.inspect(ctx)
}

func (p *preparation) preflight(ctx context.Context) (string, error) {
	findings, err := p.inspect(ctx)
	if err != nil {
		return "", err
	}
	var blockers []string
	for _, f := range findings {
		if f.Severity == Blocker {
			blockers = append(blockers, "\n  "+f.String())
			continue
		}
		p.Log.Warn("preflight", "check", f.Check, "object", f.Object, "cause", f.Cause, "remedy", f.Remedy)
	}
	if len(blockers) > 0 {
		return "", refuse("nothing was changed, because of:%s", strings.Join(blockers, ""))
	}
	return fmt.Sprintf("nothing stands in the way, warnings: %d", len(findings)), nil
}

// inspect runs the checks that matter in the mode.
func (i *inspection) inspect(ctx context.Context) ([]Finding, error) {
	for _, name := range i.Settings.Preflight.Ignore {
		if name != ignoreAll && !slices.Contains(Checks(), name) {
			return nil, refuse("--ignore-preflight names %q, which is no check: choose among %s, or %s", name, strings.Join(Checks(), ", "), ignoreAll)
		}
	}
	ours := i.Settings.Mode != state.ModeExternal
	looks := []func(context.Context) ([]Finding, error){i.lookAtNodeConfig}
	if ours {
		looks = append(looks, i.lookAtServices, i.lookAtCertificates, i.lookAtPushSecret, i.lookAtExposure)
	}
	if ours || i.Settings.ConfiguresNodes() {
		looks = append(looks, i.tryPods)
	}
	findings := i.address()
	for _, look := range looks {
		found, err := look(ctx)
		if err != nil {
			return nil, err
		}
		findings = append(findings, found...)
	}
	if ours {
		findings = append(findings, i.criO()...)
	}
	if ours || i.Settings.ConfiguresNodes() {
		findings = slices.Concat(findings, i.architecture(), i.pauseImage())
	}
	for n, f := range findings {
		if slices.Contains(i.Settings.Preflight.Ignore, f.Check) || slices.Contains(i.Settings.Preflight.Ignore, ignoreAll) {
			findings[n].Severity = Warning
		}
	}
	slices.SortStableFunc(findings, func(a, b Finding) int {
		rank := func(f Finding) int { return cmp.Compare(f.Severity, Blocker) } // "blocker" is the smaller word
		if c := cmp.Compare(rank(a), rank(b)); c != 0 {
			return c
		}
		return cmp.Compare(slices.Index(Checks(), a.Check), slices.Index(Checks(), b.Check))
	})
	return findings, nil
}
