// Package users verifies user names and passwords against htpasswd files, and limits what failed logins cost.
//
// It does not decide what a user may do at a listener, and creates no credentials.
package users

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distribution/distribution/v3/registry/api/errcode"
	"github.com/distribution/reference"
	"golang.org/x/crypto/bcrypt"

	"github.com/zarf-dev/zarf-registry/internal/api/reloadstatus"
)

const (
	// credentialInterval is how often the htpasswd files are read. It is short because switching modes waits
	// for it.
	credentialInterval = time.Second
	// maxCost is the maximum bcrypt cost. Each step doubles the time: 14 takes about a second, and a typo
	// such as 31 would take days.
	maxCost = 14
	// hashLength is the length of every bcrypt hash: $2y$, cost, $, salt and hash.
	hashLength = 60
	// maxPassword is how many bytes of a password bcrypt uses. A longer password would be accepted with any
	// suffix.
	maxPassword = 72
)

// Role is what a credential permits, in ascending order.
type Role int

const (
	RoleNone Role = iota // no valid credential
	RolePull
	// roleExternal may only pull, from outside the cluster.
	roleExternal
	RolePush
)

// Users verifies user names and passwords against htpasswd files, which it reloads when they
// change. All methods are safe for concurrent use.
//
// The file of users who may push is required. The file of users who may only pull, and the file of users
// who may only pull from outside the cluster, may appear and disappear. If a new version of a file is
// invalid, its previous users stay in force.
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

// userTable is one generation of the files.
type userTable struct {
	push *userFile
	pull *userFile // nil while the file does not exist
	// exposed are the users who may only pull from outside; nil while the file does not exist.
	exposed *userFile
	// dummyUser stands for every unknown user of the listeners inside the cluster, and exposedDummy for those
	// of the exposed listener, so that an unknown name takes as long as a wrong password.
	dummyUser, exposedDummy *User
}

// userFile is one generation of one file. It is immutable apart from its users' caches, whose entries
// thus end with it.
type userFile struct {
	users map[string]*User
	cost  int // the highest of its hashes
	sum   [sha256.Size]byte
	// seed is what secrets are derived from. It is not sum, because sum is public: it is in the report.
	seed [sha256.Size]byte
}

// User is a user of one generation of a file.
type User struct {
	Role Role
	hash []byte
	cost int
	// Name is the credential's, for the audit trail; the user name if the file has none.
	Name string
	// Repositories are those that a push user may write: each of them, and all below it. Empty means all.
	Repositories []string
	cached       atomic.Pointer[passwordMAC] // the one that last matched
}

// rounds is the work of a check.
func (u *User) rounds() float64 { return float64(int(1) << u.cost) }

// MayWrite reports whether a push user may write to a repository. The empty name stands for everything
// outside of repositories.
func (u *User) MayWrite(repository string) bool {
	return len(u.Repositories) == 0 || slices.ContainsFunc(u.Repositories, func(allowed string) bool {
		return repository == allowed || strings.HasPrefix(repository, allowed+"/")
	})
}

