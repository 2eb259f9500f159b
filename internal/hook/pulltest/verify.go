package pulltest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/hook/nodes"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/plan"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// Images names the image to pull.
type Images interface {
	// ProbeImage is the "<repository>:<tag>@<digest>" of the tiny image for a mode: the registry serves
	// zarf-registry/probe-proxy to proxies only, and zarf-registry/probe-nodeport at the plain
	// listener only, so that a pull cannot succeed by the other path.
	ProbeImage(mode state.Mode) (string, error)
}

// Verifier verifies that nodes can pull, which is the only check that covers network plugin, kube-proxy and container
// runtime at once. It changes nothing but its own pods. Its fields must be set.
type Verifier struct {
	*nodes.Observer
	Pods   Pods
	Images Images
}

const (
	// verifyTimeout bounds the pull of each node. A kubelet that fails to pull waits 10 s, 20 s, 40 s before it
	// retries, so this allows four attempts.
	verifyTimeout = 90 * time.Second
	// switchTimeout is verifyTimeout during a switch: three attempts, because nodes that the new mode
	// does not serve cannot pull meanwhile.
	switchTimeout = 45 * time.Second
	// silentTimeout is switchTimeout for a node whose kubelet reports nothing: the node controller needs 50 seconds to
	// notice that it is gone, and such nodes are skipped.
	silentTimeout = verifyTimeout
	// permanentAfter is when a verification may end early because no node can succeed: each has tried twice by then.
	permanentAfter = 20 * time.Second
	// listedReasons limits how many reasons an error lists.
	listedReasons = 10
)

// Nodes runs a pod with a tiny image of the registry on every node that is ready and, in proxy
// mode, has a proxy. The image is always pulled, through the loopback address. It returns the nodes
// that pulled. Nodes that leave meanwhile, or reject the pod, are skipped. switching means that a failure is undone
// by serving the previous mode.
func (v *Verifier) Nodes(ctx context.Context, switching bool) (verified []string, did string, err error) {
	eligible, others, err := v.eligible(ctx)
	if err != nil {
		return nil, "", err
	}
	if len(eligible) == 0 {
		return nil, "", errors.New(
			"no node can be verified: none is ready and able to pull; check the nodes, and in proxy mode the proxy DaemonSets")
	}
	image, err := v.Images.ProbeImage(v.Settings.Mode)
	if err != nil {
		return nil, "", err
	}
	image = v.Settings.Address + "/" + image

	begin := v.Now()
	cordoned := map[string]bool{}
	for _, n := range eligible {
		if n.Spec.Unschedulable {
			cordoned[n.Name] = true
		}
	}
	puller, mayFail := v.puller(image, switching), v.MayFail(len(eligible))
	puller.mayFail = mayFail + len(cordoned)
	var failed []Result
	for _, r := range puller.pull(ctx, eligible) {
		switch r.Outcome {
		case Pulled:
			verified = append(verified, r.Node)
		case Failed:
			failed = append(failed, r)
		case skipped:
			others = append(others, r.Node)
		}
	}
	if len(verified) > 0 && ctx.Err() == nil {
		others = append(others, v.excuse(&failed, cordoned, mayFail)...)
	}
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return nil, "", ctx.Err()
	case ctx.Err() != nil:
		return nil, "", fmt.Errorf("%w: %w", failures(image, failed), ctx.Err())
	case len(failed) > 0 && (switching || !slices.ContainsFunc(failed, func(r Result) bool {
		return r.Remedy != adviceNotServed
	})): // a retry would interrupt pulls again, or fail in the same way
		return nil, "", exitcode.Refuse("%w", failures(image, failed))
	case len(failed) > 0:
		return nil, "", failures(image, failed)
	case len(verified) == 0:
		return nil, "", fmt.Errorf("no node was verified: %s became unready or rejected the pod: see the warnings",
			release.ListNodes(others))
	}
	slices.Sort(verified)
	did = fmt.Sprintf("pulled %s on %d of %d nodes (%s) in %s", image, len(verified), len(verified)+len(others),
		release.ListNodes(verified), v.Now().Sub(begin).Round(time.Millisecond))
	if len(others) > 0 {
		did += "; not verified: " + release.ListNodes(others)
	}
	return verified, did, nil
}

// excuse removes failures of cordoned nodes, and those of others if they are not too many.
func (v *Verifier) excuse(failed *[]Result, cordoned map[string]bool, mayFail int) (excused []string) {
	take := func(from func(Result) bool, excuse func(node, reason string)) {
		*failed = slices.DeleteFunc(*failed, func(r Result) bool {
			if !from(r) {
				return false
			}
			excuse(r.Node, "it could not pull: "+r.reason())
			excused = append(excused, r.Node)
			return true
		})
	}
	take(func(r Result) bool { return cordoned[r.Node] }, func(node, reason string) {
		v.Excuse(node, "it is cordoned: "+reason)
	})
	if len(*failed) <= mayFail {
		take(func(Result) bool { return true }, v.Fail)
	}
	return excused
}

// puller returns the one that verifies the pull of an image.
func (v *Verifier) puller(image string, switching bool) *puller {
	p := &puller{Verifier: v, image: image, limit: verifyTimeout}
	if switching {
		p.limit = switchTimeout
	}
	if v.Settings.Mode == state.ModeNodePort {
		p.permanent, p.pullSecret = notServed, v.Settings.Name+names.SuffixPull
	}
	return p
}

// DeletePods deletes the pods of this run and of runs that were killed.
func (v *Verifier) DeletePods() { v.puller("", false).deletePods() }

