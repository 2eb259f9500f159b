package proxy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/node/cache"
	"github.com/zarf-dev/zarf-registry/internal/oci"
)

const (
	// firstDelay suits a registry that only dropped a connection. lastDelay limits the load of
	// thousands of waiting requests on many nodes, and is the delay that a recovered registry may add.
	firstDelay = 50 * time.Millisecond
	lastDelay  = 2 * time.Second
)

// What containerd (core/remotes/docker) does while a response does not start: since 2.3 it gives up after 30 s. It
// repeats a request that was answered with 429 four times, at once, and one that was answered with 503 once, at the
// last host only. The clients with github.com/containers/image repeat a 429 four times too, after Retry-After, and give
// up on a 503. So a request waits a fourth of the retry timeout, and the last one begins when that is over.
const repeats = 4

// repeatsWhenAsked reports whether a request is of such a client.
func repeatsWhenAsked(r *http.Request) bool {
	return slices.ContainsFunc([]string{"containerd/", "cri-o/", "containers/", "skopeo/", "Buildah/"},
		func(client string) bool { return strings.HasPrefix(r.UserAgent(), client) })
}

// isDockerPing reports whether Docker's daemon asks whether this is a registry, and whether to log in. It waits 15 s,
// and then gives up; for the image itself it waits without a limit (distribution/registry.go). Once the proxy knows
// that the registry is away, it answers what the registry would.
func isDockerPing(r *http.Request) bool {
	return r.URL.Path == "/v2/" && strings.HasPrefix(r.UserAgent(), "docker/")
}

var errTooManyWaiting = errors.New("too many waiting requests")

// verdict is a decision about a response.
type verdict int

const (
	accept verdict = iota // the expected response
	retry                 // another attempt may succeed
	refuse                // no attempt will succeed
)

// retryBudget is the rest of a request's retry timeout.
type retryBudget struct {
	proxy    *Proxy
	began    time.Time
	timeout  time.Duration
	attempts int  // failed attempts
	waiting  bool // counted in Proxy.waiting
	direct   bool // not from caches
}

func (p *Proxy) newRetryBudget() *retryBudget {
	return &retryBudget{proxy: p, began: time.Now(), timeout: p.config.RetryTimeout}
}

// wait pauses after a failed attempt. It returns an error if there must be no further attempt: the
// context has ended, the retry timeout would be exceeded, or too many requests are waiting.
func (b *retryBudget) wait(ctx context.Context, cause error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	delay := backoff(b.attempts)
	if time.Since(b.began)+delay > b.timeout {
		return cause
	}
	if !b.waiting {
		if b.proxy.waiting.Add(1) > b.proxy.limits.maxWaiting {
			b.proxy.waiting.Add(-1)
			return fmt.Errorf("%w: %w", errTooManyWaiting, cause)
		}
		b.waiting = true
	}
	b.attempts++
	b.proxy.log.Warn("registry unavailable, retrying", "error", cause)
	b.proxy.metrics.retries.Inc()
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// end must be called when the request stops waiting.
func (b *retryBudget) end() {
	if b.waiting {
		b.proxy.waiting.Add(-1)
		b.waiting = false
	}
}

// fetch sends the request until classify accepts a response or the budget is spent. Its error is the
// context's or that of the last attempt at the registry. Each attempt asks a cache first, which may serve
// what the registry cannot.
func (p *Proxy) fetch(
	request *request, budget *retryBudget, classify func(*http.Response) (verdict, error),
) (*response, error) {
	defer budget.end()
	for {
		if resp := p.fetchCached(request, budget, classify); resp != nil {
			return resp, nil
		}
		resp, err := p.upstream.roundTrip(request)
		if err == nil {
			var v verdict
			if v, err = classify(resp.Response); v == accept {
				return resp, nil
			}
			resp.discard()
			err = p.upstream.failed(request.Context(), err)
			if v == refuse {
				return nil, err
			}
		}
		if err := budget.wait(request.Context(), err); err != nil {
			return nil, err
		}
	}
}

// fetchCached asks a cache and, if that fails, another one: the load that a single cache cannot carry would be
// too much for the registry, if all others are busy. It returns nil if the registry is to be asked: if there are
// no caches, or none responds with what classify accepts. A cache fails for itself: only the registry's refusals
// count.
func (p *Proxy) fetchCached(
	request *request, budget *retryBudget, classify func(*http.Response) (verdict, error),
) *response {
	if p.cache == nil || budget.direct || !cache.Serves(request.URL.Path) {
		return nil
	}
	for attempt := 0; attempt < 2 && time.Now().UnixNano() >= p.cacheRetryAt.Load(); attempt++ {
		resp, err := p.askCache(request, classify)
		if err == nil {
			return resp
		}
		if request.Context().Err() != nil {
			return nil
		}
		p.metrics.cacheFailed.Inc()
		p.log.Warn("cache unavailable, requesting elsewhere", "error", err)
	}
	return nil
}

// askCache requests from a cache. It fails if the response is not what classify accepts.
func (p *Proxy) askCache(request *request, classify func(*http.Response) (verdict, error)) (*response, error) {
	resp, err := p.cache.roundTrip(request)
	if err != nil {
		// One of several may be away until its endpoint is removed.
		if request.Context().Err() == nil && p.cacheFailures.Add(1) > 1 {
			p.cacheRetryAt.Store(time.Now().Add(cachePause).UnixNano())
		}
		return nil, err
	}
	p.cacheFailures.Store(0)
	v := retry
	if resp.Header.Get(oci.HeaderAPIVersion) == "" {
		err = fmt.Errorf("the cache at %s responded with %s", resp.conn.RemoteAddr(), resp.Status)
	} else {
		v, err = classify(resp.Response)
	}
	if v != accept {
		resp.discard()
		return nil, err
	}
	p.metrics.cacheServed.Inc()
	return resp, nil
}

// backoff doubles from firstDelay to lastDelay. Jitter of up to half of it spreads requests that
// failed together.
func backoff(attempt int) time.Duration {
	delay := lastDelay
	if attempt < 10 {
		delay = min(firstDelay<<attempt, lastDelay)
	}
	return delay - rand.N(delay/2)
}

// judgeFirst accepts every response of the registry itself, errors included: they are meant for the
// client.
func judgeFirst(r *http.Response) (verdict, error) {
	if cache.FromGateway(r) {
		return retry, fmt.Errorf("an intermediary responded instead of the registry: %s", r.Status)
	}
	return accept, nil
}
