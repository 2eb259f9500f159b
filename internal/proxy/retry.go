package proxy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"
)

const (
	// firstDelay finds a registry that only dropped a connection; lastDelay keeps a thousand waiting requests on each of
	// many nodes from being a load of its own, and is how much later than the registry they may come back.
	firstDelay = 50 * time.Millisecond
	lastDelay  = 2 * time.Second
)

var errTooManyWaiting = errors.New("too many requests wait for it already")

// verdict is what to make of an answer.
type verdict int

const (
	accept verdict = iota // it is what was asked for
	again                 // it may be better on another attempt
	refuse                // it never will be
)

// patience is what is left of a request's retry timeout.
type patience struct {
	proxy    *Proxy
	began    time.Time
	attempts int  // that failed
	waiting  bool // counted in Proxy.waiting
}

func (p *Proxy) newPatience() *patience { return &patience{proxy: p, began: time.Now()} }

// wait pauses after a failed attempt. It returns the reason to give up if there is one: the request's context has ended,
// the retry timeout would be over, too many others wait.
func (w *patience) wait(ctx context.Context, cause error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	delay := backoff(w.attempts)
	if time.Since(w.began)+delay > w.proxy.config.RetryTimeout {
		return cause
	}
	if !w.waiting {
		if w.proxy.waiting.Add(1) > w.proxy.limits.waiting {
			w.proxy.waiting.Add(-1)
			return fmt.Errorf("%w: %w", errTooManyWaiting, cause)
		}
		w.waiting = true
	}
	w.attempts++
	w.proxy.log.Warn("the registry does not answer, trying again", "error", cause)
	w.proxy.metrics.retries.Inc()
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// end is called when the request waits no more.
func (w *patience) end() {
	if w.waiting {
		w.proxy.waiting.Add(-1)
		w.waiting = false
	}
}

// fetch asks the registry until judge accepts an answer or patience ends. Errors other than the context's say what went
// wrong last.
func (p *Proxy) fetch(request *request, patience *patience, judge func(*http.Response) (verdict, error)) (*answer, error) {
	defer patience.end()
	for {
		a, err := p.upstream.roundTrip(request)
		if err == nil {
			var v verdict
			if v, err = judge(a.Response); v == accept {
				return a, nil
			}
			a.abandon()
			err = p.upstream.failed(request.Context(), err)
			if v == refuse {
				return nil, err
			}
		}
		if err := patience.wait(request.Context(), err); err != nil {
			return nil, err
		}
	}
}

// backoff doubles from firstDelay to lastDelay. The jitter takes up to half of it away, so that requests which failed
// together do not come back together.
func backoff(attempt int) time.Duration {
	delay := lastDelay
	if attempt < 10 {
		delay = min(firstDelay<<attempt, lastDelay)
	}
	return delay - rand.N(delay/2)
}

// judgeFirst accepts whatever the registry itself answers, its errors too: they are for the client.
func judgeFirst(r *http.Response) (verdict, error) {
	if unavailable(r.StatusCode) && !fromRegistry(r) {
		return again, fmt.Errorf("something between answered for the registry: %s", r.Status)
	}
	return accept, nil
}

func unavailable(code int) bool {
	return code == http.StatusBadGateway || code == http.StatusServiceUnavailable || code == http.StatusGatewayTimeout
}
