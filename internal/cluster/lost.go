package cluster

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/release"
)

const (
	// lostPoll is how often pods are listed while connections to them are open.
	lostPoll = 5 * time.Second
	// lostAfter is how long a pod must be unready, and a connection idle, until the connection is closed.
	// It is longer than the readiness of a busy registry flaps.
	lostAfter = 15 * time.Second
)

// lostPods closes idle connections to pods that are gone or unready, such as those of a node that lost
// power. Nothing else ends them for minutes: the API server waits for the kubelet, and a client waits for
// as long as a registry may take to complete an upload. The zero value is ready to use.
type lostPods struct {
	mu    sync.Mutex
	conns map[*watchedConn]bool // nil while closeLost does not run
}

// watchedConn is a connection to a pod.
type watchedConn struct {
	net.Conn
	pod string // name
	set *lostPods

	mu     sync.Mutex
	active time.Time // when data was last transferred
	lost   error     // why the connection was closed
}

// watch closes conn when its pod is lost.
func (r *Registry) watch(conn net.Conn, pod string) net.Conn {
	c := &watchedConn{Conn: conn, pod: pod, set: &r.lost, active: time.Now()}
	s := &r.lost
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns == nil {
		s.conns = map[*watchedConn]bool{}
		go r.closeLost()
	}
	s.conns[c] = true
	return c
}

// closeLost runs while connections are open.
func (r *Registry) closeLost() {
	unready := map[string]time.Time{} // since when, by name
	for r.lost.wait() {
		ctx, cancel := context.WithTimeout(context.Background(), lostPoll)
		pods, err := r.pods(ctx)
		cancel()
		if err != nil {
			continue // nothing is known about the pods
		}
		ready := map[string]bool{}
		for _, p := range pods {
			ready[p.Name] = release.PodReady(p)
		}
		unready = r.lost.closeIdle(time.Now(), ready, unready)
	}
}

// wait returns true after [lostPoll], or false if no connection is open.
func (s *lostPods) wait() bool {
	time.Sleep(lostPoll)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.conns) == 0 {
		s.conns = nil
		return false
	}
	return true
}

// closeIdle closes idle connections to pods that have not been ready for [lostAfter]. It takes and returns
// since when pods with connections are not ready.
func (s *lostPods) closeIdle(now time.Time, ready map[string]bool, before map[string]time.Time) map[string]time.Time {
	s.mu.Lock()
	var lost []*watchedConn
	unready := map[string]time.Time{}
	for c := range s.conns {
		if ready[c.pod] {
			continue
		}
		since, ok := before[c.pod]
		if !ok {
			since = now
		}
		unready[c.pod] = since
		if now.Sub(since) >= lostAfter {
			lost = append(lost, c)
		}
	}
	s.mu.Unlock()
	for _, c := range lost {
		c.closeIdle(now)
	}
	return unready
}

func (c *watchedConn) closeIdle(now time.Time) {
	c.mu.Lock()
	idle := now.Sub(c.active)
	if idle >= lostAfter {
		c.lost = fmt.Errorf("pod %s is gone or not ready, and has not answered for %s", c.pod, idle.Round(time.Second))
	}
	lost := c.lost != nil
	c.mu.Unlock()
	if lost {
		_ = c.Close()
	}
}

// transferred notes that n bytes were transferred, and explains err.
func (c *watchedConn) transferred(n int, err error) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n > 0 {
		c.active = time.Now()
	}
	if err != nil && c.lost != nil {
		err = c.lost
	}
	return n, err
}

func (c *watchedConn) Read(p []byte) (int, error)  { return c.transferred(c.Conn.Read(p)) }
func (c *watchedConn) Write(p []byte) (int, error) { return c.transferred(c.Conn.Write(p)) }

func (c *watchedConn) Close() error {
	c.set.mu.Lock()
	delete(c.set.conns, c)
	c.set.mu.Unlock()
	return c.Conn.Close()
}
