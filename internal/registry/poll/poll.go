// Package poll waits for a time, unless a context ends first.
//
// It does not retry: its callers do.
package poll

import (
	"context"
	"time"
)

// Sleep returns nil after d, or the cause of ctx's end.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// Every calls do at once, and again after each interval until ctx ends.
func Every(ctx context.Context, interval time.Duration, do func()) {
	for {
		do()
		if Sleep(ctx, interval) != nil {
			return
		}
	}
}

// Cause returns the cause of ctx's end instead of an error, if it has ended: the error only follows from it.
func Cause(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
