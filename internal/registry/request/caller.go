package request

import (
	"context"
	"log/slog"
	"net/http"
)

// Caller is the client of a request.
type Caller struct {
	Listener, Remote string
	Roles            []string // of its certificate
	Certificate      string   // the subject of its certificate, or ""
	User             string   // if known, also with a wrong password
	Pushes           bool     // may push; known of HEAD requests for manifests
	HidesOwn         bool     // the project's own repositories are not listed
}

// Audit returns the attributes that identify the client; none without one.
func (c *Caller) Audit() []slog.Attr {
	if c == nil {
		return nil
	}
	attrs := []slog.Attr{slog.String("user", c.User)}
	if c.Certificate != "" {
		attrs = append(attrs, slog.String("certificate", c.Certificate))
	}
	return append(attrs, slog.String("listener", c.Listener), slog.String("remote", c.Remote))
}

// contextKey is the context key of what is known about a request.
type contextKey struct{}

type known struct {
	target Target
	caller *Caller
}

// With returns the request with its target and its client, which handlers get with TargetOf and CallerOf.
func With(r *http.Request, to Target, by *Caller) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), contextKey{}, known{to, by}))
}

// TargetOf returns the target of a request. Without one, it parses the path. The path of a request that a handler
// passes on may be another one.
func TargetOf(r *http.Request) Target {
	if k, ok := r.Context().Value(contextKey{}).(known); ok {
		return k.target
	}
	return Parse(r)
}

// CallerOf returns the client of a request, or nil if no front end has served it.
func CallerOf(ctx context.Context) *Caller {
	k, _ := ctx.Value(contextKey{}).(known)
	return k.caller
}
