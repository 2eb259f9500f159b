package nodeport

import (
	"context"
	"time"
)

// ReserveAgain makes kube-proxy leave the node port to the proxies, which still serve it. It returns
// what it changed, "" if nothing had to be changed.
func (p *Port) ReserveAgain(ctx context.Context) (outcome string, err error) {
	s, err := p.get(ctx)
	if err != nil || s == nil {
		return "", err
	}
	changed, err := p.change(ctx, s, p.PortService(true))
	if err != nil || !changed {
		return "", err
	}
	return p.Object("Service", s.Name) + " only reserves the port again", nil
}

// ServeAgain makes kube-proxy serve the node port again. It calls open first, and waits for each of both
// for a limited time. It returns what it changed, "" if nothing had to be changed.
func (p *Port) ServeAgain(ctx context.Context, limit time.Duration, open func(context.Context)) (string, error) {
	s, err := p.get(ctx)
	if err != nil || s == nil || matches(s, p.PortService(false)) {
		return "", err
	}
	listener, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	open(listener)
	if _, err := p.serve(ctx, s, limit); err != nil {
		p.Log.Warn("the node port may have no endpoints", "error", err.Error())
		if _, err := p.change(ctx, s, p.PortService(false)); err != nil {
			return "", err
		}
	}
	return p.Object("Service", s.Name) + " serves the port again", nil
}
