package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	kube "github.com/zarf-dev/zarf-registry/internal/cluster"
)

const (
	namespace = "zarf"
	release   = "zarf-registry"
	address   = "127.0.0.1:31999"
)

// auditPolicy logs all requests for the release's namespace, and all requests by nodes.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
    namespaces: [zarf]
  - level: Metadata
    userGroups: ["system:nodes"]
  - level: None
`

// cluster is a test cluster.
type cluster struct {
	options
	dir        string // temporary files of this run
	kubeconfig string
	helm       string
	client     kubernetes.Interface
	nodes      []string
	version    string // tag of the images
}

// newCluster boots a cluster of two nodes. If it returns a cluster, the caller must take it down, even
// after an error.
func newCluster(ctx context.Context, o options) (*cluster, error) {
	dir, err := os.MkdirTemp("", "bench-bootstrap-")
	if err != nil {
		return nil, err
	}
	c := &cluster{options: o, dir: dir}
	policy := filepath.Join(dir, "audit-policy.yaml")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		return c, err
	}
	if c.helm, err = c.output(ctx, c.testcluster, "tool", "helm"); err != nil {
		return c, err
	}
	if _, err := c.output(ctx, c.testcluster, "up", "--name", c.name, "--replace", "--audit-policy", policy,
		"--load", "n1="+filepath.Join(c.images, "init-hook.tar")); err != nil {
		return c, err
	}
	if c.kubeconfig, err = c.output(ctx, c.testcluster, "kubeconfig", "--name", c.name); err != nil {
		return c, err
	}
	if _, c.client, err = kube.Connect(kube.Access{Kubeconfig: c.kubeconfig}); err != nil {
		return c, err
	}
	c.nodes = []string{"n1", "n2"}
	return c, c.waitFor(ctx, "init-hook's image in the status of node n1", func() (bool, error) {
		node, err := c.client.CoreV1().Nodes().Get(ctx, "n1", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		for _, i := range node.Status.Images {
			for _, name := range i.Names {
				if _, tag, found := strings.Cut(name, "/init-hook:"); found {
					c.version = tag
				}
			}
		}
		return c.version != "", nil
	})
}

func (c *cluster) down() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // not the run's context, which may be canceled
	defer cancel()
	_, err := c.output(ctx, c.testcluster, "down", "--name", c.name)
	return errors.Join(err, os.RemoveAll(c.dir))
}

// output runs a program against the cluster and returns its trimmed output.
func (c *cluster) output(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s%s", strings.Join(cmd.Args, " "), err, out.String(), errOut.String())
	}
	return strings.TrimSpace(out.String()), nil
}

// onNode runs a program in a node's namespaces.
func (c *cluster) onNode(ctx context.Context, node string, args ...string) (string, error) {
	return c.output(ctx, c.testcluster, append([]string{"exec", "--name", c.name, node, "--"}, args...)...)
}

// helmChart runs helm install or upgrade and returns the duration. It allows anonymous pulls, so that
// the pull loops work the same in both modes.
func (c *cluster) helmChart(ctx context.Context, verb string, args ...string) (time.Duration, error) {
	begin := time.Now()
	_, err := c.output(ctx, c.helm, append([]string{verb, release, c.chart, "--namespace", namespace, "--create-namespace",
		"--timeout", "5m", "--set=auth.anonymousPull=true"}, args...)...)
	return time.Since(begin), err
}

// waitFor polls check for at most two minutes.
func (c *cluster) waitFor(ctx context.Context, what string, check func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		done, err := check()
		if done {
			return nil
		}
		if sleepErr := sleep(ctx, 50*time.Millisecond); sleepErr != nil {
			return fmt.Errorf("waiting for %s: %w", what, errors.Join(sleepErr, err))
		}
	}
}

// pods returns the pods of one of the release's components.
func (c *cluster) pods(ctx context.Context, component string) ([]corev1.Pod, error) {
	list, err := c.client.CoreV1().Pods(namespace).List(ctx,
		metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=" + component})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

func ready(p *corev1.Pod) bool {
	for _, condition := range p.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue && p.DeletionTimestamp == nil
		}
	}
	return false
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
