package remote

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// routes are the ways to a registry and to where it leads: its token server, and
// the hosts that have its blobs.
type routes struct {
	host      string
	elsewhere bool
	registry  *http.Transport
	tokens    *http.Transport // trusts whom the registry's does, and shows no client certificate
	blobs     *http.Transport // trusts the system's CAs, and shows no client certificate
	servers   tokenServers
}

const (
	dialTimeout = 30 * time.Second // as http.DefaultTransport

	// maxRedirects is what browsers and net/http allow.
	maxRedirects = 10
)

func newRoutes(r *Registry, opts Options) *routes {
	dialer := &net.Dialer{Timeout: dialTimeout}
	transport := func(dial func(context.Context, string, string) (net.Conn, error), config *tls.Config) *http.Transport {
		// Blobs that move at once go over connections of their own: in HTTP/2 they
		// would share one, and wait for each other in its window.
		var protocols http.Protocols
		protocols.SetHTTP1(true)
		t := &http.Transport{
			Protocols:             &protocols,
			DialContext:           dial,
			TLSClientConfig:       config,
			TLSHandshakeTimeout:   10 * time.Second, // as http.DefaultTransport
			ResponseHeaderTimeout: opts.answer,
			MaxIdleConnsPerHost:   opts.Connections,
			IdleConnTimeout:       90 * time.Second, // as http.DefaultTransport
			WriteBufferSize:       writeBuffer,
			DisableCompression:    true, // digests and lengths are of what is stored
		}
		if dial == nil {
			t.Proxy = http.ProxyFromEnvironment
			t.DialContext = dialer.DialContext
		}
		t.DialContext = r.wrapping(t.DialContext)
		return t
	}
	tokensTLS := opts.TLS.Clone()
	if tokensTLS != nil {
		tokensTLS.Certificates, tokensTLS.GetClientCertificate, tokensTLS.ServerName = nil, nil, ""
	}
	return &routes{
		host:      r.Host(),
		elsewhere: opts.Elsewhere,
		registry:  transport(opts.DialContext, opts.TLS.Clone()),
		tokens:    transport(nil, tokensTLS),
		blobs:     transport(nil, opts.cdnTLS),
		servers:   tokenServers{paths: map[string]string{}, realm: map[string]*url.URL{}},
	}
}

func (w *routes) closeIdle() {
	w.registry.CloseIdleConnections()
	w.tokens.CloseIdleConnections()
	w.blobs.CloseIdleConnections()
}

// RoundTrip implements [http.RoundTripper].
func (w *routes) RoundTrip(req *http.Request) (*http.Response, error) {
	if sameHost(req.URL, w.host) {
		if token := w.servers.request(req); token != nil {
			return w.ask(token)
		}
		resp, err := w.registry.RoundTrip(req)
		if err == nil && resp.StatusCode == http.StatusUnauthorized {
			w.servers.admit(resp)
		}
		return resp, err
	}
	first := req
	for first.Response != nil {
		first = first.Response.Request
	}
	if sameHost(first.URL, w.host) {
		return w.blobs.RoundTrip(req)
	}
	return w.tokens.RoundTrip(req)
}

// checkRedirect allows what [Options.Elsewhere] says. Only what asks may be
// redirected: what sends, not even to the registry itself.
func (w *routes) checkRedirect(req *http.Request, via []*http.Request) error {
	first := via[0]
	direction, _ := first.Context().Value(streamKey{}).(stream)
	switch {
	case len(via) >= maxRedirects:
		return answerErrorf("redirects more than %d times", maxRedirects)
	case !sameHost(first.URL, w.host):
		return nil // a token server's; auth.Client looks at those
	case first.Method != http.MethodGet && first.Method != http.MethodHead:
		return answerErrorf("redirects a %s to %s, which is not allowed", first.Method, req.URL.Host)
	case via[len(via)-1].URL.Scheme == "https" && req.URL.Scheme != "https":
		return answerErrorf("redirects from HTTPS to %s://%s, which is not allowed", req.URL.Scheme, req.URL.Host)
	case sameHost(req.URL, w.host):
		return nil
	case direction != down:
		return answerErrorf("redirects to %s, which is allowed for blobs only", req.URL.Host)
	case !w.elsewhere:
		return answerErrorf("redirects to %s for a blob, which is not allowed", req.URL.Host)
	}
	// net/http leaves these out for other names, but not for other ports.
	for _, header := range []string{"Authorization", "Cookie"} {
		req.Header.Del(header)
	}
	return nil
}

// sameHost tells whether a URL leads to a host, of which the port is the scheme's
// if it has none.
func sameHost(u *url.URL, host string) bool {
	return strings.EqualFold(canonicalHost(u.Scheme, u.Host), canonicalHost(u.Scheme, host))
}

func canonicalHost(scheme, host string) string {
	port := ":443"
	if scheme == "http" {
		port = ":80"
	}
	return strings.TrimSuffix(host, port)
}
