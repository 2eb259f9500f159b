package request

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// keepAlivePeriod is how often a silent response sends something: load balancers in front of an API server close
// connections that are idle for a minute or more.
const keepAlivePeriod = 5 * time.Second

// Stream responds with the events that run sends, one line of JSON for each; bytes are lines already. While there are
// none, it sends what keepAlive returns, or an empty line without keepAlive. The context of run ends when the client
// disconnects or, with keepAlive, the registry shuts down.
func Stream(
	ctx context.Context, draining *atomic.Bool, w http.ResponseWriter, keepAlive func() any,
	run func(ctx context.Context, send func(any)),
) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Cache-Control", "no-store")
	events := make(chan any)
	go func() {
		defer close(events)
		run(ctx, func(event any) { events <- event })
	}()

	encoder, control := json.NewEncoder(w), http.NewResponseController(w)
	ticker := time.NewTicker(keepAlivePeriod)
	defer ticker.Stop()
	for {
		var err error
		select {
		case event, ok := <-events:
			if !ok {
				return
			}
			if lines, ok := event.([]byte); ok {
				_, err = w.Write(lines)
			} else {
				err = errors.Join(encoder.Encode(event), control.Flush())
			}
		case <-ticker.C:
			if draining.Load() && keepAlive != nil { // otherwise the end is near
				cancel(errors.New("the registry is shutting down"))
			}
			if keepAlive != nil {
				err = encoder.Encode(keepAlive())
			} else {
				_, err = io.WriteString(w, "\n")
			}
			err = errors.Join(err, control.Flush())
		}
		if err != nil {
			cancel(fmt.Errorf("the client disconnected: %w", err))
		}
	}
}
