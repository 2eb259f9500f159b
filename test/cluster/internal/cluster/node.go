package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// createNode creates a node's files and starts its container runtime with the pause image. It needs no
// API server.
func (c *Cluster) createNode(ctx context.Context, ca *clusterCA, n Node) error {
	if err := c.writeNodeFiles(ca, n); err != nil {
		return err
	}
	if err := c.bootNode(ctx, n); err != nil {
		return err
	}
	if !c.Options.Kubeadm { // its images include a pause image
		if err := c.loadPauseImage(ctx, n); err != nil {
			return err
		}
	}
	for _, archive := range c.Options.archivesOf(n.Name) {
		if _, err := c.loadImage(ctx, n.Name, archive); err != nil {
			return err
		}
	}
	return nil
}

// bootNode creates a node's namespaces and starts its container runtime.
func (c *Cluster) bootNode(ctx context.Context, n Node) error {
	if err := c.connectNode(ctx, n); err != nil {
		return err
	}
	groups, err := findCgroups()
	if err != nil {
		return err
	}
	if err := groups.create(cgroupOf(c.Options.Name, n.Name, systemCgroup)); err != nil {
		return err
	}
	if err := c.start(c.holder(n)); err != nil {
		return err
	}
	if _, err := c.run(ctx, n.Name, nil, c.self(), "internal", "mounts", "--cluster="+c.dir,
		"--node="+n.Name); err != nil {
		return err
	}
	return c.startRuntime(ctx, n)
}

// joinNode starts the kubelet, once the node is registered kube-proxy, which ends when the node's addresses change,
// and once the packet filter knows Services, the network policy controller.
func (c *Cluster) joinNode(ctx context.Context, client kubernetes.Interface, n Node) error {
	kubelet := c.kubelet(n)
	if c.Options.Kubeadm {
		kubelet = kubeadmUnit(n)
	}
	if err := c.start(kubelet); err != nil {
		return err
	}
	// The API server may still list a node that reboots as ready.
	if err := c.waitForKubelet(ctx, n.Name); err != nil {
		return err
	}
	if err := c.waitForNode(ctx, client, n.Name); err != nil {
		return err
	}
	if c.Options.Kubeadm { // the rest are pods
		return nil
	}
	if err := c.start(c.kubeProxy(n)); err != nil {
		return err
	}
	if c.Options.CNI == Flannel {
		if err := c.startFlannel(ctx, client, n); err != nil {
			return err
		}
	}
	if err := c.waitForServices(ctx, n); err != nil {
		return err
	}
	if c.Options.NetworkPolicy {
		return c.startNetworkPolicy(ctx, n)
	}
	return nil
}

// holder is the process that keeps a node's mount and host name namespaces alive.
func (c *Cluster) holder(n Node) Process {
	return Process{
		ID: processID(holderName, n.Name), Node: n.Name, OnHost: true, Holds: true,
		Args: []string{c.self(), "internal", "hold"},
	}
}

// writeNodeFiles writes a node's own files in /etc, before the overlay that shows them is mounted,
// because its lower layers must not change.
func (c *Cluster) writeNodeFiles(ca *clusterCA, n Node) error {
	for _, dir := range nodeDirs {
		if err := os.MkdirAll(c.nodePath(n.Name, dir), 0o755); err != nil {
			return fmt.Errorf("making the directories of node %s: %w", n.Name, err)
		}
	}
	var hosts strings.Builder
	fmt.Fprintf(&hosts, "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n")
	for _, address := range c.Options.Family.Node(n.Index) {
		fmt.Fprintf(&hosts, "%s %s\n", address, n.Name)
	}
	files := map[string][]byte{
		"/etc/hostname": []byte(n.Name + "\n"),
		"/etc/hosts":    []byte(hosts.String()),
		// Nodes have no DNS: names fail at once instead of after a timeout.
		"/etc/resolv.conf": []byte("# none: this node reaches only its cluster\n"),
		// In seconds. The default of 2 is too short for a busy machine.
		"/etc/crictl.yaml": []byte("runtime-endpoint: unix://" + n.runtime().socket() + "\ntimeout: 120\n"),
	}
	add := c.addComponents
	if c.Options.Kubeadm {
		add = c.addKubeadm
	}
	if err := add(files, ca, n); err != nil {
		return err
	}
	for path, content := range files {
		path = c.nodePath(n.Name, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("making the directories of node %s: %w", n.Name, err)
		}
		mode := os.FileMode(0o644)
		if bytes.HasPrefix(content, []byte("#!")) {
			mode = 0o755
		}
		if err := os.WriteFile(path, content, mode); err != nil {
			return fmt.Errorf("writing the files of node %s: %w", n.Name, err)
		}
	}
	return nil
}

