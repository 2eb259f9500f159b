package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/zarf-dev/zarf-registry/bench/internal/results"
)

const (
	tableInstall = "From the installation to the first pod"
	tablePayload = "Payload and start"

	byCommand = "zarf-registry install"
	byHelm    = "helm install"
	peer      = "distribution"
)

// timeline records when pods of a release are first seen. It is safe for concurrent use.
type timeline struct {
	mu    sync.Mutex
	made  map[string]time.Time     // by name of the pod
	ready map[string]time.Time     // the first ready pod, by component
	start map[string]time.Duration // how long that took since it was made
}

func newTimeline() *timeline {
	return &timeline{made: map[string]time.Time{}, ready: map[string]time.Time{}, start: map[string]time.Duration{}}
}

func (l *timeline) pod(p *corev1.Pod, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.made[p.Name]; !known {
		l.made[p.Name] = at
	}
	component := p.Labels["app.kubernetes.io/component"]
	if _, known := l.ready[component]; !known && ready(p) {
		l.ready[component], l.start[component] = at, at.Sub(l.made[p.Name])
	}
}

// watch records the pods of the release until ctx is done.
func (l *timeline) watch(ctx context.Context, client kubernetes.Interface) error {
	pods, err := client.CoreV1().Pods(zarf).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	go func() {
		for event := range pods.ResultChan() {
			if p, is := event.Object.(*corev1.Pod); is && event.Type != watch.Deleted {
				l.pod(p, time.Now())
			}
		}
	}()
	return nil
}

// measureInstalls measures installations. The last one, by either command, stays.
func (c *cluster) measureInstalls(ctx context.Context, report *results.Report) error {
	report.Subjects = append(report.Subjects,
		results.Subject{Name: byCommand, About: "`--registry-proxy=true`, nodes have no image but pause"},
		results.Subject{Name: byHelm, About: "`--set registryProxy=true`, one node has init-hook's image"},
		results.Subject{Name: peer, About: "Deployment and NodePort, its image on the node, no TLS"})
	installed := false
	return report.Repeat(c.Runs, []string{byCommand, byHelm, peer}, func(n int) error {
		if n < 2 && installed {
			if err := c.remove(ctx); err != nil {
				return err
			}
		}
		if err := c.forget(ctx); err != nil {
			return err
		}
		if n == 2 {
			return c.measureDistribution(ctx, report)
		}
		installed = true
		return c.measureInstall(ctx, report, n == 1)
	})
}

// remove removes everything that an installation left in the cluster.
func (c *cluster) remove(ctx context.Context) error {
	if err := c.zarfRegistry(ctx, zarf, "uninstall"); err != nil {
		return err
	}
	return c.kubectl(ctx, "delete", "namespace", zarf)
}

// forget removes all images that were pulled from this cluster's registries from the nodes.
func (c *cluster) forget(ctx context.Context) error {
	for _, node := range c.nodes {
		// A pull that finds the layers of a container which is being removed would lose them.
		if _, err := c.onNode(ctx, node, "sh", "-ec", `crictl ps --all --quiet --name '^app$' | xargs -r crictl rm --force
			crictl images | awk '/^(127\.0\.0\.1:|direct)/ { print $3 }' | sort -u | xargs -r crictl rmi`); err != nil {
			return err
		}
	}
	return nil
}

func (c *cluster) measureInstall(ctx context.Context, report *results.Report, helm bool) error {
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	l := newTimeline()
	if err := l.watch(watching, c.client); err != nil {
		return err
	}
	subject, began := byCommand, time.Now()
	var err error
	if helm {
		subject, err = byHelm, c.helm(ctx, "install", zarf, "--set=registryProxy=true", onRegistryNode)
	} else {
		err = c.zarfRegistry(ctx, zarf, "install", "--registry-proxy=true", onRegistryNode)
	}
	if err != nil {
		return err
	}
	returned := time.Now()
	if err := c.zarfRegistry(ctx, zarf, "images", "push", c.app.layout); err != nil {
		return err
	}
	pushed := time.Now()
	running, err := c.run(ctx, proxyPort)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	add := func(what string, at time.Time) { report.Add(tableInstall, subject, what, "s", at.Sub(began).Seconds()) }
	add("registry ready", l.ready["registry"])
	add("command returned", returned)
	add("image pushed", pushed)
	add("pod runs", running)
	for _, component := range []string{"registry", "proxy"} {
		if l.ready[component].IsZero() {
			return fmt.Errorf("no %s became ready", component)
		}
		report.Add(tablePayload, ours, component+": pod made to ready", "s", l.start[component].Seconds())
	}
	logf("%s: registry %.1f s, returned %.1f s, pushed %.1f s, pod %.1f s", subject,
		l.ready["registry"].Sub(began).Seconds(), returned.Sub(began).Seconds(), pushed.Sub(began).Seconds(),
		running.Sub(began).Seconds())
	return nil
}

