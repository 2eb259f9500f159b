package registry

import (
	"encoding/json"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/internal/net/freeport"
	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles/tlsfilestest"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// loopback returns a client of the loopback listener.
func (i *instance) loopback() client {
	c := i.plain()
	c.base = "http://" + i.addresses["loopback"]
	return c
}

// Claim (without a credential): Port-forwards to the plain port need a credential, also for reading and with
// `auth.anonymousPull`.
func TestAuthorizationAtTheLoopbackListener(t *testing.T) {
	t.Parallel()
	i := start(t, newTestCA(t), t.TempDir(), func(o *Options) { o.AnonymousPull = true })
	d := i.pusher().pushBlob("a", "content").String()
	i.loopback().tryUsers(t, d, accessLogin, "")
}

// TestLoopbackListenerKeepsThePlainPort covers a switch between the modes: the plain listener, at all
// addresses, opens and closes beside the loopback listener, which has the same port.
func TestLoopbackListenerKeepsThePlainPort(t *testing.T) {
	t.Parallel()
	address := freeport.Loopback(t)
	_, port, _ := net.SplitHostPort(address)
	f := openFollowed(t, func(o *Options) {
		o.PlainListen, o.LoopbackListen, o.AnonymousPull = ":"+port, address, true
	})
	f.run()
	f.pusher().pushBlob("a", "content")
	elsewhere := f.plain()
	elsewhere.base = "http://127.0.0.2:" + port
	forwarded := f.loopback()
	reads := func(when string) {
		t.Helper()
		forwarded.CloseIdleConnections() // each request opens a connection
		if a := forwarded.mustAny("GET", "/v2/"); a.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s: status %d without a credential", when, a.StatusCode)
		}
		forwarded.as(pushUser, pushPassword).must(http.StatusOK, "GET", "/v2/", nil)
	}
	for range 3 {
		eventually(t, "the plain listener is closed", func() bool { return f.server.plain.address() == nil })
		elsewhere.CloseIdleConnections()
		if a, err := elsewhere.send("GET", "/v2/", nil); err == nil {
			t.Errorf("status %d at another address while the plain listener is closed", a.StatusCode)
		}
		reads("while the plain listener is closed")
		f.addUser(pullUser, pullPassword)
		eventually(t, "the plain listener is open", func() bool { return f.server.plain.address() != nil })
		elsewhere.must(http.StatusOK, "GET", "/v2/_catalog", nil) // anonymous
		reads("while the plain listener is open")
		tlsfilestest.WriteSecret(t, f.volume, nil)
	}
}

// Claim: Port-forwards to the plain port cannot change the project's own images.
func TestOwnRepositoriesAtTheLoopbackListener(t *testing.T) {
	t.Parallel()
	i := start(t, newTestCA(t), t.TempDir())
	pusher := i.pusher()
	for _, name := range []string{"a", probesOfNodePort, probesOfProxies, "zarf-registry/init-hook", "zarf-registrar/b", "zz/c"} {
		pusher.pushImage(name, "v1", "layer")
	}
	forwarded := i.loopback().as(pushUser, pushPassword)

	all := []string{"a", "zarf-registrar/b", "zarf-registry/init-hook", probesOfNodePort, probesOfProxies, "zz/c"}
	if names := pusher.catalog("/v2/_catalog"); !slices.Equal(names, all) {
		t.Errorf("the catalog over mutual TLS is %q, want %q", names, all)
	}
	others := []string{"a", "zarf-registrar/b", "zz/c"}
	many := i.client(i.ca.client(t, pki.OrganizationClient))
	if names := many.catalog("/v2/_catalog"); !slices.Equal(names, others) {
		t.Errorf("the catalog for the client role is %q, want %q", names, others)
	}
	many.as(pushUser, pushPassword).must(http.StatusForbidden, http.MethodDelete,
		"/v2/zarf-registry/init-hook/manifests/v1", nil)
	for _, path := range []string{"/v2/_catalog", "/v2/_catalog?n=1", "/v2/_catalog?n=2", "/v2/_catalog?n=3"} {
		if names := forwarded.catalog(path); !slices.Equal(names, others) {
			t.Errorf("%s at the loopback listener lists %q, want %q", path, names, others)
		}
	}

	forwarded.must(http.StatusOK, "GET", "/v2/zarf-registry/init-hook/manifests/v1", nil,
		"Accept", "application/vnd.oci.image.manifest.v1+json")
	for method, path := range map[string]string{
		http.MethodDelete: "/v2/zarf-registry/init-hook/manifests/v1",
		http.MethodPut:    "/v2/zarf-registry/init-hook/manifests/v2",
		http.MethodPost:   "/v2/zarf-registry/init-hook/blobs/uploads/",
	} {
		a := forwarded.must(http.StatusForbidden, method, path, nil)
		if !strings.Contains(a.body, "belongs to the registry itself") {
			t.Errorf("%s: %s", method, a.body)
		}
	}
	for _, name := range []string{probesOfProxies, probesOfNodePort} {
		forwarded.must(http.StatusForbidden, "GET", "/v2/"+name+"/manifests/v1", nil)
	}
	i.client(i.ca.client(t, pki.OrganizationPush)).as(pushUser, pushPassword).must(
		http.StatusAccepted, "DELETE", "/v2/zarf-registry/init-hook/manifests/v1", nil)
}

// catalog lists repositories, page by page.
func (c client) catalog(path string) (names []string) {
	c.t.Helper()
	for path != "" {
		a := c.must(http.StatusOK, "GET", path, nil)
		var page struct{ Repositories []string }
		require.NoError(c.t, json.Unmarshal([]byte(a.body), &page))
		names = append(names, page.Repositories...)
		path, _, _ = strings.Cut(strings.TrimPrefix(a.Header.Get("Link"), "<"), ">")
	}
	return names
}
