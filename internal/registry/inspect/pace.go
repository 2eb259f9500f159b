package inspect

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/registry/poll"
)

// pace limits how fast something is read. It is safe for concurrent use.
type pace struct {
	rate int64 // bytes per second
	mu   sync.Mutex
	next time.Time // when what was read so far may have been read
}

func newPace(rate int64) *pace { return &pace{rate: rate, next: time.Now()} }

// wait waits after n bytes were read.
func (p *pace) wait(ctx context.Context, n int64) error {
	p.mu.Lock()
	now := time.Now()
	if p.next.Before(now) {
		p.next = now
	}
	p.next = p.next.Add(time.Duration(float64(n) / float64(p.rate) * float64(time.Second)))
	wait := p.next.Sub(now)
	p.mu.Unlock()
	return poll.Sleep(ctx, wait)
}

// pacedReader reads at a pace.
type pacedReader struct {
	ctx  context.Context
	data io.Reader
	pace *pace
	read func(n int)
}

func (r pacedReader) Read(p []byte) (int, error) {
	n, err := r.data.Read(p)
	r.read(n)
	if failed := r.pace.wait(r.ctx, int64(n)); failed != nil {
		return n, failed
	}
	return n, err
}
