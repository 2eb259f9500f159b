package users

import (
	"context"
	"crypto/rand"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/distribution/distribution/v3/registry/api/errcode"
)

// attacker is another address than inside's.
var attacker = netip.MustParseAddr("10.6.6.6")

// flood spends what n different wrong passwords do, without comparing them, and returns how many were not
// refused. The last one goes the whole way.
func (c *Users) flood(t *testing.T, from Origin, name string, n int) (checked int) {
	t.Helper()
	table := c.current.Load()
	u, known := table.of(from.Exposed).users[name], name
	if u == nil {
		u, known = table.of(from.Exposed).dummy, ""
	}
	for range n - 1 {
		if spent, _ := c.budgets.spend(from, known, u, c.passwordMAC(name, rand.Text())); spent != nil {
			checked++
		}
	}
	got, err := c.Verify(t.Context(), from, name, rand.Text())
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
func (o Origin) at(source netip.Addr) Origin {
	o.Source = source
	return o
}

// stopClock makes the budgets use a clock that stands still, and returns a function that advances it.
func (c *Users) stopClock() (advance func(time.Duration)) {
	now := time.Now()
	c.Now = func() time.Time { return now }
	return func(d time.Duration) { now = now.Add(d) }
}

// TestBudgetsOfFailedLogins uses users of cost 4, so a check takes 16 rounds.
func TestBudgetsOfFailedLogins(t *testing.T) {
	t.Parallel()
	const rounds = 16
	c := openUsers(t, append(line(t, "push", "secret"), line(t, "other", "secret")...))
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
	elsewhere := Origin{Listener: "tls", Source: attacker}
	if got := c.flood(t, elsewhere, "push", 10) + c.flood(t, elsewhere, "nobody", 10); got != 20 {
		t.Errorf("another listener's budget was used: %d of 20 checks", got)
	}
}

// TestKnownUsersAreNotDelayed has an attacker who uses up all budgets that the attacker can.
//
// Claim (every name from another address): Failed logins at another address, also under the same name, do not
// delay a user.
//
// Claim (the own name from the same address, after login): Failed logins at the same address do not delay a
// user who has logged in.
func TestKnownUsersAreNotDelayed(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		source netip.Addr // the attacker's
		names  []string
		cached bool // the user has logged in before
		want   bool
	}{
		"unknown names from another address":              {attacker, []string{"nobody"}, false, true},
		"unknown names from the same address":             {inside.Source, []string{"nobody"}, false, true},
		"another user's name from the same address":       {inside.Source, []string{"other"}, false, true},
		"the own name from another address":               {attacker, []string{"push"}, false, true},
		"every name from another address":                 {attacker, []string{"push", "other", "nobody"}, false, true},
		"the own name from the same address":              {inside.Source, []string{"push"}, false, false},
		"the own name from the same address, after login": {inside.Source, []string{"push"}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			c := openUsers(t, append(line(t, "push", "secret"), line(t, "other", "secret")...))
			c.stopClock()
			if tt.cached {
				if got, err := c.login("push", "secret"); got != RolePush || err != nil {
					t.Fatal(got, err)
				}
			}
			for _, name := range tt.names {
				c.flood(t, inside.at(tt.source), name, 1000)
			}
			// Others take turns after failures; another check is in progress.
			lane := c.budgets.get(budgetKey{listener: inside.Listener, user: "push"}, knownLimit).lane
			lane <- struct{}{}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			got, err := c.Verify(ctx, inside, "push", "secret")
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
	c := openUsers(t, line(t, "push", "secret"))
	c.stopClock()
	for range 300 { // a source may fail 256 times
		c.current.Load().push.users["push"].cached.Store(nil)
		if got, err := c.login("push", "secret"); got != RolePush || err != nil {
			t.Fatalf("verify() = %d, %v", got, err)
		}
	}
}

func TestAnOldPasswordCostsOnce(t *testing.T) {
	t.Parallel()
	c := openUsers(t, line(t, "push", "secret"))
	c.stopClock()
	for range 1000 {
		if got, err := c.login("push", "old"); got != RoleNone || err != nil {
			t.Fatalf("verify() = %d, %v", got, err)
		}
	}
	if got, err := c.login("push", "secret"); got != RolePush || err != nil {
		t.Errorf("verify() = %d, %v", got, err)
	}
}

func TestBudgetsNeedBoundedMemory(t *testing.T) {
	t.Parallel()
	c := openUsers(t, line(t, "push", "secret"))
	advance := c.stopClock()
	source := func(i int) Origin {
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
