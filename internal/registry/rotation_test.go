package registry

import (
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles/tlsfilestest"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// replaceCertificates replaces the server's files and reloads them at once.
func (i *instance) replaceCertificates(files tlsfilestest.Files) {
	i.t.Helper()
	source := i.server.certificates
	before := source.Current().Generation
	tlsfilestest.WriteSecret(i.t, i.tlsDir, files)
	// The registry may have noticed the change by itself.
	if _, err := source.Reload(); err != nil || source.Current().Generation != before+1 {
		i.t.Fatalf("reload: %v, generation %d after %d", err, source.Current().Generation, before)
	}
}

// The CA is rotated as by init-hook while clients pull in a loop.
func TestRotationFailsNoRequest(t *testing.T) {
	t.Parallel()
	before, after := newTestCA(t), newTestCA(t)
	i := start(t, before, t.TempDir())
	path := "/v2/a/blobs/" + i.pusher().pushBlob("a", random(100<<10)).String()

	// Clients change to another certificate and trust bundle at once, as the proxy does.
	roots := before.pool()
	roots.AddCert(after.Certificate())
	withRoots := func(ca testCA) *client {
		config := &tls.Config{RootCAs: roots, ServerName: serverName,
			Certificates: []tls.Certificate{*ca.client(t, pki.OrganizationNode)}}
		transport := &http.Transport{TLSClientConfig: config, MaxIdleConnsPerHost: 4}
		t.Cleanup(transport.CloseIdleConnections)
		return &client{Client: &http.Client{Transport: transport}, t: t, base: "https://" + i.addresses["tls"]}
	}
	// A request of the previous client must not outlive the rotation that follows.
	var switching sync.RWMutex
	current := withRoots(before)
	pull := func() (answer, error) {
		switching.RLock()
		defer switching.RUnlock()
		return current.send("GET", path, nil)
	}
	var served atomic.Int64
	stop := repeatedly(4, func() bool {
		a, err := pull()
		if err != nil || a.StatusCode != http.StatusOK {
			t.Errorf("a pull failed: %v, %s", err, a.body)
			return false
		}
		served.Add(1)
		return true
	})
	some := func() {
		t.Helper()
		from := served.Load()
		eventually(t, "pulls continue", func() bool { return served.Load() > from+20 })
	}

	some()
	i.replaceCertificates(before.serverFiles(t)) // renewed
	some()
	i.replaceCertificates(before.serverFiles(t, after)) // trusts both CAs
	some()
	switching.Lock()
	current = withRoots(after) // clients get new certificates
	switching.Unlock()
	some()
	i.replaceCertificates(after.serverFiles(t, before)) // the server gets a new certificate
	some()
	i.replaceCertificates(after.serverFiles(t)) // the old CA is dropped
	some()
	stop()

	if _, err := withRoots(before).send("GET", path, nil); err == nil {
		t.Error("a client of the dropped CA still has access")
	}
	if got := i.server.certificates.Current().Generation; got != 5 {
		t.Errorf("generation %d, want 5: the test checked nothing", got)
	}
}

// reused sends a request and reports whether it used an open connection.
func reused(t *testing.T, c client, path string) (a answer, wasOpen bool, err error) {
	t.Helper()
	request, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) { wasOpen = info.Reused },
	}), http.MethodGet, c.base+path, nil)
	require.NoError(t, err)
	response, err := c.Do(request)
	if err != nil {
		return answer{}, wasOpen, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return answer{response, string(body)}, wasOpen, err
}

