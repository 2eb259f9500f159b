package cluster

import (
	"os"
	"path/filepath"
	"reflect"
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
		"pause image for an unknown node": {func(
			o *Options) {
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

func TestValidateReportsAllErrors(t *testing.T) {
	err := Options{}.Validate()
	for _, part := range []string{"cluster name", "--nodes", "--ip-family", "--kube-proxy", "--node-grace",
		"pause image"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in the error: %v", part, err)
		}
	}
}

func TestControlPlaneNameIsReserved(t *testing.T) {
	if err := ValidateName("node", controlPlaneName); err == nil {
		t.Error("accepted")
	}
}

func TestParseByNode(t *testing.T) {
	all, byNode, err := ParseByNode("--pause-image", []string{"a/b:1", "n2=c/d:2"}, DefaultPauseImage)
	if err != nil || all != "a/b:1" || !reflect.DeepEqual(byNode, map[string]string{"n2": "c/d:2"}) {
		t.Fatalf("got %q, %v, %v", all, byNode, err)
	}
	o := Options{PauseImage: all, PauseImages: byNode, Runtime: "containerd-2.4",
		Runtimes: map[string]string{"n1": "containerd-1.7"}, Taints: map[string][]string{"n2": {"a=b:NoSchedule"}}}
	for index, want := range map[int]Node{
		1: {Name: "n1", Index: 1, PauseImage: "a/b:1", Runtime: "containerd-1.7"},
		2: {Name: "n2", Index: 2, PauseImage: "c/d:2", Runtime: "containerd-2.4", Taints: []string{"a=b:NoSchedule"}},
	} {
		if got := o.newNode(index); !reflect.DeepEqual(got, want) {
			t.Errorf("node %d: got %+v, want %+v", index, got, want)
		}
	}
	if all, _, err := ParseByNode("--pause-image", nil, DefaultPauseImage); err != nil || all != DefaultPauseImage {
		t.Errorf("without a flag: %q, %v", all, err)
	}
	for _, bad := range []string{"=a/b:1", "n1="} {
		if _, _, err := ParseByNode("--pause-image", []string{bad}, DefaultPauseImage); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestParseTaints(t *testing.T) {
	got, err := ParseTaints([]string{"n1=a=b:NoSchedule", "n1=c:NoExecute"})
	if want := map[string][]string{"n1": {"a=b:NoSchedule", "c:NoExecute"}}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := ParseTaints([]string{"a:NoSchedule"}); err == nil {
		t.Error("a taint without a node was accepted")
	}
}

func TestParseArchives(t *testing.T) {
	o := Options{Archives: ParseArchives([]string{"all.tar", "n2=two.tar", "/odd/n1=x.tar"})}
	for node, want := range map[string]string{"n1": "all.tar /odd/n1=x.tar", "n2": "all.tar two.tar /odd/n1=x.tar"} {
		if got := strings.Join(o.archivesOf(node), " "); got != want {
			t.Errorf("%s: got %q, want %q", node, got, want)
		}
	}
}

func TestNodeTaints(t *testing.T) {
	for text, valid := range map[string]bool{
		"dedicated=edge:NoSchedule": true, "dedicated:NoExecute": true, "example.com/a=b:PreferNoSchedule": true,
		"dedicated=edge": false, "dedicated=edge:Never": false, ":NoSchedule": false, "a b=c:NoSchedule": false,
	} {
		if err := validateTaints([]string{text}); (err == nil) != valid {
			t.Errorf("taint %q: %v", text, err)
		}
	}
	taint, err := parseTaint("dedicated=edge:NoSchedule")
	if err != nil || taint.Key != "dedicated" || taint.Value != "edge" || taint.Effect != "NoSchedule" {
		t.Errorf("got %+v, %v", taint, err)
	}
}
