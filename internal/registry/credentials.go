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
	// credentialInterval is how often the htpasswd files are looked at. It is short because
	// a switch of modes waits for it.
	credentialInterval = time.Second
	// maxCost is the highest bcrypt cost that is accepted. Each step doubles the
	// time; this one takes about a second, and a typing error such as 31 days.
	maxCost = 14
	// hashLength is the length of every bcrypt hash: $2y$, cost, $, salt and sum.
	hashLength = 60
	// maxPassword is how many bytes of a password bcrypt looks at. A longer one
	// would be accepted with any ending.
	maxPassword = 72
	// maxWaiting bounds the checks that wait for their turn. At the usual cost
	// of 10 the last of them waits for about two seconds.
	maxWaiting = 32
)

// credentials verifies user names and passwords against htpasswd files, which
// it reads again when they change. All methods are safe for concurrent use.
//
// The file of those who may push must be there. That of those who may only pull,
// and that of those who may only pull from outside, may come and go: while it is not there it has no users. A file that cannot be
// used leaves the users in force that it had before.
//
// bcrypt is slow so that a stolen file is worth little. So that this slows no
// push of a thousand requests, an entry remembers the password that it was last
// found to match, as an HMAC under a key that this process drew for itself; and
// so that a flood of wrong passwords takes at most half of the processors, few
// checks run at a time and few wait.
type credentials struct {
	push, pull, exposed string // paths; all but the first may be empty
	interval            time.Duration
	log                 *slog.Logger
	key                 [sha256.Size]byte
	running             chan struct{}
	waiting             atomic.Int32
	current             atomic.Pointer[userTable]

	reloadErrors atomic.Uint64
	failure      string // the failure that was logged last; for the one goroutine that reloads

	checks [4]atomic.Uint64 // by checkResult
}

type checkResult int

const (
	checkRemembered checkResult = iota
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
	pull *userFile // nil while it is not there
	// exposed are who may only pull from outside; nil while there is no such file.
	exposed *userFile
	// stranger stands for every user that does not exist, so that looking for
	// one takes as long as a wrong password.
	stranger *user
	cost     int // of the stranger's hash, the highest of all
}

// userFile is one generation of one file. It is immutable but for what its users
// remember, which so ends with it.
type userFile struct {
	users map[string]*user
	cost  int // the highest of its hashes
	sum   [sha256.Size]byte
	// seed is what secrets are derived from. The sum is public: it is in the report.
	seed [sha256.Size]byte
}

type user struct {
	role   role
	hash   []byte
	proven atomic.Pointer[[sha256.Size]byte]
}

// openCredentials reads the files for the first time. That of the pushers must be
// good; one of the pullers that is not is only logged. An empty pull or exposed means
// that there is no such file.
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
	c.say(false, err)
	return c, nil
}

// run follows the files until ctx ends. It calls then at once, and after each
// look at them.
func (c *credentials) run(ctx context.Context, then func()) {
	ticker := time.NewTicker(c.interval)
	defer ticker.Stop()
	for {
		then()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		c.say(c.reload())
	}
}

// say logs how a reload went: a failure once, not every second.
func (c *credentials) say(changed bool, err error) {
	before := c.failure
	c.failure = ""
	if err != nil {
		c.failure = err.Error()
		if c.failure != before {
			c.log.Error("cannot load credentials, the users before stay in force", "error", err)
		}
	}
	if changed || before != "" && err == nil {
		c.log.Info("credentials reloaded", "users", c.current.Load().size())
	}
}

// reload reads the files and puts into force those that are good. changed and
// an error may come together, each from another file.
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
		next.pull, pullErr = next.loadPullers(c.pull, rolePull, old.pull)
	}
	if c.exposed != "" {
		next.exposed, exposedErr = next.loadPullers(c.exposed, roleExposedPull, old.exposed)
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
	next.stranger = old.stranger
	if next.cost != old.cost {
		hash, err := bcrypt.GenerateFromPassword([]byte(rand.Text()), next.cost)
		if err != nil {
			return false, fmt.Errorf("hashing a password that nobody has: %w", err)
		}
		next.stranger = &user{hash: hash}
	}
	c.current.Store(next)
	return true, err
}

// loadUsers reads a file. Where it has not changed, the users are the old ones
// with what they remember.
func loadUsers(path string, has role, old *userFile) (*userFile, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		// The kubelet may have put another directory in place between two steps of this look-up.
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

// seedOf is a digest of a file that cannot be computed from the file's SHA-256. The
// file is the message and not the key, because HMAC takes the SHA-256 of a long key.
func seedOf(data []byte) [sha256.Size]byte {
	mac := hmac.New(sha256.New, []byte(seedPurpose))
	mac.Write(data)
	return [sha256.Size]byte(mac.Sum(nil))
}

// parseUsers parses an htpasswd file, in which each line is USER:HASH, empty or a
// comment. Errors name the line and never quote it.
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
			return nil, fmt.Errorf("line %d: the hash is not bcrypt, the only kind that is accepted: make it with htpasswd -B", i+1)
		}
		if cost > maxCost {
			return nil, fmt.Errorf("line %d: bcrypt cost %d would take too long at each check, the highest is %d", i+1, cost, maxCost)
		}
		if file.users[name] != nil {
			return nil, fmt.Errorf("line %d: user %q is there already", i+1, name)
		}
		file.users[name] = &user{role: has, hash: []byte(hash)}
		file.cost = max(file.cost, cost)
	}
	if len(file.users) == 0 {
		return nil, errors.New("there is no user in it")
	}
	return file, nil
}

