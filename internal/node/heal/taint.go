package heal

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

// Startup is the taint that keeps ordinary pods off new nodes until they can pull.
type Startup struct {
	// Taint is its key; its effect does not matter. Empty for none.
	Taint string
	// Until is what serves the node.
	Until Until
}

// Until is what a node with the startup taint waits for, besides being ready and configured.
type Until string

// What serves a node.
const (
	// UntilProxy: the node's own proxy, in proxy mode.
	UntilProxy Until = "proxy"
	// UntilRegistry: any pod of the registry, in nodeport mode.
	UntilRegistry Until = "registry"
	// UntilNode: nothing else, with an external registry.
	UntilNode Until = "node"
)

// Flags of registry-node heal, with which the chart configures the healer.
const (
	FlagTaint = "startup-taint"
	FlagUntil = "startup-taint-until"
)

// Validate reports whether the fields are valid, as given with flags.
func (s Startup) Validate() error {
	if !slices.Contains([]Until{UntilProxy, UntilRegistry, UntilNode}, s.Until) {
		return fmt.Errorf("invalid --%s %q: want proxy, registry or node", FlagUntil, s.Until)
	}
	return nil
}

// sameName is how long the pods of a previous node with the same name may be reported as ready.
const sameName = time.Minute

// startingNode is the part of a node that its startup taint depends on. Images are left out: nodes
// report many.
type startingNode struct {
	Metadata struct {
		Name              string    `json:"name"`
		UID               string    `json:"uid"`
		CreationTimestamp time.Time `json:"creationTimestamp"`
	} `json:"metadata"`
	Spec struct {
		Taints []taint `json:"taints"`
	} `json:"spec"`
	Status struct {
		Conditions []Condition `json:"conditions"`
	} `json:"status"`
}

// taint identifies a taint of a node: there is one for each key and effect.
type taint struct {
	Key    string `json:"key"`
	Effect string `json:"effect"`
}

func (n startingNode) has(key string) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t taint) bool { return t.Key == key })
}

// untaint returns the JSON patch that removes the taints with a key. It fails if their places in the
// list have changed, or if this is another node with the same name.
func (n startingNode) untaint(key string) []operation {
	operations := []operation{{"test", "/metadata/uid", n.Metadata.UID}}
	for i, t := range slices.Backward(n.Spec.Taints) { // so that no place changes before it is used
		if t.Key == key {
			path := fmt.Sprintf("/spec/taints/%d", i)
			operations = append(operations, operation{"test", path + "/key", t.Key},
				operation{"test", path + "/effect", t.Effect}, operation{"remove", path, nil})
		}
	}
	return operations
}

// tainted lists the nodes with a taint.
func (c *Client) tainted(ctx context.Context, key string) ([]startingNode, error) {
	var found []startingNode
	for query := (url.Values{"limit": {"500"}}); ; {
		var list struct {
			Metadata struct {
				Continue string `json:"continue"`
			} `json:"metadata"`
			Items []startingNode `json:"items"`
		}
		if err := c.do(ctx, http.MethodGet, nodes, query, "", nil, &list); err != nil {
			return nil, fmt.Errorf("listing the nodes: %w", err)
		}
		for _, n := range list.Items {
			if n.has(key) {
				found = append(found, n)
			}
		}
		if list.Metadata.Continue == "" {
			return found, nil
		}
		query.Set("continue", list.Metadata.Continue)
	}
}

// waitsFor returns why pods cannot pull on a node yet, or "" if they can.
func (c *Client) waitsFor(ctx context.Context, n startingNode, until Until) (string, error) {
	if !isReady(n.Status.Conditions) {
		return "the node is not ready", nil
	}
	own, err := c.list(ctx, url.Values{
		"fieldSelector":   {"spec.nodeName=" + n.Metadata.Name},
		"labelSelector":   {c.labels(names.ComponentProxy, names.ComponentNodeConfig)},
		"resourceVersion": {"0"}, // from the API server's cache
	})
	if err != nil {
		return "", err
	}
	previous := time.Since(n.Metadata.CreationTimestamp) < sameName
	ready := func(p Pod) bool {
		old := previous && p.Metadata.CreationTimestamp.Before(n.Metadata.CreationTimestamp)
		return isReady(p.Status.Conditions) && p.Metadata.DeletionTimestamp == "" && !old
	}
	proxy := false
	for _, p := range own {
		switch {
		case p.Metadata.Labels[names.LabelComponent] == names.ComponentProxy:
			proxy = proxy || ready(p)
		case !ready(p): // nodeConfig.nodeSelector may exclude the node, so that there is none
			return "pod " + p.Metadata.Name + ", which configures it, is not ready", nil
		}
	}
	switch until {
	case UntilProxy:
		if !proxy {
			return "its proxy is not ready", nil
		}
	case UntilRegistry:
		pods, err := c.list(ctx, url.Values{"labelSelector": {c.labels(names.ComponentRegistry)}, "resourceVersion": {"0"}})
		if err != nil {
			return "", err
		}
		if !slices.ContainsFunc(pods, func(p Pod) bool { return isReady(p.Status.Conditions) }) {
			return "the registry is not ready", nil
		}
	}
	return "", nil
}

