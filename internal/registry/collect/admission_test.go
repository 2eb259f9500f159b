package collect

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/api/gc"
)

func TestInvalidLeaseExpires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newTestStorage(t)
		m.put(leasePath, "{")
		c := m.process()
		c.Times.WaitTimeout = 0
		if code, _ := m.push(c, nil, func() {}); code != http.StatusServiceUnavailable {
			t.Errorf("%d", code)
		}
		c.Times.WaitTimeout = time.Hour
		if code, _ := m.push(c, nil, func() {}); code != http.StatusCreated {
			t.Errorf("%d", code)
		}
		m.blob("garbage")
		time.Sleep(time.Minute)
		m.collect(c, gc.Request{}, nothing)
		if r, err := c.leases.read(t.Context(), 0); err != nil || r.record.Succeeded == 0 {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

func TestSlowLeaseReadingCountsFromItsBeginning(t *testing.T) {
	t.Parallel()
	leases, times := newTestStorage(t).process().leases, defaultTimes
	now := time.Now()
	r := &leaseReading{record: leaseRecord{Held: true}, changed: now.Add(-time.Hour),
		at: now.Add(-time.Hour + times.Heartbeat)}
	if !leases.held(r) {
		t.Error("a collector counts as dead because the storage was slow")
	}
	r.at = now
	if leases.held(r) {
		t.Error("a dead collector blocks manifests")
	}
}
