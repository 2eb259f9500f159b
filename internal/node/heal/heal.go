package heal

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/zarf-dev/zarf-registry/internal/release/nodeimages"
)

// Times of a Healer. Tests shorten them.
type times struct {
	// look is how long a pod may wait before its node is looked at although the kubelet reports no
	// failure. Most pods start within this time.
	look time.Duration
	// retry is the time between the attempts for a pod, because nodes report new images late, and
	// giveUp the time after which the healer reports that it can do nothing.
	retry, giveUp time.Duration
	// reconnect is the time before another watch. An API server also ends watches when many pods change at once, and each
	// new one begins with all pods.
	reconnect time.Duration
	// rollout is the time between looks at the proxies' rollouts.
	rollout time.Duration
}

// The kubelet reports its images every 10 seconds, or with the first status after a change.
var defaultTimes = times{look: 2 * time.Second, retry: time.Second, giveUp: time.Minute, reconnect: time.Second,
	rollout: 5 * time.Second}

// Config configures a Healer. All fields are required, except Repositories, Rollouts and Listen.
type Config struct {
	// Connect returns a client. It is called for each watch.
	Connect func() (*Client, error)
	// Rules returns which images may be used. It is called for each decision, because they change.
	Rules  func() (nodeimages.Rules, error)
	Logger *slog.Logger
	// Repositories is what to copy for the policy that rewrites references, if anything.
	Repositories Repositories
	// Rollouts is true to continue the rollouts of proxies that Kubernetes does not continue.
	Rollouts bool
	// Listen is the address of /healthz, /readyz and /metrics; empty for none.
	Listen string
}

// Healer watches the release's pods and replaces images, and continues rollouts of the proxies. Several healers may run
// at once: the first patch of an object wins.
type Healer struct {
	config Config
	times  times
	set    *metrics.Set
	// list lists the registry's repositories. Tests replace it.
	list func(context.Context, Repositories) ([]string, error)

	replaced, conflicts, failures, reports, broken *metrics.Counter
	watching                                       atomic.Bool
	waiting                                        atomic.Int64

	jobs     map[string]*job      // by the pod's UID
	reported map[string]time.Time // when a pod, with its image, was reported
}

// job is a pod that waits for an image.
type job struct {
	pod     Pod
	failing bool
	due     time.Time // of the next attempt; zero if it waits for a change of the pod
	end     time.Time // of the attempts
}

const prefix = "zarf_registry_healer_"

// New returns a Healer that has not started.
func New(config Config) *Healer {
	set := metrics.NewSet()
	h := &Healer{
		config: config, times: defaultTimes, set: set, list: listRegistry,
		replaced:  set.NewCounter(prefix + `replacements_total{result="ok"}`),
		conflicts: set.NewCounter(prefix + `replacements_total{result="conflict"}`),
		failures:  set.NewCounter(prefix + `replacements_total{result="error"}`),
		reports:   set.NewCounter(prefix + "unresolved_total"),
		broken:    set.NewCounter(prefix + "watch_errors_total"),
		reported:  map[string]time.Time{},
	}
	set.NewGauge(prefix+"pods_waiting", func() float64 { return float64(h.waiting.Load()) })
	return h
}

// Run runs until ctx ends. It returns an error only if it cannot listen.
func (h *Healer) Run(ctx context.Context) error {
	if h.config.Listen != "" {
		listener, err := net.Listen("tcp", h.config.Listen)
		if err != nil {
			return err
		}
		server := &http.Server{Handler: h.handler(), ReadHeaderTimeout: 10 * time.Second,
			ErrorLog: slog.NewLogLogger(h.config.Logger.Handler(), slog.LevelDebug)}
		go func() { _ = server.Serve(listener) }()
		defer func() { _ = server.Close() }()
	}
	var group sync.WaitGroup
	if h.config.Repositories.ConfigMap != "" {
		group.Go(func() { h.copyRepositories(ctx) })
	}
	if h.config.Rollouts {
		group.Go(func() { h.continueRollouts(ctx) })
	}
	h.watchPods(ctx)
	group.Wait()
	return nil
}

// watchPods runs sessions until ctx ends.
func (h *Healer) watchPods(ctx context.Context) {
	for ctx.Err() == nil {
		if err := h.session(ctx); err != nil && ctx.Err() == nil {
			h.watching.Store(false)
			h.broken.Inc()
			h.config.Logger.Warn("watching pods failed", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(h.times.reconnect):
		}
	}
}

func (h *Healer) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !h.watching.Load() {
			http.Error(w, "not watching pods", http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		h.set.WritePrometheus(w)
	})
	return mux
}

