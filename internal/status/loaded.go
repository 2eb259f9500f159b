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

	"github.com/zarf-dev/zarf-registry/internal/api/loaded"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/plan"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// CertificateReport describes the certificates and what pods have loaded. Its JSON is the
// output of zarf-registry certs show.
type CertificateReport struct {
	Namespace string `json:"namespace"`
	Release   string `json:"release"`
	Name      string `json:"name"`
	// Healthy reports whether Next is empty.
	Healthy bool `json:"healthy"`
	// External is the address of the external registry, which has no certificates here.
	External string `json:"external,omitempty"`
	// PKI is how certificates are issued. It is nil if the state does not record it.
	PKI *state.PKI `json:"pki,omitempty"`
	// Rotation is the CA rotation in progress, or nil.
	Rotation *state.Rotation      `json:"rotation,omitempty"`
	Secrets  []*SecretCertificate `json:"secrets"`
	Pods     []PodCertificates    `json:"pods"`
	// Unreadable lists objects that could not be read, with the reason.
	Unreadable []string `json:"unreadable"`
	// Next lists what to do, one sentence for each problem.
	Next []string `json:"next"`
}

// PodCertificates describes what a pod of the registry, a proxy or a cache has loaded.
type PodCertificates struct {
	Pod  string `json:"pod"`
	Node string `json:"node,omitempty"`
	// Component is registry, proxy or cache. Secret is the one that the pod mounts.
	Component string `json:"component"`
	Secret    string `json:"secret"`
	Ready     bool   `json:"ready"`
	// Loaded is the response of the pod. If it is nil, Message says why.
	Loaded *loaded.State `json:"loaded,omitempty"`
	// Current reports whether the pod uses the certificate in the Secret. TrustCurrent
	// reports whether it trusts exactly the CAs in ca.crt.
	Current      bool   `json:"current"`
	TrustCurrent bool   `json:"trustCurrent"`
	Message      string `json:"message,omitempty"`

	problem problem
}

// problem classifies what is wrong with a pod.
type problem int

const (
	none problem = iota
	// silent: it does not respond.
	silent
	// behind: it has not loaded the content of its Secret.
	behind
	// failing: it cannot load the content of its Secret.
	failing
)

// maxConcurrentPods bounds how many pods are queried in parallel: each query is a
// connection through the API server.
const maxConcurrentPods = 16

