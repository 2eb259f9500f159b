package cluster

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

var families = []Family{IPv4, IPv6, DualStack}

func TestKubeletConfig(t *testing.T) {
	for _, family := range families {
		t.Run(string(family), func(t *testing.T) {
			c := testCluster(t, family)
			n := Node{Name: "n2", Index: 2, Runtime: "containerd-2.4", Taints: []string{"dedicated=edge:NoSchedule"}}
			content, err := c.kubeletConfig(n)
			if err != nil {
				t.Fatal(err)
			}
			var config struct {
				CgroupRoot, Address                     string
				ClusterDNS                              []string
				SerializeImagePulls                     *bool
				RegisterWithTaints                      []struct{ Key, Value, Effect string }
				FailCgroupV1, FailSwapOn                *bool
				NodeStatusUpdateFrequency, CgroupDriver string
			}
			if err := yaml.Unmarshal(content, &config); err != nil {
				t.Fatal(err)
			}
			if config.CgroupRoot != "/zarf-registry-test/test/n2" || config.CgroupDriver != "cgroupfs" {
				t.Errorf("cgroups: %+v", config)
			}
			if strings.Join(config.ClusterDNS, ",") != join(family.DNSService()) {
				t.Errorf("DNS: %v", config.ClusterDNS)
			}
			if config.SerializeImagePulls == nil || *config.SerializeImagePulls {
				t.Error("a pull that hangs would block all others")
			}
			if len(config.RegisterWithTaints) != 1 || config.RegisterWithTaints[0].Effect != "NoSchedule" {
				t.Errorf("taints: %+v", config.RegisterWithTaints)
			}
			args := strings.Join(c.kubelet(n).Args, " ")
			for _, want := range []string{"--node-ip=" + join(family.Node(2)), "--hostname-override=n2"} {
				if !strings.Contains(args+" ", want+" ") {
					t.Errorf("%s is not in %s", want, args)
				}
			}
		})
	}
}

func TestCNIConfigUsesTheNodesPodRanges(t *testing.T) {
	for _, family := range families {
		t.Run(string(family), func(t *testing.T) {
			c := testCluster(t, family)
			var config struct {
				Plugins []struct {
					Type, Backend string
					IPAM          struct {
						Ranges [][]struct{ Subnet string }
						Routes []struct{ Dst string }
					}
				}
			}
			if err := json.Unmarshal([]byte(c.cniConfig(Node{Name: "n3", Index: 3})), &config); err != nil {
				t.Fatal(err)
			}
			if len(config.Plugins) != 2 || config.Plugins[1].Type != "portmap" || config.Plugins[1].Backend != IPTables {
				t.Fatalf("plugins: %+v", config.Plugins)
			}
			ipam := config.Plugins[0].IPAM
			want := family.NodePods(3)
			if len(ipam.Ranges) != len(want) || len(ipam.Routes) != len(want) {
				t.Fatalf("ranges %+v, routes %+v, want %v", ipam.Ranges, ipam.Routes, want)
			}
			for i, pods := range want {
				if len(ipam.Ranges[i]) != 1 || ipam.Ranges[i][0].Subnet != pods.String() {
					t.Errorf("range %d is %+v, not %s", i, ipam.Ranges[i], pods)
				}
				if pods.Addr().Is6() != (ipam.Routes[i].Dst == "::/0") {
					t.Errorf("route %d is %s", i, ipam.Routes[i].Dst)
				}
			}
		})
	}
}

func TestContainerdConfigUsesTheNodesPauseImage(t *testing.T) {
	c := testCluster(t, IPv4)
	for version, want := range map[containerd][]string{
		"1.7": {`sandbox_image = "example.com/pause:1"`, `bin_dir = "` + c.path(binDir) + `"`},
		"2.1": {`sandbox = "example.com/pause:1"`},
		"2.4": {`sandbox = "example.com/pause:1"`, `bin_dirs = ["` + c.path(binDir) + `"]`},
	} {
		config := version.config(c, Node{Name: "n1", Index: 1, PauseImage: "example.com/pause:1"})
		for _, want := range append(want, "restrict_oom_score_adj = true") {
			if !strings.Contains(config, want) {
				t.Errorf("%s: %s is not in\n%s", version, want, config)
			}
		}
		if got := strings.Contains(config, `config_path = "/etc/containerd/certs.d"`); got != (version != "2.4") {
			t.Errorf("%s: config_path is set: %t", version, got)
		}
	}
}

func TestAPIServerServiceRangeMatchesThePlan(t *testing.T) {
	for family, want := range map[Family]string{IPv4: "10.96.0.0/16", IPv6: "fd96::/112",
		DualStack: "10.96.0.0/16,fd96::/112"} {
		args := strings.Join(testCluster(t, family).apiServer().Args, " ")
		if !strings.Contains(args, "--service-cluster-ip-range="+want+" ") {
			t.Errorf("%s: %s", family, args)
		}
	}
}

func TestDNSHasAnEndpointPerFamily(t *testing.T) {
	for family, want := range map[Family]int{IPv4: 1, IPv6: 1, DualStack: 2} {
		service, slices := testCluster(t, family).dnsObjects()
		if len(slices) != want || len(service.Spec.ClusterIPs) != want ||
			service.Spec.ClusterIP != service.Spec.ClusterIPs[0] {
			t.Errorf("%s: %d slices, addresses %v", family, len(slices), service.Spec.ClusterIPs)
		}
		if len(service.Spec.Selector) != 0 {
			t.Errorf("%s: a selector would let a controller replace the endpoints", family)
		}
		names := make(map[string]bool)
		for _, port := range service.Spec.Ports {
			names[port.Name] = true
		}
		for _, slice := range slices {
			for _, port := range slice.Ports {
				if !names[*port.Name] {
					t.Errorf("%s: the Service has no port %s", family, *port.Name)
				}
			}
		}
	}
}

func TestMergeEnvironment(t *testing.T) {
	got := mergeEnvironment([]string{"PATH=/bin", "TERM=x", "KUBECONFIG=/mine"},
		[]string{"PATH=/cluster", "KUBECONFIG=/its"})
	if want := "TERM=x PATH=/cluster KUBECONFIG=/its"; strings.Join(got, " ") != want {
		t.Errorf("got %v", got)
	}
}

func TestNetnsNamesAreNotPrefixesOfOtherClusters(t *testing.T) {
	// Cluster "a-n1" must not be mistaken for node "n1" of cluster "a".
	if strings.HasPrefix(netnsName("a-n1", controlPlaneName), netnsName("a", "")) {
		t.Error("removing cluster a would remove a namespace of cluster a-n1")
	}
}

func TestArchiveImages(t *testing.T) {
	for file, content := range map[string]string{
		"index.json": `{"manifests":[{"annotations":{"io.containerd.image.name":"example.com/a-b:1"}},` +
			`{"annotations":{}}]}`,
		"manifest.json": `[{"RepoTags":["example.com/a-b:1"]}]`,
	} {
		var archive bytes.Buffer
		tw := tar.NewWriter(&archive)
		if err := tw.WriteHeader(&tar.Header{Name: file, Mode: 0o644, Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
		if err := tw.Close(); err != nil {
			t.Fatal(err)
		}
		got, err := archiveImages(&archive)
		if err != nil || strings.Join(got, " ") != "example.com/a-b:1" {
			t.Errorf("%s names %q (%v)", file, got, err)
		}
	}
	if _, err := archiveImages(strings.NewReader("rubbish")); err == nil {
		t.Error("an invalid archive was accepted")
	}
}
