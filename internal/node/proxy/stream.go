package proxy

import (
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/net/protocolmux"
)

// errPaused: see slots.
var errPaused = errors.New("another request took its connection while the client did not read")

// stream copies a body to a client, part by part: fill reads one from the registry or a cache, write sends it,
// and resume continues where one cannot.
type stream struct {
	proxy   *Proxy
	w       http.ResponseWriter
	client  *protocolmux.Conn // nil if not served by Run
	request *request
	whole   *interruptedBody
	resp    *response

	sent  int64
	skip  int64 // bytes the client already has of a body that restarted from its beginning
	fast  int64 // bytes the client has taken without delay
	speed pace
}

// stream copies the body to the client, and returns how many bytes it has sent. It resumes the body when it breaks
// off, when another request took its connection, and when it is another cache's turn.
func (p *Proxy) stream(w http.ResponseWriter, r *request, resp *response) (sent int64, err error) {
	s := &stream{proxy: p, w: w, request: r, whole: newInterruptedBody(resp.Response), resp: resp}
	s.client, _ = r.Context().Value(clientKey{}).(*protocolmux.Conn)
	for {
		buffer := p.buffers.get(s.resp.ContentLength, s.fast >= fastAfter)
		n, end := s.fill(*buffer)
		paused, err := s.write(buffer, n, end)
		switch {
		case err != nil, errors.Is(end, io.EOF):
			return s.sent, err
		case paused:
			end = errPaused
		}
		if end != nil {
			if err := s.resume(end); err != nil {
				return s.sent, err
			}
		}
	}
}

// errTurn: it is another cache's turn.
var errTurn = errors.New("it is another cache's turn")

// fill reads the next part. It returns io.EOF if it is the last one, errTurn, or why there is no other.
func (s *stream) fill(buffer []byte) (n int, end error) {
	began := time.Now()
	n, end = s.resp.fill(buffer)
	if end == nil && s.resp.upstream == s.proxy.cache && s.whole.unresumable == nil {
		end = s.speed.add(n, time.Since(began), s.resp.upstream.limits.cacheTurn)
	}
	return n, end
}

// write sends the n bytes in a buffer, puts it back, and waits until the client has read them. Meanwhile the
// connection to the registry is free: reused after the end, closed if the body broke off, or lent to other requests.
// paused reports that one has taken it.
func (s *stream) write(buffer *[]byte, n int, end error) (paused bool, err error) {
	part := (*buffer)[:n]
	skipped := min(s.skip, int64(n))
	part, s.skip = part[skipped:], s.skip-skipped
	more := end == nil || errors.Is(end, errTurn)
	switch {
	case more:
		s.proxy.slots.lend(s.resp)
	case errors.Is(end, io.EOF):
		s.resp.release() // the client may take long to read the end
	default:
		s.resp.discard()
	}
	began := time.Now()
	// If the registry pauses, flush what it has sent so far out of net/http's buffer.
	written, err := send(s.w, part, more && n < len(*buffer))
	s.proxy.buffers.put(buffer)
	s.sent, s.fast = s.sent+int64(written), s.fast+int64(written)
	if err == nil && more {
		err = s.client.Await(s.request.Context())
	}
	if time.Since(began) > minLent {
		s.fast = 0
	}
	paused = more && !s.proxy.slots.reclaim(s.resp)
	if err != nil {
		if more && !paused {
			s.resp.discard()
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			s.client.Reset() // it would take as long to deliver what is queued
		}
	}
	return paused, err
}

// resume continues the body where it has ended, at another cache or with a new request.
func (s *stream) resume(end error) (err error) {
	switch {
	case errors.Is(end, errTurn):
		if s.resp, s.skip, end = s.proxy.takeTurn(s.request, s.whole, s.sent, s.resp, s.skip); end == nil {
			return nil
		}
	case !errors.Is(end, errPaused) && s.resp.upstream == s.proxy.cache:
		s.whole.brokeAtCache()
		s.speed = pace{best: s.speed.best, failed: true}
	}
	s.resp, s.skip, err = s.proxy.resume(s.request, s.whole, s.sent, end)
	return err
}

// errSlow: a cache that is too slow may be overloaded, or its disk may be failing.
var errSlow = errors.New("the cache is too slow")

// pace measures how fast caches deliver a body, and when it is another one's turn. If bodies stayed where their
// connections were made, at random, some caches would be done while others are busy, and the nodes there would be the
// last.
type pace struct {
	bytes  int64
	waited time.Duration

	best   int64 // bytes of the best turn so far
	failed bool  // a cache has: the next one may be as bad
}

// add adds n bytes for which the proxy has waited. A turn ends with errTurn if another cache may be better, or with
// errSlow.
func (p *pace) add(n int, waited, turn time.Duration) error {
	p.bytes, p.waited = p.bytes+int64(n), p.waited+waited
	if p.waited < turn {
		return nil
	}
	bytes, best := p.bytes, p.best
	p.bytes, p.waited = 0, 0
	if float64(bytes) < slowBody*turn.Seconds() {
		return errSlow
	}
	p.best = max(best, bytes)
	if !p.failed || best == 0 || bytes < best/2 {
		return errTurn
	}
	return nil
}

func send(w http.ResponseWriter, part []byte, flush bool) (written int, err error) {
	if len(part) > 0 {
		written, err = w.Write(part)
	}
	if err == nil && flush {
		err = http.NewResponseController(w).Flush()
	}
	return written, err
}
