// Package verify decides which images clients may read: those that are signed. It verifies signatures, remembers the
// results, and audits all tagged images.
//
// It does not decide who must read signed images only: package front does. Package signature knows the formats of
// signatures.
package verify

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distribution/distribution/v3/registry/api/errcode"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/logging"
	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/request"
	"github.com/zarf-dev/zarf-registry/internal/registry/signature"
)

// Mode is what happens when a node or an anonymous client reads an image that nobody has signed.
type Mode string

// The values of Options.Signatures. Off is the zero value, too.
const (
	Off Mode = "off"
	// Audit serves, logs and counts.
	Audit Mode = "audit"
	// Enforce denies, once all tagged images have been looked at.
	Enforce Mode = "enforce"
)

const (
	// signatureTimeout bounds a verification, which reads some files of a kilobyte.
	signatureTimeout = 30 * time.Second
	// maxVerifications bounds the memory of concurrent verifications: each has an image's manifest, and a signature or
	// an SBOM, of some megabytes at most. Repositories with the same first component, which one credential may write,
	// have maxShare of them at once: what is slow there delays no others.
	maxVerifications, maxShare = 8, 4
	// shares is how many of these limits there are: two owners rarely have the same.
	shares = 256
	// maxIndexes is how many indexes are asked whether they cover an image, maxNesting how many levels of them.
	maxIndexes, maxNesting = 16, 3
	// logAgain is how often the log repeats that an image is not signed, maxLogged of how many it knows.
	logAgain, maxLogged = time.Hour, 10_000
)

// Verifier verifies the signatures of images that nodes and anonymous clients read.
type Verifier struct {
	mode    Mode
	source  *content.Store
	keysDir string // of public keys
	ownFile string // of the digests of the project's own images; may be empty
	log     *slog.Logger
	Now     func() time.Time
	// failures are logged for requests, of which there may be many.
	failures *logging.Limited
	// indexes means that back links are being rebuilt: see content.Store.Rebuilt.
	indexes bool

	current      atomic.Pointer[trusted]
	problem      atomic.Pointer[string]
	ReloadErrors atomic.Uint64

	decided   chan struct{} // closed when enforcing is known
	enforcing atomic.Bool
	unsigned  atomic.Int64 // tags, at the last audit; -1 before it
	slots     chan struct{}
	shares    [shares]chan struct{} // see share
	seed      maphash.Seed
	Counts    [4]atomic.Uint64 // of requests, by outcome

	mu     sync.Mutex
	logged map[content.RepositoryDigest]time.Time
}

// New returns a verifier with the public keys of a directory and, if a file has any, the digests of the
// project's own images. Indexes means that back links are being rebuilt: see content.Store.Rebuilt.
func New(
	mode Mode, keysDir, ownFile string, source *content.Store, indexes bool, log *slog.Logger,
) *Verifier {
	v := &Verifier{
		mode: mode, source: source, keysDir: keysDir, ownFile: ownFile, log: log, Now: time.Now, indexes: indexes,
		decided: make(chan struct{}), slots: make(chan struct{}, maxVerifications),
		logged: map[content.RepositoryDigest]time.Time{}, failures: logging.NewLimited(log), seed: maphash.MakeSeed(),
	}
	for i := range v.shares {
		v.shares[i] = make(chan struct{}, maxShare)
	}
	v.unsigned.Store(-1)
	v.current.Store(&trusted{})
	if v.On() {
		v.logLoad(v.load())
	}
	return v
}

// On reports whether images are verified at all.
func (v *Verifier) On() bool {
	return v.mode == Audit || v.mode == Enforce
}

// Outcome is the result of a verification.
type Outcome int

const (
	outcomeUnsigned Outcome = iota
	outcomeSigned
	// outcomeExempt is that of the project's own images, and of what carries signatures.
	outcomeExempt
	// outcomeFailed means that the storage could not be read.
	outcomeFailed
)

func (o Outcome) String() string { return [...]string{"unsigned", "signed", "exempt", "failed"}[o] }

// verdict is what is known about a manifest.
type verdict struct {
	outcome Outcome
	// covers means that the images of an index are accepted as the index is.
	covers bool
	others int // signatures by other keys
}

// check returns the verdict about a manifest. It may be from memory: see results.
func (v *Verifier) check(ctx context.Context, repository string, d digest.Digest) (verdict, error) {
	t := v.current.Load()
	if found, ok := t.results.get(repository, d, v.Now()); ok {
		return found, nil
	}
	for _, slots := range []chan struct{}{v.share(repository), v.slots} {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		case <-ctx.Done():
			return verdict{outcome: outcomeFailed}, ctx.Err()
		}
	}
	ctx, cancel := context.WithTimeout(ctx, signatureTimeout)
	defer cancel()
	return v.verifyManifest(ctx, t, repository, d, maxNesting)
}

// share returns the slots of a repository's owner.
func (v *Verifier) share(repository string) chan struct{} {
	owner, _, _ := strings.Cut(repository, "/")
	return v.shares[maphash.String(v.seed, owner)%shares]
}

// verifyManifest verifies a manifest, and remembers the verdict.
func (v *Verifier) verifyManifest(
	ctx context.Context, t *trusted, repository string, d digest.Digest, nesting int,
) (verdict, error) {
	now := v.Now()
	memory := t.results.forRepository(repository)
	if found, ok := t.results.get(repository, d, now); ok {
		return found, nil
	}
	data, err := v.source.Manifest(ctx, repository, d)
	if err != nil {
		return verdict{outcome: outcomeFailed}, err
	}
	found, err := v.verifyContent(ctx, t, repository, data, nesting)
	if err != nil {
		return verdict{outcome: outcomeFailed}, fmt.Errorf("verifying %s@%s: %w", repository, d, err)
	}
	if nesting > 0 { // else indexes were not asked
		t.results.put(memory, d, found, now)
	}
	return found, nil
}