// addComponents adds what the components of a node read.
func (c *Cluster) addComponents(files map[string][]byte, ca *clusterCA, n Node) error {
	files["/etc/cni/net.d/10-testcluster.conflist"] = []byte(c.cniConfig(n))
	files[flannelConfigPath] = []byte(c.flannelConfig())
	n.runtime().addFiles(files, c, n)
	now := time.Now()
	return errors.Join(c.addKubelet(files, ca, now, n), c.addKubeProxy(files, ca, now, n))
}

// AddNode adds a node, and waits until it is ready. Its index, and an empty pause image or runtime, are chosen.
// programs are those of its runtime, as for Up.
func (c *Cluster) AddNode(ctx context.Context, n Node, programs map[string]string) error {
	unlock, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := c.reload(); err != nil {
		return err
	}
	if n.PauseImage == "" {
		n.PauseImage = c.Options.PauseImage
	}
	if n.Runtime == "" {
		n.Runtime = c.Options.Runtime
	}
	_, err = runtimeOf(n.Runtime)
	if err := errors.Join(err, ValidateName("node", n.Name), validateImage(n.PauseImage),
		validateTaints(n.Taints)); err != nil {
		return err
	}
	if _, err := c.node(n.Name); err == nil {
		return fmt.Errorf("cluster %s already has a node %s", c.Options.Name, n.Name)
	}
	if c.NextIndex > maxNodes {
		return fmt.Errorf("cluster %s has used all of its %d node addresses", c.Options.Name, maxNodes)
	}
	if err := c.installPrograms(programs); err != nil {
		return err
	}
	n.Index = c.NextIndex
	c.NextIndex++
	c.Nodes = append(c.Nodes, n)
	if err := c.save(); err != nil {
		return err
	}
	ctx, done := c.watch(ctx)
	defer done()
	client, err := c.client()
	if err != nil {
		return err
	}
	if c.Options.Kubeadm {
		return c.addWithKubeadm(ctx, client, n)
	}
	ca, err := c.loadCA()
	if err != nil {
		return err
	}
	if err := c.createNode(ctx, ca, n); err != nil {
		return err
	}
	return c.joinNode(ctx, client, n)
}

// RebootNode is SwitchOff and SwitchOn.
func (c *Cluster) RebootNode(ctx context.Context, name string) error {
	if err := c.SwitchOff(ctx, name); err != nil {
		return err
	}
	return c.SwitchOn(ctx, name)
}

// SwitchOff ends a node as if it had lost power. Its disk keeps the state of kubelet, container runtime and CNI plugins.
func (c *Cluster) SwitchOff(ctx context.Context, name string) error {
	unlock, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := c.reload(); err != nil {
		return err
	}
	n, err := c.node(name)
	if err != nil {
		return err
	}
	if err := c.killMember(ctx, name); err != nil {
		return err
	}
	return c.disconnectNode(ctx, n)
}

// SwitchOn starts a node that was switched off, and waits until its kubelet and kube-proxy work. Processes, network
// interfaces and packet filter are new. Others may start nodes and components meanwhile, also the control plane.
func (c *Cluster) SwitchOn(ctx context.Context, name string) error {
	if err := c.reload(); err != nil {
		return err
	}
	n, err := c.node(name)
	if err != nil {
		return err
	}
	ctx, done := c.watch(ctx)
	defer done()
	client, err := c.client()
	if err != nil {
		return err
	}
	if err := c.bootNode(ctx, n); err != nil {
		return err
	}
	return c.joinNode(ctx, client, n)
}

// RemoveNode ends a node as if it had been switched off, and removes its object.
func (c *Cluster) RemoveNode(ctx context.Context, name string) error {
	unlock, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := c.reload(); err != nil {
		return err
	}
	n, err := c.node(name)
	if err != nil {
		return err
	}
	processes, err := c.Processes()
	if err != nil {
		return err
	}
	if err := c.killMember(ctx, name); err != nil {
		return err
	}
	var errs []error
	for _, p := range processes {
		if p.Node == name {
			errs = append(errs, os.Remove(c.path(processDir, p.ID+".json")))
		}
	}
	errs = append(errs, c.disconnectNode(ctx, n), os.RemoveAll(c.nodePath(name)))
	c.Nodes = slices.DeleteFunc(c.Nodes, func(n Node) bool { return n.Name == name })
	errs = append(errs, c.save())
	client, err := c.client()
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	// Controllers then delete the pods, because their node no longer exists.
	if err := client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		errs = append(errs, fmt.Errorf("deleting node %s from the API server: %w", name, err))
	}
	return errors.Join(errs...)
}