// eligible returns the nodes that should be able to pull, and the names of the others.
func (v *Verifier) eligible(ctx context.Context) (eligible []corev1.Node, others []string, err error) {
	list, err := v.Cluster.Nodes.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("listing nodes: %w", err)
	}
	proxied := map[string]bool{}
	if v.Settings.Mode == state.ModeProxy {
		pods, err := v.ProxyPods(ctx)
		if err != nil {
			return nil, nil, err
		}
		for _, p := range pods {
			proxied[p.Spec.NodeName] = true
		}
	}
	why := map[string][]string{} // nodes by reason
	for _, n := range list.Items {
		arch := n.Status.NodeInfo.Architecture
		switch {
		case !plan.RunsPods(n):
		case v.Excused[n.Name] != "":
			others = append(others, n.Name)
		case !plan.NodeReady(n):
			others = append(others, n.Name)
			v.Excuse(n.Name, "it is not ready")
		case v.Settings.Mode == state.ModeProxy && !proxied[n.Name]:
			const noProxy = "they have no proxy: see proxy.nodeSelector, proxy.tolerations, injector.architectures"
			why[noProxy] = append(why[noProxy], n.Name)
		case v.Settings.Mode == state.ModeNodePort && !slices.Contains(v.Settings.Architectures, arch):
			noImage := "there is no image for their architecture " + arch
			why[noImage] = append(why[noImage], n.Name)
		default:
			eligible = append(eligible, n)
		}
	}
	for reason, names := range why {
		v.Log.Warn("skipping nodes, whose pulls are not verified", "nodes", release.ListNodes(names), "reason", reason)
		others = append(others, names...)
	}
	slices.Sort(others)
	slices.SortFunc(eligible, func(a, b corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	return eligible, others, nil
}

// failures describes the nodes that could not pull, by reason, with what to do about it.
func failures(image string, failed []Result) error {
	groups := byReason(failed, func(r Result) string {
		return fmt.Sprintf("could not pull %s: %s", image, r.reason())
	})
	var errs []error
	for i, g := range groups {
		if i == listedReasons {
			errs = append(errs, fmt.Errorf("and %d other reasons", len(groups)-i))
			break
		}
		errs = append(errs, errors.New(release.ListNodes(g.Nodes)+" "+g.Reason))
	}
	return errors.Join(errs...)
}

// group is the nodes with the same reason.
type group struct {
	Reason string
	Nodes  []string
}

// byReason groups results, in the order of the first of each reason.
func byReason(results []Result, reason func(Result) string) (groups []group) {
	at := map[string]int{}
	for _, r := range results {
		text := reason(r)
		i, ok := at[text]
		if !ok {
			i, groups = len(groups), append(groups, group{Reason: text})
			at[text] = i
		}
		groups[i].Nodes = append(groups[i].Nodes, r.Node)
	}
	return groups
}

const adviceNotServed = "kube-proxy serves no node port on the loopback address there, as in nftables mode, with " +
	"IPv6, and in some distributions: use proxies instead, --set registryProxy=true"

// notServed reports whether a kubelet's complaint means that nothing answers on the loopback address,
// or that a proxy does instead of the node port: it gets a 403 for the image for node ports.
func notServed(complaint string) bool {
	return strings.Contains(complaint, "connection refused") || forbidden(complaint)
}

func forbidden(complaint string) bool {
	return strings.Contains(complaint, "403 Forbidden") || strings.Contains(complaint, ": denied: ")
}

// advice returns what to do about a kubelet's complaint about the pull of an image.
func advice(mode state.Mode, complaint string) string {
	nodePort := mode == state.ModeNodePort
	switch has := func(sign string) bool { return strings.Contains(complaint, sign) }; {
	case has("gave HTTP response to HTTPS client") && nodePort:
		return "the container runtime requires TLS on loopback, which node ports do not have: use proxies instead, --set " +
			"registryProxy=true --set proxy.tls=always, and let the node trust the registry's CA"
	case has("gave HTTP response to HTTPS client"):
		return "the container runtime requires TLS on loopback: --set proxy.tls=always, and let the node trust the " +
			"registry's CA"
	case has("certificate signed by unknown authority"):
		return "let the node trust the registry's CA (Secret …-ca; for CRI-O --set nodeConfig.crio.ca=true), or --set " +
			"proxy.tls=never where the runtime accepts plain HTTP on loopback"
	case nodePort && notServed(complaint):
		return adviceNotServed
	case has("connection refused"):
		return "nothing answers on the node's loopback address: the network plugin does not serve hostPort there; try " +
			"--set proxy.hostNetwork=true"
	case forbidden(complaint):
		return "the pull did not go through the node's proxy: look for another Service or pod that uses the port"
	case has("401 Unauthorized"):
		return "the registry does not accept the pull credential: run helm upgrade again, which repairs the Secret …-pull"
	case has("503 Service Unavailable"):
		return "the node's proxy cannot reach the registry: check the logs of the proxy pod on that node and the " +
			"network policies"
	case has("not found"):
		return "the registry does not have the image: run helm upgrade again, which pushes it"
	case has("i/o timeout") && nodePort:
		return "packets to the loopback address or to the registry's port 5001 are dropped: look for a firewall on that " +
			"node and the network policies; or use proxies instead, --set registryProxy=true"
	case has("i/o timeout"):
		return "packets to the loopback address are dropped on that node: on CRI-O --set proxy.hostNetwork=true; else look " +
			"for a firewall there"
	case nodePort:
		return "check kube-proxy on that node and the registry's log"
	}
	return "check the logs of the proxy pod on that node"
}
