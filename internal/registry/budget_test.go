package registry

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distribution/distribution/v3/registry/api/errcode"
)

// attacker is another address than inside's.
var attacker = netip.MustParseAddr("10.6.6.6")

// flood spends what n different wrong passwords do, without comparing them, and returns how many were not
// refused. The last one goes the whole way.
func (c *credentials) flood(t *testing.T, from origin, name string, n int) (checked int) {
	t.Helper()
	table := c.current.Load()
	u, known := table.find(name, from.exposed), name
	if u == nil {
		u, known = table.dummyUser, ""
	}
	for range n - 1 {
		if spent, _ := c.budgets.spend(from, known, u, c.passwordMAC(name, rand.Text())); spent != nil {
			checked++
		}
	}
	got, err := c.verify(t.Context(), from, name, rand.Text())
	var coded errcode.Error
	switch {
	case got != nil:
		t.Fatal("a wrong password was accepted")
	case err == nil:
		checked++
	case !errors.As(err, &coded) || coded.Code != errcode.ErrorCodeTooManyRequests:
		t.Fatal(err)
	}
	return checked
}

// at returns an origin with another address.
func (o origin) at(source netip.Addr) origin {
	o.source = source
	return o
}

// stopClock makes the budgets use a clock that stands still, and returns a function that advances it.
func (c *credentials) stopClock() (advance func(time.Duration)) {
	now := time.Now()
	c.budgets.now = func() time.Time { return now }
	return func(d time.Duration) { now = now.Add(d) }
}

// TestBudgetsOfFailedLogins uses users of cost 4, so a check takes 16 rounds.
func TestBudgetsOfFailedLogins(t *testing.T) {
	t.Parallel()
	const rounds = 16
	c := openUsers(t, append(htpasswd(t, "push", "secret"), htpasswd(t, "other", "secret")...))
	advance := c.stopClock()
	foe := inside.at(attacker)

	if got, want := c.flood(t, foe, "push", 1000), int(knownSourceLimit.burst)/rounds; got != want {
		t.Errorf("one source made %d checks of a user, want %d", got, want)
	}
	if got, want := c.flood(t, foe, "nobody", 1000), int(unknownSourceLimit.burst)/rounds; got != want {
		t.Errorf("one source made %d checks of unknown users, want %d", got, want)
	}
	if got := c.flood(t, foe, "somebody", 10); got != 0 {
		t.Errorf("another unknown user has a budget of its own: %d", got)
	}
	advance(time.Second)
	if got, want := c.flood(t, foe, "push", 1000), int(knownSourceLimit.second)/rounds; got != want {
		t.Errorf("after a second: %d more checks, want %d", got, want)
	}
	advance(time.Hour)
	unknown, known := 0, 0
	for i := range 200 {
		from := inside.at(netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}))
		unknown += c.flood(t, from, "nobody", 100)
		known += c.flood(t, from, "push", 100)
	}
	if unknown != int(unknownLimit.burst)/rounds || known != int(knownLimit.burst)/rounds || unknown >= known {
		t.Errorf("200 sources: %d checks of unknown users and %d of a known one", unknown, known)
	}
	if got := c.flood(t, inside.at(netip.MustParseAddr("10.2.0.1")), "other", 10); got != 10 {
		t.Errorf("another user's budget was used: %d of 10 checks", got)
	}
	elsewhere := origin{listener: "tls", source: attacker}
	if got := c.flood(t, elsewhere, "push", 10) + c.flood(t, elsewhere, "nobody", 10); got != 20 {
		t.Errorf("another listener's budget was used: %d of 20 checks", got)
	}
}

