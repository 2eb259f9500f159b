package preflight

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/nodeimages"
	"github.com/zarf-dev/zarf-registry/internal/payload"
	"github.com/zarf-dev/zarf-registry/internal/plan"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/state"
)

// These checks need only the nodes and the saved state.

// address finds image references that the decision changes.
func (i *Inspection) address() []Finding {
	if i.Saved == nil {
		return nil
	}
	before := i.Saved.Desired
	if i.Saved.Current != nil {
		before = *i.Saved.Current
	}
	now := i.Desired
	if before.Address == now.Address {
		return nil
	}
	f := Finding{
		Check: checkAddress, Severity: Warning, Object: "address " + now.Address,
		Cause: fmt.Sprintf("image references now start with this address, and references that start with %s can no "+
			"longer be pulled", before.Address),
		Remedy: fmt.Sprintf("change the references, or keep the address: %s", setAddress(before)),
	}
	if now.Mode == state.ModeExternal {
		f.Cause += "; the registry in the cluster is deleted, its volume is kept"
	}
	return []Finding{f}
}

// setAddress returns the Helm options that set an address.
func setAddress(s state.Settings) string {
	if s.Mode == state.ModeExternal {
		return setMode(s.Mode, s.Address)
	}
	return fmt.Sprintf("%s --set registryURL= --set port=%d --set ipFamily=%s", setMode(s.Mode, ""), s.Port, s.IPFamily)
}

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
			"--set nodeConfig.crio.ca=true; or, once there are certificates, write what init-hook certs ca prints to "+
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
	left := false
	for _, n := range i.nodes {
		if arch := n.Status.NodeInfo.Architecture; slices.Contains(o.Architectures, arch) {
			left = true
		} else {
			without[arch] = append(without[arch], n.Name)
		}
	}
	var findings []Finding
	for _, arch := range slices.Sorted(maps.Keys(without)) {
		f := Finding{Check: checkArch, Severity: Warning, Object: release.ListNodes(without[arch])}
		f.Cause = fmt.Sprintf("the chart has proxies for %s but not for %s, so these nodes cannot pull",
			strings.Join(o.Architectures, " and "), arch)
		if o.Mode == state.ModeNodePort {
			f.Cause = fmt.Sprintf(
				"the chart has programs for %s but not for %s, so these nodes cannot run the registry, and their pulls are not "+
					"verified", strings.Join(o.Architectures, " and "), arch)
		}
		if !left {
			f.Severity = Blocker
			f.Cause += "; no node remains"
		}
		f.Remedy = fmt.Sprintf("use an init-hook that carries programs for %s, and add it to injector.architectures", arch)
		findings = append(findings, f)
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

// pauseImage finds nodes that hold none of the images that injected pods use.
func (i *Inspection) pauseImage() []Finding {
	o := &i.Settings
	if !o.Injector.Enabled {
		return nil
	}
	var without []string
	reported := map[string]int{} // number of nodes by pause image
	some, with := false, false
	for _, n := range i.nodes {
		if !plan.NodeReady(n) || len(n.Status.Images) == 0 {
			continue
		}
		some = true
		if slices.ContainsFunc(o.Injector.PauseImages, func(image string) bool { return plan.Reports(n, image) }) {
			with = true
			continue
		}
		for _, image := range n.Status.Images {
			for _, name := range image.Names {
				if nodeimages.IsPause(name) && !strings.Contains(name, "@") {
					reported[name]++
				}
			}
		}
		if plan.ReportsAll(n) {
			without = append(without, n.Name)
		}
	}
	blind := o.Injector.PauseImageSource == state.SourceDefault
	switch {
	case !some && blind:
		return []Finding{{Check: checkPauseImage, Severity: Blocker, Object: "all nodes",
			Cause:  "no pause image is known: no node reports any image, and the chart was rendered without cluster access",
			Remedy: "name the image that the nodes hold: --set injector.image=IMAGE"}}
	case len(without) == 0:
		return nil
	}
	f := Finding{Check: checkPauseImage, Severity: Warning, Object: release.ListNodes(without)}
	// In node port mode the registry needs only one node.
	if blind && (o.Mode == state.ModeProxy || !with) {
		f.Severity = Blocker
	}
	// The most widespread image first; among those, the last by name, which has the highest version.
	found := slices.SortedFunc(maps.Keys(reported), func(a, b string) int {
		return cmp.Or(cmp.Compare(reported[b], reported[a]), cmp.Compare(b, a))
	})
	f.Cause = fmt.Sprintf("injected pods use %s, which these nodes do not report",
		strings.Join(o.Injector.PauseImages, " or "))
	if len(found) > 0 {
		f.Cause += "; they report " + strings.Join(found, ", ")
		f.Remedy = "--set injector.image=" + found[0]
	} else {
		f.Remedy = "name an image that they hold: --set injector.image=IMAGE"
	}
	return []Finding{f}
}
