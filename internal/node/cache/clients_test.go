package cache

import (
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles"
	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles/tlsfilestest"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// reuse sends a request that must use an open connection.
func (f *fixture) reuse(t *testing.T, path string) (*http.Response, string) {
	t.Helper()
	reused := false
	trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { reused = info.Reused }}
	request, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), http.MethodGet,
		"https://"+f.Addr().String()+path, nil)
	require.NoError(t, err)
	response := require.Value(f.client.Do(request))(t)
	defer response.Body.Close()
	text := new(strings.Builder)
	_ = response.Write(text)
	if !reused {
		t.Error("the request used another connection")
	}
	return response, text.String()
}

// A client's certificate counts for each request, not for as long as the connection is open.
//
// Claim (a connection whose CA was dropped is denied; a connection whose certificate has expired is denied):
// A cache refuses a certificate of a dropped CA at once.
func TestOpenConnectionsFollowTheCertificates(t *testing.T) {
	manifest := []byte("{}")
	const tag = "/v2/team/app/manifests/1"
	names := []string{"cache.zarf.svc"}
	// connected returns a cache that has served a client, and what drops the CA of that.
	connected := func(t *testing.T, change func(*Config)) (f *fixture, drop func()) {
		f = start(t)
		f.stop()
		dir := t.TempDir()
		tlsfilestest.WriteSecret(t, dir, f.ca.Files(t, pki.OrganizationCache, names))
		source := require.Value(tlsfiles.Open(dir, tlsfiles.WithLogger(quiet)))(t)
		f.run(t, func(c *Config) {
			c.Source = source
			change(c)
		})
		f.add(manifest, tag, "/v2/team/app/manifests/"+digest.FromBytes(manifest).String())
		f.get(t, tag, manifest)
		return f, func() {
			t.Helper()
			tlsfilestest.WriteSecret(t, dir, tlsfilestest.NewCA(t, "other").Files(t, pki.OrganizationCache, names))
			if changed, err := source.Reload(); !changed || err != nil {
				t.Fatalf("Reload() = %t, %v", changed, err)
			}
		}
	}
	t.Run("a connection whose CA was dropped is denied", func(t *testing.T) {
		f, drop := connected(t, func(*Config) {})
		f.clients.Linger = time.Hour // until the next request, however late
		drop()
		response, body := f.reuse(t, tag)
		if response.StatusCode != http.StatusForbidden || !strings.Contains(body, "no longer accepted") || !response.Close {
			t.Errorf("%s", body)
		}
	})
	t.Run("an idle connection whose CA was dropped is closed", func(t *testing.T) {
		f, drop := connected(t, func(*Config) {})
		drop()
		for deadline := time.Now().Add(2 * longest / 3); f.connections.Open() > 0; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the connection stays open")
			}
		}
	})
	t.Run("a connection whose certificate has expired is denied", func(t *testing.T) {
		var later atomic.Int64
		f, _ := connected(t, func(c *Config) {
			c.Now = func() time.Time { return time.Now().Add(time.Duration(later.Load())) }
		})
		later.Store(int64(100 * 365 * 24 * time.Hour))
		response, body := f.reuse(t, tag)
		if response.StatusCode != http.StatusForbidden || !strings.Contains(body, "expired") {
			t.Errorf("%s", body)
		}
	})
}
