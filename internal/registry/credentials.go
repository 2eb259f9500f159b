package registry

import (
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
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/distribution/distribution/v3/registry/api/errcode"
	"golang.org/x/crypto/bcrypt"

	"github.com/zarf-dev/zarf-registry/internal/reloadstatus"
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
	// maxWaiting bounds the queue of checks. At the usual cost of 10, the last one waits about two seconds.
	maxWaiting = 32
)

// credentials verifies user names and passwords against htpasswd files, which it reloads when they
// change. All methods are safe for concurrent use.
//
// The file of users who may push is required. The file of users who may only pull, and the file of users
// who may only pull from outside the cluster, may appear and disappear. If a new version of a file is
// invalid, its previous users stay in force.
//
// bcrypt is slow, so that a stolen file is of little use. To keep this from slowing down a push of a
// thousand requests, each user caches the last password that matched, as an HMAC under a random key of
// this process. To keep a flood of wrong passwords from using more than half of the cores, few checks
// run at a time and few wait.
type credentials struct {
	push, pull, exposed string // paths; all but the first may be empty
	interval            time.Duration
	log                 *slog.Logger
	key                 [sha256.Size]byte
	running             chan struct{}
	waiting             atomic.Int32
	current             atomic.Pointer[userTable]

	reloadErrors atomic.Uint64
	lastFailure  string // the last one logged; used only by the goroutine that reloads

	checks [4]atomic.Uint64 // by checkResult
}

type checkResult int

const (
	checkCached checkResult = iota
	checkMatched
	checkRefused
	checkBusy
)

func (r checkResult) String() string {
	return [...]string{"remembered", "matched", "refused", "busy"}[r]
}

// userTable is one generation of the files.
type userTable struct {
	push *userFile
	pull *userFile // nil while the file does not exist
	// exposed are the users who may only pull from outside; nil while the file does not exist.
	exposed *userFile
	// dummyUser stands for every unknown user, so that an unknown name takes as long as a wrong password.
	dummyUser *user
	cost      int // of dummyUser's hash, the highest of all
}

// userFile is one generation of one file. It is immutable apart from its users' caches, whose entries
// thus end with it.
type userFile struct {
	users map[string]*user
	cost  int // the highest of its hashes
	sum   [sha256.Size]byte
	// seed is what secrets are derived from. It is not sum, because sum is public: it is in the report.
	seed [sha256.Size]byte
}

type user struct {
	role   role
	hash   []byte
	cached atomic.Pointer[[sha256.Size]byte] // the passwordMAC that last matched
}

// openCredentials reads the files for the first time. The push file must be valid; errors in the others
// are only logged. An empty pull or exposed means no such file.
func openCredentials(log *slog.Logger, push, pull, exposed string) (*credentials, error) {
	c := &credentials{
		push:     push,
		pull:     pull,
		exposed:  exposed,
		interval: credentialInterval,
		log:      log,
		running:  make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)),
	}
	_, _ = rand.Read(c.key[:]) // never fails
	_, err := c.reload()
	if c.current.Load() == nil {
		return nil, err
	}
	c.logReload(false, err)
	return c, nil
}