func (v *Verifier) verifyContent(
	ctx context.Context, t *trusted, repository string, data []byte, nesting int,
) (verdict, error) {
	digests := []digest.Digest{digest.SHA256.FromBytes(data), digest.SHA512.FromBytes(data)}
	if t.own[digests[0]] {
		return verdict{outcome: outcomeExempt, covers: true}, nil
	}
	of := v.source.Repository(repository)
	if carrier, err := signature.IsCarrier(ctx, of, data); err != nil || carrier {
		return verdict{outcome: outcomeExempt}, err
	}
	found, err := signature.Verify(ctx, of, t.keys, data)
	if err != nil {
		return verdict{}, err
	}
	if found.By != nil {
		return verdict{outcome: outcomeSigned, covers: true}, nil
	}
	unsigned := verdict{outcome: outcomeUnsigned, others: found.Others}
	if nesting == 0 {
		return unsigned, nil
	}
	for _, d := range digests {
		indexes, err := v.source.IndexesOf(ctx, repository, d, maxIndexes)
		if err != nil {
			return verdict{}, err
		}
		for _, index := range indexes {
			switch by, err := v.verifyManifest(ctx, t, repository, index, nesting-1); {
			case errors.Is(err, content.ErrUnknownManifest): // just deleted
			case err != nil:
				return verdict{}, err
			case by.covers:
				return verdict{outcome: by.outcome, covers: true}, nil
			}
		}
	}
	return unsigned, nil
}

// indexed reports whether referrers and indexes are found without a scan of the repository. Before that, only what
// must be verified is.
func (v *Verifier) indexed() bool { return !v.indexes || v.source.Rebuilt.Load() }

// Changed forgets what is known about a repository, after a push to it or a deletion.
func (v *Verifier) Changed(repository string) { v.current.Load().results.forget(repository) }

// Require returns the request to serve, or the error to respond with. A tag is resolved once: what was verified
// is what is served.
func (v *Verifier) Require(r *http.Request, to request.Target) (*http.Request, error) {
	ctx := r.Context()
	select {
	case <-v.decided:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if !v.enforcing.Load() && !v.indexed() {
		return r, nil
	}
	d, err := v.source.Resolve(ctx, to.Repository, to.Manifest)
	found := verdict{outcome: outcomeFailed}
	if err == nil {
		found, err = v.check(ctx, to.Repository, d)
	}
	enforcing := v.enforcing.Load()
	switch {
	case errors.Is(err, content.ErrUnknownManifest):
		if enforcing { // it may exist by the time that the request is served
			return nil, errcode.ErrorCodeManifestUnknown.WithDetail(request.Reference(to.Repository, to.Manifest))
		}
		return r, nil
	case errors.As(err, new(errcode.Error)): // distribution would refuse it, too
		return nil, err
	case err != nil && ctx.Err() != nil:
		return nil, ctx.Err()
	}
	v.Counts[found.outcome].Add(1)
	switch {
	case err != nil:
		v.failures.Error("verifying an image failed", "image", request.Reference(to.Repository, to.Manifest), "error", err)
		if enforcing {
			return nil, request.Unavailable("the signature of image %s could not be verified: see the registry's log",
				request.Reference(to.Repository, to.Manifest))
		}
		return r, nil
	case found.outcome == outcomeUnsigned:
		v.logUnsigned(to.Repository, to.Manifest, d, found)
		if enforcing {
			return nil, v.denial(to, d, found)
		}
		return r, nil
	case !enforcing:
		return r, nil
	}
	pinned, path := r.WithContext(ctx), *r.URL
	path.Path, path.RawPath = "/v2/"+to.Repository+"/manifests/"+d.String(), ""
	pinned.URL = &path
	return pinned, nil
}

// denial names the image, the keys, and what to do. Kubelets show it in events.
func (v *Verifier) denial(to request.Target, d digest.Digest, found verdict) error {
	text := &strings.Builder{}
	fmt.Fprintf(text, "image %s", request.Reference(to.Repository, to.Manifest))
	if to.Manifest != d.String() {
		fmt.Fprintf(text, " (%s)", d)
	}
	keys := v.current.Load().keys
	if len(keys) == 0 {
		text.WriteString(" cannot be verified, because the registry has no valid public key (registry.signatures)")
		return request.Denied("%s", text)
	}
	const shown = 4
	var names []string
	for _, key := range keys[:min(len(keys), shown)] {
		names = append(names, key.String())
	}
	fmt.Fprintf(text, " is not signed by %s", strings.Join(names, " or "))
	if more := len(keys) - shown; more > 0 {
		fmt.Fprintf(text, " or %d other keys", more)
	}
	if found.others > 0 {
		fmt.Fprintf(text, ", but has %d other signatures", found.others)
	}
	fmt.Fprintf(text, ": run cosign sign --key KEY REGISTRY/%s@%s", to.Repository, d)
	return request.Denied("%s", text)
}

// logUnsigned logs an image once per logAgain.
func (v *Verifier) logUnsigned(repository, name string, d digest.Digest, found verdict) {
	key, now := content.RepositoryDigest{Repository: repository, Digest: d}, v.Now()
	v.mu.Lock()
	last, known := v.logged[key]
	again := !known || now.Sub(last) >= logAgain
	if again {
		if len(v.logged) >= maxLogged {
			clear(v.logged)
		}
		v.logged[key] = now
	}
	v.mu.Unlock()
	if again {
		v.log.Warn("image is not signed", "image", request.Reference(repository, name), "digest", d.String(),
			"otherSignatures", found.others, "denied", v.enforcing.Load())
	}
}