// loadPullers reads a file of users who may only pull, where it is there. One that
// cannot be used leaves the old one.
func (t *userTable) loadPullers(path string, has role, old *userFile) (*userFile, error) {
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

// collision returns an error where a user of a file is one of those before it:
// one name cannot have two passwords.
func (t *userTable) collision(path string, file *userFile) error {
	for _, name := range slices.Sorted(maps.Keys(file.users)) { // in order, so that the same error stays the same
		switch {
		case t.push != nil && t.push.users[name] != nil:
			return fmt.Errorf("credentials %s: user %q may push already: give it another name", path, name)
		case t.pull != nil && t.pull.users[name] != nil:
			return fmt.Errorf("credentials %s: user %q is the one of the node port: give it another name", path, name)
		}
	}
	return nil
}

// files are those that are there, in the order in which they decide.
func (t *userTable) files() (files []*userFile) {
	for _, file := range []*userFile{t.push, t.pull, t.exposed} {
		if file != nil {
			files = append(files, file)
		}
	}
	return files
}

// find returns a user, or nil. Where a name is in two files, which only a change
// of the first can bring about, the first decides.
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

// pullable tells whether users of the file of those who may only pull are in force.
func (c *credentials) pullable() bool { return c.current.Load().pull != nil }

// verify returns what the user may do, roleNone where the user does not exist or
// the password is wrong. The only errors are TOOMANYREQUESTS, when too many
// checks are waiting, and that of ctx.
func (c *credentials) verify(ctx context.Context, name, password string) (role, error) {
	table := c.current.Load()
	u := table.find(name)
	if u == nil {
		u = table.stranger
	}
	proof := c.proof(name, password)
	if u.remembers(proof) {
		c.checks[checkRemembered].Add(1)
		return u.role, nil
	}

	if c.waiting.Add(1) > maxWaiting {
		c.waiting.Add(-1)
		c.checks[checkBusy].Add(1)
		return roleNone, errcode.ErrorCodeTooManyRequests.WithMessage("too many credentials are being checked: try again")
	}
	select {
	case c.running <- struct{}{}:
		c.waiting.Add(-1)
		defer func() { <-c.running }()
	case <-ctx.Done():
		c.waiting.Add(-1)
		return roleNone, ctx.Err()
	}

	// The first requests of a push come together: the second need not pay again.
	if u.remembers(proof) {
		c.checks[checkRemembered].Add(1)
		return u.role, nil
	}
	err := bcrypt.CompareHashAndPassword(u.hash, []byte(password))
	// bcrypt repeats a short password and cuts a long one; both would let more than one
	// password in.
	if err != nil || u == table.stranger || len(password) > maxPassword || strings.ContainsRune(password, 0) {
		c.checks[checkRefused].Add(1)
		return roleNone, nil
	}
	u.proven.Store(&proof)
	c.checks[checkMatched].Add(1)
	return u.role, nil
}

func (u *user) remembers(proof [sha256.Size]byte) bool {
	proven := u.proven.Load()
	return proven != nil && hmac.Equal(proven[:], proof[:])
}

func (c *credentials) proof(name, password string) [sha256.Size]byte {
	mac := hmac.New(sha256.New, c.key[:])
	_ = binary.Write(mac, binary.BigEndian, int64(len(name)))
	mac.Write([]byte(name + password))
	return [sha256.Size]byte(mac.Sum(nil))
}

// secret derives a secret for the given purpose from the file of pushers as it is
// now; that of pullers comes and goes. What it is derived from are hashes with
// random salts, which cannot be guessed.
func (c *credentials) secret(purpose string) string {
	seed := c.current.Load().push.seed
	mac := hmac.New(sha256.New, seed[:])
	mac.Write([]byte(purpose))
	return hex.EncodeToString(mac.Sum(nil))
}

// report tells which files are in force.
func (c *credentials) report() *reloadstatus.Credentials {
	table := c.current.Load()
	report := &reloadstatus.Credentials{Push: hex.EncodeToString(table.push.sum[:])}
	if table.pull != nil {
		report.Pull = hex.EncodeToString(table.pull.sum[:])
	}
	return report
}

// known tells whether name is a user: only such names may be logged, because
// people type passwords into the wrong field.
func (c *credentials) known(name string) bool {
	return c.current.Load().find(name) != nil
}
