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

// closedDrainTimeout is how long requests may continue on a closed listener: the largest layers over slow links.
const closedDrainTimeout = 10 * time.Minute

// plainListener is a plain listener that opens and closes while the server runs. Each opening has its own HTTP server,
// so that requests of a closed one may finish while the next serves. All methods are safe for concurrent use.
type plainListener struct {
	newEndpoint func() *endpoint
	timeout     time.Duration // closedDrainTimeout
	log         *slog.Logger

	mu          sync.Mutex
	serving     *endpoint          // nil while closed
	ended       chan error         // receives the result of serving
	draining    map[*endpoint]bool // closed, with requests in progress
	handedOff   bool
	lastMessage string // so that each message is logged once
}

func newPlainListener(newEndpoint func() *endpoint, log *slog.Logger) *plainListener {
	return &plainListener{
		newEndpoint: newEndpoint, timeout: closedDrainTimeout, log: log, draining: map[*endpoint]bool{},
	}
}

// open opens the listener if it is closed. If that fails, it logs the error; the next call retries.
func (p *plainListener) open(ctx context.Context, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.handedOff || p.isServing() {
		return
	}
	e, ended := p.newEndpoint(), make(chan error, 1)
	if err := e.listen(ctx); err != nil {
		if p.isNewMessage(err.Error()) {
			p.log.Error("opening plain listener failed, retrying", "error", err)
		}
		return
	}
	p.serving, p.ended = e, ended
	go func() { ended <- e.serve() }()
	p.lastMessage = "opened"
	p.log.Info("plain listener opened", "address", e.listener.Addr().String(), "reason", why)
}

// isServing reports whether the listener is open. If it has failed, isServing cleans it up.
func (p *plainListener) isServing() bool {
	if p.serving == nil {
		return false
	}
	select {
	case err := <-p.ended:
		p.log.Error("plain listener failed", "error", err)
		p.drain(p.serving)
		p.serving = nil
		return false
	default:
		return true
	}
}

// close closes the listener if it is open, to new connections: requests in progress continue.
func (p *plainListener) close(why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.handedOff {
		return
	}
	if p.isServing() {
		p.drain(p.serving)
		if err := <-p.ended; err != nil {
			p.log.Error("plain listener failed while closing", "error", err)
		}
		p.serving = nil
	}
	if p.isNewMessage("closed") {
		p.log.Info("plain listener closed", "reason", why)
	}
}

// drain shuts a server down in the background.
func (p *plainListener) drain(e *endpoint) {
	p.draining[e] = true
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), p.timeout)
		defer cancel()
		if err := e.drain(ctx); err != nil {
			p.log.Warn("requests of the closed plain listener were cut off", "after", p.timeout.String(), "error", err)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.draining, e)
	}()
}

// isNewMessage reports whether the message differs from the last one.
func (p *plainListener) isNewMessage(message string) bool {
	previous := p.lastMessage
	p.lastMessage = message
	return message != previous
}

// handOff returns the open endpoint and those that drain, for the caller to drain. Nothing opens after that.
func (p *plainListener) handOff() []*endpoint {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.handedOff = true
	endpoints := slices.Collect(maps.Keys(p.draining))
	if p.serving != nil {
		endpoints = append(endpoints, p.serving)
		p.serving = nil
	}
	return endpoints
}

// address returns the listener's address, or nil while it is closed.
func (p *plainListener) address() net.Addr {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.serving == nil {
		return nil
	}
	return p.serving.listener.Addr()
}
