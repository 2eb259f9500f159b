package remote

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	dialTimeout = 30 * time.Second // as http.DefaultTransport

	maxIdleConns = 100 // as many as a command may use at once

	// maxRedirects is the limit of browsers and net/http.
	maxRedirects = 10

	// writeBufferSize holds a request and, in most cases, its manifest.
	writeBufferSize = 64 << 10
)

// hostRouter sends requests to the registry, its token server and the hosts to which it redirects, each with the
// trust and client certificate that they may have.
type hostRouter struct {
	host     string
	registry *http.Transport
	others   *http.Transport // trusts the same CAs, without a client certificate
	servers  tokenServers
	reach    *registryReach
}

func newHostRouter(host string, opts Options) *hostRouter {
	othersTLS := opts.TLS.Clone()
	if othersTLS != nil {
		othersTLS.Certificates, othersTLS.GetClientCertificate, othersTLS.ServerName = nil, nil, ""
	}
	reach := &registryReach{}
	return &hostRouter{
		host:     host,
		registry: newTransport(opts, opts.DialContext, opts.TLS.Clone()),
		others:   reach.guard(newTransport(opts, nil, othersTLS), opts.Rate),
		reach:    reach,
		servers:  tokenServers{paths: map[string]string{}, realms: map[string]*url.URL{}},
	}
}

func newTransport(opts Options, dial dialFunc, config *tls.Config) *http.Transport {
	bufferSize := writeBufferSize
	if opts.Rate != nil { // progress is seen, and the idle timeout restarted, when a buffer is sent
		bufferSize = min(bufferSize, opts.Rate.sent.Burst())
	}
	// HTTP/2 would send concurrent blobs over one connection, where they share a flow-control window.
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	t := &http.Transport{
		Protocols:           &protocols,
		TLSClientConfig:     config,
		TLSHandshakeTimeout: dialTimeout,
		MaxIdleConnsPerHost: maxIdleConns,
		IdleConnTimeout:     90 * time.Second, // as http.DefaultTransport
		WriteBufferSize:     bufferSize,
		DisableCompression:  true, // digests and sizes are those of the stored content
	}
	if dial == nil {
		t.Proxy = http.ProxyFromEnvironment
		dial = (&net.Dialer{Timeout: dialTimeout}).DialContext
	}
	t.DialContext = dialWithGrace(dial, opts.Rate)
	return t
}

func (h *hostRouter) closeIdle() {
	h.registry.CloseIdleConnections()
	h.others.CloseIdleConnections()
}

func (h *hostRouter) RoundTrip(req *http.Request) (*http.Response, error) {
	if sameHost(req.URL, h.host) {
		if token := h.servers.request(req); token != nil {
			resp, err := h.reach.roundTrip(h.others, token)
			if err != nil {
				err = fmt.Errorf("token server %s: %w", token.URL.Host, err)
			}
			return resp, err
		}
		resp, err := h.reach.observe(h.registry, req)
		if err == nil && resp.StatusCode == http.StatusUnauthorized && h.reach.near.Load() {
			h.servers.rewriteRealm(resp)
		}
		return resp, err
	}
	return h.reach.roundTrip(h.others, req)
}

// checkRedirect lets the registry redirect GET and HEAD to other hosts: of blobs, as registries do that keep them in S3
// or behind a CDN, and of manifests, as registry.k8s.io does. The other host gets neither credential nor client
// certificate, is verified with the CAs of [Options.TLS], and must use HTTPS if the registry does. Addresses are
// checked when they are dialed ([registryReach]).
func (h *hostRouter) checkRedirect(req *http.Request, via []*http.Request) error {
	first := via[0]
	switch {
	case len(via) >= maxRedirects:
		return protocolErrorf("redirected more than %d times", maxRedirects)
	case !sameHost(first.URL, h.host):
		return nil // from a token server; auth.Client checks these
	case first.Method != http.MethodGet && first.Method != http.MethodHead:
		return protocolErrorf("redirected a %s to %s, which is not allowed", first.Method, req.URL.Host)
	case via[len(via)-1].URL.Scheme == "https" && req.URL.Scheme != "https":
		return protocolErrorf("redirected from HTTPS to %s://%s, which is not allowed", req.URL.Scheme, req.URL.Host)
	case sameHost(req.URL, h.host):
		return nil
	}
	// net/http drops these for other host names, but not for other ports.
	for _, header := range []string{"Authorization", "Cookie"} {
		req.Header.Del(header)
	}
	return nil
}

// sameHost reports whether a URL points to a host. A missing port is the default of the URL's scheme.
func sameHost(u *url.URL, host string) bool {
	return strings.EqualFold(withoutDefaultPort(u.Scheme, u.Host), withoutDefaultPort(u.Scheme, host))
}

func withoutDefaultPort(scheme, host string) string {
	port := ":443"
	if scheme == "http" {
		port = ":80"
	}
	return strings.TrimSuffix(host, port)
}
