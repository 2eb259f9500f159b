package cache

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/internal/pki"
)

const (
	// confirmFor is how long content remains available after the registry has stopped serving it, and how
	// often a cache asks for it. Tags are asked for each time.
	confirmFor = 10 * time.Second
	// maxConfirmations is how many are remembered: each takes about 1 KiB.
	maxConfirmations = 16 << 10
	// maxKey is the length in bytes of a key that is remembered. Runtimes accept types of less than 1 KiB.
	maxKey = 4 << 10
	// unreachableFor is how long stale content is served without asking an unreachable registry again.
	unreachableFor = 3 * time.Second
	// writeTimeout is for a client to take a chunk.
	writeTimeout = time.Minute
)

// confirmation is what the registry has said about the content that a target names.
type confirmation struct {
	header http.Header // of the response to HEAD, for clients
	digest digest.Digest
	size   int64
	at     time.Time
	stale  bool // the registry is unreachable
}

// refusal is a response of the registry that is for the client.
type refusal struct{ status string }

func (r *refusal) Error() string { return "the registry responded with " + r.status }

// ServeHTTP handles one client request. Whatever a cache cannot serve gets a 503 without the registry's header,
// for which proxies ask the registry itself. If a response cannot be completed, ServeHTTP panics with
// http.ErrAbortHandler to break the connection: the proxies resume elsewhere.
func (c *Cache) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.metrics.inFlight.Add(1)
	defer c.metrics.inFlight.Add(-1)
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 ||
		!slices.Contains(pki.Roles(r.TLS.PeerCertificates[0]), pki.OrganizationNode) {
		http.Error(w, fmt.Sprintf("caches serve clients whose certificate has the role %q", pki.OrganizationNode),
			http.StatusForbidden)
		return
	}
	if err := c.clients.Verify(w, r); err != nil {
		http.Error(w, err.Error(), http.StatusForbidden)
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "caches are read-only", http.StatusMethodNotAllowed)
		return
	}
	t, ok := parsePath(r.URL.Path)
	if !ok {
		http.Error(w, "caches serve blobs and manifests: ask the registry", http.StatusServiceUnavailable)
		return
	}
	if t.repository == "" {
		c.serveBase(w, r)
		return
	}
	confirmed, err := c.confirm(r.Context(), t, r.Header)
	var refused *refusal
	switch {
	case errors.As(err, &refused):
		if err := c.relay(w, r); err != nil {
			c.unavailable(w, r, err)
		}
	case err != nil:
		c.unavailable(w, r, err)
	case r.Method == http.MethodHead:
		setHeader(w.Header(), confirmed)
	default:
		c.serveContent(w, r, t, confirmed)
	}
}

// serveBase responds to /v2/ as the registry does, and while stale content is served in its place.
func (c *Cache) serveBase(w http.ResponseWriter, r *http.Request) {
	err := errUnreachable
	if !c.unreachable() {
		err = c.relay(w, r)
	}
	if err == nil {
		return
	}
	if time.Since(time.Unix(0, c.reached.Load())) > c.staleFor {
		c.unavailable(w, r, err)
		return
	}
	w.Header().Set(oci.HeaderAPIVersion, "registry/2.0")
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, "{}")
}

var errUnreachable = errors.New("the registry is unreachable")

// unreachable reports whether the registry was unreachable a moment ago, and stale content is served then.
func (c *Cache) unreachable() bool {
	return c.staleFor > 0 && time.Now().UnixNano() < c.retryAt.Load()
}

// ask sends a request to the registry. An error means that stale content of the same target may be served, and of all
// others if the registry is unreachable. An error of its own, or a response that takes too long, may be due to what one
// client asks for, or has pushed.
func (c *Cache) ask(ctx context.Context, method, path string, header http.Header) (*http.Response, error) {
	connected := false
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { connected = false }, // also when a request is sent again
		GotConn: func(httptrace.GotConnInfo) { connected = true },
	})
	response, err := c.origin.do(traced, method, path, header, 0)
	unreachable := err != nil && !connected
	if err == nil && unavailable(response) {
		_ = response.Body.Close()
		unreachable = FromGateway(response)
		err = fmt.Errorf("the registry responded with %s", response.Status)
	}
	if err != nil {
		if ctx.Err() == nil {
			c.metrics.originErrors.Inc()
			if unreachable {
				c.retryAt.Store(time.Now().Add(unreachableFor).UnixNano())
			}
		}
		return nil, err
	}
	c.reached.Store(time.Now().UnixNano())
	return response, nil
}

// relay passes a request on, and the response back, which may be a layer. It returns an error if there is no response.
func (c *Cache) relay(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	response, err := c.ask(ctx, r.Method, r.URL.Path, r.Header)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	maps.Copy(w.Header(), endToEnd(response.Header))
	w.WriteHeader(response.StatusCode)
	to := deadlineWriter{w, http.NewResponseController(w)}
	if _, err := io.Copy(to, &timedReader{response.Body, c.origin.progressTimeout, cancel}); err != nil {
		panic(http.ErrAbortHandler)
	}
	return nil
}

// deadlineWriter renews the deadline of each write.
type deadlineWriter struct {
	io.Writer
	control *http.ResponseController
}

