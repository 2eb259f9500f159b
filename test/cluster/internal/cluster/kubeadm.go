package cluster

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/zarf-dev/zarf-registry/test/cluster/internal/image"
)

const (
	kubeadm           = "kubeadm"
	kubeadmConfigPath = "/etc/kubeadm.yaml"
	kubeadmAdmin      = "/etc/kubernetes/admin.conf"

	// KubeRouterManifest is the file in kube-router's module that makes it the network of a cluster of kubeadm. It alone
	// of them has host ports.
	KubeRouterManifest = "kubeadm-kuberouter-all-features-hostport.yaml"

	// kubeadmTimeout is longer than kubeadm itself waits for a component.
	kubeadmTimeout = 10 * time.Minute
)

// systemctlScript is the init system that kubeadm finds on nodes.
//
//go:embed systemctl.sh
var systemctlScript []byte

// kubeadmSteps make a cluster with kubeadm, whose first node is the control plane.
func (c *Cluster) kubeadmSteps(ctx context.Context, groups cgroups, programs map[string]string) []step {
	first := c.Nodes[0]
	var client kubernetes.Interface
	return []step{
		{"programs and the fabric between nodes", func() error { return c.prepare(ctx, groups, programs) }},
		{"nodes with container runtimes and images", func() error {
			images, err := c.kubeadmImages(ctx, c.path(binDir))
			if err != nil {
				return err
			}
			group, ctx := errgroup.WithContext(ctx)
			for _, n := range c.Nodes {
				group.Go(func() error { return c.createForKubeadm(ctx, n, images) })
			}
			return group.Wait()
		}},
		{"kubeadm init, and a network for pods", func() (err error) {
			if err := c.kubeadmInit(ctx, first); err != nil {
				return err
			}
			if err := c.takeAdminConfig(ctx, first); err != nil {
				return err
			}
			if client, err = c.client(); err != nil {
				return err
			}
			if err := c.start(c.forwarder()); err != nil {
				return err
			}
			if err := c.waitForAPI(ctx, client); err != nil {
				return err
			}
			return c.applyKubeRouter(ctx, first)
		}},
		{"kubeadm join, storage and DNS", func() error {
			group, joining := errgroup.WithContext(ctx)
			for _, n := range c.Nodes[1:] {
				group.Go(func() error { return c.kubeadmJoin(joining, n) })
			}
			if err := group.Wait(); err != nil {
				return err
			}
			if err := c.startStorage(ctx, client); err != nil {
				return err
			}
			for _, n := range c.Nodes {
				if err := c.waitForNode(ctx, client, n.Name); err != nil {
					return err
				}
			}
			return c.waitFor(ctx, processID(kubeadm, first.Name), "CoreDNS", startTimeout, func(ctx context.Context) error {
				dns, err := client.AppsV1().Deployments(metav1.NamespaceSystem).Get(ctx, coreDNS, metav1.GetOptions{})
				if err == nil && dns.Status.ReadyReplicas < dns.Status.Replicas {
					err = fmt.Errorf("%d of %d pods are ready", dns.Status.ReadyReplicas, dns.Status.Replicas)
				}
				return err
			})
		}},
	}
}

// createForKubeadm creates a node with the images that kubeadm needs.
func (c *Cluster) createForKubeadm(ctx context.Context, n Node, images []image.Image) error {
	if err := c.createNode(ctx, nil, n); err != nil {
		return err
	}
	return c.loadImages(ctx, n, images...)
}

// addWithKubeadm creates a node and adds it to a cluster that kubeadm made.
func (c *Cluster) addWithKubeadm(ctx context.Context, client kubernetes.Interface, n Node) error {
	images, err := c.kubeadmImages(ctx, c.path(binDir))
	if err != nil {
		return err
	}
	if err := c.createForKubeadm(ctx, n, images); err != nil {
		return err
	}
	if err := c.kubeadmJoin(ctx, n); err != nil {
		return err
	}
	return c.waitForNode(ctx, client, n.Name)
}