// Open reads the files for the first time. The push file must be valid; errors in the others
// are only logged. An empty pull or exposed means no such file.
func Open(log *slog.Logger, push, pull, exposed string) (*Users, error) {
	c := &Users{
		push:     push,
		pull:     pull,
		exposed:  exposed,
		Interval: credentialInterval,
		Now:      time.Now,
		log:      log,
		running:  map[runningKey]*check{},
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
	ticker := time.NewTicker(c.Interval)
	defer ticker.Stop()
	for {
		loaded()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
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
		c.log.Info("credentials reloaded", "users", c.current.Load().size())
	}
}

// reload reads the files and activates the valid ones. It may return both changed and an error, for
// different files.
func (c *Users) reload() (changed bool, err error) {
	old := c.current.Load()
	if old == nil {
		old = &userTable{}
	}
	next := &userTable{}
	var pushErr, pullErr, exposedErr error
	if next.push, pushErr = loadUsers(c.push, RolePush, old.push); pushErr != nil {
		next.push = old.push
	}
	if c.pull != "" {
		next.pull, pullErr = next.loadPullUsers(c.pull, RolePull, old.pull)
	}
	if c.exposed != "" {
		next.exposed, exposedErr = next.loadPullUsers(c.exposed, roleExternal, old.exposed)
	}
	if err = errors.Join(pushErr, pullErr, exposedErr); err != nil {
		c.ReloadErrors.Add(1)
	}
	if next.push == nil || next.push == old.push && next.pull == old.pull && next.exposed == old.exposed {
		return false, err
	}

	var dummyErr, exposedDummyErr error
	next.dummyUser, dummyErr = old.dummyUser.withCost(next.cost(false))
	next.exposedDummy, exposedDummyErr = old.exposedDummy.withCost(next.cost(true))
	if err := errors.Join(dummyErr, exposedDummyErr); err != nil {
		return false, err
	}
	c.current.Store(next)
	return true, err
}

// withCost returns a dummy user whose hash has the cost; u if that is the case.
func (u *User) withCost(cost int) (*User, error) {
	if u != nil && u.cost == cost {
		return u, nil
	}
	hash, err := bcrypt.GenerateFromPassword([]byte(rand.Text()), cost)
	if err != nil {
		return nil, fmt.Errorf("hashing the dummy user's password: %w", err)
	}
	return &User{hash: hash, cost: cost}, nil
}

// loadUsers reads a file. If it has not changed, it returns old. Users whose hash has not changed keep
// their caches.
func loadUsers(path string, has Role, old *userFile) (*userFile, error) {
	data, err := os.ReadFile(path)
	// The kubelet may have replaced the directory during the lookup, and on a busy machine once more.
	for range 4 {
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
		data, err = os.ReadFile(path)
	}
	if err != nil {
		return nil, fmt.Errorf("reading credentials: %w", err)
	}
	sum := sha256.Sum256(data)
	if old != nil && old.sum == sum {
		return old, nil
	}
	file, err := parseUsers(data, has)
	if err != nil {
		return nil, fmt.Errorf("credentials %s: %w", path, err)
	}
	file.sum, file.seed = sum, seedOf(data)
	if old != nil {
		for name, u := range file.users {
			// The change may be another user's: this one need not be checked again.
			if before := old.users[name]; before != nil && bytes.Equal(before.hash, u.hash) {
				u.cached.Store(before.cached.Load())
			}
		}
	}
	return file, nil
}

const seedPurpose = "zarf-registry: seed of secrets"

// seedOf is a digest of a file that cannot be computed from the file's SHA-256. The file is the message and
// not the key, because HMAC replaces a long key by its SHA-256.
func seedOf(data []byte) [sha256.Size]byte {
	mac := hmac.New(sha256.New, []byte(seedPurpose))
	mac.Write(data)
	return [sha256.Size]byte(mac.Sum(nil))
}

// parseUsers parses an htpasswd file: each line is USER:HASH, empty or a comment. Lines of push users may
// continue with :NAME, the credential's name, and :REPOSITORY,…, the only repositories that it may write.
// All of it is in one file, so that no user is ever in force without its restrictions. Errors contain the
// line number and never the line.
func parseUsers(data []byte, has Role) (*userFile, error) {
	file := &userFile{users: map[string]*User{}}
	for i, line := range strings.Split(string(data), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, u, err := parseUser(line, has)
		switch {
		case err != nil:
			return nil, fmt.Errorf("line %d%w", i+1, err)
		case file.users[name] != nil:
			return nil, fmt.Errorf("line %d: duplicate user %q", i+1, name)
		}
		file.users[name] = u
		file.cost = max(file.cost, u.cost)
	}
	if len(file.users) == 0 {
		return nil, errors.New("no users")
	}
	return file, nil
}

// parseUser parses a line. Its errors continue "line 1".
func parseUser(line string, has Role) (string, *User, error) {
	name, rest, ok := strings.Cut(line, ":")
	if !ok || name == "" {
		return "", nil, errors.New(" is not USER:HASH")
	}
	fields := []string{rest}
	if has == RolePush {
		fields = strings.Split(rest, ":")
	}
	hash := []byte(fields[0])
	cost, err := bcrypt.Cost(hash)
	switch {
	case err != nil || len(hash) != hashLength:
		return "", nil, errors.New(": not a bcrypt hash: create it with htpasswd -B")
	case cost > maxCost:
		return "", nil, fmt.Errorf(": bcrypt cost %d is too slow: want at most %d", cost, maxCost)
	case len(fields) > 3:
		return "", nil, errors.New(" is not USER:HASH:NAME:REPOSITORY,…")
	}
	u := &User{Role: has, hash: hash, cost: cost, Name: name}
	if len(fields) > 1 {
		if u.Name = fields[1]; !credentialName.MatchString(u.Name) {
			return "", nil, fmt.Errorf(": invalid name %q of a credential", u.Name)
		}
	}
	if len(fields) > 2 {
		u.Repositories = strings.Split(fields[2], ",")
	}
	for _, repository := range u.Repositories {
		if _, err := reference.WithName(repository); err != nil {
			return "", nil, fmt.Errorf(": invalid repository %q", repository)
		}
	}
	return name, u, nil
}

// credentialName is RFC 1123's label.
var credentialName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// loadPullUsers reads an optional file of users who may only pull. If the file is invalid, it returns old.
func (t *userTable) loadPullUsers(path string, has Role, old *userFile) (*userFile, error) {
	file, err := loadUsers(path, has, old)
	if err == nil {
		err = t.collision(path, file)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return old, err
	}
	return file, nil
}

// collision returns an error if a user of the file is already in a file that takes precedence: a name
// cannot have two passwords.
func (t *userTable) collision(path string, file *userFile) error {
	for _, name := range slices.Sorted(maps.Keys(file.users)) { // sorted, so that the error is stable
		switch {
		case t.push != nil && t.push.users[name] != nil:
			return fmt.Errorf("credentials %s: user %q may already push: choose another name", path, name)
		case t.pull != nil && t.pull.users[name] != nil:
			return fmt.Errorf("credentials %s: user %q is the node port's user: choose another name", path, name)
		}
	}
	return nil
}

// files returns the existing files, in order of precedence.
func (t *userTable) files() (files []*userFile) {
	for _, file := range []*userFile{t.push, t.pull, t.exposed} {
		if file != nil {
			files = append(files, file)
		}
	}
	return files
}

// accepted returns the files whose users a listener accepts, in order of precedence.
func (t *userTable) accepted(exposed bool) (files []*userFile) {
	for _, file := range t.files() {
		if exposed || file != t.exposed {
			files = append(files, file)
		}
	}
	return files
}

// cost returns the highest cost of the users that a listener accepts.
func (t *userTable) cost(exposed bool) (cost int) {
	for _, file := range t.accepted(exposed) {
		cost = max(cost, file.cost)
	}
	return cost
}

// find returns a user that a listener accepts, or nil. If a name is in two files, which can happen only when
// the first one changes, the first one takes precedence.
func (t *userTable) find(name string, exposed bool) *User {
	for _, file := range t.accepted(exposed) {
		if u := file.users[name]; u != nil {
			return u
		}
	}
	return nil
}

func (t *userTable) size() (n int) {
	for _, file := range t.files() {
		n += len(file.users)
	}
	return n
}

// HasPullUsers reports whether the pull file is loaded.
func (c *Users) HasPullUsers() bool { return c.current.Load().pull != nil }

// Verify returns the user, or nil if the user is unknown at the listener or the password is wrong. The only
// errors are TOOMANYREQUESTS, if a budget is used up, and ctx.Err().
func (c *Users) Verify(ctx context.Context, from Origin, name, password string) (*User, error) {
	table := c.current.Load()
	mac := c.passwordMAC(name, password)
	u := table.find(name, from.Exposed)
	if u == nil {
		name, u = "", table.dummyUser
		if from.Exposed {
			u = table.exposedDummy
		}
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
		// bcrypt repeats short passwords, with a zero byte, and truncates long ones: more than one password
		// would match.
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

// Report returns the digests of the files in force.
func (c *Users) Report() *reloadstatus.Credentials {
	table := c.current.Load()
	report := &reloadstatus.Credentials{Push: hex.EncodeToString(table.push.sum[:])}
	if table.pull != nil {
		report.Pull = hex.EncodeToString(table.pull.sum[:])
	}
	return report
}

// Known reports whether name is a user of a listener. Only known names may be logged, because people type
// passwords into the wrong field.
func (c *Users) Known(from Origin, name string) bool {
	return c.current.Load().find(name, from.Exposed) != nil
}
