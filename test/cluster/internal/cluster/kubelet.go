package cluster

import (
	"cmp"
	"context"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"
)

const (
	kubelet   = "kubelet"
	kubeProxy = "kube-proxy"
)

var evictionHard = object{"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"}

// kubeletHealth is the kubelet's own default.
const kubeletHealth = "127.0.0.1:10248"

// Paths on a node, below its own /etc.
const (
	kubeletConfigPath   = "/etc/kubernetes/kubelet.yaml"
	kubeletKubeconfig   = "/etc/kubernetes/kubelet.kubeconfig"
	staticPods          = "/etc/kubernetes/manifests"
	kubeProxyConfigPath = "/etc/kubernetes/kube-proxy.yaml"
	kubeProxyKubeconfig = "/etc/kubernetes/kube-proxy.kubeconfig"
)

// addKubelet adds what a node's kubelet reads to the files of the node.
func (c *Cluster) addKubelet(files map[string][]byte, ca *clusterCA, now time.Time, n Node) error {
	kubeconfig, err := c.kubeconfig(ca, now, c.innerServer(), pkix.Name{CommonName: "system:node:" + n.Name,
		Organization: []string{"system:nodes"}})
	if err != nil {
		return err
	}
	config, err := c.kubeletConfig(n)
	if err != nil {
		return err
	}
	files[kubeletKubeconfig], files[kubeletConfigPath] = kubeconfig, config
	files[staticPods+"/.keep"] = nil // kubelets log each second that a folder is missing
	return nil
}

// kubeletConfig returns a node's kubelet.config.k8s.io/v1beta1 configuration.
func (c *Cluster) kubeletConfig(n Node) ([]byte, error) {
	config := object{
		"apiVersion": "kubelet.config.k8s.io/v1beta1",
		"kind":       "KubeletConfiguration",
		"authentication": object{
			"anonymous": object{"enabled": false},
			"webhook":   object{"enabled": true},
			"x509":      object{"clientCAFile": c.path(configDir, caCertFile)},
		},
		"authorization":            object{"mode": "Webhook"},
		"address":                  c.Options.Family.unspecified(),
		"healthzBindAddress":       "127.0.0.1",
		"clusterDNS":               texts(c.Options.Family.DNSService()),
		"clusterDomain":            clusterDomain,
		"resolvConf":               "/dev/null", // pods resolve only names of the cluster
		"containerRuntimeEndpoint": "unix://" + n.runtime().socket(),
		"cgroupDriver":             "cgroupfs",
		"cgroupRoot":               cgroupOf(c.Options.Name, n.Name),
		"enforceNodeAllocatable":   []string{},
		"failCgroupV1":             false,
		"failSwapOn":               false,
		"volumePluginDir":          c.path(volumePluginDir),
		"staticPodPath":            staticPods,
		"maxPods":                  60,    // of a node's 254 pod addresses
		"serializeImagePulls":      false, // otherwise a hanging pull blocks all others
		// Nodes share the host's disk, so pressure and image age say nothing about a node.
		"evictionHard":                evictionHard,
		"imageGCHighThresholdPercent": 100,
		// Tests should notice changes of images, and the death of a node, within seconds.
		"nodeStatusUpdateFrequency": "4s",
		"nodeLeaseDurationSeconds":  16,
	}
	if len(n.Taints) > 0 {
		var taints []corev1.Taint
		for _, text := range n.Taints {
			taint, err := parseTaint(text)
			if err != nil {
				return nil, err
			}
			taints = append(taints, taint)
		}
		config["registerWithTaints"] = taints
	}
	content, err := yaml.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("writing the kubelet's configuration: %w", err)
	}
	return content, nil
}

func (c *Cluster) kubelet(n Node) Process {
	return Process{ID: processID(kubelet, n.Name), Node: n.Name, Args: []string{
		kubelet,
		"--config=" + kubeletConfigPath,
		"--kubeconfig=" + kubeletKubeconfig,
		"--root-dir=/var/lib/kubelet",
		"--cert-dir=/var/lib/kubelet/pki",
		"--hostname-override=" + n.Name,
		"--node-ip=" + join(c.Options.Family.Node(n.Index)),
		"--v=2",
	}}
}

// waitForKubelet waits until a kubelet is healthy.
func (c *Cluster) waitForKubelet(ctx context.Context, node string) error {
	return c.waitFor(ctx, processID(kubelet, node), "/healthz", startTimeout, func(context.Context) error {
		return InNetns(netnsPath(c.Options.Name, node), func() error {
			return httpOK(kubeletHealth, "/healthz")
		})
	})
}

