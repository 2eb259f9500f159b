package collect

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/registry/poll"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// renewal is a record that a process renews at every heartbeat, so that others respect it. It is lost once that has not
// succeeded for RenewDeadline: they may no longer respect it, and the process cannot make them respect it again.
type renewal struct {
	leases *leaseClient
	path   string
	stop   context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	renewed time.Time // when the last successful write began
	lost    error     // why the record is lost, or nil
}

// put writes the record.
func (r *renewal) put(ctx context.Context, content []byte) error {
	at := time.Now()
	if err := storage.PutRecord(ctx, r.leases.driver, r.leases.root, r.path, content); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.renewed.IsZero() {
		r.checkDeadline() // other processes could not see this heartbeat earlier
	}
	r.renewed = at
	return nil
}

// keep calls renew at every heartbeat, until it returns false or halt is called.
func (r *renewal) keep(ctx context.Context, renew func(context.Context) bool) {
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	r.stop, r.done = stop, make(chan struct{})
	go func() {
		defer close(r.done)
		for poll.Sleep(background, r.leases.times.Heartbeat) == nil && renew(background) {
			continue
		}
	}()
}

// halt leaves the record as it is.
func (r *renewal) halt() {
	r.stop()
	<-r.done
}

// err returns nil while other processes respect the record. Once it has returned an error, it always does.
func (r *renewal) err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.checkDeadline()
	return r.lost
}

// checkDeadline requires r.mu.
func (r *renewal) checkDeadline() {
	if since := time.Since(r.renewed); since > r.leases.times.RenewDeadline && r.lost == nil {
		r.lost = fmt.Errorf("the storage has accepted no heartbeat for %s", since.Round(time.Second))
	}
}
