package preflight

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/hook/payload"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/nodeimages"
	"github.com/zarf-dev/zarf-registry/internal/release/plan"
	"github.com/zarf-dev/zarf-registry/internal/release/settings"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// These checks need only the nodes and the saved state.

// nodesWith returns the names of the nodes for which a rule has a reason, and the last reason.
func (i *Inspection) nodesWith(rule func(corev1.Node) string) (nodes []string, reason string) {
	for _, n := range i.nodes {
		if r := rule(n); r != "" {
			nodes, reason = append(nodes, n.Name), r
		}
	}
	return nodes, reason
}

// ipv6 finds nodes that cannot pull from [::1].
func (i *Inspection) ipv6() []Finding {
	if i.Settings.IPFamily != state.IPv6 {
		return nil
	}
	nodes, cause := i.nodesWith(plan.IPv6Unsupported)
	if len(nodes) == 0 {
		return nil
	}
	return []Finding{{Check: checkIPFamily, Severity: Blocker, Object: release.ListNodes(nodes), Cause: cause,
		Remedy: "use nodes with containerd, or a registry with a host name: --set registryURL=https://HOST"}}
}

// criO finds nodes that accept no plain HTTP on the loopback address.
func (i *Inspection) criO() []Finding {
	nodes, wants := i.nodesWith(plan.RequiresTLS)
	if len(nodes) == 0 {
		return nil
	}
	if i.Settings.NodeConfig.CA || i.nodeConfig.CRIO.ConfDirectory != "" && i.nodeConfig.CRIO.Insecure {
		return nil // the node configuration provides what CRI-O needs
	}
	f := Finding{Check: checkCRIO, Severity: Blocker, Object: release.ListNodes(nodes)}
	switch {
	case i.Settings.Mode == state.ModeNodePort:
		f.Cause = wants + ", but a node port serves plain HTTP"
		f.Remedy = "--set registryProxy=true"
	case !i.Settings.PKI.ServeTLS:
		f.Cause = wants + ", but the proxies serve plain HTTP"
		f.Remedy = "--set proxy.tls=always"
	default:
		f.Severity = Warning
		f.Cause = wants + ", and must trust the CA of the proxies"
		f.Remedy = fmt.Sprintf(
			"--set nodeConfig.crio.ca=true; or, once there are certificates, write what zarf-registry certs ca prints to "+
				"/etc/containers/certs.d/%s/ca.crt on each of these nodes", i.Settings.Address)
	}
	return []Finding{f}
}

// hostPort finds nodes whose proxies cannot be reached.
func (i *Inspection) hostPort() []Finding {
	if i.Settings.Mode != state.ModeProxy || i.Settings.Proxy.HostNetwork {
		return nil
	}
	nodes, cause := i.nodesWith(plan.HostPortUnreachable)
	if len(nodes) == 0 {
		return nil
	}
	// A network plugin may change that: OVN-Kubernetes rewrites the source of such connections.
	return []Finding{{Check: checkHostPort, Severity: Warning, Object: release.ListNodes(nodes), Cause: cause,
		Remedy: "--set proxy.hostNetwork=true"}}
}

// architecture finds nodes whose architecture no program is built for, and programs of another build
// than the chart.
func (i *Inspection) architecture() []Finding {
	o := &i.Settings
	if o.Mode == state.ModeNodePort && !o.Injector.Enabled {
		return nil // only the registry runs on the nodes, from an image
	}
	without := map[string][]string{}
	for _, n := range i.nodes {
		if arch := n.Status.NodeInfo.Architecture; !slices.Contains(o.Architectures, arch) {
			without[arch] = append(without[arch], n.Name)
		}
	}
	if len(i.Architectures()) > 0 {
		clear(without) // others can run it
	}
	var findings []Finding
	for _, arch := range slices.Sorted(maps.Keys(without)) {
		findings = append(findings, Finding{Check: checkArch, Severity: Blocker, Object: release.ListNodes(without[arch]),
			Cause: fmt.Sprintf("the chart has programs for %s but not for %s, and no other node can run it",
				strings.Join(o.Architectures, " and "), arch),
			Remedy: fmt.Sprintf("use a zarf-registry that carries programs for %s, and add it to injector.architectures", arch)})
	}
	if !o.Injector.Enabled {
		return findings
	}
	for _, arch := range i.Architectures() {
		for _, program := range o.Programs(arch) {
			f := Finding{Severity: Blocker, Object: fmt.Sprintf("program %s for %s", program, arch)}
			p, err := i.Payload.Payload(program, arch)
			if err != nil {
				f.Check, f.Cause = checkArch, err.Error()
				f.Remedy = "or remove the architecture from injector.architectures"
			} else {
				f.Check, f.Cause, f.Remedy = checkPayload, i.Payload.Mismatch(p), payload.RemedyMismatch
			}
			if f.Cause != "" {
				findings = append(findings, f)
			}
		}
	}
	return findings
}

// pauseImage judges the images of injected pods.
func (i *Inspection) pauseImage() []Finding {
	if !i.Settings.Injector.Enabled {
		return nil
	}
	var findings []Finding
	seen := i.Architectures()
	if len(seen) == 0 { // a finding of its own, but the choice matters too
		seen = i.Settings.Architectures
	}
	for _, architecture := range seen {
		findings = append(findings, i.pauseImageOf(architecture)...)
	}
	return findings
}

