package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/zarf-dev/zarf-registry/bench/internal/clusters"
	"github.com/zarf-dev/zarf-registry/bench/internal/results"
)

const (
	tableInstall = "Installing: when each phase was reached"
	sinceHelm    = "since helm install began"
	sinceHook    = "since the hook's pod was made"
	tableSeeding = "Seeding"
)

// phase is a milestone of an installation.
type phase struct{ name, about string }

// phases are in the order of the table. Their descriptions name the source: a Job's log, or a watch.
var phases = []phase{
	{hookPod, "the first hook Job's pod is created: watch"},
	{"init-hook prepare begins", "log"},
	{certificates, "Secrets are written: log"},
	{payload, "all ConfigMaps are written: log"},
	{"prepare done", "log"},
	{"chart applied", "the registry's Deployment is created: watch"},
	{"registry's container runs", "reported by the kubelet; includes the loader: watch"},
	{registryReady, "watch"},
	{proxiesReady, "on both nodes: watch"},
	{"init-hook finish begins", "log"},
	{"images pushed", "the images for verification and later upgrades: log"},
	{verified, "each node ran a pod with an image pulled through its proxy: log"},
	{"finish done", "log"},
	{returned, "the command exits"},
}

const (
	hookPod       = "hook's pod made"
	certificates  = "certificates made"
	payload       = "payload written"
	registryReady = "registry ready"
	proxiesReady  = "proxies ready"
	verified      = "verified by a pull on every node"
	returned      = "helm install returned"
)

// steps maps steps in the hook's log, without their numbers, to the phases that they complete.
var steps = map[string]string{
	"issue the certificates":    certificates,
	"seed the payload":          payload,
	"push the project's images": "images pushed",
	"verify pulls":              verified,
}

// timeline records the phases of an installation. It is safe for concurrent use.
type timeline struct {
	mu     sync.Mutex
	reach  map[string]time.Time     // by phase
	took   map[string]time.Duration // by step
	events []string                 // for -log
	runs   map[string]bool          // hook pods whose log is followed
	proxy  map[string]bool          // nodes with a ready proxy
}

func newTimeline() *timeline {
	return &timeline{reach: map[string]time.Time{}, took: map[string]time.Duration{}, runs: map[string]bool{},
		proxy: map[string]bool{}}
}

// once records a phase when it is first reached.
func (l *timeline) once(name string, at time.Time) {
	if _, is := l.reach[name]; !is {
		l.reach[name] = at
	}
}

