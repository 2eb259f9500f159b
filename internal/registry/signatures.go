package registry

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
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// SignatureMode is what happens when a node or an anonymous client reads an image that nobody has signed.
type SignatureMode string

// The values of Options.Signatures. Off is the zero value, too.
const (
	SignaturesOff SignatureMode = "off"
	// SignaturesAudit serves, logs and counts.
	SignaturesAudit SignatureMode = "audit"
	// SignaturesEnforce denies, once all tagged images have been looked at.
	SignaturesEnforce SignatureMode = "enforce"
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

// signatureVerifier verifies the signatures of images that nodes and anonymous clients read.
type signatureVerifier struct {
	mode    SignatureMode
	source  *content.Store
	keysDir string // of public keys
	ownFile string // of the digests of the project's own images; may be empty
	log     *slog.Logger
	now     func() time.Time
	// failures are logged for requests, of which there may be many.
	failures *logging.Limited
	// indexes means that back links are being rebuilt: see contentStore.rebuilt.
	indexes bool

	current      atomic.Pointer[trusted]
	problem      atomic.Pointer[string]
	reloadErrors atomic.Uint64

	decided   chan struct{} // closed when enforcing is known
	enforcing atomic.Bool
	unsigned  atomic.Int64 // tags, at the last audit; -1 before it
	slots     chan struct{}
	shares    [shares]chan struct{} // see share
	seed      maphash.Seed
	counts    [4]atomic.Uint64 // of requests, by outcome

	mu     sync.Mutex
	logged map[content.RepositoryDigest]time.Time
}

func newSignatureVerifier(o Options, source *content.Store) *signatureVerifier {
	v := &signatureVerifier{
		mode: o.Signatures, source: source, keysDir: o.SignatureKeys, ownFile: o.OwnImages, log: o.Log, now: time.Now,
		indexes: !storage.ReadOnly(o.Config.Storage),
		decided: make(chan struct{}), slots: make(chan struct{}, maxVerifications),
		logged: map[content.RepositoryDigest]time.Time{}, failures: logging.NewLimited(o.Log), seed: maphash.MakeSeed(),
	}
	for i := range v.shares {
		v.shares[i] = make(chan struct{}, maxShare)
	}
	v.unsigned.Store(-1)
	v.current.Store(&trusted{})
	if v.on() {
		v.logLoad(v.load())
	}
	return v
}

// on reports whether images are verified at all.
func (v *signatureVerifier) on() bool {
	return v.mode == SignaturesAudit || v.mode == SignaturesEnforce
}

// outcome is the result of a verification.
type outcome int

const (
	outcomeUnsigned outcome = iota
	outcomeSigned
	// outcomeExempt is that of the project's own images, and of what carries signatures.
	outcomeExempt
	// outcomeFailed means that the storage could not be read.
	outcomeFailed
)

func (o outcome) String() string { return [...]string{"unsigned", "signed", "exempt", "failed"}[o] }

// verdict is what is known about a manifest.
type verdict struct {
	outcome outcome
	// covers means that the images of an index are accepted as the index is.
	covers bool
	others int // signatures by other keys
}

// check returns the verdict about a manifest. It may be from memory: see results.
func (v *signatureVerifier) check(ctx context.Context, repository string, d digest.Digest) (verdict, error) {
	t := v.current.Load()
	if found, ok := t.results.get(repository, d, v.now()); ok {
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
func (v *signatureVerifier) share(repository string) chan struct{} {
	owner, _, _ := strings.Cut(repository, "/")
	return v.shares[maphash.String(v.seed, owner)%shares]
}

// verifyManifest verifies a manifest, and remembers the verdict.
func (v *signatureVerifier) verifyManifest(
	ctx context.Context, t *trusted, repository string, d digest.Digest, nesting int,
) (verdict, error) {
	now := v.now()
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

func (v *signatureVerifier) verifyContent(
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
func (v *signatureVerifier) indexed() bool { return !v.indexes || v.source.Rebuilt.Load() }

// changed forgets what is known about a repository, after a push to it or a deletion.
func (v *signatureVerifier) changed(repository string) { v.current.Load().results.forget(repository) }

// require returns the request to serve, or the error to respond with. A tag is resolved once: what was verified
// is what is served.
func (v *signatureVerifier) require(r *http.Request, to request.Target) (*http.Request, error) {
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
	v.counts[found.outcome].Add(1)
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
func (v *signatureVerifier) denial(to request.Target, d digest.Digest, found verdict) error {
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
func (v *signatureVerifier) logUnsigned(repository, name string, d digest.Digest, found verdict) {
	key, now := content.RepositoryDigest{Repository: repository, Digest: d}, v.now()
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
