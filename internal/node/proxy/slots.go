package proxy

import (
	"container/list"
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"
)

const (
	// minLent is how long a response must wait for its client before another request may take its
	// connection. A client that reads takes a buffer in less time, unless the node is overloaded.
	minLent = 50 * time.Millisecond
	// queueInterval is how often queued requests look for such responses.
	queueInterval = 10 * time.Millisecond
)

// slots limits how many connections to the registry are in use. If all are, a request takes that of
// the response that has waited longest for its client. That response resumes on another connection
// when its client reads on. So clients that stall do not delay others.
type slots struct {
	total  int
	pauses *metrics.Counter

	mu    sync.Mutex
	free  int
	queue list.List // of chan struct{}, which is closed when the request has a slot
	lent  list.List // of *response that wait for their clients, the one that has waited longest first
}

func newSlots(total int, pauses *metrics.Counter) *slots {
	return &slots{total: total, pauses: pauses, free: total}
}

func (s *slots) take(ctx context.Context) error {
	s.mu.Lock()
	if s.free > 0 && s.queue.Len() == 0 {
		s.free--
		s.mu.Unlock()
		return nil
	}
	granted := make(chan struct{})
	queued := s.queue.PushBack(granted)
	s.mu.Unlock()
	s.reassign()
	ticker := time.NewTicker(queueInterval)
	defer ticker.Stop()
	for {
		select {
		case <-granted:
			return nil
		case <-ticker.C:
			s.reassign()
		case <-ctx.Done():
			s.leave(queued, granted)
			return ctx.Err()
		}
	}
}

// reassign gives the slot of a response to the first queued request.
func (s *slots) reassign() {
	s.mu.Lock()
	first := s.lent.Front()
	if first == nil || s.queue.Len() == 0 || time.Since(first.Value.(*response).lentAt) < minLent {
		s.mu.Unlock()
		return
	}
	paused := s.lent.Remove(first).(*response)
	connection := paused.conn.raw
	paused.unwatch()
	// The response may wait for long, and the connection's buffers are large.
	paused.lent, paused.conn, paused.Body = nil, nil, http.NoBody
	s.giveLocked()
	s.mu.Unlock()
	s.pauses.Inc()
	_ = connection.Close()
}

func (s *slots) leave(queued *list.Element, granted chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-granted: // it has just got a slot
		s.giveLocked()
	default:
		s.queue.Remove(queued)
	}
}

func (s *slots) give() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.giveLocked()
}

func (s *slots) giveLocked() {
	first := s.queue.Front()
	if first == nil {
		s.free++
		return
	}
	close(s.queue.Remove(first).(chan struct{}))
}

// lend allows another request to take the response's slot and connection until reclaim is called.
func (s *slots) lend(resp *response) {
	s.mu.Lock()
	defer s.mu.Unlock()
	resp.lentAt = time.Now()
	resp.lent = s.lent.PushBack(resp)
}

// reclaim reports whether the response still has its slot and its connection.
func (s *slots) reclaim(resp *response) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if resp.lent == nil {
		return false
	}
	s.lent.Remove(resp.lent)
	resp.lent = nil
	return true
}

// counts returns how many slots are taken and how many requests are queued.
func (s *slots) counts() (taken, queued int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total - s.free, s.queue.Len()
}
