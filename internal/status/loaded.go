package status

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/names"
	"github.com/zarf-dev/zarf-registry/internal/nodes"
	"github.com/zarf-dev/zarf-registry/internal/reloadstatus"
	"github.com/zarf-dev/zarf-registry/internal/state"
)

// CertificateReport is all that can be found out about the certificates. Its JSON is
// what init-hook certs show prints.
type CertificateReport struct {
	Namespace string `json:"namespace"`
	Release   string `json:"release"`
	Name      string `json:"name"`
	// Healthy says that Next is empty.
	Healthy bool `json:"healthy"`
	// External is the registry in external mode, which has no certificates of ours.
	External string `json:"external,omitempty"`
	// PKI is how certificates are made; nil where the state does not say.
	PKI *state.PKI `json:"pki,omitempty"`
	// Rotation is a change of authorities that is under way.
	Rotation *state.Rotation      `json:"rotation,omitempty"`
	Secrets  []*SecretCertificate `json:"secrets"`
	Pods     []PodCertificates    `json:"pods"`
	// Unreadable is what could not be read, with the reason.
	Unreadable []string `json:"unreadable"`
	// Next is what to do, one sentence for everything that is wrong.
	Next []string `json:"next"`
}

// PodCertificates is what a pod of the registry or of a proxy has loaded.
type PodCertificates struct {
	Pod  string `json:"pod"`
	Node string `json:"node,omitempty"`
	// Component is registry or proxy, Secret the one that it mounts.
	Component string `json:"component"`
	Secret    string `json:"secret"`
	Ready     bool   `json:"ready"`
	// Loaded is its answer; nil where there is none, then Why says why.
	Loaded *reloadstatus.Report `json:"loaded,omitempty"`
	// LeafHeld says that it uses the certificate that the Secret holds now, TrustHeld
	// that it trusts the authorities in ca.crt, and no other.
	LeafHeld  bool   `json:"leafHeld"`
	TrustHeld bool   `json:"trustHeld"`
	Why       string `json:"why,omitempty"`

	trouble trouble
}

// trouble is what is to be done about a pod.
type trouble int

const (
	none trouble = iota
	// former: it was made before there was anything to ask.
	former
	// silent: it does not answer.
	silent
	// behind: it has not loaded what its Secret holds.
	behind
	// failing: it cannot load what its Secret holds.
	failing
)

// askedAtOnce bounds how many pods are asked at the same time: each question is a
// connection through the API server.
const askedAtOnce = 16

// CollectCertificates looks at the certificates, and asks the pods what they have
// loaded of them. The error is ErrNotInstalled, or that the cluster does not answer.
func CollectCertificates(ctx context.Context, o Options) (*CertificateReport, error) {
	c := &collector{Options: o, report: &Report{Unreadable: []string{}, Next: []string{}}}
	r := &CertificateReport{Namespace: o.Namespace, Release: o.Release, Name: o.Name, Secrets: []*SecretCertificate{}, Pods: []PodCertificates{}}
	for _, look := range []func(context.Context) error{c.locate, c.state} {
		if err := look(ctx); err != nil {
			return nil, err
		}
	}
	if s := c.report.State; s != nil {
		r.PKI, r.Rotation = s.PKI, s.Rotation
	} else {
		for _, look := range []func(context.Context) error{c.workloads, c.installed} {
			if err := look(ctx); err != nil {
				return nil, err
			}
		}
	}
	if c.external() {
		r.External = c.report.State.Desired.Address
	} else {
		held, err := c.held(ctx)
		if err != nil {
			return nil, err
		}
		r.Secrets = append(r.Secrets, held...)
		for _, h := range held {
			if err := c.source(ctx, h); err != nil {
				return nil, err
			}
		}
		c.rotation()
		pods, err := c.ask(ctx, held)
		if err != nil {
			return nil, err
		}
		r.Pods = append(r.Pods, pods...)
	}
	c.nextForUnreadable()
	r.Unreadable, r.Next = c.report.Unreadable, c.report.Next
	r.Healthy = len(r.Next) == 0
	return r, nil
}

// ask asks every pod, those of the registry first.
func (c *collector) ask(ctx context.Context, held []*SecretCertificate) ([]PodCertificates, error) {
	notReady, err := c.nodesNotReady(ctx)
	if err != nil {
		return nil, err
	}
	var found []PodCertificates
	var pods []corev1.Pod
	for _, of := range []struct {
		component, suffix string
		selector          metav1.ListOptions
	}{
		{"registry", names.SuffixServerTLS, nodes.RegistryPods(c.Release)},
		{"proxy", names.SuffixNodeTLS, selector(c.Release, "proxy")},
	} {
		list, err := c.Client.CoreV1().Pods(c.Namespace).List(ctx, of.selector)
		if err != nil {
			if err := c.unreadable(fmt.Sprintf("listing the pods of component %s in namespace %s", of.component, c.Namespace), err); err != nil {
				return nil, err
			}
			continue
		}
		slices.SortFunc(list.Items, func(a, b corev1.Pod) int {
			return cmp.Or(cmp.Compare(a.Spec.NodeName, b.Spec.NodeName), cmp.Compare(a.Name, b.Name))
		})
		for _, p := range list.Items {
			if p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
				continue // it takes no requests any more
			}
			pods = append(pods, p)
			found = append(found, PodCertificates{Pod: p.Name, Node: p.Spec.NodeName, Component: of.component, Secret: c.Name + of.suffix, Ready: nodes.PodReady(p)})
		}
	}
	var group errgroup.Group
	group.SetLimit(askedAtOnce)
	for i := range found {
		group.Go(func() error {
			f := &found[i]
			switch {
			case notReady[f.Node]:
				f.Why = "node not ready"
			case pods[i].Status.Phase != corev1.PodRunning:
				f.Why = "not running yet"
			default:
				c.askPod(ctx, f, &pods[i], held)
			}
			return ctx.Err()
		})
	}
	if group.Wait() != nil {
		return nil, context.Cause(ctx)
	}
	c.advisePods(found)
	return found, nil
}