// run follows the files until ctx ends. It calls loaded at once, and after every reload.
func (c *credentials) run(ctx context.Context, loaded func()) {
	ticker := time.NewTicker(c.interval)
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
func (c *credentials) logReload(changed bool, err error) {
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
func (c *credentials) reload() (changed bool, err error) {
	old := c.current.Load()
	if old == nil {
		old = &userTable{}
	}
	next := &userTable{}
	var pushErr, pullErr, exposedErr error
	if next.push, pushErr = loadUsers(c.push, rolePush, old.push); pushErr != nil {
		next.push = old.push
	}
	if c.pull != "" {
		next.pull, pullErr = next.loadPullUsers(c.pull, rolePull, old.pull)
	}
	if c.exposed != "" {
		next.exposed, exposedErr = next.loadPullUsers(c.exposed, roleExposedPull, old.exposed)
	}
	if err = errors.Join(pushErr, pullErr, exposedErr); err != nil {
		c.reloadErrors.Add(1)
	}
	if next.push == nil || next.push == old.push && next.pull == old.pull && next.exposed == old.exposed {
		return false, err
	}

	for _, file := range next.files() {
		next.cost = max(next.cost, file.cost)
	}
	next.dummyUser = old.dummyUser
	if next.cost != old.cost {
		hash, err := bcrypt.GenerateFromPassword([]byte(rand.Text()), next.cost)
		if err != nil {
			return false, fmt.Errorf("hashing the dummy user's password: %w", err)
		}
		next.dummyUser = &user{hash: hash}
	}
	c.current.Store(next)
	return true, err
}

// loadUsers reads a file. If it has not changed, it returns old, with its users' caches.
func loadUsers(path string, has role, old *userFile) (*userFile, error) {
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

// parseUsers parses an htpasswd file: each line is USER:HASH, empty or a comment. Errors contain the line
// number and never the line.
func parseUsers(data []byte, has role) (*userFile, error) {
	file := &userFile{users: map[string]*user{}}
	for i, line := range strings.Split(string(data), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, hash, ok := strings.Cut(line, ":")
		if !ok || name == "" {
			return nil, fmt.Errorf("line %d is not USER:HASH", i+1)
		}
		cost, err := bcrypt.Cost([]byte(hash))
		if err != nil || len(hash) != hashLength {
			return nil, fmt.Errorf("line %d: not a bcrypt hash: create it with htpasswd -B", i+1)
		}
		if cost > maxCost {
			return nil, fmt.Errorf("line %d: bcrypt cost %d is too slow: want at most %d", i+1, cost, maxCost)
		}
		if file.users[name] != nil {
			return nil, fmt.Errorf("line %d: duplicate user %q", i+1, name)
		}
		file.users[name] = &user{role: has, hash: []byte(hash)}
		file.cost = max(file.cost, cost)
	}
	if len(file.users) == 0 {
		return nil, errors.New("no users")
	}
	return file, nil
}

// loadPullUsers reads an optional file of users who may only pull. If the file is invalid, it returns old.
func (t *userTable) loadPullUsers(path string, has role, old *userFile) (*userFile, error) {
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

// find returns a user, or nil. If a name is in two files, which can happen only when the first one changes,
// the first one takes precedence.
func (t *userTable) find(name string) *user {
	for _, file := range t.files() {
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

// hasPullUsers reports whether the pull file is loaded.
func (c *credentials) hasPullUsers() bool { return c.current.Load().pull != nil }

// verify returns the user's role, or roleNone if the user is unknown or the password is wrong. The only
// errors are TOOMANYREQUESTS, if too many checks are waiting, and ctx.Err().
func (c *credentials) verify(ctx context.Context, name, password string) (role, error) {
	table := c.current.Load()
	u := table.find(name)
	if u == nil {
		u = table.dummyUser
	}
	mac := c.passwordMAC(name, password)
	if u.hasCached(mac) {
		c.checks[checkCached].Add(1)
		return u.role, nil
	}

	if c.waiting.Add(1) > maxWaiting {
		c.waiting.Add(-1)
		c.checks[checkBusy].Add(1)
		return roleNone, errcode.ErrorCodeTooManyRequests.WithMessage("too many passwords are being checked: retry later")
	}
	select {
	case c.running <- struct{}{}:
		c.waiting.Add(-1)
		defer func() { <-c.running }()
	case <-ctx.Done():
		c.waiting.Add(-1)
		return roleNone, ctx.Err()
	}

	// The first requests of a push arrive together: another one may have filled the cache meanwhile.
	if u.hasCached(mac) {
		c.checks[checkCached].Add(1)
		return u.role, nil
	}
	err := bcrypt.CompareHashAndPassword(u.hash, []byte(password))
	// bcrypt repeats short passwords, with a zero byte, and truncates long ones: more than one password would match.
	if err != nil || u == table.dummyUser || len(password) > maxPassword || strings.ContainsRune(password, 0) {
		c.checks[checkRefused].Add(1)
		return roleNone, nil
	}
	u.cached.Store(&mac)
	c.checks[checkMatched].Add(1)
	return u.role, nil
}

func (u *user) hasCached(mac [sha256.Size]byte) bool {
	cached := u.cached.Load()
	return cached != nil && hmac.Equal(cached[:], mac[:])
}

func (c *credentials) passwordMAC(name, password string) [sha256.Size]byte {
	mac := hmac.New(sha256.New, c.key[:])
	_ = binary.Write(mac, binary.BigEndian, int64(len(name)))
	mac.Write([]byte(name + password))
	return [sha256.Size]byte(mac.Sum(nil))
}

// secret derives a secret for the given purpose from the current push file, not from the pull files, which
// may disappear. The file contains hashes with random salts, which cannot be guessed.
func (c *credentials) secret(purpose string) string {
	seed := c.current.Load().push.seed
	mac := hmac.New(sha256.New, seed[:])
	mac.Write([]byte(purpose))
	return hex.EncodeToString(mac.Sum(nil))
}

// report returns the digests of the files in force.
func (c *credentials) report() *reloadstatus.Credentials {
	table := c.current.Load()
	report := &reloadstatus.Credentials{Push: hex.EncodeToString(table.push.sum[:])}
	if table.pull != nil {
		report.Pull = hex.EncodeToString(table.pull.sum[:])
	}
	return report
}

// known reports whether name is a user. Only known names may be logged, because people type passwords into
// the wrong field.
func (c *credentials) known(name string) bool {
	return c.current.Load().find(name) != nil
}
