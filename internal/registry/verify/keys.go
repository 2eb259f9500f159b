package verify

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/api/reloadstatus"
	"github.com/zarf-dev/zarf-registry/internal/net/mounted"
	"github.com/zarf-dev/zarf-registry/internal/registry/poll"
	"github.com/zarf-dev/zarf-registry/internal/registry/signature"
)

// reloadInterval is how often the public keys and the digests of own images are read.
const reloadInterval = time.Second

// trusted is one generation of the public keys and of the project's own images, with the results for it.
type trusted struct {
	keys    []signature.Key
	keysSum [sha256.Size]byte
	own     map[digest.Digest]bool
	ownSum  [sha256.Size]byte
	results results
}

// PollFiles loads the files again when they change, until ctx ends.
func (v *Verifier) PollFiles(ctx context.Context) {
	for poll.Sleep(ctx, reloadInterval) == nil {
		v.logLoad(v.load())
	}
}

// logLoad logs the result of a load. It logs a persistent failure once, not every second.
func (v *Verifier) logLoad(changed bool, err error) {
	failure := ""
	if err != nil {
		failure = err.Error()
	}
	if previous := v.problem.Swap(&failure); failure != "" && (previous == nil || *previous != failure) {
		v.log.Error("loading what images are verified with failed, the previous version stays in force", "error", err)
	}
	if changed {
		t := v.current.Load()
		v.log.Info("public keys loaded", "keys", fmt.Sprint(t.keys), "ownImages", len(t.own))
	}
}

// load reads the files and activates the valid ones.
func (v *Verifier) load() (changed bool, err error) {
	old := v.current.Load()
	next := &trusted{keys: old.keys, keysSum: old.keysSum, own: old.own, ownSum: old.ownSum}
	err = errors.Join(next.loadKeys(v.keysDir), next.loadOwn(v.ownFile))
	if err != nil {
		v.ReloadErrors.Add(1)
	}
	if next.keysSum == old.keysSum && next.ownSum == old.ownSum {
		return false, err
	}
	v.current.Store(next)
	return true, err
}

// loadKeys replaces the keys by those of a directory, as the kubelet mounts a Secret.
func (t *trusted) loadKeys(dir string) error {
	var files map[string][]byte
	_, err := mounted.Read(dir, func(generation string) (err error) {
		files, err = readFiles(generation)
		return err
	})
	if err != nil {
		return fmt.Errorf("reading public keys: %w", err)
	}
	hash := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(hash, "%q %d\n%s", name, len(files[name]), files[name])
	}
	sum := [sha256.Size]byte(hash.Sum(nil))
	if sum == t.keysSum {
		return nil
	}
	keys, err := signature.ParseKeys(files)
	if err != nil {
		return fmt.Errorf("public keys %s: %w", dir, err)
	}
	t.keys, t.keysSum = keys, sum
	return nil
}

// readFiles reads the files of a directory. Names with a leading dot are the kubelet's.
func readFiles(dir string) (map[string][]byte, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), ".") {
			continue
		}
		if files[entry.Name()], err = os.ReadFile(filepath.Join(dir, entry.Name())); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// loadOwn replaces the digests of the project's own images by those of a file, which may be missing.
func (t *trusted) loadOwn(file string) error {
	if file == "" {
		return nil
	}
	data, err := mounted.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) { // nothing is recorded yet
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading digests of own images: %w", err)
	}
	sum := sha256.Sum256(data)
	if sum == t.ownSum {
		return nil
	}
	own := map[digest.Digest]bool{}
	for _, field := range strings.Fields(string(data)) {
		d, err := digest.Parse(field)
		if err != nil || d.Algorithm() != digest.Canonical {
			return fmt.Errorf("own images %s: %q is not a SHA-256 digest", file, field)
		}
		own[d] = true
	}
	t.own, t.ownSum = own, sum
	return nil
}

// ownDigest returns the SHA-256 of the file in force; empty before one was read.
func (t *trusted) ownDigest() string {
	if t.own == nil {
		return ""
	}
	return hex.EncodeToString(t.ownSum[:])
}

// Report describes what is in force.
func (v *Verifier) Report() *reloadstatus.Signatures {
	t := v.current.Load()
	r := &reloadstatus.Signatures{Enforced: v.enforcing.Load(), Keys: []string{}, OwnImages: t.ownDigest()}
	if problem := v.problem.Load(); problem != nil { // else nothing was loaded
		r.Problem = *problem
	}
	for _, key := range t.keys {
		r.Keys = append(r.Keys, key.Fingerprint)
	}
	if unsigned := v.unsigned.Load(); unsigned >= 0 {
		r.UnsignedTags = &unsigned
	}
	return r
}
