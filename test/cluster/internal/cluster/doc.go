// Package cluster makes, changes and removes a Kubernetes cluster of several
// nodes on one Linux machine. The machine's kernel is shared; everything else that
// tells nodes apart is done with namespaces:
//
//   - the control plane has a network namespace; each node has a network, a mount
//     and a host name namespace, the latter two held by a process called holder;
//   - one bridge in the control plane's namespace joins them. Nothing leads out of
//     it: no interface on the host, no route to the outside;
//   - a forwarder on the host's loopback, which dials from inside the control
//     plane's namespace, is how the kubeconfig works from the host;
//   - all processes stand in cgroups below one directory of the cluster's name,
//     which is how Down finds each of them, even those of a cluster whose state is lost.
//
// What a cluster consists of is on disk below StateRoot, so that each command of
// testcluster finds it without a daemon. The package does not compile anything: it
// takes programs from the cache of package build.
package cluster
