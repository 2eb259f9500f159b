package users

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/crypto/bcrypt"

	"github.com/zarf-dev/zarf-registry/internal/net/mounted"
)

// userTable is one generation of the files.
type userTable struct {
	push *userFile
	pull *userFile // nil while the file does not exist
	// exposed are the users who may only pull from outside; nil while the file does not exist.
	exposed *userFile
	// inside are the users whom the listeners inside the cluster accept, outside those of the exposed listener.
	inside, outside userSet
}

// userSet are the users whom a listener accepts.
type userSet struct {
	users map[string]*User
	// dummy stands for every unknown user, so that an unknown name takes as long as a wrong password.
	dummy *User
}

// newUserSet returns the users of the existing files. While files change, a name may be in two: the first counts.
func newUserSet(dummy *User, files ...*userFile) (s userSet, err error) {
	s.users = map[string]*User{}
	cost := 0
	for _, file := range slices.Backward(files) {
		if file != nil {
			maps.Copy(s.users, file.users)
			cost = max(cost, file.cost)
		}
	}
	s.dummy, err = dummy.withCost(cost)
	return s, err
}

// of returns the users whom a listener accepts.
func (t *userTable) of(exposed bool) userSet {
	if exposed {
		return t.outside
	}
	return t.inside
}

// userFile is one generation of one file, with which its users' caches end. It is immutable apart from these.
type userFile struct {
	users map[string]*User
	cost  int // the highest of its hashes
	sum   [sha256.Size]byte
	// seed is what secrets are derived from. It is not sum, because sum is public: it is in the report.
	seed [sha256.Size]byte
}

// User is a user of one generation of a file.
type User struct {
	Role   Role
	hash   []byte
	cost   int
	cached atomic.Pointer[passwordMAC] // the one that last matched
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

// loadUsers reads a file. If it has not changed, it returns old. Users whose hash has not changed keep their caches.
func loadUsers(path string, has Role, old *userFile) (*userFile, error) {
	data, err := mounted.ReadFile(path)
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

// seedOf is a digest of a file that cannot be computed from the file's SHA-256. The file is the message and
// not the key, because HMAC replaces a long key by its SHA-256.
func seedOf(data []byte) [sha256.Size]byte {
	mac := hmac.New(sha256.New, []byte("zarf-registry: seed of secrets"))
	mac.Write(data)
	return [sha256.Size]byte(mac.Sum(nil))
}

// parseUsers parses lines: USER:HASH, empty or a comment. Errors contain the line number and never the line.
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
	name, hash, ok := strings.Cut(line, ":")
	if !ok || name == "" {
		return "", nil, errors.New(" is not USER:HASH")
	}
	cost, err := bcrypt.Cost([]byte(hash))
	switch {
	case err != nil || len(hash) != hashLength:
		return "", nil, errors.New(": not a bcrypt hash: create it with htpasswd -B")
	case cost > maxCost:
		return "", nil, fmt.Errorf(": bcrypt cost %d is too slow: want at most %d", cost, maxCost)
	}
	return name, &User{Role: has, hash: []byte(hash), cost: cost}, nil
}

// loadPullUsers reads an optional file of users who may only pull. If the file is invalid, it returns old.
func (t *userTable) loadPullUsers(path string, old *userFile) (*userFile, error) {
	if path == "" {
		return nil, nil
	}
	file, err := loadUsers(path, RolePull, old)
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

// collision returns an error if a user of the file is already in one that takes precedence.
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
