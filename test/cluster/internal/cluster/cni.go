package cluster

import "encoding/json"

// cniConfig configures the network of a node's pods: a bridge, addresses from the node's range, and
// host ports.
func (c *Cluster) cniConfig(n Node) string {
	type object = map[string]any
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
	content, err := json.MarshalIndent(object{
		"cniVersion": "1.0.0",
		"name":       "testcluster",
		"plugins": []object{
			{
				"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
				"ipam": object{"type": "host-local", "ranges": ranges, "routes": routes},
			},
			{"type": "portmap", "backend": c.Options.PortMap, "capabilities": object{"portMappings": true}},
		},
	}, "", "  ")
	if err != nil { // only maps and strings
		panic(err)
	}
	return string(content) + "\n"
}