// addKubeadm adds what packages and administrators put on a node before kubeadm runs.
func (c *Cluster) addKubeadm(files map[string][]byte, _ *clusterCA, n Node) error {
	config, err := exec.Command(c.path(binDir, n.Runtime, "containerd"), "config", "default").Output()
	if err != nil {
		return fmt.Errorf("asking containerd for its default configuration: %w", err)
	}
	// Where root lacks CAP_SYS_RESOURCE, lowering a process's score is refused.
	const score = "restrict_oom_score_adj = "
	if !strings.Contains(string(config), score+"false") {
		return fmt.Errorf("containerd's default configuration has no %sfalse", score)
	}
	files[containerdConfigPath] = []byte(strings.Replace(string(config), score+"false", score+"true", 1))
	// CoreDNS does not start without a name server. Nothing listens there, so names fail at once.
	files["/etc/resolv.conf"] = fmt.Appendf(nil, "nameserver %s\n", c.Options.Family.ControlPlane()[0])
	files["/opt/bin/systemctl"] = systemctlScript
	// The overlay hides the host's CNI configuration, which containerd would use until kube-router writes its own.
	networks := c.nodePath(n.Name, "/etc/cni/net.d")
	if err := os.MkdirAll(networks, 0o755); err != nil {
		return fmt.Errorf("making the directories of node %s: %w", n.Name, err)
	}
	if err := unix.Setxattr(networks, "trusted.overlay.opaque", []byte("y"), 0); err != nil {
		return fmt.Errorf("hiding the host's CNI configuration from node %s: %w", n.Name, err)
	}
	for _, plugin := range []string{"bridge", "host-local", "loopback", "portmap"} {
		if err := c.provide(n, filepath.Join("/opt/cni/bin", plugin), c.path(binDir, plugin)); err != nil {
			return err
		}
	}
	return nil
}

// provide puts a program on a node, also in place of another one.
func (c *Cluster) provide(n Node, path, from string) error {
	target := c.nodePath(n.Name, path)
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return fmt.Errorf("installing %s on node %s: %w", path, n.Name, err)
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("installing %s on node %s: %w", path, n.Name, err)
	}
	if err := linkOrCopy(from, target); err != nil {
		return fmt.Errorf("installing %s on node %s: %w", path, n.Name, err)
	}
	return nil
}

// kubeadmUnit is the process of a node's kubelet, which kubeadm starts and stops.
func kubeadmUnit(n Node) Process {
	return Process{ID: processID(kubelet, n.Name), Node: n.Name, Args: []string{"systemctl", "run"}}
}

func (c *Cluster) kubeadmInit(ctx context.Context, n Node) error {
	version, err := c.kubeadmVersion(ctx, c.path(binDir))
	if err != nil {
		return err
	}
	networking := object{"podSubnet": join(c.Options.Family.Pods())}
	proxy := object{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
		// A network namespace cannot set the machine's limit.
		"conntrack": object{"maxPerCore": 0},
	}
	if c.Options.Family != IPv4 {
		networking["serviceSubnet"] = join(c.Options.Family.Services())
	}
	if c.Options.KubeProxy != IPTables {
		proxy["mode"] = c.Options.KubeProxy
	}
	if err := c.writeKubeadmConfig(ctx, n,
		object{"apiVersion": kubeadmAPI, "kind": "InitConfiguration", "nodeRegistration": c.nodeRegistration(n)},
		object{"apiVersion": kubeadmAPI, "kind": "ClusterConfiguration", "kubernetesVersion": version,
			"networking": networking},
		object{"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
			// Kubernetes 1.35 and later refuse cgroup version 1 otherwise.
			"failCgroupV1": false,
			// Nodes share the host's disk.
			"evictionHard": evictionHard, "imageGCHighThresholdPercent": 100},
		proxy,
	); err != nil {
		return err
	}
	if err := c.start(kubeadmUnit(n)); err != nil {
		return err
	}
	return c.kubeadm(ctx, n, "init", "--config="+kubeadmConfigPath)
}

const kubeadmAPI = "kubeadm.k8s.io/v1beta4"

func (c *Cluster) nodeRegistration(n Node) object {
	// Kubelets share the machine's cgroups: without a root of its own, each removes those of the others' pods.
	args := []object{{"name": "cgroup-root", "value": cgroupOf(c.Options.Name, n.Name)}}
	if c.Options.Family == DualStack { // as kubeadm's documentation says
		args = append(args, object{"name": "node-ip", "value": join(c.Options.Family.Node(n.Index))})
	}
	return object{
		"kubeletExtraArgs":      args,
		"ignorePreflightErrors": []string{"SystemVerification"}, // of the kernel's configuration and cgroup version 1
	}
}

// kubeadmJoin adds a node to the cluster.
func (c *Cluster) kubeadmJoin(ctx context.Context, n Node) error {
	command, err := c.run(ctx, c.Nodes[0].Name, nil, kubeadm, "token", "create", "--print-join-command")
	if err != nil {
		return err
	}
	words := strings.Fields(command) // kubeadm join ADDRESS --token TOKEN --discovery-token-ca-cert-hash HASH
	if len(words) != 7 {
		return fmt.Errorf("unexpected command to join a cluster: %s", command)
	}
	if err := c.writeKubeadmConfig(ctx, n, object{
		"apiVersion": kubeadmAPI, "kind": "JoinConfiguration", "nodeRegistration": c.nodeRegistration(n),
		"discovery": object{"bootstrapToken": object{"apiServerEndpoint": words[2], "token": words[4],
			"caCertHashes": words[6:]}},
	}); err != nil {
		return err
	}
	if err := c.start(kubeadmUnit(n)); err != nil {
		return err
	}
	return c.kubeadm(ctx, n, "join", "--config="+kubeadmConfigPath)
}