// TestKnownUsersAreNotDelayed has an attacker who uses up all budgets that the attacker can.
func TestKnownUsersAreNotDelayed(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		source netip.Addr // the attacker's
		names  []string
		cached bool // the user has logged in before
		want   bool
	}{
		"unknown names from another address":              {attacker, []string{"nobody"}, false, true},
		"unknown names from the same address":             {inside.source, []string{"nobody"}, false, true},
		"another user's name from the same address":       {inside.source, []string{"other"}, false, true},
		"the own name from another address":               {attacker, []string{"push"}, false, true},
		"every name from another address":                 {attacker, []string{"push", "other", "nobody"}, false, true},
		"the own name from the same address":              {inside.source, []string{"push"}, false, false},
		"the own name from the same address, after login": {inside.source, []string{"push"}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			c := openUsers(t, append(htpasswd(t, "push", "secret"), htpasswd(t, "other", "secret")...))
			c.stopClock()
			if tt.cached {
				if got, err := c.login("push", "secret"); got != rolePush || err != nil {
					t.Fatal(got, err)
				}
			}
			for _, name := range tt.names {
				c.flood(t, inside.at(tt.source), name, 1000)
			}
			// Others take turns after failures; another check is in progress.
			lane := c.budgets.get(budgetKey{listener: inside.listener, user: "push"}, knownLimit).lane
			lane <- struct{}{}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			got, err := c.verify(ctx, inside, "push", "secret")
			<-lane
			if accepted := got != nil && err == nil; accepted != tt.want {
				t.Errorf("verify() = %v, %v, want accepted: %t", got, err, tt.want)
			}
			for _, name := range tt.names {
				if got := c.flood(t, inside.at(tt.source), name, 10); got != 0 {
					t.Errorf("%s: the attacker has a budget again: %d checks", name, got)
				}
			}
		})
	}
}

func TestSuccessfulLoginsCostNothing(t *testing.T) {
	t.Parallel()
	c := openUsers(t, htpasswd(t, "push", "secret"))
	c.stopClock()
	for range 300 { // a source may fail 256 times
		c.current.Load().push.users["push"].cached.Store(nil)
		if got, err := c.login("push", "secret"); got != rolePush || err != nil {
			t.Fatalf("verify() = %d, %v", got, err)
		}
	}
}

func TestAnOldPasswordCostsOnce(t *testing.T) {
	t.Parallel()
	c := openUsers(t, htpasswd(t, "push", "secret"))
	c.stopClock()
	for range 1000 {
		if got, err := c.login("push", "old"); got != roleNone || err != nil {
			t.Fatalf("verify() = %d, %v", got, err)
		}
	}
	if got, err := c.login("push", "secret"); got != rolePush || err != nil {
		t.Errorf("verify() = %d, %v", got, err)
	}
}

func TestBudgetsNeedBoundedMemory(t *testing.T) {
	t.Parallel()
	c := openUsers(t, htpasswd(t, "push", "secret"))
	advance := c.stopClock()
	source := func(i int) origin {
		return inside.at(netip.AddrFrom16([16]byte{0x20, 1, 0, 0, byte(i >> 16), byte(i >> 8), byte(i), 0, 15: byte(i)}))
	}
	u, key := c.current.Load().push.users["push"], budgetKey{listener: "plain", user: "push"}
	for i := range maxBudgets + 1000 {
		c.budgets.spend(source(i), "push", u, passwordMAC{byte(i), byte(i >> 8), 1})
		delete(c.budgets.all, key) // the user's own is used up otherwise
	}
	if got := len(c.budgets.all); got > maxBudgets+1 {
		t.Errorf("%d budgets, want at most %d", got, maxBudgets)
	}
	advance(time.Hour)
	c.budgets.spend(source(maxBudgets+2000), "push", u, passwordMAC{})
	if got := len(c.budgets.all); got > 3 {
		t.Errorf("%d budgets are left after an hour", got)
	}
}

func TestNetworks(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"10.1.2.3": "10.1.2.3/32", "::ffff:10.1.2.3": "10.1.2.3/32", "2001:db8:1:2:3::4": "2001:db8:1:2::/64",
		"fe80::1%eth0": "fe80::/64",
	} {
		if got := network(netip.MustParseAddr(address)); got.String() != want {
			t.Errorf("%s: %s, want %s", address, got, want)
		}
	}
	if network(netip.Addr{}).IsValid() {
		t.Error("no address has a network")
	}
}

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
	users := append(htpasswd(t, pushUser, pushPassword), expensiveUser(t, "reader", "secret")...)
	for n := range newcomers {
		users = append(users, expensiveUser(t, fmt.Sprintf("new%d", n), "secret")...)
	}
	i := open(t, newTestCA(t), t.TempDir(), func(o *Options) {
		o.Htpasswd = writeFile(t, o.Htpasswd, users)
	})
	i.server.credentials.stopClock() // a slow machine would regain more than it can check
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
	const rounds = 1 << 10 // of a check
	allowed := int32((knownSourceLimit.burst + unknownSourceLimit.burst) / rounds)
	if refused.Load() == 0 || refused.Load() > allowed {
		t.Errorf("%d wrong passwords were checked, want 1-%d", refused.Load(), allowed)
	}
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
