package cluster

import (
	"context"
	"strconv"
)

const kubeRouter = "kube-router"

// startNetworkPolicy starts the controller that enforces NetworkPolicies on a node, and waits until
// its rules are installed. Only this part of kube-router runs. It uses iptables and ipset, whatever
// kube-proxy uses.
func (c *Cluster) startNetworkPolicy(ctx context.Context, n Node) error {
	family := c.Options.Family
	id := processID(kubeRouter, n.Name)
	if err := c.start(Process{ID: id, Node: n.Name, Args: []string{
		kubeRouter,
		"--run-firewall=true",
		"--run-router=false",
		"--run-service-proxy=false",
		"--run-loadbalancer=false",
		"--enable-cni=false",
		"--enable-ipv4=" + strconv.FormatBool(family != IPv6),
		"--enable-ipv6=" + strconv.FormatBool(family != IPv4),
		"--service-cluster-ip-range=" + join(family.Services()),
		"--hostname-override=" + n.Name,
		"--kubeconfig=" + c.path(configDir, adminConfig),
		"--health-port=0",
	}}); err != nil {
		return err
	}
	iptables := "iptables"
	if family == IPv6 {
		iptables = "ip6tables"
	}
	return c.waitFor(ctx, id, "its rules", startTimeout, func(ctx context.Context) error {
		_, err := c.run(ctx, n.Name, nil, iptables, "--wait", "--list-rules", "KUBE-ROUTER-FORWARD")
		return err
	})
}
