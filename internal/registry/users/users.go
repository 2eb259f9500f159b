// Package users verifies user names and passwords against htpasswd files, and limits what failed logins cost.
//
// It does not decide what a user may do at a listener, and creates no credentials.
package users

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distribution/distribution/v3/registry/api/errcode"
	"golang.org/x/crypto/bcrypt"

	"github.com/zarf-dev/zarf-registry/internal/api/loaded"
	"github.com/zarf-dev/zarf-registry/internal/registry/poll"
)

const (
	// credentialInterval is how often the htpasswd files are read. It is short because switching modes waits for it.
	credentialInterval = time.Second
	// maxCost is the maximum bcrypt cost, which takes about a second. A typo such as 31 would take days.
	maxCost = 14
	// hashLength is the length of every bcrypt hash: $2y$, cost, $, salt and hash.
	hashLength = 60
	// maxPassword is how many bytes of a password bcrypt uses. A longer password would be accepted with any suffix.
	maxPassword = 72
)

// Role is what a credential permits, in ascending order.
type Role int

const (
	RoleNone Role = iota // no valid credential
	RolePull
	RolePush
)

// Users verifies users against htpasswd files, which it reloads when they change. It is safe for concurrent use.
//
// The file of users who may push is required. The files of users who may only pull may appear and disappear. If a new
// version of a file is invalid, its previous users stay in force.
//
// bcrypt is slow, so that a stolen file is of little use. To keep this from slowing down a push of a
// thousand requests, each user caches the last password that matched, as an HMAC under a random key of
// this process: a cached password needs neither bcrypt nor a budget. Failed logins have budgets, so that
// a flood of wrong passwords costs little CPU time and delays nobody else.
type Users struct {
	// Interval is how often the files are read. It and Now, the clock of the budgets, may be changed before Run.
	Interval time.Duration
	Now      func() time.Time

	push, pull, exposed string // paths; all but the first may be empty
	log                 *slog.Logger
	key                 [sha256.Size]byte
	budgets             *budgets
	current             atomic.Pointer[userTable]

	mu      sync.Mutex
	running map[runningKey]*check

	// ReloadErrors counts failed loads of a file.
	ReloadErrors atomic.Uint64
	lastFailure  string // the last one logged; used only by the goroutine that reloads

	// Checks counts checks of a password by their CheckResult.
	Checks [4]atomic.Uint64
}

// runningKey identifies a check. Equal passwords are checked once at a time.
type runningKey struct {
	user *User
	mac  passwordMAC
}

// check is a password that is being compared.
type check struct {
	done    chan struct{} // closed when matched is set
	matched bool
	shared  atomic.Bool // a request has counted the match
}

// CheckResult is the result of a check. Its text is the label of a metric.
type CheckResult int

const (
	checkCached CheckResult = iota
	checkMatched
	checkRefused
	checkBusy
)

func (r CheckResult) String() string {
	return [...]string{"cached", "matched", "refused", "busy"}[r]
}

// Open reads the files. That of push must be valid; errors in others are only logged, and they may have no path.
func Open(log *slog.Logger, push, pull, exposed string) (*Users, error) {
	c := &Users{
		Interval: credentialInterval, Now: time.Now,
		push: push, pull: pull, exposed: exposed, log: log, running: map[runningKey]*check{},
	}
	c.budgets = &budgets{now: func() time.Time { return c.Now() }, all: map[budgetKey]*budget{}}
	_, _ = rand.Read(c.key[:]) // never fails
	_, err := c.reload()
	if c.current.Load() == nil {
		return nil, err
	}
	c.logReload(false, err)
	return c, nil
}

// Run follows the files until ctx ends. It calls loaded at once, and after every reload.
func (c *Users) Run(ctx context.Context, loaded func()) {
	for {
		loaded()
		if poll.Sleep(ctx, c.Interval) != nil {
			return
		}
		c.logReload(c.reload())
	}
}

// logReload logs the result of a reload. It logs a persistent failure once, not every second.
func (c *Users) logReload(changed bool, err error) {
	previous := c.lastFailure
	c.lastFailure = ""
	if err != nil {
		c.lastFailure = err.Error()
		if c.lastFailure != previous {
			c.log.Error("loading credentials failed, previous users stay in force", "error", err)
		}
	}
	if changed || previous != "" && err == nil {
		c.log.Info("credentials reloaded", "users", len(c.current.Load().outside.users))
	}
}

