package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func validOptions() Options {
	return Options{Name: "test", Nodes: 2, Family: IPv4, CNI: Bridge, Kubernetes: "1.36", Runtime: "containerd-2.4", KubeProxy: IPTables,
		PauseImage: DefaultPauseImage, NodeGrace: DefaultNodeGrace}
}

func TestValidateOptions(t *testing.T) {
	archive := filepath.Join(t.TempDir(), "image.tar")
	if err := os.WriteFile(archive, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*Options)
		want   string // expected part of the error; empty for none
	}{
		"defaults":                  {func(*Options) {}, ""},
		"name with slashes":         {func(o *Options) { o.Name = "../etc" }, "cluster name"},
		"empty name":                {func(o *Options) { o.Name = "" }, "cluster name"},
		"name with a dot":           {func(o *Options) { o.Name = "a.n1" }, "cluster name"},
		"no nodes":                  {func(o *Options) { o.Nodes = 0 }, "--nodes"},
		"more nodes than addresses": {func(o *Options) { o.Nodes = maxNodes + 1 }, "--nodes"},
		"unknown IP family":         {func(o *Options) { o.Family = "ipv4" }, "--ip-family"},
		"unknown kube-proxy mode":   {func(o *Options) { o.KubeProxy = "userspace" }, "--kube-proxy"},
		"nftables before 1.31":      {func(o *Options) { o.KubeProxy, o.Kubernetes = NFTables, "1.30" }, "1.31"},
		"unknown CNI":               {func(o *Options) { o.CNI = "calico" }, "--cni"},
		"flannel on IPv6":           {func(o *Options) { o.CNI, o.Family = Flannel, IPv6 }, "--ip-family"},
		"kubeadm":                   {func(o *Options) { o.Kubeadm = true }, ""},
		"kubeadm before 1.31":       {func(o *Options) { o.Kubeadm, o.Kubernetes = true, "1.30" }, "1.31"},
		"kubeadm with containerd 1": {func(o *Options) { o.Kubeadm, o.Runtime = true, "containerd-1.7" }, "--runtime"},
		"kubeadm with a CNI":        {func(o *Options) { o.Kubeadm, o.CNI = true, Flannel }, "kube-router"},
		"unknown runtime":           {func(o *Options) { o.Runtime = "docker" }, "container runtime"},
		"runtime for an unknown node": {func(o *Options) { o.Runtimes = map[string]string{"n3": "containerd-1.7"} },
			"no such node"},
		"invalid taint": {func(o *Options) { o.Taints = map[string][]string{"n1": {"a=b"}} }, "invalid taint"},
		"node grace below the minimum": {func(o *Options) { o.NodeGrace = DefaultNodeGrace - 1 },
			"--node-grace"},
		"API server flag without dashes": {func(o *Options) { o.APIServerFlags = []string{"v=2"} },
			"--api-server-flag"},
		"negative volumes size": {func(o *Options) { o.VolumesSize = -1 }, "--volumes-size"},
		"pause image without a tag": {func(o *Options) { o.PauseImage = "registry.k8s.io/pause" },
			"pause image"},
		"pause image without a registry":  {func(o *Options) { o.PauseImage = "pause:3" }, "pause image"},
		"pause image of a local registry": {func(o *Options) { o.PauseImage = "localhost:5000/k8s/pause:3" }, ""},
		"pause image for an unknown node": {func(o *Options) {
			o.PauseImages = map[string]string{"n3": DefaultPauseImage}
		}, "no such node"},
		"missing archive": {func(o *Options) { o.Archives = []Archive{{Path: "/nowhere.tar"}} },
			"no such file"},
		"missing audit policy":    {func(o *Options) { o.AuditPolicy = "/nowhere.yaml" }, "--audit-policy"},
		"directory as an archive": {func(o *Options) { o.Archives = []Archive{{Path: "/"}} }, "not a file"},
		"archive for an unknown node": {func(o *Options) { o.Archives = []Archive{{Path: archive, Node: "n3"}} },
			"no such node"},
		"archive for a node": {func(o *Options) { o.Archives = []Archive{{Path: archive, Node: "n2"}} }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := validOptions()
			c.change(&o)
			err := o.Validate()
			if c.want == "" && err != nil {
				t.Fatalf("refused: %v", err)
			}
			if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Fatalf("got %v, want an error with %q", err, c.want)
			}
		})
	}
}

func TestControlPlaneNameIsReserved(t *testing.T) {
	if err := ValidateName("node", controlPlaneName); err == nil {
		t.Error("accepted")
	}
}
