package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/bench/internal/results"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

const tablePull = "A container runtime pulls 1 GB"

// directHost is the name of the registry in the node's hosts.toml.
const directHost = "direct.example"

// route is a way from a container runtime to a registry.
type route struct {
	results.Subject
	address string // of images
	login   string // USER:PASSWORD, or empty
	client  []int  // PIDs
}

// measurePulls measures pulls of an image by the container runtime of pullingNode.
func (c *cluster) measurePulls(ctx context.Context, report *results.Report) error {
	large, err := makeImage(filepath.Join(c.dir, "large"), "bench/large", 2, c.scale, largeLayers...)
	if err != nil {
		return err
	}
	routes, err := c.routes(ctx, large)
	if err != nil {
		return err
	}
	if err := c.forget(ctx); err != nil {
		return err
	}
	_, empty, err := c.node(ctx)
	if err != nil {
		return err
	}
	var subjects []string
	for _, r := range routes {
		subjects = append(subjects, r.Name)
		report.Subjects = append(report.Subjects, r.Subject)
		// The first pull, which does not count, reads the registry's files from disk.
		if err := c.pull(ctx, r, large, empty, nil); err != nil {
			return fmt.Errorf("%s: %w", r.Name, err)
		}
	}
	return report.Repeat(c.Runs, subjects, func(n int) error { return c.pull(ctx, routes[n], large, empty, report) })
}

// routes installs a release in nodeport mode, pushes the image to both releases and returns the ways to pull it.
func (c *cluster) routes(ctx context.Context, large *imageSet) ([]route, error) {
	if err := c.helm(ctx, "install", second, "--set=registryProxy=false", "--set=port="+nodePort, onRegistryNode,
		"--set=registry.persistence.enabled=false", "--set=initHook.verifyPulls=false"); err != nil {
		return nil, err
	}
	// They would keep pullingNode from the port with mutual TLS.
	if err := c.kubectl(ctx, "delete", "networkpolicies", "--all", "--namespace="+zarf); err != nil {
		return nil, err
	}
	for _, namespace := range []string{zarf, second} {
		if err := c.zarfRegistry(ctx, namespace, "images", "push", large.layout); err != nil {
			return nil, err
		}
	}
	containerd, err := c.component(ctx, "containerd."+pullingNode)
	if err != nil {
		return nil, err
	}
	proxy := 0
	pods, err := c.pods(ctx, zarf, "proxy")
	for _, pod := range pods {
		if err == nil && pod.Spec.NodeName == pullingNode {
			proxy, err = c.process(ctx, &pod)
		}
	}
	if err != nil || proxy == 0 {
		return nil, errors.Join(errors.New("no proxy on "+pullingNode), err)
	}
	credential, err := c.secret(ctx, second, names.SuffixCredentials)
	if err != nil {
		return nil, err
	}
	return []route{
		{results.Subject{Name: "proxy", About: "plain to the proxy on the node, mutual TLS to the registry"},
			"127.0.0.1:" + proxyPort, "", []int{containerd, proxy}},
		{results.Subject{Name: "node port", About: "nodeport mode: plain through kube-proxy, no encryption"},
			"127.0.0.1:" + nodePort, string(credential[names.KeyUsername]) + ":" + string(credential[names.KeyPassword]),
			[]int{containerd}},
		{results.Subject{Name: "direct TLS", About: "containerd itself with mutual TLS, by `hosts.toml`"}, directHost, "",
			[]int{containerd}},
	}, c.configureDirect(ctx)
}

// configureDirect configures the container runtime of pullingNode for the registry in proxy mode, with the
// node certificate.
func (c *cluster) configureDirect(ctx context.Context) error {
	service, err := c.client.CoreV1().Services(zarf).Get(ctx, release, metav1.GetOptions{})
	if err != nil {
		return err
	}
	certificate, err := c.secret(ctx, zarf, names.SuffixNodeTLS)
	if err != nil {
		return err
	}
	// containerd's default are two directories, which it takes for one (containerd#12808).
	const dir = "/etc/containerd/certs.d:/etc/docker/certs.d/" + directHost
	server := fmt.Sprintf("%s.%s.svc", release, zarf)
	hosts := fmt.Sprintf("server = \"https://%[1]s:%[2]d\"\n[host.\"https://%[1]s:%[2]d\"]\ncapabilities = [\"pull\", "+
		"\"resolve\"]\nca = \"%[3]s/%[4]s\"\nclient = [[\"%[3]s/%[5]s\", \"%[3]s/%[6]s\"]]\n", server, mutualPort, dir,
		names.KeyCA, corev1.TLSCertKey, corev1.TLSPrivateKeyKey)
	// The node has its own /etc, and does not resolve the names of Services.
	const script = `mkdir -p "$1"; printf %s "$2" >"$1/hosts.toml"; printf %s "$3" >"$1/ca.crt"
printf %s "$4" >"$1/tls.crt"; printf %s "$5" >"$1/tls.key"; echo "$6 $7" >>/etc/hosts`
	_, err = c.onNode(ctx, pullingNode, "sh", "-ec", script, "sh", dir, hosts, string(certificate[names.KeyCA]),
		string(certificate[corev1.TLSCertKey]), string(certificate[corev1.TLSPrivateKeyKey]), service.Spec.ClusterIP, server)
	return err
}

// node returns the bytes that pullingNode has received, and the numbers of blobs and snapshots that it stores.
func (c *cluster) node(ctx context.Context) (received, stored int, err error) {
	text, err := c.onNode(ctx, pullingNode, "sh", "-ec", `awk '$1 == "eth0:" { print $2 }' /proc/net/dev
{ ctr --namespace=k8s.io content list --quiet; ctr --namespace=k8s.io snapshots list; } | wc -l`)
	if err == nil {
		_, err = fmt.Sscan(text, &received, &stored)
	}
	return received, stored, err
}

// pull measures one pull. Before it, the node stores as much as before the first one.
func (c *cluster) pull(ctx context.Context, by route, large *imageSet, empty int, report *results.Report) error {
	if err := c.forget(ctx); err != nil {
		return err
	}
	before := 0
	if err := waitFor(ctx, "the removal of the image's content", func() (bool, error) {
		received, stored, err := c.node(ctx)
		before = received
		return err == nil && stored <= empty, err
	}); err != nil {
		return err
	}
	if err := settle(ctx); err != nil {
		return err
	}
	command := []string{"crictl", "pull"}
	if by.login != "" {
		command = append(command, "--creds="+by.login)
	}
	command = append(command, large.images[0].reference(by.address))
	u, err := measure(func() (used, error) {
		_, err := c.onNode(ctx, pullingNode, command...)
		return used{}, err
	}, by.client...)
	if err != nil {
		return err
	}
	after, _, err := c.node(ctx)
	if err == nil && int64(after-before) < large.bytes {
		err = fmt.Errorf("node %s has received %d bytes for an image of %d", pullingNode, after-before, large.bytes)
	}
	if err == nil && report != nil {
		u.add(report, tablePull, by.Name)
	}
	return err
}