func TestOpenConnectionsFollowTheCertificates(t *testing.T) {
	t.Parallel()
	before, after := newTestCA(t), newTestCA(t)
	lingering := func(t *testing.T, linger time.Duration) *instance {
		i := open(t, before, t.TempDir())
		i.server.clients.Linger = linger
		i.run()
		return i
	}

	t.Run("a connection of a trusted client is replaced after one more request", func(t *testing.T) {
		i := lingering(t, time.Hour)
		c := i.node()
		for n, want := range []bool{false, true} {
			if a, wasOpen, err := reused(t, c, "/v2/"); err != nil || a.StatusCode != http.StatusOK || wasOpen != want {
				t.Fatalf("request %d: %d, %v, on an open connection %t", n, a.StatusCode, err, wasOpen)
			}
		}
		i.replaceCertificates(before.serverFiles(t, after))
		for n, want := range []bool{true, false, true} {
			if a, wasOpen, err := reused(t, c, "/v2/"); err != nil || a.StatusCode != http.StatusOK || wasOpen != want {
				t.Fatalf("request %d after the reload: %d, %v, on an open connection %t", n, a.StatusCode, err, wasOpen)
			}
		}
	})
	t.Run("a connection whose CA was dropped is denied", func(t *testing.T) {
		i := lingering(t, time.Hour)
		c := i.node()
		c.must(http.StatusOK, "GET", "/v2/", nil)
		i.replaceCertificates(after.serverFiles(t))
		a, wasOpen, err := reused(t, c, "/v2/")
		if err != nil || !wasOpen || a.StatusCode != http.StatusForbidden || a.code() != "DENIED" ||
			!strings.Contains(a.body, "no longer accepted") {
			t.Errorf("%d, %v, on an open connection %t: %s", a.StatusCode, err, wasOpen, a.body)
		}
		if a, _, err := reused(t, c, "/v2/"); err == nil {
			t.Errorf("a new connection was accepted: %d", a.StatusCode)
		}
	})
	t.Run("an idle connection is closed", func(t *testing.T) {
		i := lingering(t, time.Millisecond)
		c := i.rawNode(t)
		c.must(http.StatusOK, "GET", "/v2/")
		i.replaceCertificates(before.serverFiles(t, after))
		c.waitClosed()
		i.rawNode(t).must(http.StatusOK, "GET", "/v2/")
	})
	t.Run("a connection with a request in progress is closed after its response", func(t *testing.T) {
		i := lingering(t, time.Millisecond)
		upload := i.pusher().begin("a")
		c := i.rawPusher(t)
		c.write("PATCH %s HTTP/1.1\r\nHost: registry\r\nAuthorization: %s\r\nContent-Length: 4\r\n"+
			"Expect: 100-continue\r\n\r\n", upload, c.authorization())
		// The server reads the body only after it has admitted the request.
		if response, err := c.read(); err != nil || response.StatusCode != http.StatusContinue {
			t.Fatalf("%+v, %v", response, err)
		}
		i.replaceCertificates(before.serverFiles(t, after))
		c.write("half")
		if response, err := c.read(); err != nil || response.StatusCode != http.StatusAccepted || response.Close {
			t.Fatalf("%+v, %v", response, err)
		}
		c.waitClosed()
	})
	t.Run("a connection of the current generation stays open", func(t *testing.T) {
		i := lingering(t, time.Millisecond)
		i.replaceCertificates(before.serverFiles(t, after))
		c := i.rawNode(t)
		c.must(http.StatusOK, "GET", "/v2/")
		time.Sleep(100 * time.Millisecond) // when it has long been idle
		c.must(http.StatusOK, "GET", "/v2/")
	})
	t.Run("a connection that gets a request when it is about to be closed stays open for it", func(t *testing.T) {
		i := lingering(t, time.Hour)
		c := i.rawNode(t)
		c.must(http.StatusOK, "GET", "/v2/")
		i.replaceCertificates(before.serverFiles(t, after))
		if response := c.must(http.StatusOK, "GET", "/v2/"); !response.Close {
			t.Error("the connection is not marked for closing")
		}
		c.waitClosed()
	})
	t.Run("a connection whose certificate has expired is denied", func(t *testing.T) {
		i := open(t, before, t.TempDir())
		var later atomic.Int64
		i.server.now = func() time.Time { return time.Now().Add(time.Duration(later.Load())) }
		i.run()
		c := i.node()
		c.must(http.StatusOK, "GET", "/v2/", nil)
		later.Store(int64(pki.DefaultLeafLifetime + time.Hour))
		a, wasOpen, err := reused(t, c, "/v2/")
		if err != nil || !wasOpen || a.StatusCode != http.StatusForbidden || !strings.Contains(a.body, "expired") {
			t.Errorf("%d, %v, on an open connection %t: %s", a.StatusCode, err, wasOpen, a.body)
		}
	})
}
