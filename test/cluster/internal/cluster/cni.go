package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

type object = map[string]any

// cniConfig configures the network of a node's pods, with host ports.
func (c *Cluster) cniConfig(n Node) string {
	network, version := c.bridgePlugin(n), "1.0.0"
	if c.Options.CNI == Flannel {
		version = "0.4.0" // the latest that the plugin knows
		network = object{"type": "flannel", "delegate": object{"hairpinMode": true, "isDefaultGateway": true}}
	}
	return indented(object{
		"cniVersion": version,
		"name":       "testcluster",
		"plugins": []object{
			network,
			{"type": "portmap", "backend": IPTables, "capabilities": object{"portMappings": true}},
		},
	})
}

// bridgePlugin configures a bridge with addresses from the node's range.
func (c *Cluster) bridgePlugin(n Node) object {
	var ranges [][]object
	var routes []object
	for _, pods := range c.Options.Family.NodePods(n.Index) {
		ranges = append(ranges, []object{{"subnet": pods.String()}})
		everything := "0.0.0.0/0"
		if pods.Addr().Is6() {
			everything = "::/0"
		}
		routes = append(routes, object{"dst": everything})
	}
	return object{
		"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
		"ipam": object{"type": "host-local", "ranges": ranges, "routes": routes},
	}
}

func indented(o object) string {
	content, err := json.MarshalIndent(o, "", "  ")
	if err != nil { // only maps and strings
		panic(err)
	}
	return string(content) + "\n"
}

const (
	flanneld          = "flanneld"
	flannelConfigPath = "/etc/kube-flannel/net-conf.json"
)

func (c *Cluster) flannelConfig() string {
	return indented(object{"Network": join(c.Options.Family.Pods()), "Backend": object{"Type": "vxlan"}})
}

// startFlannel gives a node's object the range of its pods, which flannel reads, and starts flannel.
func (c *Cluster) startFlannel(ctx context.Context, client kubernetes.Interface, n Node) error {
	pods := c.Options.Family.NodePods(n.Index)[0].String()
	patch := indented(object{"spec": object{"podCIDR": pods, "podCIDRs": []string{pods}}})
	if _, err := client.CoreV1().Nodes().Patch(ctx, n.Name, types.StrategicMergePatchType, []byte(patch),
		metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("giving node %s a range of pod addresses: %w", n.Name, err)
	}
	id := processID(flanneld, n.Name)
	if err := c.start(Process{ID: id, Node: n.Name, Args: []string{
		"env", "NODE_NAME=" + n.Name,
		flanneld, "--kube-subnet-mgr", "--kubeconfig-file=" + c.path(configDir, adminConfig), "--iface=eth0",
		"--net-config-path=" + flannelConfigPath,
		"--ip-masq", // else the bridge plugin hides pods of other nodes behind their node, from NetworkPolicies too
	}}); err != nil {
		return err
	}
	return c.waitFor(ctx, id, "its interface", startTimeout, func(ctx context.Context) error {
		_, linkErr := c.run(ctx, n.Name, nil, "ip", "link", "show", "flannel.1")
		_, envErr := c.run(ctx, n.Name, nil, "test", "-s", "/run/flannel/subnet.env")
		return errors.Join(linkErr, envErr)
	})
}