// pauseImageOf returns findings about the image for one architecture: where it comes from, and which nodes lack it.
func (i *Inspection) pauseImageOf(architecture string) []Finding {
	image := i.Settings.Injector.PauseImages[architecture]
	nodes := i.pauseNodesOf(architecture, image.Reference)
	findings, nowhere := i.pauseImageOrigin(architecture, image, nodes)
	if nowhere || len(nodes.lacking) == 0 {
		return findings
	}
	severity := Warning
	// In node port mode the registry needs only one node.
	if image.Source == state.SourceDefault && (i.Settings.Mode == state.ModeProxy || !nodes.with) {
		severity = Blocker
	}
	cause := fmt.Sprintf("injected pods use %s, which these nodes do not report", image.Reference)
	if len(nodes.candidates) > 0 {
		cause += "; they report " + strings.Join(nodes.candidates, ", ")
	}
	return append(findings, pauseFinding(severity, release.ListNodes(nodes.lacking), cause, nodes.candidates...))
}

// pauseNodes describes the ready nodes of an architecture that report images.
type pauseNodes struct {
	reporting []string // all of them
	lacking   []string // those without the image, whose pods no healer corrects
	// candidates are the images of the lacking nodes that a person may choose, the most widespread first, and among those
	// the last by name, which has the highest version.
	candidates []string
	with       bool // a node reports the image
	trusted    bool // a node reports an image that the rules trust
	complete   bool // no node may have images that it does not report
}

func (i *Inspection) pauseNodesOf(architecture, image string) pauseNodes {
	rules := i.Settings.Injector.PauseRules
	found := pauseNodes{complete: true}
	counts := map[string]int{} // lacking nodes, by candidate
	for _, n := range i.nodes {
		if n.Status.NodeInfo.Architecture != architecture || !plan.NodeReady(n) || len(n.Status.Images) == 0 {
			continue
		}
		images := plan.Images(n)
		found.reporting = append(found.reporting, n.Name)
		trusted := len(rules.Trusted(images)) > 0
		found.trusted = found.trusted || trusted
		found.complete = found.complete && rules.Complete(images)
		switch {
		case nodeimages.Reported(images, image):
			found.with = true
		case trusted && i.Settings.Injector.Healer: // the healer gives it that image
		case rules.Complete(images):
			found.lacking = append(found.lacking, n.Name)
			for _, name := range nodeimages.Candidates(images) {
				counts[name]++
			}
		}
	}
	found.candidates = slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(b, a))
	})
	return found
}

// pauseImageOrigin returns findings about where the image comes from. If nowhere is true, no node has an image that
// injected pods can run in, and the findings say so.
func (i *Inspection) pauseImageOrigin(architecture string, image settings.PauseImage, nodes pauseNodes) (
	findings []Finding, nowhere bool) {
	object := "image " + image.Reference
	withoutCluster := image.Source == state.SourceDefault
	recorded := state.PauseImage{Reference: image.Reference}
	if i.Saved != nil {
		recorded = cmp.Or(i.Saved.PauseImages[architecture], recorded)
	}
	changed := recorded.Reference != image.Reference
	byDigest := strings.Contains(recorded.Reference, "@")
	// A rollback has the images of its revision. It may restore what a person or an official digest vouches for, and what
	// the rules trust where a node has it. That the revision's pods use it is no reason.
	rules := i.Settings.Injector.PauseRules
	rules.References = nil
	chosen := image.Source == state.SourceValue || nodes.with && rules.Trust(image.Reference) != nodeimages.None ||
		!withoutCluster && (image.Reason == state.PauseValue || image.Reason == state.PauseDigest)
	switch {
	case image.Source == state.SourceValue && len(nodes.reporting) > 0 && !nodes.with && nodes.complete:
		// The healer helps no pod either: it runs in the same image.
		var candidates []string
		for _, n := range i.nodes {
			candidates = append(candidates, nodeimages.Candidates(plan.Images(n))...)
		}
		slices.Sort(candidates)
		return []Finding{pauseFinding(Blocker, object, fmt.Sprintf("injector.image: no node reports it (%s), so no injected "+
			"pod would start", release.ListNodes(nodes.reporting)), slices.Compact(candidates)...)}, true
	case changed && chosen:
		return nil, false
	case changed && byDigest && (!withoutCluster || recorded.Reason != state.PauseDefault):
		var options []string
		rules := i.Settings.Injector.PauseRules
		rules.References = nil
		if rules.Trust(recorded.Reference) != nodeimages.None { // others than people write the state
			options = []string{recorded.Reference}
		}
		return []Finding{pauseFinding(Blocker, object, fmt.Sprintf("the release uses %s for %s (%s), but the chart was "+
			"rendered without seeing that", recorded.Reference, architecture, recorded.Reason), options...)}, false
	case changed && !byDigest:
		return []Finding{pauseFinding(Blocker, object, fmt.Sprintf("the release uses %s for %s (%s): a name without a "+
			"digest, which pulls from this release's registry may change, or which this rendering did not see",
			recorded.Reference, architecture, recorded.Reason), append(nodes.candidates, image.Reference)...)}, false
	case withoutCluster && len(i.nodes) > 0 && len(nodes.reporting) == 0:
		return []Finding{pauseFinding(Blocker, "all nodes", "no pause image is known: no node for "+architecture+" reports "+
			"any image, and the chart was rendered without cluster access")}, false
	case withoutCluster && !nodes.trusted && len(nodes.reporting) > 0 && !nodes.with:
		return []Finding{pauseFinding(Blocker, release.ListNodes(nodes.reporting), "no node reports an image with the "+
			"digest of an official pause image, or in a well-known repository", nodes.candidates...)}, true
	}
	return nil, false
}

// pauseFinding is a finding whose remedy is to name one of some images.
func pauseFinding(severity Severity, object, cause string, options ...string) Finding {
	if len(options) == 0 {
		options = []string{"IMAGE, an image that the nodes hold and that you trust"}
	}
	return Finding{Check: checkPauseImage, Severity: severity, Object: object, Cause: cause,
		Remedy: "--set injector.image=" + strings.Join(options, ", or --set injector.image=")}
}