// nodesNotReady are the nodes whose pods could not answer. Who may not list nodes
// asks all pods.
func (c *collector) nodesNotReady(ctx context.Context) (map[string]bool, error) {
	list, err := c.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, c.unreadable("listing nodes", err)
	}
	notReady := map[string]bool{}
	for _, n := range list.Items {
		notReady[n.Name] = !nodes.NodeReady(n)
	}
	return notReady, nil
}

func (c *collector) askPod(ctx context.Context, f *PodCertificates, pod *corev1.Pod, held []*SecretCertificate) {
	report, err := c.Loaded(ctx, pod)
	if err != nil {
		f.Why = oneLine(err.Error())
		switch _, can := pod.Annotations[names.AnnotationMetricsPort]; {
		case !can:
			f.trouble = former
		case f.Ready:
			f.trouble = silent // one that is not ready is not served by anybody
		}
		return
	}
	f.Loaded = report
	var remarks []string
	if problem := report.Certificates.Problem; problem != "" {
		f.trouble = failing
		remarks = append(remarks, oneLine(problem))
	}
	i := slices.IndexFunc(held, func(h *SecretCertificate) bool { return h.Secret == f.Secret })
	if i < 0 || held[i].SHA256 == "" || len(held[i].Authorities) == 0 {
		f.Why = strings.Join(append(remarks, "the content of its Secret is unknown"), "; ")
		return
	}
	trusted := make([]string, len(report.Certificates.Authorities))
	for n, authority := range report.Certificates.Authorities {
		trusted[n] = authority.SHA256
	}
	f.LeafHeld = report.Certificates.Leaf.SHA256 == held[i].SHA256
	missing, surplus := without(held[i].Authorities, trusted), without(trusted, held[i].Authorities)
	f.TrustHeld = missing == 0 && surplus == 0
	if !f.LeafHeld {
		remarks = append(remarks, "uses another certificate than the Secret")
	}
	if missing > 0 {
		remarks = append(remarks, fmt.Sprintf("CAs of the Secret not trusted yet: %d", missing))
	}
	if surplus > 0 {
		remarks = append(remarks, fmt.Sprintf("previous CAs still trusted: %d", surplus))
	}
	if f.trouble == none && len(remarks) > 0 {
		f.trouble = behind
	}
	f.Why = strings.Join(remarks, "; ")
}

// without counts what of a is not in b.
func without(a, b []string) int {
	n := 0
	for _, s := range a {
		if !slices.Contains(b, s) {
			n++
		}
	}
	return n
}

// advisePods says what to do, in one sentence for all pods with the same trouble.
func (c *collector) advisePods(found []PodCertificates) {
	for _, kind := range []struct {
		trouble      trouble
		what, remedy string
	}{
		{failing, "cannot load the content of its Secret and keeps the previous one",
			fmt.Sprintf("%s repairs the Secret; if that does not help, kubectl --namespace %s logs POD shows more", c.renew(), c.Namespace)},
		{behind, "has not loaded the content of its Secret",
			fmt.Sprintf("the kubelet delivers it within 90 s; if not, kubectl --namespace %s describe pod POD shows why", c.Namespace)},
		{silent, "does not answer",
			fmt.Sprintf("this requires permission to get and create pods/portforward, and a node that the API server can reach; kubectl --namespace %s logs POD shows its state", c.Namespace)},
		{former, "runs a previous release", c.again() + " upgrades it"},
	} {
		var pods []string
		why := ""
		for _, f := range found {
			if f.trouble == kind.trouble {
				pods = append(pods, f.Pod)
				why = cmp.Or(why, f.Why)
			}
		}
		const named = 3 // the table has all of them
		switch n := len(pods); {
		case n == 0:
			continue
		case n == 1:
			c.next("Pod %s/%s %s (%s): %s.", c.Namespace, pods[0], kind.what, why, kind.remedy)
		default:
			more := ""
			if n > named {
				pods, more = pods[:named], ", …"
			}
			c.next("Each of %d pods %s (%s%s; the first: %s): %s.", n, kind.what, strings.Join(pods, ", "), more, why, kind.remedy)
		}
	}
}
