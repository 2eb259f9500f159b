package registry

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// TestFloodOfWrongPasswords logs in while one address sends wrong passwords of known and unknown users.
// Their passwords have the cost of a person's, some 50 ms: the flood may cause few checks.
func TestFloodOfWrongPasswords(t *testing.T) {
	t.Parallel()
	const (
		requests   = 200
		newcomers  = 3   // users who log in for the first time
		perSecond  = 200 // of the flood: with a check for each, they would need 10 cores
		attackAddr = "127.0.0.2"
	)
	lines := append(htpasswd(t, pushUser, pushPassword), expensiveUser(t, "reader", "secret")...)
	for n := range newcomers {
		lines = append(lines, expensiveUser(t, fmt.Sprintf("new%d", n), "secret")...)
	}
	i := open(t, newTestCA(t), t.TempDir(), func(o *Options) {
		o.Htpasswd = writeFile(t, o.Htpasswd, lines)
	})
	stopped := time.Now()
	i.server.credentials.Now = func() time.Time { return stopped } // a slow machine would regain more than it can check
	i.run()
	reader := i.plain().as("reader", "secret")
	reader.must(http.StatusOK, "GET", "/v2/", nil)
	var refused, busy atomic.Int32
	stop := i.flood(attackAddr, perSecond, "reader", &refused, &busy)
	for n := range newcomers {
		i.plain().as(fmt.Sprintf("new%d", n), "secret").must(http.StatusOK, "GET", "/v2/", nil)
	}
	for range requests {
		reader.must(http.StatusOK, "GET", "/v2/", nil)
	}
	eventually(t, "the flood is limited", func() bool { return busy.Load() > 100 })
	stop()
	t.Logf("flood: %d wrong passwords checked, %d refused unchecked", refused.Load(), busy.Load())
	const allowed = 6 // of the known user 4, of unknown ones 2: the limits of one address are 4 Ki and 2 Ki rounds
	if refused.Load() == 0 || refused.Load() > allowed {
		t.Errorf("%d wrong passwords were checked, want 1-%d", refused.Load(), allowed)
	}
}

// expensiveUser returns a line of an htpasswd file, whose hash has the cost of a person's password.
func expensiveUser(t testing.TB, name, password string) []byte {
	t.Helper()
	hash := require.Value(bcrypt.GenerateFromPassword([]byte(password), bcrypt.DefaultCost))(t)
	return fmt.Appendf(nil, "%s:%s\n", name, hash)
}

// flood sends wrong passwords from an address to the plain listener until stop is called: one half with a
// known name, one half with unknown names.
func (i *instance) flood(address string, perSecond int, known string, refused, busy *atomic.Int32) (stop func()) {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	transport := &http.Transport{DialContext: dialer.DialContext}
	c := client{Client: &http.Client{Transport: transport}, t: i.t, base: "http://" + i.addresses["plain"]}
	ctx, cancel := context.WithCancel(i.t.Context())
	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	var senders sync.WaitGroup
	for sender := range 4 {
		senders.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				name := known
				if sender%2 == 0 {
					name = rand.Text()
				}
				a, err := c.as(name, rand.Text()).send("GET", "/v2/", nil)
				switch {
				case err != nil:
					if ctx.Err() == nil {
						i.t.Error(err)
					}
					return
				case a.StatusCode == http.StatusUnauthorized:
					refused.Add(1)
				case a.StatusCode == http.StatusTooManyRequests:
					busy.Add(1)
				default:
					i.t.Errorf("flood: status %d", a.StatusCode)
				}
			}
		})
	}
	return func() {
		cancel()
		tick.Stop()
		senders.Wait()
		transport.CloseIdleConnections()
	}
}
