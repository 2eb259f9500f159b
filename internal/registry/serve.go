package registry

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// Serve listens and serves until ctx ends, then drains: it reports not ready at once, accepts
// connections for another Options.ShutdownDelay, and cuts off what still runs after
// Options.DrainTimeout. It returns nil after that, or the error of a listener. A plain listener that
// follows Options.PullHtpasswd is retried instead.
func (s *Server) Serve(ctx context.Context) error {
	registry, diagnostics := s.endpoints()
	if err := listen(ctx, slices.Concat(diagnostics, registry)); err != nil {
		return err
	}
	return s.serve(ctx, registry, diagnostics)
}

func (s *Server) serve(ctx context.Context, registry, diagnostics []*endpoint) error {
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { s.credentials.Run(background, func() { s.watchPullUsers(background) }) })
	// Not waited for, because the storage may hang.
	go s.health.Run(background)
	go s.collector.Poll(background, s.health.Interval)
	go s.scrubber.Poll(background)
	var writing sync.WaitGroup
	writing.Go(func() { s.space.Poll(background, !storage.ReadOnly(s.options.Config.Storage)) })
	if !storage.ReadOnly(s.options.Config.Storage) {
		writing.Go(func() { s.source.KeepRebuilding(background) })
	}
	if s.certificates != nil {
		running.Go(func() { s.certificates.Run(background) })
	}
	if s.exposed != nil {
		running.Go(func() { s.exposed.Run(background) })
	}
	defer running.Wait()
	// Nothing is written after the end, unless the storage hangs.
	defer waitFor(&writing, s.writeTimeout)
	defer stop()

	failed := make(chan error, len(registry)+len(diagnostics))
	for _, e := range slices.Concat(diagnostics, registry) {
		s.log.Info("listening", "listener", e.name, "address", e.listener.Addr().String())
		running.Go(func() { failed <- e.serve() })
	}

	var err error
	var delay time.Duration
	select {
	case err = <-failed:
	case <-ctx.Done():
		delay = s.options.ShutdownDelay
	}
	s.draining.Store(true)
	s.log.Info("shutting down", "delay", delay.String(), "drain", s.options.DrainTimeout.String())
	<-s.after(delay)
	if s.plain != nil {
		registry = append(registry, s.plain.handOff()...)
	}
	s.drain(registry)
	for _, e := range diagnostics {
		_ = e.server.Close()
	}
	return errors.Join(err, s.source.Shutdown())
}

// waitFor waits until a group is done, but not longer than timeout.
func waitFor(group *sync.WaitGroup, timeout time.Duration) {
	done := make(chan struct{})
	go func() {
		group.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(timeout):
	}
}

func (s *Server) drain(endpoints []*endpoint) {
	ctx, cancel := context.WithTimeout(context.Background(), s.options.DrainTimeout)
	defer cancel()
	var draining sync.WaitGroup
	for _, e := range endpoints {
		draining.Go(func() {
			if err := e.drain(ctx); err != nil {
				s.log.Warn("requests were cut off: raise --drain-timeout", "listener", e.name, "error", err)
			}
		})
	}
	draining.Wait()
}

// watchPullUsers opens the plain listener while pull-only users are loaded, and closes it otherwise.
func (s *Server) watchPullUsers(ctx context.Context) {
	switch {
	case s.plain == nil:
	case s.credentials.HasPullUsers():
		s.plain.open(ctx, s.options.PullHtpasswd+" has users")
	default:
		s.plain.close(s.options.PullHtpasswd + " has no users")
	}
}
