package cluster

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Status is the output of testcluster status.
type Status struct {
	Kubeconfig string            `json:"kubeconfig"`
	Server     string            `json:"server"`
	Logs       string            `json:"logs"`
	Components []ComponentStatus `json:"components"`
	Nodes      []NodeStatus      `json:"nodes"`
	// APIError says why the nodes' Ready is unknown.
	APIError string `json:"apiError,omitempty"`
}

// ComponentStatus is one process of the cluster.
type ComponentStatus struct {
	ID    string `json:"id"`
	PID   int    `json:"pid"`
	State string `json:"state"`
}

// NodeStatus is one node.
type NodeStatus struct {
	Node
	Addresses []string `json:"addresses"`
	Pods      []string `json:"pods"`
	Ready     bool     `json:"ready"`
}

// Healthy reports whether everything is running.
func (s Status) Healthy() bool {
	for _, component := range s.Components {
		if component.State != Running {
			return false
		}
	}
	for _, node := range s.Nodes {
		if !node.Ready {
			return false
		}
	}
	return s.APIError == ""
}

// Status checks processes and lists nodes from the API server.
func (c *Cluster) Status(ctx context.Context) (Status, error) {
	s := Status{Kubeconfig: c.Kubeconfig(), Logs: c.LogDir(), Server: c.outerServer()}
	processes, err := c.Processes()
	if err != nil {
		return s, err
	}
	for _, p := range processes {
		s.Components = append(s.Components, ComponentStatus{ID: p.ID, PID: p.PID, State: p.State()})
	}
	ready := make(map[string]bool)
	if client, err := c.client(); err != nil {
		s.APIError = err.Error()
	} else {
		ctx, stop := context.WithTimeout(ctx, 5*time.Second)
		defer stop()
		nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			s.APIError = err.Error()
		} else {
			for _, node := range nodes.Items {
				ready[node.Name] = nodeReady(&node) == nil
			}
		}
	}
	for _, n := range c.Nodes {
		s.Nodes = append(s.Nodes, NodeStatus{
			Node:      n,
			Addresses: texts(c.Options.Family.Node(n.Index)),
			Pods:      texts(c.Options.Family.NodePods(n.Index)),
			Ready:     ready[n.Name],
		})
	}
	return s, nil
}