// run runs a pod with the application's image, which it pulls from a port of its node, and returns when it ran.
func (c *cluster) run(ctx context.Context, port string) (running time.Time, err error) {
	err = c.kubectl(ctx, "run", "app", "--image="+c.app.images[0].reference("127.0.0.1:"+port),
		`--overrides={"spec":{"nodeSelector":{"kubernetes.io/hostname":"`+pullingNode+`"}}}`)
	if err == nil {
		err = c.kubectl(ctx, "wait", "--for=jsonpath={.status.phase}=Running", "pod/app", "--timeout=5m")
	}
	running = time.Now()
	if err != nil {
		program, _ := c.tool(ctx, "kubectl")
		why, _ := c.output(ctx, program, "describe", "pod/app") // for the message
		err = fmt.Errorf("%w\n%s", err, why)
	}
	return running, errors.Join(err, c.kubectl(ctx, "delete", "pod", "app", "--now"))
}

// measurePayload measures the payload in etcd, and the part of it that each node fetches.
func (c *cluster) measurePayload(ctx context.Context, report *results.Report) error {
	list, err := c.client.CoreV1().ConfigMaps(zarf).List(ctx,
		metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=payload"})
	if err != nil {
		return err
	}
	var all, node float64
	for _, object := range list.Items {
		for _, data := range object.BinaryData {
			all += float64(len(data))
			if strings.Contains(object.Name, "-registry-node-") {
				node += float64(len(data))
			}
		}
	}
	if node == 0 {
		return errors.New("no payload found")
	}
	report.Add(tablePayload, ours, "in etcd", "MB", all/1e6)
	report.Add(tablePayload, ours, "a node fetches", "MB", node/1e6)
	report.Add(tablePayload, ours, "ConfigMaps", "", float64(len(list.Items)))
	return nil
}

// distributionConfig serves plain HTTP, as most registries on node ports do.
const distributionConfig = `version: 0.1
log: {level: error, accesslog: {disabled: true}}
storage: {filesystem: {rootdirectory: /var/lib/registry}}
http: {addr: ":5000", secret: bench}
`

// distributionObjects is what a user would apply.
const distributionObjects = `apiVersion: apps/v1
kind: Deployment
metadata: {name: distribution}
spec:
  selector: {matchLabels: {app: distribution}}
  template:
    metadata: {labels: {app: distribution}}
    spec:
      nodeSelector: {kubernetes.io/hostname: ` + registryNode + `}
      containers:
        - name: distribution
          image: ` + domain + `/bench/distribution:v1
          readinessProbe: {httpGet: {path: /v2/, port: 5000}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: distribution}
spec:
  type: NodePort
  selector: {app: distribution}
  ports: [{port: 5000, nodePort: ` + distributionPort + `}]
`

const distributionPort = "31997"

func (c *cluster) measureDistribution(ctx context.Context, report *results.Report) (err error) {
	crane, err := c.tool(ctx, "crane")
	if err != nil {
		return err
	}
	objects := filepath.Join(c.dir, "distribution.yaml")
	if err := writeFile(objects, distributionObjects); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.kubectl(ctx, "delete", "--grace-period=1", "-f", objects)) }()
	began := time.Now()
	add := func(what string) {
		report.Add(tableInstall, peer, what, "s", time.Since(began).Seconds())
	}
	if err := c.kubectl(ctx, "apply", "-f", objects); err != nil {
		return err
	}
	if err := c.kubectl(ctx, "rollout", "status", "deployment/"+peer); err != nil {
		return err
	}
	add("registry ready")
	add("command returned")
	app := c.app.images[0]
	// The node port may not work at once.
	if err := waitFor(ctx, "a push to distribution", func() (bool, error) {
		_, err := c.onNode(ctx, registryNode, crane, "push", app.single, app.reference("127.0.0.1:"+distributionPort))
		return err == nil, err
	}); err != nil {
		return err
	}
	add("image pushed")
	running, err := c.run(ctx, distributionPort)
	if err != nil {
		return err
	}
	report.Add(tableInstall, peer, "pod runs", "s", running.Sub(began).Seconds())
	logf("distribution: pod %.1f s", running.Sub(began).Seconds())
	return nil
}