// reload reads the files and activates the valid ones. It may return both changed and an error, for different files.
func (c *Users) reload() (changed bool, err error) {
	old, next := cmp.Or(c.current.Load(), &userTable{}), &userTable{}
	var pushErr, pullErr, exposedErr error
	if next.push, pushErr = loadUsers(c.push, RolePush, old.push); pushErr != nil {
		next.push = old.push
	}
	next.pull, pullErr = next.loadPullUsers(c.pull, old.pull)
	next.exposed, exposedErr = next.loadPullUsers(c.exposed, old.exposed)
	if err = errors.Join(pushErr, pullErr, exposedErr); err != nil {
		c.ReloadErrors.Add(1)
	}
	if next.push == nil || next.push == old.push && next.pull == old.pull && next.exposed == old.exposed {
		return false, err
	}

	var insideErr, outsideErr error
	next.inside, insideErr = newUserSet(old.inside.dummy, next.push, next.pull)
	next.outside, outsideErr = newUserSet(old.outside.dummy, next.push, next.pull, next.exposed)
	if err := errors.Join(insideErr, outsideErr); err != nil {
		return false, err
	}
	c.current.Store(next)
	return true, err
}

// HasPullUsers reports whether the pull file is loaded.
func (c *Users) HasPullUsers() bool { return c.current.Load().pull != nil }

// Verify returns the user, or nil if the user is unknown at the listener or the password is wrong. The only
// errors are TOOMANYREQUESTS, if a budget is used up, and ctx.Err().
func (c *Users) Verify(ctx context.Context, from Origin, name, password string) (*User, error) {
	mac := c.passwordMAC(name, password)
	accepted := c.current.Load().of(from.Exposed)
	u := accepted.users[name]
	if u == nil {
		name, u = "", accepted.dummy
	}
	if u.hasCached(mac) {
		c.Checks[checkCached].Add(1)
		return u, nil
	}

	running, err := c.compare(from, name, password, u, mac)
	if err != nil {
		c.Checks[checkBusy].Add(1)
		return nil, err
	}
	select {
	case <-running.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	switch {
	case !running.matched:
		c.Checks[checkRefused].Add(1)
		return nil, nil
	case running.shared.Swap(true):
		c.Checks[checkCached].Add(1)
	default:
		c.Checks[checkMatched].Add(1)
	}
	return u, nil
}

// compare begins to compare a password with a user's hash, unless another request has begun. The name is
// empty if u is a dummy. The first requests of a push arrive together: one of them checks for all.
func (c *Users) compare(from Origin, name, password string, u *User, mac passwordMAC) (*check, error) {
	key := runningKey{u, mac}
	c.mu.Lock()
	defer c.mu.Unlock()
	if running := c.running[key]; running != nil {
		return running, nil
	}
	running := &check{done: make(chan struct{})}
	if u.hasCached(mac) { // since a moment ago
		running.matched = true
		running.shared.Store(true)
		close(running.done)
		return running, nil
	}
	spent, refused := c.budgets.spend(from, name, u, mac)
	switch {
	case refused:
		close(running.done)
		return running, nil
	case spent == nil:
		return nil, errcode.ErrorCodeTooManyRequests.WithMessage("too many failed logins: retry later")
	}
	c.running[key] = running
	go func() {
		defer close(running.done)
		if spent.suspect {
			spent.user.lane <- struct{}{}
			defer func() { <-spent.user.lane }()
		}
		// bcrypt repeats short passwords, with a zero byte, and truncates long ones: more than one password would match.
		running.matched = bcrypt.CompareHashAndPassword(u.hash, []byte(password)) == nil && name != "" &&
			len(password) <= maxPassword && !strings.ContainsRune(password, 0)
		if running.matched {
			u.cached.Store(&mac)
			spent.refund()
		} else {
			spent.refuse(u, mac)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.running, key)
	}()
	return running, nil
}

func (u *User) hasCached(mac passwordMAC) bool {
	cached := u.cached.Load()
	return cached != nil && hmac.Equal(cached[:], mac[:])
}

func (c *Users) passwordMAC(name, password string) passwordMAC {
	mac := hmac.New(sha256.New, c.key[:])
	_ = binary.Write(mac, binary.BigEndian, int64(len(name)))
	mac.Write([]byte(name + password))
	return passwordMAC(mac.Sum(nil))
}

// Secret derives a secret for the given purpose from the current push file, not from the pull files, which
// may disappear. The file contains hashes with random salts, which cannot be guessed.
func (c *Users) Secret(purpose string) string {
	seed := c.current.Load().push.seed
	mac := hmac.New(sha256.New, seed[:])
	mac.Write([]byte(purpose))
	return hex.EncodeToString(mac.Sum(nil))
}

// Loaded returns the digests of the files in force.
func (c *Users) Loaded() *loaded.Credentials {
	table := c.current.Load()
	report := &loaded.Credentials{Push: hex.EncodeToString(table.push.sum[:])}
	if table.pull != nil {
		report.Pull = hex.EncodeToString(table.pull.sum[:])
	}
	return report
}

// Known reports whether name is a user of a listener. No others are logged: people type passwords into the wrong field.
func (c *Users) Known(from Origin, name string) bool {
	return c.current.Load().of(from.Exposed).users[name] != nil
}