// addKubeProxy adds what a node's kube-proxy reads to the files of the node.
func (c *Cluster) addKubeProxy(files map[string][]byte, ca *clusterCA, now time.Time, n Node) error {
	kubeconfig, err := c.kubeconfig(ca, now, c.innerServer(), pkix.Name{CommonName: "system:kube-proxy"})
	if err != nil {
		return err
	}
	config, err := c.kubeProxyConfig(n.Name)
	if err != nil {
		return err
	}
	files[kubeProxyKubeconfig], files[kubeProxyConfigPath] = kubeconfig, config
	return nil
}

// kubeProxyConfig returns the configuration of a node's kube-proxy.
func (c *Cluster) kubeProxyConfig(node string) ([]byte, error) {
	config, err := yaml.Marshal(object{
		"apiVersion":       "kubeproxy.config.k8s.io/v1alpha1",
		"kind":             "KubeProxyConfiguration",
		"mode":             c.Options.KubeProxy,
		"clientConnection": object{"kubeconfig": kubeProxyKubeconfig},
		"clusterCIDR":      join(c.Options.Family.Pods()),
		"hostnameOverride": node,
		// Otherwise they would change parameters of the whole machine.
		"conntrack":          object{"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
		"healthzBindAddress": "",
		"metricsBindAddress": "",
	})
	if err != nil {
		return nil, fmt.Errorf("writing kube-proxy's configuration: %w", err)
	}
	return config, nil
}

// publishKubeProxyConfig stores kube-proxy's configuration where kubeadm does. Nothing in the cluster
// reads it, but charts do.
func (c *Cluster) publishKubeProxyConfig(ctx context.Context, client kubernetes.Interface) error {
	config, err := c.kubeProxyConfig("")
	if err != nil {
		return err
	}
	_, err = client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: kubeProxy},
		Data:       map[string]string{"config.conf": string(config)},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("storing kube-proxy's configuration: %w", err)
	}
	return nil
}

func (c *Cluster) kubeProxy(n Node) Process {
	return Process{ID: processID(kubeProxy, n.Name), Node: n.Name,
		Args: []string{cmp.Or(c.Options.KubeProxyProgram, kubeProxy), "--config=" + kubeProxyConfigPath}}
}

// waitForServices waits until kube-proxy serves the API server's Service on a node. Pods would fail
// before, and kube-router, which also changes the packet filter, may disturb kube-proxy's first
// sync, which is retried only after 30 s.
func (c *Cluster) waitForServices(ctx context.Context, n Node) error {
	service := c.Options.Family.Services()[0].Addr().Next()
	family, iptables := "ip", "iptables"
	if service.Is6() {
		family, iptables = "ip6", "ip6tables"
	}
	list := []string{iptables, "--wait", "--table", "nat", "--list-rules", "KUBE-SERVICES"}
	if c.Options.KubeProxy == NFTables {
		list = []string{"nft", "list", "map", family, "kube-proxy", "service-ips"}
	}
	return c.waitFor(ctx, processID(kubeProxy, n.Name), "its rules", startTimeout, func(ctx context.Context) error {
		rules, err := c.run(ctx, n.Name, nil, list...)
		if err == nil && !strings.Contains(rules, service.String()) {
			err = fmt.Errorf("the packet filter has no rule for %s", service)
		}
		return err
	})
}

var taintPattern = regexp.MustCompile(`^([^=:]+)(?:=([^=:]*))?:(NoSchedule|PreferNoSchedule|NoExecute)$`)

// parseTaint reads key[=value]:Effect, the form of kubectl taint.
func parseTaint(text string) (corev1.Taint, error) {
	parts := taintPattern.FindStringSubmatch(text)
	if parts == nil || len(validation.IsQualifiedName(parts[1])) > 0 || len(validation.IsValidLabelValue(parts[2])) > 0 {
		return corev1.Taint{}, fmt.Errorf(
			"invalid taint %q: want key=value:Effect with NoSchedule, PreferNoSchedule or NoExecute", text)
	}
	return corev1.Taint{Key: parts[1], Value: parts[2], Effect: corev1.TaintEffect(parts[3])}, nil
}

func validateTaints(taints []string) error {
	var errs []error
	for _, text := range taints {
		_, err := parseTaint(text)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
