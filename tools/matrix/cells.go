package main

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
)

// Values of the axes, as testcluster names them. Every pair of Kubernetes and runtime is a cell; networks, CNI
// plugins, taints, mixed nodes, versions of Helm and storage are spread over those cells.
var (
	kubernetes = []string{"1.28", "1.31", "1.34", "1.36", "1.37"}
	runtimes   = []string{"containerd-1.7", "containerd-2.1", "containerd-2.4", "crio-1.34", simulatedRuntime}
	families   = []string{"IPv4", "IPv6", "DualStack"}
	proxies    = []string{"iptables", "nftables", "ipvs"}
	helms      = []string{"helm", "helm-3.18", "helm-3.21", "helm4"}
	storages   = []string{"standard", "attached", "local", "s3"}
)

// simulatedRuntime is CRI-O 1.34, changed to demand TLS on loopback as 1.35 does.
const simulatedRuntime = "crio-1.35"

// A cell is a configuration: that of a test cluster.
type cell struct {
	Kubernetes, Runtime, Family, KubeProxy string
	// CNI is bridge or flannel.
	CNI string
	// Second is the runtime of node n2, and empty where it is the same.
	Second string
	// Tainted taints n1 as kubeadm taints control planes.
	Tainted bool
	// Helm is a tool of testcluster.
	Helm string
	// Storage is a StorageClass of the test cluster, or s3.
	Storage string
}

func (c cell) name() string {
	parts := []string{"k" + c.Kubernetes, c.Runtime, c.Family, c.KubeProxy}
	if c.CNI == "flannel" {
		parts = append(parts, c.CNI)
	}
	if c.Second != "" {
		parts = append(parts, "n2-"+c.Second)
	}
	if c.Tainted {
		parts = append(parts, "tainted")
	}
	if c.Helm != helms[0] {
		parts = append(parts, c.Helm)
	}
	if c.Storage != storages[0] {
		parts = append(parts, c.Storage)
	}
	return strings.ToLower(strings.Join(parts, "-"))
}

// cluster returns the name of its test cluster.
func (c cell) cluster() string {
	sum := sha256.Sum256([]byte(c.name())) // names are limited to 40 characters, without dots
	return "cell-" + hex.EncodeToString(sum[:4])
}

func (c cell) network() string { return c.Family + "/" + c.KubeProxy }

// arguments returns those for testcluster up.
func (c cell) arguments() []string {
	args := []string{"--kubernetes", c.Kubernetes, "--runtime", c.Runtime, "--cni", c.CNI}
	if c.Second != "" {
		args = append(args, "--runtime", "n2="+c.Second)
	}
	if c.Tainted {
		args = append(args, "--taint", "n1=node-role.kubernetes.io/control-plane=:NoSchedule")
	}
	return args
}

// possible reports whether Kubernetes has such a kube-proxy: nftables is on by default since 1.31.
func (c cell) possible() bool {
	return c.KubeProxy != "nftables" || c.Kubernetes != "1.28"
}

func (c cell) usesCRIO() bool { return strings.Contains(c.Runtime+" "+c.Second, "crio-") }

// knownBroken returns why a cell cannot work, or "".
func (c cell) knownBroken() string {
	switch {
	case c.Family == "IPv6" && c.usesCRIO():
		return "CRI-O accepts no image reference with an IPv6 address " +
			"([containers/image#1004](https://github.com/containers/image/issues/1004))"
	case c.Family == "IPv6" && c.Kubernetes == "1.28":
		return "the kubelet accepts no image reference with an IPv6 address before 1.29 " +
			"([kubernetes#104491](https://github.com/kubernetes/kubernetes/issues/104491))"
	}
	return ""
}

// cells returns all cells: every pair of Kubernetes and runtime, and every pair of IP family and kube-proxy mode,
// the least used first. What cannot work, and IPVS, which many kernels lack, have cells of their own.
func cells() []cell {
	used := map[string]int{}
	var all []cell
	for i, minor := range kubernetes {
		for j, runtime := range runtimes {
			c := cell{Kubernetes: minor, Runtime: runtime, CNI: "bridge", Helm: helms[(2*i+j)%len(helms)],
				Storage: storages[(i+j)%len(storages)]}
			for _, kubeProxy := range proxies[:2] {
				for _, family := range families {
					n := cell{Kubernetes: minor, Runtime: runtime, Family: family, KubeProxy: kubeProxy}
					if n.possible() && n.knownBroken() == "" && (c.Family == "" || used[n.network()] < used[c.network()]) {
						c.Family, c.KubeProxy = family, kubeProxy
					}
				}
			}
			used[c.network()]++
			// Most cells have one more property.
			switch {
			case (i+j)%3 == 0 && c.Family == "IPv4":
				c.CNI = "flannel" // which testcluster supports on IPv4
			case (i+j)%3 == 1:
				c.Second = runtimes[(j+1)%len(runtimes)]
			case (i+j)%3 == 2:
				c.Tainted = true
			}
			// The tests' S3 server listens on IPv4, and the kubelet of 1.28 does not recognize the bind mounts of
			// volumes that attach.
			if c.Storage == "s3" && c.Family == "IPv6" || c.Storage == "attached" && minor == "1.28" {
				c.Storage = storages[0]
			}
			all = append(all, c)
		}
	}
	more := []cell{{Kubernetes: "1.36", Runtime: "crio-1.34", Family: "IPv6", KubeProxy: "nftables"},
		{Kubernetes: "1.28", Runtime: "containerd-2.4", Family: "IPv6", KubeProxy: "iptables"}}
	for _, family := range families {
		more = append(more, cell{Kubernetes: "1.36", Runtime: "containerd-2.4", Family: family, KubeProxy: "ipvs"})
	}
	for _, c := range more {
		c.CNI, c.Helm, c.Storage = "bridge", helms[0], storages[0]
		all = append(all, c)
	}
	return all
}

// slice returns every count-th cell, beginning with the index-th, which is counted from 1.
func slice(all []cell, index, count int) []cell {
	var part []cell
	for i, c := range all {
		if i%count == index-1 {
			part = append(part, c)
		}
	}
	return part
}

// values returns the different values of a property, in the order of the cells.
func values(all []cell, property func(cell) string) []string {
	var list []string
	for _, c := range all {
		if v := property(c); !slices.Contains(list, v) {
			list = append(list, v)
		}
	}
	return list
}
