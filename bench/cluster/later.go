package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/bench/internal/results"
	"github.com/zarf-dev/zarf-registry/internal/release/plan"
)

const tableLater = "A node added later"

// measureLater measures nodes that are added to the cluster.
func (c *cluster) measureLater(ctx context.Context, report *results.Report) error {
	small, err := makeImage(filepath.Join(c.dir, "small"), "bench/small", 3, 1, 3e6)
	if err != nil {
		return err
	}
	if err := c.zarfRegistry(ctx, zarf, "images", "push", small.layout); err != nil {
		return err
	}
	report.Subjects = append(report.Subjects, results.Subject{Name: ours})
	for range c.Runs {
		if err := c.measureNode(ctx, report, small.images[0]); err != nil {
			return fmt.Errorf("a node is added: %w", err)
		}
	}
	return nil
}

// measureNode adds a node and measures the first pull of its container runtime through its own proxy.
func (c *cluster) measureNode(ctx context.Context, report *results.Report, image image) error {
	const name = "later"
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	nodes, err := c.client.CoreV1().Nodes().Watch(watching, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		return err
	}
	defer nodes.Stop()
	added := make(chan error, 1)
	go func() {
		_, err := c.command(ctx, "add-node", name)
		added <- err
	}()
	var since time.Time
	for event := range nodes.ResultChan() {
		if n, is := event.Object.(*corev1.Node); is && plan.NodeReady(*n) {
			since = time.Now()
			break
		}
	}
	if since.IsZero() {
		return errors.Join(errors.New("the node did not become ready"), <-added)
	}
	text, err := c.onNode(ctx, name, "timeout", "60", "sh", "-c",
		`until crictl pull "$1" >/dev/null 2>&1; do sleep 0.05; done; date +%s%N`, "sh",
		image.reference("127.0.0.1:"+proxyPort))
	if err := errors.Join(err, <-added); err != nil {
		return err
	}
	first, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return err
	}
	pulled := time.Unix(0, first).Sub(since)
	report.Add(tableLater, ours, "Ready to first pull", "s", pulled.Seconds())
	logf("added a node: Ready to first pull %.2f s", pulled.Seconds())
	if err := c.proxies(ctx, 3); err != nil {
		return err
	}
	_, err = c.command(ctx, "remove-node", name)
	return errors.Join(err, c.proxies(ctx, 2))
}

// proxies waits until exactly want proxies exist, all of them ready.
func (c *cluster) proxies(ctx context.Context, want int) error {
	return waitFor(ctx, "the proxies", func() (bool, error) {
		pods, err := c.pods(ctx, zarf, "proxy")
		return err == nil && len(pods) == want && !slices.ContainsFunc(pods, func(p corev1.Pod) bool {
			return !ready(&p)
		}), err
	})
}
