package registry

import (
	"context"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"time"
)

// closedDrainTimeout is how long the requests of a closed plain listener may take
// to end: the largest layers over slow links. It bounds what clients that never end
// can hold.
const closedDrainTimeout = 10 * time.Minute

// plainListener is the plain listener where it opens and closes while the server
// runs. Each opening has an HTTP server of its own, so that the requests of one that
// was closed may end while the next serves. All methods are safe for concurrent use.
type plainListener struct {
	newEndpoint func() *endpoint
	timeout     time.Duration // closedDrainTimeout
	log         *slog.Logger

	mu       sync.Mutex
	serving  *opening           // nil while it is closed
	draining map[*endpoint]bool // the closed ones whose requests are under way
	retired  bool
	said     string // the last message, so that each is logged once
}

// opening is one time that the listener is open.
type opening struct {
	*endpoint
	ended chan error // gets what serving ended with
}

func newPlainListener(newEndpoint func() *endpoint, log *slog.Logger) *plainListener {
	return &plainListener{newEndpoint: newEndpoint, timeout: closedDrainTimeout, log: log, draining: map[*endpoint]bool{}}
}

// open opens the listener where it is not open. Where that is impossible it logs
// the error, and the next call tries again.
func (p *plainListener) open(ctx context.Context, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.retired || p.serves() {
		return
	}
	o := &opening{endpoint: p.newEndpoint(), ended: make(chan error, 1)}
	if err := o.listen(ctx); err != nil {
		if p.says(err.Error()) {
			p.log.Error("cannot open the plain listener, trying again", "error", err)
		}
		return
	}
	p.serving = o
	go func() { o.ended <- o.serve() }()
	p.said = "opened"
	p.log.Info("plain listener opened", "address", o.listener.Addr().String(), "why", why)
}

// serves tells whether the listener is open, and takes note of one that has failed.
func (p *plainListener) serves() bool {
	if p.serving == nil {
		return false
	}
	select {
	case err := <-p.serving.ended:
		p.log.Error("the plain listener failed", "error", err)
		p.drain(p.serving.endpoint)
		p.serving = nil
		return false
	default:
		return true
	}
}

// close closes the listener where it is open. When it returns nobody can connect
// any more; requests under way go on.
func (p *plainListener) close(why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.retired {
		return
	}
	if p.serves() {
		p.drain(p.serving.endpoint)
		if err := <-p.serving.ended; err != nil {
			p.log.Error("the plain listener failed as it was closed", "error", err)
		}
		p.serving = nil
	}
	if p.says("closed") {
		p.log.Info("plain listener closed", "why", why)
	}
}

// drain ends a server in the background.
func (p *plainListener) drain(e *endpoint) {
	p.draining[e] = true
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), p.timeout)
		defer cancel()
		if err := e.drain(ctx); err != nil {
			p.log.Warn("requests were cut off, long after the plain listener was closed", "after", p.timeout.String(), "error", err)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.draining, e)
	}()
}

// says tells whether this is not what was said last.
func (p *plainListener) says(what string) bool {
	before := p.said
	p.said = what
	return what != before
}

// retire hands over what is open and what drains, for the caller to drain, and
// opens nothing any more.
func (p *plainListener) retire() []*endpoint {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.retired = true
	endpoints := slices.Collect(maps.Keys(p.draining))
	if p.serving != nil {
		endpoints = append(endpoints, p.serving.endpoint)
		p.serving = nil
	}
	return endpoints
}

// address is where the listener is, or nil while it is closed.
func (p *plainListener) address() net.Addr {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.serving == nil {
		return nil
	}
	return p.serving.listener.Addr()
}
