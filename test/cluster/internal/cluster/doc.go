// Package cluster creates, changes and removes multi-node Kubernetes clusters on one Linux machine.
// Nodes share the machine's kernel and are isolated by namespaces:
//
//   - The control plane has a network namespace. Each node has a network, a mount and a UTS
//     namespace; a process called holder keeps the latter two alive.
//   - A bridge in the control plane's namespace connects the nodes. It has no interface on the host
//     and no default route.
//   - A forwarder on the host's loopback address dials the API server from inside the control
//     plane's namespace, so the kubeconfig works on the host.
//   - All processes run in cgroups below one named after the cluster, so Down finds them even if the
//     cluster's state is lost.
//
// The state of a cluster is on disk below StateRoot, so testcluster needs no daemon. Programs come
// from the cache of package build.
package cluster