func (w deadlineWriter) Write(p []byte) (int, error) {
	_ = w.control.SetWriteDeadline(time.Now().Add(writeTimeout))
	return w.Writer.Write(p)
}

// confirm asks the registry what a target names, and whether it still serves that: an image may have been
// deleted. Content that the registry has just confirmed is not asked for again; tags always are, so that a pull sees
// every earlier push.
func (c *Cache) confirm(ctx context.Context, t target, header http.Header) (*confirmation, error) {
	path := t.path(t.reference)
	key := path + "\n" + strings.Join(header["Accept"], "\n") // the registry's response depends on both
	last, known := c.confirmations.Get(key)
	immutable := isDigest(t.reference)
	if immutable && known && time.Since(last.at) < c.confirmFor {
		return last, nil
	}
	var now *confirmation
	err := errUnreachable
	switch {
	case c.unreachable():
	case immutable:
		var result any
		result, err, _ = c.flights.Do(key, func() (any, error) { return c.head(context.WithoutCancel(ctx), t, header) })
		now, _ = result.(*confirmation)
	default:
		now, err = c.head(ctx, t, header)
	}
	var refused *refusal
	switch {
	case err == nil:
		if len(key) <= maxKey {
			c.confirmations.Add(key, now)
		}
		if c.staleFor > 0 {
			c.confirmations.Add(path, now)
		}
		return now, nil
	case errors.As(err, &refused):
		c.confirmations.Remove(key)
		c.confirmations.Remove(path)
		return nil, err
	}
	if !known { // what another client with other types got
		last, known = c.confirmations.Get(path)
	}
	if ctx.Err() == nil && known && time.Since(last.at) <= c.staleFor {
		c.metrics.stale.Inc()
		c.log.Warn("the registry does not respond, serving what it served last", "repository", t.repository,
			"reference", t.reference, "age", time.Since(last.at).Round(time.Second).String(), "error", err)
		stale := *last
		stale.stale = true
		return &stale, nil
	}
	return nil, err
}

// head asks the registry. Its error is a *refusal if the registry does not serve the target.
func (c *Cache) head(ctx context.Context, t target, header http.Header) (*confirmation, error) {
	at := time.Now() // what changes while the registry responds counts as later
	response, err := c.ask(ctx, http.MethodHead, t.path(t.reference), header)
	if err != nil {
		return nil, err
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, &refusal{response.Status}
	}
	d, err := digest.Parse(response.Header.Get(oci.HeaderDigest))
	if err == nil && response.ContentLength < 0 {
		err = errors.New("no length")
	}
	if err != nil {
		return nil, fmt.Errorf("the registry's response to HEAD %s cannot be used: %w", t.path(t.reference), err)
	}
	forClients := endToEnd(response.Header)
	return &confirmation{header: forClients, digest: d, size: response.ContentLength, at: at}, nil
}

// setHeader sets what the registry has sent with the content, and a warning about stale content (RFC 7234,
// section 5.5.1).
func setHeader(header http.Header, confirmed *confirmation) {
	maps.Copy(header, confirmed.header)
	if confirmed.stale {
		header.Set("Warning", `110 - "Response is Stale"`)
	}
}

func (c *Cache) serveContent(w http.ResponseWriter, r *http.Request, t target, confirmed *confirmation) {
	b, created, err := c.store.get(confirmed.digest, confirmed.size)
	if err != nil {
		c.unavailable(w, r, err)
		return
	}
	controller := http.NewResponseController(w)
	content := c.store.reader(r.Context(), b, func() { _ = controller.SetWriteDeadline(time.Now().Add(writeTimeout)) })
	defer content.Close()
	if created {
		c.metrics.misses.Inc()
		header := r.Header
		c.fetches.Go(func() { c.fetch(t, b, header) })
	} else {
		c.metrics.hits.Inc()
		content.saved = c.metrics.saved
	}
	if err := b.wait(r.Context(), min(b.size, chunkSize)); err != nil { // before there is a status
		c.unavailable(w, r, err)
		return
	}
	setHeader(w.Header(), confirmed)
	for _, name := range [...]string{"Content-Length", "Content-Range", "Accept-Ranges"} {
		w.Header().Del(name) // ServeContent sets them
	}
	http.ServeContent(w, r, "", time.Time{}, content)
	if content.err != nil {
		if r.Context().Err() == nil {
			c.log.Warn("cannot complete the response, breaking the client's connection", "path", r.URL.Path,
				"error", content.err)
		}
		panic(http.ErrAbortHandler)
	}
}

// fetch fills b from the registry. It goes on when the client that caused it disconnects: others may follow.
func (c *Cache) fetch(t target, b *blob, header http.Header) {
	err := c.store.write(b, func() (io.ReadCloser, error) {
		return c.origin.open(c.ctx, t.path(b.digest.String()), b.size, header)
	})
	if err != nil && c.ctx.Err() == nil {
		c.metrics.fetchErrors.Inc()
		c.log.Warn("cannot fetch content from the registry", "repository", t.repository, "digest", b.digest.String(),
			"error", err)
	}
}

// unavailable tells a proxy to ask the registry itself.
func (c *Cache) unavailable(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() == nil {
		c.metrics.unavailable.Inc()
		c.log.Warn("cannot serve from the cache", "path", r.URL.Path, "error", err)
	}
	http.Error(w, err.Error(), http.StatusServiceUnavailable)
}
