package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// count counts attempts of one kind.
type count struct {
	Attempts int           `json:"attempts"`
	Failures int           `json:"failures"`
	Broken   int           `json:"broken"`           // responses that began and did not end, and timeouts
	First    string        `json:"first,omitempty"`  // the first failure
	Longest  time.Duration `json:"longest"`          // the slowest attempt that succeeded
	Gap      time.Duration `json:"gap"`              // the longest time between two successes
	Bytes    int64         `json:"bytes"`            // 0 if the container runtime pulls
	Record   []string      `json:"record,omitempty"` // failures, and attempts that took seconds
	last     time.Time     // the last success
}

// Limits of a record.
const (
	slowAttempt = 2 * time.Second
	records     = 1000
)

// add adds an attempt that has ended.
func (c *count) add(begin time.Time, bytes int64, err error) {
	c.Attempts++
	c.Bytes += bytes
	if err != nil {
		c.Failures++
		if errors.Is(err, errBroken) || os.IsTimeout(err) {
			c.Broken++
		}
		if c.First == "" {
			c.First = begin.Format(time.RFC3339Nano) + ": " + err.Error()
		}
		c.record(begin, err.Error())
		return
	}
	now := time.Now()
	if took := now.Sub(begin); took > slowAttempt {
		c.record(begin, "succeeded")
	}
	c.Longest = max(c.Longest, now.Sub(begin))
	if !c.last.IsZero() {
		c.Gap = max(c.Gap, now.Sub(c.last))
	}
	c.last = now
}

func (c *count) record(begin time.Time, result string) {
	if len(c.Record) < records {
		c.Record = append(c.Record, fmt.Sprintf("%s, %.2f s: %s", begin.Format(time.RFC3339Nano), time.Since(begin).Seconds(),
			result))
	}
}

// report is what a loop prints at its end.
type report struct {
	Pulls    count `json:"pulls"`
	Connects count `json:"connects"`
	Slow     count `json:"slow"` // pulls at 1 MB/s
}

const (
	// enough pulls for a result on a slow machine
	enough = 5
	// connectInterval is the time between two TCP connects.
	connectInterval = 20 * time.Millisecond
	// connectTimeout is that of container runtimes. A busy machine drops packets, which the kernel sends again
	// after 1, 3, 7 and 15 s.
	connectTimeout = 30 * time.Second
)

// loop calls pull with 0, 1, 2 and so on, with a pause after each, until the stop file exists and
// there were enough pulls, and prints a report. It ends after ten minutes at the latest. After its
// first pull it creates STOP-FILE.begun-…. Meanwhile, it connects to the registry every 20 ms and
// pulls the slow image slowly, if there is one.
func loop(base, slow, stopFile string, pause time.Duration, pull func(i int) (bytes int64, err error)) error {
	registry, err := url.Parse(base)
	if err != nil {
		return err
	}
	var r report
	var group sync.WaitGroup
	done := make(chan struct{})
	group.Go(func() { connectUntil(done, registry.Host, &r.Connects) })
	if slow != "" {
		group.Go(func() { pullSlowlyUntil(done, base, slow, &r.Slow) })
	}
	for end := time.Now().Add(10 * time.Minute); time.Now().Before(end); time.Sleep(pause) {
		if r.Pulls.Attempts == 1 {
			begun, err := os.CreateTemp(filepath.Dir(stopFile), filepath.Base(stopFile)+".begun-*")
			if err != nil {
				return err
			}
			begun.Close()
		}
		if _, err := os.Stat(stopFile); err == nil && r.Pulls.Attempts >= enough {
			break
		}
		begin := time.Now()
		n, err := pull(r.Pulls.Attempts)
		r.Pulls.add(begin, n, err)
	}
	close(done)
	group.Wait()
	return json.NewEncoder(os.Stdout).Encode(r)
}

// connectUntil connects to address and resets the connection, which leaves no socket behind.
func connectUntil(done <-chan struct{}, address string, c *count) {
	ticker := time.NewTicker(connectInterval)
	defer ticker.Stop()
	for {
		select {
		case <-done:
			return
		case <-ticker.C:
		}
		begin := time.Now()
		conn, err := dialFromNextPort(context.Background(), "tcp", address, connectTimeout)
		c.add(begin, 0, err)
		if err == nil {
			_ = conn.(*net.TCPConn).SetLinger(0)
			_ = conn.Close()
		}
	}
}

// pullSlowlyUntil pulls an image slowly, again and again. At the end it does not wait for a pull that makes
// progress, nor count it, but the gap includes it. It waits for one that hangs, which fails at the latest after
// idleTimeout.
func pullSlowlyUntil(done <-chan struct{}, base, image string, c *count) {
	repository, tag := split(image)
	var read atomic.Int64
	client := slowClient(&read)
	ended := make(chan struct{}, 1)
	for {
		var n int64
		var err error
		begin := time.Now()
		go func() {
			n, err = pull(client, base, repository, tag)
			ended <- struct{}{}
		}()
		select {
		case <-done:
			for before := read.Load(); read.Load() == before; {
				select {
				case <-ended:
					c.add(begin, n, err)
					return
				case <-time.After(connectInterval):
				}
			}
			if !c.last.IsZero() {
				c.Gap = max(c.Gap, time.Since(c.last))
			}
			return
		case <-ended:
			c.add(begin, n, err)
		}
		if err != nil {
			time.Sleep(100 * time.Millisecond) // a refused connection takes no time
		}
	}
}
