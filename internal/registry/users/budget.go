package users

import (
	"crypto/sha256"
	"net/netip"
	"sync"
	"time"
)

// Origin is where a request comes from.
type Origin struct {
	Listener string
	// Exposed means that the listener also accepts the users who may only pull from outside the cluster.
	Exposed bool
	// Source is the client's address. It may be that of a node or of an ingress, which many clients share.
	Source netip.Addr
}

// limit is how much bcrypt work failed logins may cause, in rounds. A check takes 2^cost rounds: 1,024 at
// the usual cost of 10, some 50 ms, and 16 at the cost of generated passwords.
type limit struct {
	burst  float64
	second float64 // regained each second
}

// Each user has a budget at each listener, and unknown users share one. Each source address has a fraction
// of it, so that it exhausts only its own part. All unknown users together get less than one known user.
var (
	knownLimit         = limit{32 << 10, 1 << 10}
	knownSourceLimit   = limit{4 << 10, 256}
	unknownLimit       = limit{8 << 10, 256}
	unknownSourceLimit = limit{2 << 10, 128}
)

// maxBudgets bounds the memory of budgets: about 2 MiB. Further sources share one budget for each user.
const maxBudgets = 10_000

// sweepInterval is how often budgets that are whole again are removed, once there are too many.
const sweepInterval = time.Second

// budgetKey identifies a budget.
type budgetKey struct {
	listener string
	user     string       // empty for all unknown users
	source   netip.Prefix // invalid for all sources together
}

// otherSources stands for sources beyond maxBudgets.
var otherSources = netip.PrefixFrom(netip.IPv6Unspecified(), 0)

// budget is what a key has spent.
type budget struct {
	limit
	spent float64
	at    time.Time // when spent was true
	// refused is the last wrong password of this user from this source, so that a client that keeps
	// sending an old password costs nothing. It ends with the user's hash.
	refused passwordMAC
	of      *User
	// lane has room for one check. Checks after a failure use their user's, one after the other.
	lane chan struct{}
}

// passwordMAC is an HMAC of a user name and a password.
type passwordMAC [sha256.Size]byte

// regain adds what was regained since the last call.
func (b *budget) regain(now time.Time) {
	b.spent = max(0, b.spent-now.Sub(b.at).Seconds()*b.second)
	b.at = now
}

// budgets limit failed logins. Successful ones cost nothing. All methods are safe for concurrent use.
type budgets struct {
	now func() time.Time

	mu    sync.Mutex
	all   map[budgetKey]*budget
	swept time.Time
}

// reservation is work for which spend has found a budget.
type reservation struct {
	budgets      *budgets
	user, source *budget
	rounds       float64
	suspect      bool // there were failures of this user from this source, or the user is unknown
}

// spend reserves the rounds of a check, from the budget of the user and from that of the source. It returns
// nil if one of them is used up. If refused, no check is necessary: the password is known to be wrong.
func (b *budgets) spend(from Origin, name string, u *User, mac passwordMAC) (s *reservation, refused bool) {
	known := name != ""
	userLimit, sourceLimit := knownLimit, knownSourceLimit
	if !known {
		userLimit, sourceLimit = unknownLimit, unknownSourceLimit
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	source := b.get(budgetKey{from.Listener, name, network(from.Source)}, sourceLimit)
	if source.of == u && source.refused == mac {
		return nil, true
	}
	total := b.get(budgetKey{listener: from.Listener, user: name}, userLimit)
	if source.spent >= source.burst || total.spent >= total.burst {
		return nil, false
	}
	rounds := float64(int(1) << u.cost)
	s = &reservation{budgets: b, user: total, source: source, rounds: rounds, suspect: !known || source.spent > 0}
	source.spent += s.rounds
	total.spent += s.rounds
	return s, false
}

// get returns the budget of a key as it is now.
func (b *budgets) get(key budgetKey, limit limit) *budget {
	now := b.now()
	found := b.all[key]
	if found == nil && len(b.all) >= maxBudgets {
		b.sweep(now)
		if len(b.all) >= maxBudgets && key.source.IsValid() {
			key.source = otherSources
			found = b.all[key]
		}
	}
	if found == nil {
		found = &budget{limit: limit, at: now, lane: make(chan struct{}, 1)}
		b.all[key] = found
	}
	found.regain(now)
	return found
}

// sweep removes the budgets that are whole again.
func (b *budgets) sweep(now time.Time) {
	if now.Sub(b.swept) < sweepInterval {
		return
	}
	b.swept = now
	for key, budget := range b.all {
		if budget.regain(now); budget.spent == 0 {
			delete(b.all, key)
		}
	}
}

// refund returns what was reserved, after a successful check.
func (s *reservation) refund() {
	s.budgets.mu.Lock()
	defer s.budgets.mu.Unlock()
	s.user.spent = max(0, s.user.spent-s.rounds)
	s.source.spent = max(0, s.source.spent-s.rounds)
}

// refuse remembers a wrong password.
func (s *reservation) refuse(u *User, mac passwordMAC) {
	s.budgets.mu.Lock()
	defer s.budgets.mu.Unlock()
	s.source.of, s.source.refused = u, mac
}

// network is the part of an address that one client has: of IPv6 addresses a /64.
func network(a netip.Addr) netip.Prefix {
	a = a.Unmap()
	bits := a.BitLen()
	if a.Is6() {
		bits = 64
	}
	p, _ := a.WithZone("").Prefix(bits) // invalid for an invalid address, which then has the user's budget only
	return p
}