// kubeadm runs kubeadm on a node. Its output is in a log beside those of components.
func (c *Cluster) kubeadm(ctx context.Context, n Node, args ...string) error {
	ctx, stop := context.WithTimeout(ctx, kubeadmTimeout)
	defer stop()
	id := processID(kubeadm, n.Name)
	const script = `log=$1; shift; exec kubeadm "$@" >>"$log" 2>&1`
	command := append([]string{"sh", "-c", script, kubeadm, c.logPath(id)}, args...)
	if _, err := c.run(ctx, n.Name, nil, command...); err != nil {
		return &ComponentError{ID: id, LogPath: c.logPath(id), Err: fmt.Errorf("kubeadm %s: %w", args[0], err)}
	}
	return nil
}

func (c *Cluster) writeKubeadmConfig(ctx context.Context, n Node, documents ...object) error {
	var text strings.Builder
	for _, d := range documents {
		content, err := yaml.Marshal(d)
		if err != nil {
			return fmt.Errorf("writing kubeadm's configuration: %w", err)
		}
		fmt.Fprintf(&text, "---\n%s", content)
	}
	_, err := c.run(ctx, n.Name, strings.NewReader(text.String()), "cp", "/dev/stdin", kubeadmConfigPath)
	return err
}

// takeAdminConfig takes the administrator's kubeconfig from the control plane, for use inside the cluster's namespaces
// and on the host.
func (c *Cluster) takeAdminConfig(ctx context.Context, n Node) error {
	inner, err := c.run(ctx, n.Name, nil, "cat", kubeadmAdmin)
	if err != nil {
		return err
	}
	config, err := clientcmd.Load([]byte(inner))
	if err != nil {
		return fmt.Errorf("reading %s: %w", kubeadmAdmin, err)
	}
	for _, cluster := range config.Clusters {
		cluster.Server, cluster.TLSServerName = c.outerServer(), "kubernetes" // kubeadm's certificate has no 127.0.0.1
	}
	outer, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("writing the kubeconfig: %w", err)
	}
	return errors.Join(c.writeFiles(configDir, map[string][]byte{adminConfig: []byte(inner)}),
		c.writeFiles("", map[string][]byte{kubeconfigFile: outer}))
}

// applyKubeRouter makes kube-router the network of pods.
func (c *Cluster) applyKubeRouter(ctx context.Context, n Node) error {
	manifest, err := os.ReadFile(c.path(binDir, KubeRouterManifest))
	if err != nil {
		return fmt.Errorf("reading kube-router's manifest: %w", err)
	}
	const proxy = "- --run-service-proxy="
	// kubeadm installs kube-proxy. And for the default of 5 minutes, nodes hide their pods behind their own address from
	// a node that has joined, so NetworkPolicies refuse them.
	flags := proxy + "false\n        - --routes-sync-period=5s"
	if c.Options.Family != IPv4 {
		flags += "\n        - --enable-ipv6=true"
		manifest = bytes.Replace(manifest, []byte("--run-firewall=true"), []byte("--run-firewall=false"), 1)
		for _, services := range c.Options.Family.Services() {
			flags += "\n        - --service-cluster-ip-range=" + services.String()
		}
	}
	edited := strings.NewReplacer(proxy+"true", flags, "imagePullPolicy: Always", "imagePullPolicy: IfNotPresent").
		Replace(string(manifest))
	if !strings.Contains(edited, flags) {
		return fmt.Errorf("kube-router's manifest has no %strue", proxy)
	}
	_, err = c.run(ctx, n.Name, strings.NewReader(edited), "kubectl", "--kubeconfig="+kubeadmAdmin, "apply", "-f", "-")
	return err
}

// InstallKubernetes puts kubeadm, kubelet and kubectl of another version on a node, as packages would, and the images
// that kubeadm needs. programs are those of that version, by name. Running processes stay as they are.
func (c *Cluster) InstallKubernetes(ctx context.Context, node, version string, programs map[string]string) error {
	n, err := c.node(node)
	if err != nil {
		return err
	}
	if !c.Options.Kubeadm {
		return fmt.Errorf("cluster %s was not made by kubeadm", c.Options.Name)
	}
	folder := "kubernetes-" + version
	prefixed := make(map[string]string)
	for name, path := range programs {
		prefixed[folder+"/"+name] = path
	}
	if err := c.installPrograms(prefixed); err != nil {
		return err
	}
	for _, program := range []string{kubeadm, kubelet, "kubectl"} {
		if err := c.provide(n, filepath.Join("/opt/bin", program), c.path(binDir, folder, program)); err != nil {
			return err
		}
	}
	images, err := c.kubeadmImages(ctx, c.path(binDir, folder))
	if err != nil {
		return err
	}
	return c.loadImages(ctx, n, images...)
}