// removeTaint removes a node's taints with a key. A conflict means that the node has changed since it
// was read.
func (c *Client) removeTaint(ctx context.Context, n startingNode, key string, dryRun bool) error {
	if err := c.patch(ctx, nodes+"/"+url.PathEscape(n.Metadata.Name), n.untaint(key), dryRun); err != nil {
		return fmt.Errorf("removing taint %s of node %s: %w", key, n.Metadata.Name, err)
	}
	return nil
}

// StartupOf returns the startup taint of a release from its healer's arguments.
func StartupOf(ctx context.Context, c *Client) (Startup, error) {
	var list struct {
		Items []struct {
			Spec struct {
				Template struct {
					Spec struct {
						Containers []struct {
							Args []string `json:"args"`
						} `json:"containers"`
					} `json:"spec"`
				} `json:"template"`
			} `json:"spec"`
		} `json:"items"`
	}
	path := "/apis/apps/v1/namespaces/" + url.PathEscape(c.Namespace) + "/deployments"
	query := url.Values{"labelSelector": {c.labels(names.ComponentHealer)}}
	if err := c.do(ctx, http.MethodGet, path, query, "", nil, &list); err != nil {
		return Startup{}, fmt.Errorf("looking for the healer in namespace %s: %w", c.Namespace, err)
	}
	var s Startup
	for _, d := range list.Items {
		for _, container := range d.Spec.Template.Spec.Containers {
			for _, arg := range container.Args {
				if value, ok := strings.CutPrefix(arg, "--"+FlagTaint+"="); ok {
					s.Taint = value
				}
				if value, ok := strings.CutPrefix(arg, "--"+FlagUntil+"="); ok {
					s.Until = Until(value)
				}
			}
		}
	}
	if s.Taint == "" {
		return Startup{}, nil
	}
	return s, s.Validate()
}

// NodeResult is what Untaint did about a node.
type NodeResult struct {
	Node string `json:"node"`
	// Action is Remove, also in a dry run, or Wait.
	Action Action `json:"action"`
	Taint  string `json:"taint"`
	Reason string `json:"reason"`

	changed bool // the patch met a change
}

// Remove is the action on a node whose taint is removed.
const Remove Action = "remove"

// Untaint removes the startup taint from the nodes on which pods can pull, or says what it would do with
// dryRun. It looks again, a few times, while nodes wait; in a dry run, only if one changes meanwhile. It
// returns what it did about the nodes that had the taint. An error means that no further node was looked at.
func Untaint(ctx context.Context, client *Client, startup Startup, dryRun bool) ([]NodeResult, error) {
	results := []NodeResult{}
	err := repeat(ctx, func(bool) (again bool, err error) {
		found, err := untaintOnce(ctx, client, startup, dryRun)
		results = slices.DeleteFunc(results, func(r NodeResult) bool { return r.Action == Wait || dryRun })
		results = append(results, found...)
		return slices.ContainsFunc(found, func(r NodeResult) bool { return r.changed || r.Action == Wait && !dryRun }), err
	})
	return results, err
}

// untaintOnce is one pass of Untaint.
func untaintOnce(ctx context.Context, client *Client, startup Startup, dryRun bool) ([]NodeResult, error) {
	tainted, err := client.tainted(ctx, startup.Taint)
	if err != nil {
		return nil, err
	}
	results := []NodeResult{}
	for _, n := range tainted {
		reason, err := client.waitsFor(ctx, n, startup.Until)
		if err != nil {
			return results, err
		}
		result := NodeResult{Node: n.Metadata.Name, Action: Wait, Taint: startup.Taint, Reason: reason}
		if reason == "" {
			err := client.removeTaint(ctx, n, startup.Taint, dryRun)
			if err != nil && !conflict(err) {
				return results, err
			}
			result.Action, result.Reason = Remove, "pods can pull on it"
			if result.changed = err != nil; result.changed {
				result.Action, result.Reason = Wait, "the node changed meanwhile: run the command again"
			}
		}
		results = append(results, result)
	}
	return results, nil
}