// CollectCertificates reads the certificates and queries pods for what they have loaded.
// The error is ErrNotInstalled, or the cluster does not respond.
func CollectCertificates(ctx context.Context, o Options) (*CertificateReport, error) {
	c := &collector{Options: o, report: &Report{Unreadable: []string{}, Next: []string{}}}
	r := &CertificateReport{
		Namespace: o.Namespace, Release: o.Release, Name: o.Name,
		Secrets: []*SecretCertificate{}, Pods: []PodCertificates{},
	}
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

// ask queries every pod, those of the registry first.
func (c *collector) ask(ctx context.Context, held []*SecretCertificate) ([]PodCertificates, error) {
	notReady, err := c.nodesNotReady(ctx)
	if err != nil {
		return nil, err
	}
	var found []PodCertificates
	var pods []corev1.Pod
	type component struct {
		component, suffix string
		selector          metav1.ListOptions
	}
	components := []component{
		{"registry", names.SuffixServerTLS, selector(c.Release, names.ComponentRegistry)},
		{"proxy", names.SuffixNodeTLS, selector(c.Release, "proxy")},
	}
	if c.pki().Cache {
		components = append(components, component{"cache", names.SuffixCacheTLS, selector(c.Release, "cache")})
	}
	for _, of := range components {
		list, err := c.Client.CoreV1().Pods(c.Namespace).List(ctx, of.selector)
		if err != nil {
			if err := c.unreadable(fmt.Sprintf("listing the pods of component %s in namespace %s", of.component, c.Namespace),
				err); err != nil {
				return nil, err
			}
			continue
		}
		slices.SortFunc(list.Items, func(a, b corev1.Pod) int {
			return cmp.Or(cmp.Compare(a.Spec.NodeName, b.Spec.NodeName), cmp.Compare(a.Name, b.Name))
		})
		for _, p := range list.Items {
			if release.PodEnded(p) {
				continue
			}
			pods = append(pods, p)
			found = append(found, PodCertificates{
				Pod: p.Name, Node: p.Spec.NodeName, Component: of.component,
				Secret: c.Name + of.suffix, Ready: release.PodReady(p),
			})
		}
	}
	var group errgroup.Group
	group.SetLimit(maxConcurrentPods)
	for i := range found {
		group.Go(func() error {
			f := &found[i]
			switch {
			case notReady[f.Node]:
				f.Message = "node not ready"
			case pods[i].Status.Phase != corev1.PodRunning:
				f.Message = "not running yet"
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

// nodesNotReady returns the nodes whose pods cannot respond. Without permission to list
// nodes it returns none, and all pods are queried.
func (c *collector) nodesNotReady(ctx context.Context) (map[string]bool, error) {
	list, err := c.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, c.unreadable("listing nodes", err)
	}
	notReady := map[string]bool{}
	for _, n := range list.Items {
		notReady[n.Name] = !plan.NodeReady(n)
	}
	return notReady, nil
}

func (c *collector) askPod(ctx context.Context, f *PodCertificates, pod *corev1.Pod, held []*SecretCertificate) {
	report, err := c.Loaded(ctx, pod)
	if err != nil {
		f.Message = oneLine(err.Error())
		if f.Ready {
			f.problem = silent // a pod that is not ready need not respond
		}
		return
	}
	f.Loaded = report
	var messages []string
	if problem := report.Certificates.Problem; problem != "" {
		f.problem = failing
		messages = append(messages, oneLine(problem))
	}
	i := slices.IndexFunc(held, func(h *SecretCertificate) bool { return h.Secret == f.Secret })
	if i < 0 || held[i].SHA256 == "" || len(held[i].TrustedCAs) == 0 {
		f.Message = strings.Join(append(messages, "the content of its Secret is unknown"), "; ")
		return
	}
	trusted := make([]string, len(report.Certificates.TrustedCAs))
	for n, ca := range report.Certificates.TrustedCAs {
		trusted[n] = ca.SHA256
	}
	f.Current = report.Certificates.Leaf.SHA256 == held[i].SHA256
	missing, surplus := without(held[i].TrustedCAs, trusted), without(trusted, held[i].TrustedCAs)
	f.TrustCurrent = missing == 0 && surplus == 0
	if !f.Current {
		messages = append(messages, "uses another certificate than the Secret")
	}
	if missing > 0 {
		messages = append(messages, fmt.Sprintf("CAs of the Secret not trusted yet: %d", missing))
	}
	if surplus > 0 {
		messages = append(messages, fmt.Sprintf("previous CAs still trusted: %d", surplus))
	}
	if f.problem == none && len(messages) > 0 {
		f.problem = behind
	}
	f.Message = strings.Join(messages, "; ")
}

// without counts the elements of a that are not in b.
func without(a, b []string) int {
	n := 0
	for _, s := range a {
		if !slices.Contains(b, s) {
			n++
		}
	}
	return n
}

// advisePods adds the next steps, one sentence for all pods with the same problem.
func (c *collector) advisePods(found []PodCertificates) {
	for _, kind := range []struct {
		problem      problem
		what, remedy string
	}{
		{failing, "cannot load the content of its Secret and keeps the previous one",
			fmt.Sprintf("%s repairs the Secret; if that does not help, kubectl --namespace %s logs POD shows more",
				c.renewCommand(), c.Namespace)},
		{behind, "has not loaded the content of its Secret",
			fmt.Sprintf("the kubelet delivers it within 90 s; if not, kubectl --namespace %s describe pod POD shows why",
				c.Namespace)},
		{silent, "does not answer",
			fmt.Sprintf("this requires permission to get and create pods/portforward, and a node that the API server can "+
				"reach; kubectl --namespace %s logs POD shows its state", c.Namespace)},
	} {
		var pods []string
		why := ""
		for _, f := range found {
			if f.problem == kind.problem {
				pods = append(pods, f.Pod)
				why = cmp.Or(why, f.Message)
			}
		}
		const named = 3 // the table lists all of them
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
			c.next("Each of %d pods %s (%s%s; the first: %s): %s.", n, kind.what, strings.Join(pods, ", "), more, why,
				kind.remedy)
		}
	}
}
