package heal

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/rollout"
)

// proxySet is the part of a DaemonSet that decisions about its rollout need.
type proxySet struct {
	Metadata struct {
		Name        string            `json:"name"`
		UID         string            `json:"uid"`
		Generation  int64             `json:"generation"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		UpdateStrategy struct {
			Type          string `json:"type"`
			RollingUpdate struct {
				MaxUnavailable any `json:"maxUnavailable"`
				MaxSurge       any `json:"maxSurge"`
			} `json:"rollingUpdate"`
		} `json:"updateStrategy"`
	} `json:"spec"`
	Status struct {
		ObservedGeneration     int64 `json:"observedGeneration"`
		DesiredNumberScheduled int   `json:"desiredNumberScheduled"`
		UpdatedNumberScheduled int   `json:"updatedNumberScheduled"`
	} `json:"status"`
}

func (s proxySet) view() rollout.Set {
	v := rollout.Set{Generation: s.Metadata.Annotations[rollout.AnnotationGeneration],
		OnDelete: s.Spec.UpdateStrategy.Type == "OnDelete",
		Observed: s.Status.ObservedGeneration >= s.Metadata.Generation,
		Desired:  s.Status.DesiredNumberScheduled, Updated: s.Status.UpdatedNumberScheduled}
	if u := s.Spec.UpdateStrategy.RollingUpdate; v.OnDelete {
		v.MaxUnavailable = s.Metadata.Annotations[rollout.AnnotationMaxUnavailable]
	} else {
		v.MaxUnavailable = count(u.MaxUnavailable)
		if surge := count(u.MaxSurge); strings.TrimSuffix(surge, "%") != "0" {
			v.MaxSurge = surge
		}
	}
	return v
}

func count(value any) string {
	switch v := value.(type) {
	case string:
		return v
	case float64:
		return strconv.Itoa(int(v))
	}
	return "0"
}

// node returns the pod's node: before it is scheduled, the one that its affinity names.
func (p Pod) node() string {
	if p.Spec.NodeName != "" {
		return p.Spec.NodeName
	}
	for _, term := range p.Spec.Affinity.NodeAffinity.Required.Terms {
		for _, field := range term.MatchFields {
			if len(field.Values) == 1 {
				return field.Values[0]
			}
		}
	}
	return ""
}

func (p Pod) view() rollout.Pod {
	v := rollout.Pod{Name: p.Metadata.Name, UID: p.Metadata.UID, Node: p.node(),
		Generation: p.Metadata.Labels[rollout.LabelGeneration], Hash: p.Metadata.Labels[rollout.LabelHash],
		Ready: isReady(p.Status.Conditions), Deleting: p.Metadata.DeletionTimestamp != ""}
	for _, c := range p.Status.ContainerStatuses {
		starting := c.State.Waiting == nil ||
			slices.Contains([]string{"", "ContainerCreating", "PodInitializing"}, c.State.Waiting.Reason)
		v.Failing = v.Failing || !v.Ready && (c.RestartCount > 0 || !starting)
	}
	return v
}

func (p Pod) isReadyRegistry() bool {
	return p.Metadata.Labels[names.LabelComponent] == names.ComponentRegistry && p.Metadata.DeletionTimestamp == "" &&
		isReady(p.Status.Conditions)
}

// items is a list of objects.
type items[T any] struct {
	Items []T `json:"items"`
}

// keepTimeout is how long a proxy that serves is kept while the registry has no ready pod. An upgrade updates the
// registry too: a proxy that ends meanwhile waits for it with the pulls of its node, and its successor for the port.
const keepTimeout = time.Minute

// continueRollouts continues the rollouts of proxies that Kubernetes does not continue, until ctx ends. finish does
// too, but does not run where a rendering is applied, before helm --wait has seen that all pods are current, or later,
// for nodes that return.
func (h *Healer) continueRollouts(ctx context.Context) {
	var served time.Time
	for ctx.Err() == nil {
		client, err := h.config.Connect()
		if err == nil {
			err = client.continueRollouts(ctx, &served, h.config.Logger.Info)
			client.HTTP.CloseIdleConnections()
		}
		if err != nil && ctx.Err() == nil {
			h.config.Logger.Warn("looking at the proxies' rollout failed", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(h.times.rollout):
		}
	}
}

// continueRollouts deletes the pods that may be replaced now. served is when the registry was last ready during the
// rollout, or when that was first seen; zero without a rollout.
func (c *Client) continueRollouts(ctx context.Context, served *time.Time, log func(string, ...any)) error {
	query := url.Values{"labelSelector": {c.labels(names.ComponentProxy)}}
	var sets items[proxySet]
	path := "/apis/apps/v1/namespaces/" + url.PathEscape(c.Namespace) + "/daemonsets"
	if err := c.do(ctx, http.MethodGet, path, query, "", nil, &sets); err != nil {
		return fmt.Errorf("listing the proxy DaemonSets in namespace %s: %w", c.Namespace, err)
	}
	sets.Items = slices.DeleteFunc(sets.Items, func(s proxySet) bool {
		v := s.view()
		return v.MaxSurge != "" || !v.Observed || v.Updated >= v.Desired
	})
	if len(sets.Items) == 0 {
		*served = time.Time{}
		return nil
	}
	var pods items[Pod]
	query = url.Values{"labelSelector": {c.labels(names.ComponentProxy, names.ComponentRegistry)}}
	if err := c.do(ctx, http.MethodGet, c.pods(), query, "", nil, &pods); err != nil {
		return fmt.Errorf("listing the proxies and the registry's pods in namespace %s: %w", c.Namespace, err)
	}
	keep := served.IsZero() // Helm may be about to update the registry
	if keep || slices.ContainsFunc(pods.Items, Pod.isReadyRegistry) {
		*served = time.Now()
	} else {
		keep = time.Since(*served) < keepTimeout
	}
	for _, set := range sets.Items {
		views, ready := []rollout.Pod{}, map[string]bool{}
		for _, p := range pods.Items {
			owned := len(p.Metadata.OwnerReferences) == 1 && p.Metadata.OwnerReferences[0].UID == set.Metadata.UID
			if owned && p.node() != "" {
				views = append(views, p.view())
			}
		}
		// During an installation, many pods are not ready, and none is to be replaced: their nodes do not matter.
		current := rollout.Current(set.view(), views)
		if !slices.ContainsFunc(views, func(p rollout.Pod) bool { return !current(p) && !p.Deleting }) {
			continue
		}
		for _, p := range views {
			ready[p.Node] = ready[p.Node] || p.Ready && !p.Deleting // not ready on nodes that are down
		}
		for node, is := range ready {
			if !is {
				n, err := c.node(ctx, node, nil)
				switch {
				case codeOf(err) == http.StatusNotFound: // its pods stay for a while
					views = slices.DeleteFunc(views, func(p rollout.Pod) bool { return p.Node == node })
				case err != nil:
					return err
				}
				ready[node] = isReady(n.Status.Conditions)
			}
		}
		for _, p := range rollout.Continue(set.view(), views, ready) {
			if keep && p.Ready {
				continue
			}
			err := c.do(ctx, http.MethodDelete, c.pods()+"/"+url.PathEscape(p.Name), nil, "application/json",
				map[string]any{"preconditions": map[string]any{"uid": p.UID}}, nil)
			switch {
			case conflict(err): // another healer, or finish, was first
			case err != nil:
				return fmt.Errorf("deleting pod %s/%s: %w", c.Namespace, p.Name, err)
			default:
				log("replacing a previous pod", "pod", p.Name, "node", p.Node)
			}
		}
	}
	return nil
}
