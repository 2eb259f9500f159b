package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/bench/internal/clusters"
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
	*clusters.Cluster
	dir     string // temporary files of this run
	nodes   []string
	version string // tag of the images
}

// newCluster boots a cluster of two nodes. If it returns a cluster, the caller must take it down, even
// after an error.
func newCluster(ctx context.Context, o options) (*cluster, error) {
	dir, err := os.MkdirTemp("", "bench-bootstrap-")
	if err != nil {
		return nil, err
	}
	c := &cluster{options: o, dir: dir, nodes: []string{"n1", "n2"}}
	policy := filepath.Join(dir, "audit-policy.yaml")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		return c, err
	}
	if c.Cluster, err = clusters.Up(ctx, c.testcluster, c.name, "--audit-policy", policy,
		"--load", "n1="+filepath.Join(c.images, "init-hook.tar")); err != nil {
		return c, err
	}
	return c, c.WaitFor(ctx, "init-hook's image in the status of node n1", func() (bool, error) {
		node, err := c.Client.CoreV1().Nodes().Get(ctx, "n1", metav1.GetOptions{})
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
	var err error
	if c.Cluster != nil {
		err = c.Down()
	}
	return errors.Join(err, os.RemoveAll(c.dir))
}

// helmChart runs helm install or upgrade and returns the duration. It allows anonymous pulls, so that
// the pull loops work the same in both modes.
func (c *cluster) helmChart(ctx context.Context, verb string, args ...string) (time.Duration, error) {
	return c.Helm(ctx, verb, release, c.chart, namespace, append([]string{"--set=auth.anonymousPull=true"}, args...)...)
}
