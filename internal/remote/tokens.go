package remote

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// tokenServers are those that a registry in a private network names, and that have
// another host's name than itself, as GitLab's has. auth.Client asks none that is not
// in the internet, lest a registry there leads it to what is only in here. A registry
// that is in here itself need not lead anybody to get there, so its token server goes
// by a path on the registry's own host, which nobody else knows.
type tokenServers struct {
	mu    sync.Mutex
	paths map[string]string   // by realm
	realm map[string]*url.URL // by path
}

// realmOf finds the token server in a challenge (RFC 6750, section 3).
var realmOf = regexp.MustCompile(`(?i)^Bearer\s(?:.*[\s,])?realm="([^"]*)"`)

// cgnat is private, too (RFC 6598).
var cgnat = netip.MustParsePrefix("100.64.0.0/10")

// admit has auth.Client ask the token server that an answer names, if that may be.
func (s *tokenServers) admit(resp *http.Response) {
	found := realmOf.FindStringSubmatch(resp.Header.Get("Www-Authenticate"))
	if found == nil {
		return
	}
	at := resp.Request.URL
	realm, err := url.Parse(found[1])
	if err != nil || realm.Hostname() == "" || strings.EqualFold(realm.Hostname(), at.Hostname()) ||
		realm.Scheme != "https" && (realm.Scheme != "http" || at.Scheme != "http") {
		return
	}
	ctx := resp.Request.Context()
	private := func(a netip.Addr) bool { return a.IsLoopback() || a.IsPrivate() || cgnat.Contains(a) }
	// Clouds keep machines' credentials at addresses that are link-local.
	never := func(a netip.Addr) bool {
		return a.IsLinkLocalUnicast() || a.IsLinkLocalMulticast() || a.IsUnspecified()
	}
	if to := addresses(ctx, realm.Hostname()); !slices.ContainsFunc(to, private) || slices.ContainsFunc(to, never) ||
		!slices.ContainsFunc(addresses(ctx, at.Hostname()), private) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	path := s.paths[realm.String()]
	if path == "" {
		path = "/" + rand.Text()
		s.paths[realm.String()], s.realm[path] = path, realm
	}
	instead := url.URL{Scheme: at.Scheme, Host: at.Host, Path: path, RawQuery: realm.RawQuery}
	resp.Header.Set("Www-Authenticate", strings.Replace(resp.Header.Get("Www-Authenticate"), `"`+found[1]+`"`, `"`+instead.String()+`"`, 1))
}

// request is the one that a token server gets for one on the registry's host, or nil
// if that is not for it.
func (s *tokenServers) request(req *http.Request) *http.Request {
	s.mu.Lock()
	realm := s.realm[req.URL.Path]
	s.mu.Unlock()
	if realm == nil {
		return nil
	}
	target := *realm
	target.RawQuery = req.URL.RawQuery
	req = req.Clone(req.Context())
	req.URL, req.Host = &target, target.Host
	return req
}

// ask asks a token server.
func (w *routes) ask(req *http.Request) (*http.Response, error) {
	resp, err := w.tokens.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("its token server %s: %w", req.URL.Host, err)
	}
	return resp, nil
}

// addresses are a host's, as far as they can be known.
func addresses(ctx context.Context, host string) []netip.Addr {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a.Unmap()}
	}
	list, _ := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	for i, a := range list {
		list[i] = a.Unmap()
	}
	return list
}