// session watches pods until the API server ends the watch.
func (h *Healer) session(ctx context.Context) error {
	client, err := h.config.Connect()
	if err != nil {
		return err
	}
	defer client.HTTP.CloseIdleConnections()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changes := make(chan change)
	ended := make(chan error, 1)
	go func() {
		ended <- client.watch(ctx, func() { h.watching.Store(true) }, changes)
	}()
	h.jobs = map[string]*job{} // the watch begins with all pods
	for {
		h.waiting.Store(int64(len(h.jobs)))
		timer := time.NewTimer(h.next())
		select {
		case err := <-ended:
			timer.Stop()
			return err
		case c := <-changes:
			h.note(c)
		case <-timer.C:
			h.work(ctx, client)
		}
		timer.Stop()
	}
}

func (h *Healer) next() time.Duration {
	next := time.Hour
	for _, j := range h.jobs {
		if !j.due.IsZero() {
			next = min(next, time.Until(j.due))
		}
	}
	return max(next, 0)
}

func (h *Healer) note(c change) {
	uid := c.pod.Metadata.UID
	waits, failing := c.pod.Waits()
	if c.gone || !waits {
		delete(h.jobs, uid)
		return
	}
	now := time.Now()
	j := h.jobs[uid]
	if j == nil {
		j = &job{due: now.Add(h.times.look), end: now.Add(h.times.giveUp)}
		h.jobs[uid] = j
	}
	j.pod = c.pod
	if failing && !j.failing {
		j.end = now.Add(h.times.giveUp)
	}
	if failing {
		j.due = now
	}
	j.failing = failing
}

// work attends to the pods that are due: first one whose kubelet reports a failure. It handles one pod,
// so that changes of the others are noted in between.
func (h *Healer) work(ctx context.Context, client *Client) {
	now := time.Now()
	var chosen *job
	for _, j := range h.jobs {
		if j.due.IsZero() || j.due.After(now) {
			continue
		}
		if chosen == nil || j.failing && !chosen.failing || j.failing == chosen.failing && j.due.Before(chosen.due) {
			chosen = j
		}
	}
	if chosen == nil {
		return
	}
	chosen.due = now.Add(h.times.retry)
	if now.After(chosen.end) {
		chosen.due = time.Time{} // until the kubelet reports something new
	}
	h.attend(ctx, client, chosen)
}

// attend looks at the node of a pod and replaces the pod's image, or reports that it cannot.
func (h *Healer) attend(ctx context.Context, client *Client, j *job) {
	log := h.config.Logger.With("pod", j.pod.Metadata.Name, "node", j.pod.Spec.NodeName)
	rules, err := h.config.Rules()
	if err != nil {
		log.Error("no image is replaced", "error", err)
		return
	}
	d, images, err := client.decide(ctx, j.pod, rules)
	if err != nil {
		log.Warn("looking at a node failed", "error", err)
		return
	}
	switch last := j.due.IsZero(); {
	case d.Action == Replace:
		j.due = time.Time{} // the patch changes the pod, or has met a change
		err := client.replace(ctx, j.pod, d, false)
		switch {
		case err == nil:
			h.replaced.Inc()
			log.Info("replaced an image", "previousImage", d.PreviousImage, "image", d.Image)
			h.record(ctx, client, j.pod, eventReplaced, d.Reason)
		case conflict(err):
			h.conflicts.Inc()
			log.Debug("the pod has changed", "error", err)
			j.due = time.Now().Add(h.times.retry) // unless the change arrives first
		default:
			h.failures.Inc()
			log.Error("replacing an image failed", "error", err)
			j.due = time.Now().Add(h.times.retry)
		}
		if now := time.Now(); now.After(j.end) {
			j.due = time.Time{}
		}
	case j.failing && (d.Action == Report || last && d.Action == Wait):
		if d.Action == Wait && len(images) == 0 {
			d.Reason += ", and its kubelet cannot get image " + d.PreviousImage
		}
		h.report(ctx, client, j.pod, d)
	case d.Action == Nothing && !j.failing:
		j.due = time.Time{} // it waits for something else, and a failure changes the pod
	}
}

// reportTime is how long a report is remembered.
const reportTime = time.Hour

// report records, once for a pod and its image, that the healer can do nothing.
func (h *Healer) report(ctx context.Context, client *Client, p Pod, d Decision) {
	now := time.Now()
	for key, when := range h.reported {
		if now.Sub(when) > reportTime {
			delete(h.reported, key)
		}
	}
	key := p.Metadata.UID + " " + d.PreviousImage
	if _, done := h.reported[key]; done {
		return
	}
	h.reported[key] = now
	h.reports.Inc()
	h.config.Logger.Warn("a pod needs an image that its node does not have", "pod", p.Metadata.Name, "reason", d.Reason)
	h.record(ctx, client, p, eventNoImage, d.Reason)
}

// record creates an event. A failure is only logged.
func (h *Healer) record(ctx context.Context, client *Client, p Pod, reason, message string) {
	err := client.event(ctx, p, reason, message)
	if err != nil && !errors.Is(err, context.Canceled) {
		h.config.Logger.Warn("recording an event failed", "error", err)
	}
}
