package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/zarf-dev/zarf-registry/bench/internal/clusters"
	"github.com/zarf-dev/zarf-registry/bench/internal/results"
)

const (
	tableNode   = "A node is added"
	tableUnder  = "Under a loop of pulls on each node"
	firstOfNode = "Ready to first pull"

	rolloutHostPort    = "rollout of the proxies, host port"
	rolloutHostNetwork = "rollout of the proxies, host network"
	registryDeleted    = "the registry's pod deleted"
	toNodePort         = "switch to nodeport mode"
	toProxy            = "switch to proxy mode"
)

// image returns an image of about 3 MB that init-hook finish pushed.
func (c *cluster) image() string { return "zarf-registry/registry-node:" + c.version }

// measureNode adds a node and measures the first pull of its container runtime through its own proxy.
func measureNode(ctx context.Context, c *cluster, report *results.Report) error {
	const name = "later"
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	nodes, err := c.Client.CoreV1().Nodes().Watch(watching, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		return err
	}
	defer nodes.Stop()
	added := make(chan error, 1)
	begin := time.Now()
	go func() {
		_, err := c.Testcluster(ctx, "add-node", name)
		added <- err
	}()
	var since time.Time
	for event := range nodes.ResultChan() {
		if n, is := event.Object.(*corev1.Node); is && nodeReady(n) {
			since = time.Now()
			break
		}
	}
	if since.IsZero() {
		return errors.Join(errors.New("the node did not become ready"), <-added)
	}
	output, err := c.OnNode(ctx, name, absolute(os.Args[0]), firstMode, address+"/"+c.image(), "1m")
	if err != nil {
		return err
	}
	var first time.Time
	if err := json.Unmarshal([]byte(output), &first); err != nil {
		return fmt.Errorf("parsing the time of the first pull: %w: %s", err, output)
	}
	if err := <-added; err != nil {
		return err
	}
	report.Add(tableNode, ours, firstOfNode, "s", first.Sub(since).Seconds())
	if err := c.WaitFor(ctx, "the proxy of the new node",
		func() (bool, error) { return c.proxiesReady(ctx, 3, nil) }); err != nil {
		return err
	}
	if err := clusters.Sleep(ctx, 2*time.Second); err != nil { // for its last requests
		return err
	}
	log, err := os.Open(filepath.Join(filepath.Dir(c.Kubeconfig), "log", "audit.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cost, err := readAudit(log, begin, "system:node:"+name, namespace)
	if err != nil {
		return err
	}
	if cost.byNode == 0 {
		return errors.New("the audit log has no request by the new node")
	}
	report.Add(tableNode, ours, "API requests for the release's objects, by the node", "", float64(cost.byNode))
	report.Add(tableNode, ours, "by controllers and scheduler", "", float64(cost.byOthers))
	report.Add(tableNode, ours, "API requests of the node in all", "", float64(cost.all))
	received, err := c.Received(ctx, name)
	if err != nil {
		return err
	}
	report.Add(tableNode, ours, "bytes that the node has received in all, the pull included", "MB", received/1e6)
	logf("added a node: Ready to first pull %.2f s, %d requests for the release", first.Sub(since).Seconds(),
		cost.byNode+cost.byOthers)
	_, err = c.Testcluster(ctx, "remove-node", name)
	return errors.Join(err, c.WaitFor(ctx, "the removal of the node",
		func() (bool, error) { return c.proxiesReady(ctx, 2, nil) }))
}

func nodeReady(n *corev1.Node) bool {
	for _, condition := range n.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// proxiesReady reports whether exactly want proxies exist, all of them ready and none of them in
// previous.
func (c *cluster) proxiesReady(ctx context.Context, want int, previous map[types.UID]bool) (bool, error) {
	pods, err := c.Pods(ctx, namespace, "proxy")
	if err != nil {
		return false, err
	}
	for _, p := range pods {
		if previous[p.UID] || !clusters.Ready(&p) {
			return false, nil
		}
	}
	return len(pods) == want, nil
}

// duringPulls runs do while each node pulls in a loop, and reports the results of the loops.
func (c *cluster) duringPulls(ctx context.Context, report *results.Report, subject string, do func() error) error {
	stop := filepath.Join(c.dir, "stop")
	if err := os.RemoveAll(stop); err != nil {
		return err
	}
	seen := make([]pulls, len(c.nodes))
	errs := make([]error, len(c.nodes))
	var wait sync.WaitGroup
	for i, node := range c.nodes {
		wait.Go(func() {
			output, err := c.OnNode(ctx, node, absolute(os.Args[0]), pullMode, address, c.image(), stop)
			if err == nil {
				err = json.Unmarshal([]byte(output), &seen[i])
			}
			errs[i] = err
		})
	}
	err := clusters.Sleep(ctx, time.Second) // every node pulls at least once
	begin := time.Now()
	if err == nil {
		err = do()
	}
	took := time.Since(begin)
	if err == nil {
		err = clusters.Sleep(ctx, time.Second) // to count late failures
	}
	err = errors.Join(err, os.WriteFile(stop, nil, 0o600))
	wait.Wait()
	if err := errors.Join(err, errors.Join(errs...)); err != nil {
		return fmt.Errorf("%s: %w", subject, err)
	}
	var all pulls
	for i, s := range seen {
		if s.Pulls < 5 {
			return fmt.Errorf("%s: node %s pulled only %d times", subject, c.nodes[i], s.Pulls)
		}
		all.Pulls += s.Pulls
		all.Failed += s.Failed
		all.Gap = max(all.Gap, s.Gap)
		if s.First != "" {
			logf("%s: first failure on %s: %s", subject, c.nodes[i], s.First)
		}
	}
	report.Add(tableUnder, subject, "took", "s", took.Seconds())
	report.Add(tableUnder, subject, "pulls", "", float64(all.Pulls))
	report.Add(tableUnder, subject, "failed", "", float64(all.Failed))
	report.Add(tableUnder, subject, "longest time without a pull that ended", "s", all.Gap.Seconds())
	logf("%s: %.1f s, %d pulls, %d failed, longest gap %.2f s", subject, took.Seconds(), all.Pulls, all.Failed,
		all.Gap.Seconds())
	return nil
}

// measureRollout replaces the proxies, as an upgrade does.
func measureRollout(network string) func(context.Context, *cluster, *results.Report) error {
	return func(ctx context.Context, c *cluster, report *results.Report) error {
		previous := map[types.UID]bool{}
		pods, err := c.Pods(ctx, namespace, "proxy")
		if err != nil {
			return err
		}
		for _, p := range pods {
			previous[p.UID] = true
		}
		sets := c.Client.AppsV1().DaemonSets(namespace)
		list, err := sets.List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=proxy"})
		if err != nil {
			return err
		}
		// DaemonSets for other architectures have no pods.
		here := slices.DeleteFunc(list.Items, func(d appsv1.DaemonSet) bool { return d.Status.DesiredNumberScheduled == 0 })
		if len(here) != 1 {
			return fmt.Errorf("found %d DaemonSets of proxies, want 1", len(here))
		}
		return c.duringPulls(ctx, report, "rollout of the proxies, "+network, func() error {
			patch := fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"bench/at":%q}}}}}`, time.Now())
			if _, err := sets.Patch(ctx, here[0].Name, types.StrategicMergePatchType, []byte(patch),
				metav1.PatchOptions{}); err != nil {
				return err
			}
			return c.WaitFor(ctx, "the rollout", func() (bool, error) { return c.proxiesReady(ctx, len(c.nodes), previous) })
		})
	}
}

func measureRegistryRestart(ctx context.Context, c *cluster, report *results.Report) error {
	previous, err := c.Pods(ctx, namespace, "registry")
	if err != nil {
		return err
	}
	if len(previous) != 1 {
		return fmt.Errorf("found %d registry pods, want 1", len(previous))
	}
	return c.duringPulls(ctx, report, registryDeleted, func() error {
		if err := c.Client.CoreV1().Pods(namespace).Delete(ctx, previous[0].Name, metav1.DeleteOptions{}); err != nil {
			return err
		}
		return c.WaitFor(ctx, "the new registry pod", func() (bool, error) {
			pods, err := c.Pods(ctx, namespace, "registry")
			return err == nil && len(pods) == 1 && pods[0].UID != previous[0].UID && clusters.Ready(&pods[0]), err
		})
	})
}

// measureSwitch switches to nodeport mode and back.
func measureSwitch(ctx context.Context, c *cluster, report *results.Report) error {
	for _, to := range []struct{ subject, value string }{{toNodePort, "false"}, {toProxy, "true"}} {
		err := c.duringPulls(ctx, report, to.subject, func() error {
			_, err := c.helmChart(ctx, "upgrade", "--set=registryProxy="+to.value)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// hostNetwork switches the proxies to host network. It measures nothing.
func hostNetwork(ctx context.Context, c *cluster, _ *results.Report) error {
	_, err := c.helmChart(ctx, "upgrade", "--set=registryProxy=true", "--set=proxy.hostNetwork=true",
		"--set=initHook.verifyPulls=false", "--set=initHook.pushImages=false")
	return errors.Join(err, c.WaitFor(ctx, "the proxies with host network",
		func() (bool, error) { return c.proxiesReady(ctx, len(c.nodes), nil) }))
}
