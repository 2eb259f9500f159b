package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/zarf-dev/zarf-registry/bench/internal/distribution"
	kube "github.com/zarf-dev/zarf-registry/internal/cluster"
)

const (
	ours    = "zarf-registry"
	release = "zarf-registry"
	// zarf is the namespace of the release in proxy mode.
	zarf      = "zarf"
	proxyPort = "31999"
	// second is the namespace of a release in nodeport mode, without persistence: its storage is lost with the pod.
	second   = "second"
	nodePort = "31998"

	// The registry's ports: with mutual TLS, and plain (in nodeport mode only).
	mutualPort = 5000
	plainPort  = 5001

	registryNode = "n1"
	pullingNode  = "n2"

	took = "took"
)

var onRegistryNode = `--set=registry.nodeSelector.kubernetes\.io/hostname=` + registryNode

// auditPolicy logs all watches and other requests for objects in the release's namespace.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
    namespaces: [` + zarf + `]
    verbs: [watch]
  - level: None
`

// cluster is a test cluster of two nodes that hold only the pause image. registryNode also has the image of
// init-hook, and all have the image of distribution.
type cluster struct {
	options
	kubeconfig string
	client     kubernetes.Interface
	dir        string // temporary files
	nodes      []string
	app        *imageSet // the application
}

// newCluster boots a cluster. If it returns one, the caller must take it down, even after an error.
func newCluster(ctx context.Context, o options, dir string) (*cluster, error) {
	policy, archive := filepath.Join(dir, "audit.yaml"), filepath.Join(dir, "distribution.tar")
	if err := writeFile(policy, auditPolicy); err != nil {
		return nil, err
	}
	c := &cluster{options: o, dir: dir, nodes: []string{registryNode, pullingNode}}
	var err error
	if c.app, err = makeProgram(filepath.Join(dir, "app"), "bench/app", waitMode); err != nil {
		return nil, err
	}
	peer, err := makeProgram(filepath.Join(dir, "peer"), "bench/distribution", distribution.Mode)
	if err != nil {
		return nil, err
	}
	if _, err := c.output(ctx, "tar", "-chf", archive, "-C", peer.layout, ocispec.ImageIndexFile,
		ocispec.ImageLayoutFile, ocispec.ImageBlobsDir); err != nil {
		return nil, err
	}
	if os.Getuid() != 0 {
		return nil, errors.New("the test cluster needs root")
	}
	if _, err := c.command(ctx, "up", "--replace", "--audit-policy", policy, "--load", archive, "--load",
		registryNode+"="+o.initHook); err != nil {
		return c, err
	}
	if c.kubeconfig, err = c.command(ctx, "kubeconfig"); err != nil {
		return c, err
	}
	_, c.client, err = kube.Connect(kube.Access{Kubeconfig: c.kubeconfig})
	return c, err
}

// helm runs Helm with the chart.
func (c *cluster) helm(ctx context.Context, verb, namespace string, args ...string) error {
	program := filepath.Join(filepath.Dir(c.testcluster), "helm") // make builds it there
	_, err := c.output(ctx, program, append([]string{verb, release, c.chart, "--namespace", namespace,
		"--create-namespace", "--timeout", "5m"}, args...)...)
	return err
}

// zarfRegistry runs a command of zarf-registry for a namespace.
func (c *cluster) zarfRegistry(ctx context.Context, namespace string, args ...string) error {
	_, err := c.output(ctx, c.zarf, append(args, c.access(namespace)...)...)
	return err
}

// kubectl runs kubectl.
func (c *cluster) kubectl(ctx context.Context, args ...string) error {
	program, err := c.tool(ctx, "kubectl")
	if err != nil {
		return err
	}
	_, err = c.output(ctx, program, args...)
	return err
}

func (c *cluster) access(namespace string) []string {
	return []string{"--namespace=" + namespace, "--kubeconfig=" + c.kubeconfig}
}

// registry returns the ready registry pod of a release, other than previous.
func (c *cluster) registry(ctx context.Context, namespace string, previous *corev1.Pod) (found *corev1.Pod, err error) {
	return found, waitFor(ctx, "the registry in namespace "+namespace, func() (bool, error) {
		pods, err := c.pods(ctx, namespace, "registry")
		if err != nil || len(pods) != 1 || !ready(&pods[0]) || previous != nil && pods[0].UID == previous.UID {
			return false, err
		}
		found = &pods[0]
		return true, nil
	})
}

// secret returns the content of a Secret of a release.
func (c *cluster) secret(ctx context.Context, namespace, suffix string) (map[string][]byte, error) {
	s, err := c.client.CoreV1().Secrets(namespace).Get(ctx, release+suffix, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return s.Data, nil
}
