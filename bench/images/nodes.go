package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/bench/internal/processes"
	"github.com/zarf-dev/zarf-registry/bench/internal/results"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

// tableNodes is the table of pulls by nodes. The targets in bench/report refer to it.
const tableNodes = "A container runtime pulls 1 GB"

// directHost is the name of the registry in the node's hosts.toml.
const directHost = "direct.example"

// route is a way from a container runtime to a registry.
type route struct {
	results.Subject
	address string // of images
	login   string // USER:PASSWORD, or empty
	// processes are the programs on the way, by measure.
	processes map[string]int
}

// nodeRounds is how many pulls there are for each run of the tools: they are short, and vary by a third.
const nodeRounds = 3

// measureNodes measures pulls of an image by the container runtime of pullingNode.
func measureNodes(ctx context.Context, c *cluster, report *results.Report, large *imageSet) error {
	routes, err := c.routes(ctx, large)
	if err != nil {
		return err
	}
	for _, r := range routes {
		report.Subjects = append(report.Subjects, r.Subject)
	}
	for run := range nodeRounds*c.Runs + 1 { // the first one reads the registries' files from disk
		for _, n := range report.Order(run, len(routes)) {
			add := report.Add
			if run == 0 {
				add = func(string, string, string, string, float64) {}
			}
			if err := c.pull(ctx, routes, routes[n], large, add); err != nil {
				return fmt.Errorf("%s: %w", routes[n].Name, err)
			}
		}
	}
	return nil
}

// routes pushes the image to both releases and returns the ways to pull it.
func (c *cluster) routes(ctx context.Context, large *imageSet) ([]route, error) {
	containerd, err := c.Component(ctx, "containerd."+pullingNode)
	if err != nil {
		return nil, err
	}
	registries := map[string]int{}
	for _, namespace := range []string{proxyMode, nodeportMode} {
		pod, err := c.registry(ctx, namespace, nil)
		if err != nil {
			return nil, err
		}
		if registries[namespace], err = c.Process(ctx, pod); err != nil {
			return nil, err
		}
		if _, err := c.Output(ctx, c.initHook, "images", "push", large.layout, "--namespace="+namespace,
			"--kubeconfig="+c.Kubeconfig); err != nil {
			return nil, err
		}
	}
	proxy, err := c.proxy(ctx)
	if err != nil {
		return nil, err
	}
	credential, err := c.secret(ctx, nodeportMode, names.SuffixCredentials)
	if err != nil {
		return nil, err
	}
	const registryCPU, containerdCPU = "registry: CPU", "containerd: CPU"
	inner := map[string]int{registryCPU: registries[proxyMode], containerdCPU: containerd}
	return []route{
		{results.Subject{Name: "proxy", About: "proxy mode: plain HTTP to the proxy on the node, mutual TLS to the registry"},
			"127.0.0.1:" + proxyPort, "", map[string]int{"proxy: CPU": proxy, registryCPU: inner[registryCPU],
				containerdCPU: containerd}},
		{results.Subject{Name: "node port", About: "nodeport mode: plain HTTP through kube-proxy, with a credential"},
			"127.0.0.1:" + nodePort, string(credential[names.KeyUsername]) + ":" + string(credential[names.KeyPassword]),
			map[string]int{registryCPU: registries[nodeportMode], containerdCPU: containerd}},
		{results.Subject{Name: "direct TLS", About: "no proxy: containerd connects to the Service with mutual TLS, " +
			"configured in `hosts.toml`"}, directHost, "", inner},
	}, c.configureDirect(ctx)
}

// proxy returns the PID of the proxy on pullingNode.
func (c *cluster) proxy(ctx context.Context) (int, error) {
	pods, err := c.Pods(ctx, proxyMode, "proxy")
	if err != nil {
		return 0, err
	}
	for _, pod := range pods {
		if pod.Spec.NodeName == pullingNode {
			return c.Process(ctx, &pod)
		}
	}
	return 0, fmt.Errorf("no proxy on %s", pullingNode)
}

