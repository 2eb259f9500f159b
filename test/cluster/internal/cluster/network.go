package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// bridge is the switch between the nodes, in the control plane's namespace.
const bridge = "fabric0"

// createFabric creates the control plane's namespace with the bridge that nodes are connected to.
// It also routes between the nodes' pods. Without a default route, destinations outside the cluster
// are unreachable at once.
func (c *Cluster) createFabric(ctx context.Context) error {
	member := controlPlaneName
	if err := createNetns(netnsPath(c.Options.Name, member)); err != nil {
		return err
	}
	if err := c.tuneKernel(member); err != nil {
		return err
	}
	var script strings.Builder
	// Without an address of its own, a bridge takes the lowest of its ports' random addresses. It would
	// change when a node joins or leaves, and other nodes lose the control plane until their caches expire.
	fmt.Fprintf(&script, "link set lo up\nlink add %s address 02:00:00:01:00:00 type bridge\nlink set %s up\n",
		bridge, bridge)
	for _, address := range c.Options.Family.ControlPlane() {
		fmt.Fprintf(&script, "address add %s dev %s%s\n", c.Options.Family.onFabric(address), bridge,
			withoutDAD(address.Is6()))
	}
	return c.ip(ctx, member, script.String())
}

// loadKernelModules loads modules that no program loads by itself. Failing is not an error: they
// may be built into the kernel.
func (c *Cluster) loadKernelModules(ctx context.Context) {
	const bridgeFilter = "/proc/sys/net/bridge"
	if _, err := os.Stat(bridgeFilter); err == nil {
		return
	}
	out, err := exec.CommandContext(ctx, "modprobe", "br_netfilter").CombinedOutput()
	if _, statErr := os.Stat(bridgeFilter); statErr != nil {
		c.log("this kernel has no br_netfilter (%v %s): pods will not reach Services by way of a pod on their own node", err,
			bytes.TrimSpace(out))
	}
}

// connectNode creates a node's network namespace and connects it to the fabric.
func (c *Cluster) connectNode(ctx context.Context, n Node) error {
	if err := createNetns(netnsPath(c.Options.Name, n.Name)); err != nil {
		return err
	}
	if err := c.tuneKernel(n.Name); err != nil {
		return err
	}
	family := c.Options.Family
	port := portOf(n)
	var fabric, node strings.Builder
	fmt.Fprintf(&fabric, "link add %s type veth peer name eth0 netns %s\n", port, netnsName(c.Options.Name, n.Name))
	fmt.Fprintf(&fabric, "link set %s master %s up\n", port, bridge)
	// Like a network card's, the address is the same after a reboot. Others keep it in their caches.
	fmt.Fprintf(&node, "link set eth0 address 02:00:00:00:%02x:%02x\nlink set lo up\nlink set eth0 up\n", n.Index>>8,
		n.Index&0xff)
	for i, address := range family.Node(n.Index) {
		if !c.Options.Kubeadm { // its network of pods has routes of its own
			fmt.Fprintf(&fabric, "route add %s via %s\n", family.NodePods(n.Index)[i], address)
		}
		fmt.Fprintf(&node, "address add %s dev eth0%s\n", family.onFabric(address), withoutDAD(address.Is6()))
		fmt.Fprintf(&node, "route add default via %s\n", family.ControlPlane()[i])
	}
	if err := c.ip(ctx, controlPlaneName, fabric.String()); err != nil {
		return err
	}
	return c.ip(ctx, n.Name, node.String())
}

// disconnectNode removes what connectNode created, once the node's processes have ended.
func (c *Cluster) disconnectNode(ctx context.Context, n Node) error {
	var script strings.Builder
	for _, pods := range c.Options.Family.NodePods(n.Index) {
		if !c.Options.Kubeadm {
			fmt.Fprintf(&script, "route del %s\n", pods)
		}
	}
	fmt.Fprintf(&script, "link del %s\n", portOf(n))
	return errors.Join(c.ip(ctx, controlPlaneName, script.String()), removeNetns(netnsPath(c.Options.Name, n.Name)))
}

// Unplug cuts a node off in both directions. Programs on the node notice the lost link at once,
// others do not.
func (c *Cluster) Unplug(ctx context.Context, node string) error {
	return c.setCable(ctx, node, "down")
}

// Plug reconnects the node.
func (c *Cluster) Plug(ctx context.Context, node string) error { return c.setCable(ctx, node, "up") }

func (c *Cluster) setCable(ctx context.Context, node, state string) error {
	n, err := c.node(node)
	if err != nil {
		return err
	}
	return c.ip(ctx, controlPlaneName, fmt.Sprintf("link set %s %s\n", portOf(n), state))
}

// portOf returns the interface at the fabric's end of a node's link. Node names can be longer than
// interface names.
func portOf(n Node) string { return fmt.Sprintf("node%d", n.Index) }

// withoutDAD skips duplicate address detection of IPv6, which takes a second or two.
func withoutDAD(is6 bool) string {
	if is6 {
		return " nodad"
	}
	return ""
}

// ip runs a script of ip(8) in a member's network namespace.
func (c *Cluster) ip(ctx context.Context, member, script string) error {
	cmd := exec.CommandContext(ctx, "ip", "-force", "-netns", netnsName(c.Options.Name, member), "-batch", "-")
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("setting up the network of %s: %w: %s", member, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// tuneKernel sets a namespace's own parameters. Those of a family that the kernel
// lacks are skipped.
func (c *Cluster) tuneKernel(member string) error {
	parameters := map[string]string{
		"ipv4/ip_forward": "1",
		// The router must send packets back out of the interface they came from.
		"ipv4/conf/all/send_redirects":     "0",
		"ipv4/conf/default/send_redirects": "0",
		"ipv6/conf/all/forwarding":         "1",
		"ipv6/conf/all/accept_dad":         "0",
		"ipv6/conf/default/accept_dad":     "0",
		// kube-proxy's rules must apply to packets that a bridge forwards between pods.
		"bridge/bridge-nf-call-iptables":  "1",
		"bridge/bridge-nf-call-ip6tables": "1",
	}
	return InNetns(netnsPath(c.Options.Name, member), func() error {
		for name, value := range parameters {
			err := os.WriteFile(filepath.Join("/proc/sys/net", name), []byte(value), 0o644)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("setting the kernel parameter net/%s of %s: %w", name, member, err)
			}
		}
		return nil
	})
}
