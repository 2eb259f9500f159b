package remote

import (
	"crypto/rand"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// tokenServers makes token servers in private networks usable that have another host name than their registry, as
// GitLab's has. To prevent SSRF, auth.Client refuses token servers with private addresses on other hosts. A registry
// that is in a private network itself gains nothing by naming one, so its token server is announced to auth.Client
// under a random path on the registry's own host. [registryReach] checks the address that is dialed.
type tokenServers struct {
	mu     sync.Mutex
	paths  map[string]string   // by realm
	realms map[string]*url.URL // by path
}

// bearerRealm matches the realm in a Bearer challenge (RFC 6750, section 3).
var bearerRealm = regexp.MustCompile(`(?i)^Bearer\s(?:.*[\s,])?realm="([^"]*)"`)

// rewriteRealm replaces the realm of a challenge by a path on the registry's host, if it is in a private network. The
// registry must be in one.
func (s *tokenServers) rewriteRealm(resp *http.Response) {
	challenge := resp.Header.Get("Www-Authenticate")
	match := bearerRealm.FindStringSubmatch(challenge)
	if match == nil {
		return
	}
	registry := resp.Request.URL
	realm, err := url.Parse(match[1])
	if err != nil || realm.Hostname() == "" || strings.EqualFold(realm.Hostname(), registry.Hostname()) ||
		realm.Scheme != "https" && (realm.Scheme != "http" || registry.Scheme != "http") {
		return
	}
	addresses, _ := net.DefaultResolver.LookupNetIP(resp.Request.Context(), "ip", realm.Hostname())
	if !slices.ContainsFunc(addresses, near) {
		return // auth.Client accepts it, or reports that it cannot be resolved
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	path := s.paths[realm.String()]
	if path == "" {
		path = "/" + rand.Text()
		s.paths[realm.String()], s.realms[path] = path, realm
	}
	local := url.URL{Scheme: registry.Scheme, Host: registry.Host, Path: path, RawQuery: realm.RawQuery}
	resp.Header.Set("Www-Authenticate", strings.Replace(challenge, `"`+match[1]+`"`, `"`+local.String()+`"`, 1))
}

// request returns the request to the token server that req stands for, or nil if req is for the registry.
func (s *tokenServers) request(req *http.Request) *http.Request {
	s.mu.Lock()
	realm := s.realms[req.URL.Path]
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