// configureDirect configures the container runtime of pullingNode for the registry in proxy mode, with the
// node certificate.
func (c *cluster) configureDirect(ctx context.Context) error {
	service, err := c.Client.CoreV1().Services(proxyMode).Get(ctx, release, metav1.GetOptions{})
	if err != nil {
		return err
	}
	certificate, err := c.secret(ctx, proxyMode, names.SuffixNodeTLS)
	if err != nil {
		return err
	}
	dir := "/etc/containerd/certs.d/" + directHost
	server := fmt.Sprintf("%s.%s.svc", release, proxyMode)
	hosts := fmt.Sprintf("server = \"https://%[1]s:%[2]d\"\n[host.\"https://%[1]s:%[2]d\"]\ncapabilities = [\"pull\", "+
		"\"resolve\"]\nca = \"%[3]s/%[4]s\"\nclient = [[\"%[3]s/%[5]s\", \"%[3]s/%[6]s\"]]\n", server, mutualPort, dir,
		names.KeyCA, corev1.TLSCertKey, corev1.TLSPrivateKeyKey)
	// The node has its own /etc, and does not resolve the names of Services.
	const script = `mkdir -p "$1"; printf %s "$2" >"$1/hosts.toml"; printf %s "$3" >"$1/ca.crt"
printf %s "$4" >"$1/tls.crt"; printf %s "$5" >"$1/tls.key"; echo "$6 $7" >>/etc/hosts`
	_, err = c.OnNode(ctx, pullingNode, "sh", "-ec", script, "sh", dir, hosts, string(certificate[names.KeyCA]),
		string(certificate[corev1.TLSCertKey]), string(certificate[corev1.TLSPrivateKeyKey]), service.Spec.ClusterIP, server)
	return err
}

// pull measures one pull. Before it, no route's image is on the node.
func (c *cluster) pull(ctx context.Context, routes []route, by route, large *imageSet,
	add func(table, subject, what, unit string, value float64)) error {
	for _, r := range routes {
		// Fails if the image does not exist.
		_, _ = c.OnNode(ctx, pullingNode, "crictl", "rmi", large.images[0].reference(r.address))
	}
	left, err := c.OnNode(ctx, pullingNode, "ctr", "--namespace=k8s.io", "content", "list", "--quiet")
	if err != nil {
		return err
	}
	for _, blob := range large.blobs {
		if strings.Contains(left, blob.Digest.String()) {
			return fmt.Errorf("%s is still on node %s", blob.Digest, pullingNode)
		}
	}
	if err := settle(ctx); err != nil {
		return err
	}
	received, err := c.Received(ctx, pullingNode)
	if err != nil {
		return err
	}
	before := map[string]float64{}
	for what, pid := range by.processes {
		if before[what], err = processes.CPU(pid); err != nil {
			return err
		}
	}
	command := []string{"crictl", "pull"}
	if by.login != "" {
		command = append(command, "--creds="+by.login)
	}
	began := time.Now()
	if _, err := c.OnNode(ctx, pullingNode, append(command, large.images[0].reference(by.address))...); err != nil {
		return err
	}
	seconds := time.Since(began).Seconds()
	add(tableNodes, by.Name, took, "s", seconds)
	for _, what := range []string{"proxy: CPU", "registry: CPU", "containerd: CPU"} {
		pid, ok := by.processes[what]
		if !ok {
			continue
		}
		after, err := processes.CPU(pid)
		if err != nil {
			return err
		}
		add(tableNodes, by.Name, what, "s", after-before[what])
	}
	now, err := c.Received(ctx, pullingNode)
	if err != nil {
		return err
	}
	if now-received < float64(large.bytes) {
		return fmt.Errorf("node %s has received %.0f bytes for an image of %d", pullingNode, now-received, large.bytes)
	}
	fmt.Fprintf(os.Stderr, "  %-12s %6.2f s\n", by.Name, seconds)
	return nil
}
