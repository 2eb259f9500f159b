package support

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/api/loaded"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

const (
	// maxFetch bounds the time of a request to a pod.
	maxFetch = 5 * time.Second
	// maxResponse is the size in bytes of metrics; those of a registry take 40 kB.
	maxResponse = 2 << 20
	// fetches is how many pods are asked concurrently: each request is a connection through the API server.
	fetches = 8
)

// noLog begins the kubelet's response for a log that does not exist.
const noLog = "unable to retrieve container logs for "

// selectPods returns the release's pods in the order in which they are read: those that are not ready first,
// and the proxies and other pods of nodes last.
func (c *collector) selectPods(ctx context.Context) []corev1.Pod {
	ctx, cancel := request(ctx)
	defer cancel()
	list, err := c.Client.CoreV1().Pods(c.Namespace).List(ctx,
		metav1.ListOptions{LabelSelector: names.LabelInstance + "=" + c.Release})
	if err != nil {
		c.failed(ctx, "logs and metrics", err)
		return nil
	}
	rank := func(p *corev1.Pod) int {
		n := 0
		if slices.ContainsFunc(p.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Kind == "DaemonSet" }) {
			n = 2
		}
		if release.PodReady(*p) || p.Status.Phase == corev1.PodSucceeded {
			n++
		}
		return n
	}
	slices.SortFunc(list.Items, func(a, b corev1.Pod) int {
		return cmp.Or(cmp.Compare(rank(&a), rank(&b)), cmp.Compare(a.Name, b.Name))
	})
	if n := len(list.Items); n > maxPods {
		c.missing(fmt.Sprintf("logs and metrics of %d pods", n-maxPods),
			fmt.Errorf("the bundle contains those of %d pods at most, starting with those that are not ready", maxPods))
		return list.Items[:maxPods]
	}
	return list.Items
}

// logs adds the log of each container, and that of its previous run.
func (c *collector) logs(ctx context.Context) error {
	for i := range c.pods {
		p := &c.pods[i]
		for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses,
			p.Status.EphemeralContainerStatuses) {
			name := fmt.Sprintf("logs/%s_%s", p.Name, s.Name)
			if s.State.Running != nil || s.State.Terminated != nil {
				if err := c.log(ctx, name+".log", p, s.Name, false); err != nil {
					return err
				}
			}
			// A container that waits for its restart has only a previous run.
			if s.LastTerminationState.Terminated != nil {
				if err := c.log(ctx, name+".previous.log", p, s.Name, true); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (c *collector) log(ctx context.Context, file string, p *corev1.Pod, container string, previous bool) error {
	atMost := int64(maxLog)
	options := &corev1.PodLogOptions{Container: container, Previous: previous, LimitBytes: &atMost}
	if c.Tail >= 0 {
		options.TailLines = &c.Tail
	}
	if c.Since > 0 {
		seconds := int64(c.Since.Seconds())
		options.SinceSeconds = &seconds
	}
	return c.file(file, func(w io.Writer) error {
		if c.logged >= maxLogs {
			return fmt.Errorf("all logs together are limited to %d MiB: use --tail or --since", maxLogs>>20)
		}
		if c.silent[p.Spec.NodeName] {
			return errors.New("its node does not answer")
		}
		ctx, cancel := request(ctx)
		defer cancel()
		stream, err := c.Client.CoreV1().Pods(p.Namespace).GetLogs(p.Name, options).Stream(ctx)
		if err != nil {
			err = explain(ctx, err)
			c.silent[p.Spec.NodeName] = errors.Is(err, errNoAnswer)
			return err
		}
		defer stream.Close()
		text := bufio.NewReader(stream)
		// The kubelet sends this in place of the log of a container that the runtime has removed.
		if begin, _ := text.Peek(len(noLog)); string(begin) == noLog {
			return errors.New("the container runtime has removed it")
		}
		n, err := io.Copy(w, text)
		c.logged += n
		if err == nil && n >= maxLog {
			err = fmt.Errorf("only the first %d MiB: use --tail or --since", maxLog>>20)
		}
		return explain(ctx, err)
	})
}

// metrics adds the metrics of each pod that has them, and what it has loaded.
func (c *collector) metrics(ctx context.Context) error {
	c.pods = c.selectPods(ctx)
	type response struct {
		file string
		body bytes.Buffer
		err  error
	}
	var responses []*response
	var group errgroup.Group
	group.SetLimit(fetches)
	for i := range c.pods {
		p := &c.pods[i]
		if _, ok := p.Annotations[names.AnnotationMetricsPort]; !ok || p.Status.Phase != corev1.PodRunning {
			continue
		}
		ask := func(path, file string) {
			r := &response{file: file}
			responses = append(responses, r)
			group.Go(func() error {
				ctx, cancel := context.WithTimeoutCause(ctx, maxFetch, fmt.Errorf("no answer within %s", maxFetch))
				defer cancel()
				r.err = explain(ctx, c.Fetch(ctx, p, path, &limit{w: &r.body, left: maxResponse, full: errLong}))
				return nil
			})
		}
		ask("/metrics", "metrics/"+p.Name+".txt")
		switch p.Labels[names.LabelComponent] {
		case names.ComponentRegistry, names.ComponentProxy, names.ComponentCache:
			ask(loaded.Path, "metrics/"+p.Name+".loaded.json")
		}
	}
	_ = group.Wait() // errors are in the responses
	for _, r := range responses {
		err := c.file(r.file, func(w io.Writer) error {
			_, err := r.body.WriteTo(w)
			return errors.Join(r.err, err)
		})
		if err != nil {
			return err
		}
	}
	return nil
}