func (l *timeline) note(at time.Time, format string, args ...any) {
	l.events = append(l.events, at.Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

// pod processes a pod event. It returns true if the caller must follow the pod's log.
func (l *timeline) pod(p *corev1.Pod, at time.Time, nodes int) (follow bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	running := slices.ContainsFunc(p.Status.ContainerStatuses,
		func(s corev1.ContainerStatus) bool { return s.State.Waiting == nil })
	l.note(at, "pod %s on %s: %s, started %t, ready %t", p.Name, p.Spec.NodeName, p.Status.Phase, running,
		clusters.Ready(p))
	switch component := p.Labels["app.kubernetes.io/component"]; component {
	case "init-hook":
		l.once(hookPod, at)
		follow = running && !l.runs[p.Name]
		l.runs[p.Name] = l.runs[p.Name] || running
	case "registry":
		if running {
			l.once("registry's container runs", at)
		}
		if clusters.Ready(p) {
			l.once(registryReady, at)
		}
	case "proxy":
		if clusters.Ready(p) {
			l.proxy[p.Spec.NodeName] = true
		}
		if len(l.proxy) == nodes {
			l.once(proxiesReady, at)
		}
	}
	return follow
}

// line is a line of a hook Job's log.
type line struct {
	Time                             time.Time
	Msg, Phase, Step, Duration, Name string
}

// logged processes a line.
func (l *timeline) logged(raw []byte) error {
	var at line
	if err := json.Unmarshal(raw, &at); err != nil {
		return fmt.Errorf("parsing the hook's log: %w: %s", err, raw)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.note(at.Time, "log %s", raw)
	took, _ := time.ParseDuration(at.Duration)
	_, step, _ := strings.Cut(at.Step, " ")
	switch at.Msg {
	case "step done":
		l.once("init-hook "+at.Phase+" begins", at.Time.Add(-took)) // the first step starts the phase
		l.took[at.Phase+": "+step] = took
		if name := steps[step]; name != "" {
			l.once(name, at.Time)
		}
	case "phase done":
		l.once(at.Phase+" done", at.Time)
	}
	return nil
}

// missing returns the phases that were not observed.
func (l *timeline) missing() (names []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range phases {
		if _, is := l.reach[p.name]; !is {
			names = append(names, p.name)
		}
	}
	return names
}

// observe watches the release's pods and Deployments until ctx is done.
func (c *cluster) observe(ctx context.Context, l *timeline) error {
	pods, err := c.Client.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	deployments, err := c.Client.AppsV1().Deployments(namespace).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		pods.Stop()
		return err
	}
	each := func(w watch.Interface, f func(runtime.Object, time.Time)) {
		for event := range w.ResultChan() {
			if event.Type != watch.Deleted {
				f(event.Object, time.Now())
			}
		}
	}
	go each(pods, func(o runtime.Object, at time.Time) {
		if p, is := o.(*corev1.Pod); is && l.pod(p, at, len(c.nodes)) {
			go c.follow(ctx, l, p.Name)
		}
	})
	go each(deployments, func(o runtime.Object, at time.Time) {
		if d, is := o.(*appsv1.Deployment); is && d.Name == release {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.once("chart applied", at)
		}
	})
	return nil
}

// follow reads a Job's log as it is written, because Helm deletes the Job when it completes.
func (c *cluster) follow(ctx context.Context, l *timeline, pod string) {
	stream, err := c.Client.CoreV1().Pods(namespace).GetLogs(pod, &corev1.PodLogOptions{Follow: true}).Stream(ctx)
	if err != nil {
		logf("log of %s: %v", pod, err)
		return
	}
	defer stream.Close()
	if err := readLog(stream, l); err != nil && ctx.Err() == nil {
		logf("log of %s: %v", pod, err)
	}
}

func readLog(from io.Reader, l *timeline) error {
	scanner := bufio.NewScanner(from)
	scanner.Buffer(nil, 1<<20) // lines may list many objects
	for scanner.Scan() {
		if err := l.logged(scanner.Bytes()); err != nil {
			return err
		}
	}
	return scanner.Err()
}

func measureInstall(ctx context.Context, c *cluster, report *results.Report) error {
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	l := newTimeline()
	if err := c.observe(watching, l); err != nil {
		return err
	}
	begin := time.Now()
	took, err := c.helmChart(ctx, "install", "--set=registryProxy=true")
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.reach[returned] = begin.Add(took)
	l.mu.Unlock()
	_ = c.WaitFor(ctx, "the end of the logs", func() (bool, error) { return len(l.missing()) == 0, nil })
	if missing := l.missing(); len(missing) > 0 {
		return fmt.Errorf("phases not reached: %s", strings.Join(missing, ", "))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range phases {
		at := l.reach[p.name]
		report.Add(tableInstall, p.name, sinceHelm, "s", at.Sub(begin).Seconds())
		report.Add(tableInstall, p.name, sinceHook, "s", at.Sub(l.reach[hookPod]).Seconds())
	}
	report.Add(tableSeeding, ours, "writing the payload", "s", l.took["prepare: seed the payload"].Seconds())
	logf("installed in %.1f s, registry ready %.1f s after the hook's pod was created", took.Seconds(),
		l.reach[registryReady].Sub(l.reach[hookPod]).Seconds())
	if c.log == "" {
		return nil
	}
	file, err := os.OpenFile(c.log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	slices.Sort(l.events)
	_, err = fmt.Fprintf(file, "%s helm install begins\n%s\n%s helm install returned\n\n", begin.Format("15:04:05.000"),
		strings.Join(l.events, "\n"), begin.Add(took).Format("15:04:05.000"))
	return errors.Join(err, file.Close())
}

// measurePayload measures the size of the payload in etcd, and of the part that each node fetches.
func measurePayload(ctx context.Context, c *cluster, report *results.Report) error {
	list, err := c.Client.CoreV1().ConfigMaps(namespace).List(ctx,
		metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=payload"})
	if err != nil {
		return err
	}
	if len(list.Items) == 0 {
		return errors.New("no payload found")
	}
	var all, node float64
	for _, object := range list.Items {
		size := 0
		for _, data := range object.BinaryData {
			size += len(data)
		}
		all += float64(size)
		if strings.Contains(object.Name, "-registry-node-") {
			node += float64(size)
		}
	}
	report.Add(tableSeeding, ours, "payload in etcd", "MB", all/1e6)
	report.Add(tableSeeding, ours, "a node fetches", "MB", node/1e6)
	report.Add(tableSeeding, ours, "ConfigMaps", "", float64(len(list.Items)))
	return nil
}
