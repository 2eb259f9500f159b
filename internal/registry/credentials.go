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
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/distribution/distribution/v3/registry/api/errcode"
	"golang.org/x/crypto/bcrypt"
)

const (
	// credentialInterval is how often the htpasswd files are read again. The
	// kubelet brings a changed Secret up to about 90 s late; a few seconds more
	// are lost in it.
	credentialInterval = 5 * time.Second
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
// bcrypt is slow so that a stolen file is worth little. So that this slows no
// push of a thousand requests, an entry remembers the password that it was last
// found to match, as an HMAC under a key that this process drew for itself; and
// so that a flood of wrong passwords takes at most half of the processors, few
// checks run at a time and few wait.
type credentials struct {
	files    []htpasswdFile
	interval time.Duration
	log      *slog.Logger
	key      [sha256.Size]byte
	running  chan struct{}
	waiting  atomic.Int32
	current  atomic.Pointer[userTable]

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

// htpasswdFile is a file and what its users may do.
type htpasswdFile struct {
	path string
	role role
}

// userTable is one generation of all files. It is immutable but for what its
// users remember, which so ends with it.
type userTable struct {
	users map[string]*user
	// stranger stands for every user that does not exist, so that looking for
	// one takes as long as a wrong password.
	stranger *user
	sum      [sha256.Size]byte
}

type user struct {
	role   role
	hash   []byte
	proven atomic.Pointer[[sha256.Size]byte]
}

// openCredentials reads the files for the first time, which must succeed.
func openCredentials(log *slog.Logger, files ...htpasswdFile) (*credentials, error) {
	c := &credentials{
		files:    files,
		interval: credentialInterval,
		log:      log,
		running:  make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)),
	}
	_, _ = rand.Read(c.key[:]) // never fails
	if _, err := c.reload(); err != nil {
		return nil, err
	}
	return c, nil
}

// run follows the files until ctx ends. While they cannot be used the last good
// ones stay in force.
func (c *credentials) run(ctx context.Context) {
	ticker := time.NewTicker(c.interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		changed, err := c.reload()
		switch {
		case err != nil:
			if err.Error() != c.failure { // once, not every few seconds
				c.failure = err.Error()
				c.log.Error("cannot reload credentials, the old ones stay in force", "error", err)
			}
		case changed || c.failure != "":
			c.failure = ""
			c.log.Info("credentials reloaded", "users", len(c.current.Load().users))
		}
	}
}

func (c *credentials) reload() (changed bool, err error) {
	defer func() {
		if err != nil {
			c.reloadErrors.Add(1)
		}
	}()
	contents := make([][]byte, len(c.files))
	sum := sha256.New()
	for i, file := range c.files {
		contents[i], err = os.ReadFile(file.path)
		if err != nil {
			return false, fmt.Errorf("reading credentials: %w", err)
		}
		_ = binary.Write(sum, binary.BigEndian, int64(len(contents[i])))
		sum.Write(contents[i])
	}
	table := &userTable{users: map[string]*user{}, sum: [sha256.Size]byte(sum.Sum(nil))}
	if old := c.current.Load(); old != nil && old.sum == table.sum {
		return false, nil
	}
	cost := 0
	for i, file := range c.files {
		highest, err := table.add(contents[i], file.role)
		if err != nil {
			return false, fmt.Errorf("credentials %s: %w", file.path, err)
		}
		cost = max(cost, highest)
	}
	hash, err := bcrypt.GenerateFromPassword([]byte(rand.Text()), cost)
	if err != nil {
		return false, fmt.Errorf("hashing a password that nobody has: %w", err)
	}
	table.stranger = &user{hash: hash}
	c.current.Store(table)
	return true, nil
}

// add parses an htpasswd file, in which each line is USER:HASH, empty or a
// comment, and returns the highest cost of its hashes. Errors name the line and
// never quote it.
func (t *userTable) add(data []byte, has role) (highest int, err error) {
	for i, line := range strings.Split(string(data), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, hash, ok := strings.Cut(line, ":")
		if !ok || name == "" {
			return 0, fmt.Errorf("line %d is not USER:HASH", i+1)
		}
		cost, err := bcrypt.Cost([]byte(hash))
		if err != nil || len(hash) != hashLength {
			return 0, fmt.Errorf("line %d: the hash is not bcrypt, the only kind that is accepted: make it with htpasswd -B", i+1)
		}
		if cost > maxCost {
			return 0, fmt.Errorf("line %d: bcrypt cost %d would take too long at each check, the highest is %d", i+1, cost, maxCost)
		}
		if t.users[name] != nil {
			return 0, fmt.Errorf("line %d: user %q is there already", i+1, name)
		}
		t.users[name] = &user{role: has, hash: []byte(hash)}
		highest = max(highest, cost)
	}
	if highest == 0 {
		return 0, errors.New("there is no user in it")
	}
	return highest, nil
}

// verify returns what the user may do, roleNone where the user does not exist or
// the password is wrong. The only errors are TOOMANYREQUESTS, when too many
// checks are waiting, and that of ctx.
func (c *credentials) verify(ctx context.Context, name, password string) (role, error) {
	table := c.current.Load()
	u := table.users[name]
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

// secret derives a secret for the given purpose from the files as they are now.
// What it is derived from are hashes with random salts, which cannot be guessed.
func (c *credentials) secret(purpose string) string {
	sum := c.current.Load().sum
	mac := hmac.New(sha256.New, sum[:])
	mac.Write([]byte(purpose))
	return hex.EncodeToString(mac.Sum(nil))
}

// known tells whether name is a user: only such names may be logged, because
// people type passwords into the wrong field.
func (c *credentials) known(name string) bool {
	return c.current.Load().users[name] != nil
}
