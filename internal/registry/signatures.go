package registry

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distribution/distribution/v3"
	"github.com/distribution/distribution/v3/registry/api/errcode"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/logging"
	"github.com/zarf-dev/zarf-registry/internal/oci"
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
	source  *contentStore
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
	logged map[repositoryDigest]time.Time
}

func newSignatureVerifier(o Options, source *contentStore) *signatureVerifier {
	v := &signatureVerifier{
		mode: o.Signatures, source: source, keysDir: o.SignatureKeys, ownFile: o.OwnImages, log: o.Log, now: time.Now,
		indexes: !storage.ReadOnly(o.Config.Storage),
		decided: make(chan struct{}), slots: make(chan struct{}, maxVerifications),
		logged: map[repositoryDigest]time.Time{}, failures: logging.NewLimited(o.Log), seed: maphash.MakeSeed(),
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

// errUnknownManifest means that the repository has no such manifest.
var errUnknownManifest = errors.New("unknown manifest")

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
	content, err := v.source.manifest(ctx, repository, d)
	if err != nil {
		return verdict{outcome: outcomeFailed}, err
	}
	found, err := v.verifyContent(ctx, t, repository, content, nesting)
	if err != nil {
		return verdict{outcome: outcomeFailed}, fmt.Errorf("verifying %s@%s: %w", repository, d, err)
	}
	if nesting > 0 { // else indexes were not asked
		t.results.put(memory, d, found, now)
	}
	return found, nil
}

func (v *signatureVerifier) verifyContent(
	ctx context.Context, t *trusted, repository string, content []byte, nesting int,
) (verdict, error) {
	digests := []digest.Digest{digest.SHA256.FromBytes(content), digest.SHA512.FromBytes(content)}
	if t.own[digests[0]] {
		return verdict{outcome: outcomeExempt, covers: true}, nil
	}
	of := repositoryContent{v.source, repository}
	if carrier, err := signature.IsCarrier(ctx, of, content); err != nil || carrier {
		return verdict{outcome: outcomeExempt}, err
	}
	found, err := signature.Verify(ctx, of, t.keys, content)
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
		indexes, err := v.source.indexesOf(ctx, repository, d, maxIndexes)
		if err != nil {
			return verdict{}, err
		}
		for _, index := range indexes {
			switch by, err := v.verifyManifest(ctx, t, repository, index, nesting-1); {
			case errors.Is(err, errUnknownManifest): // just deleted
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
func (v *signatureVerifier) indexed() bool { return !v.indexes || v.source.rebuilt.Load() }

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
	d, err := v.source.resolve(ctx, to)
	found := verdict{outcome: outcomeFailed}
	if err == nil {
		found, err = v.check(ctx, to.Repository, d)
	}
	enforcing := v.enforcing.Load()
	switch {
	case errors.Is(err, errUnknownManifest):
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
	key, now := repositoryDigest{repository, d}, v.now()
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

// resolve returns the digest of a manifest, by which it can be served. The error is an [errcode.Error] if the reference
// is neither a tag nor a digest: routes accept some that are not.
func (s *contentStore) resolve(ctx context.Context, to request.Target) (digest.Digest, error) {
	if d, err := digest.Parse(to.Manifest); err == nil {
		return d, nil
	}
	if strings.Contains(to.Manifest, ":") {
		return "", errcode.ErrorCodeDigestInvalid.WithMessage("invalid digest").WithDetail(to.Manifest)
	}
	d, err := s.readLink(ctx, storage.TagPath(to.Repository, to.Manifest))
	if errors.Is(err, distribution.ErrBlobUnknown) {
		return "", errUnknownManifest
	}
	return d, err
}

// manifest returns the content of a repository's manifest, or an error if it is damaged.
func (s *contentStore) manifest(ctx context.Context, repository string, d digest.Digest) ([]byte, error) {
	content, err := s.manifestContent(ctx, repository, d)
	if err == nil && d.Algorithm().FromBytes(content) != d {
		return nil, fmt.Errorf("manifest %s %w", d, errDamaged)
	}
	return content, err
}

// errTooLong means that a file is longer than expected.
var errTooLong = errors.New("the file is too long")

// readFile returns the content of a file. The error is [fs.ErrNotExist] if it does not exist, errTooLong if it is
// longer than limit.
func (s *contentStore) readFile(ctx context.Context, path string, limit int64) ([]byte, error) {
	reader, err := s.driver.Reader(ctx, path, 0)
	if storage.IsNotFound(err) {
		return nil, fs.ErrNotExist
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = reader.Close() }()
	content, err := io.ReadAll(io.LimitReader(reader, limit+1))
	if err == nil && int64(len(content)) > limit {
		return nil, errTooLong
	}
	return content, err
}

// manifestContent returns the content of a repository's manifest without verifying it, or errUnknownManifest.
func (s *contentStore) manifestContent(ctx context.Context, repository string, d digest.Digest) ([]byte, error) {
	stored, err := s.readLink(ctx, storage.RevisionPath(repository, d))
	if errors.Is(err, distribution.ErrBlobUnknown) {
		return nil, errUnknownManifest
	}
	if err != nil {
		return nil, err
	}
	content, err := s.readBlob(ctx, stored, oci.MaxManifestSize)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errUnknownManifest
	}
	return content, err
}

// readBlob returns the content of a blob. The error is [fs.ErrNotExist] if it does not exist, or if it is larger
// than limit.
func (s *contentStore) readBlob(ctx context.Context, d digest.Digest, limit int64) ([]byte, error) {
	content, err := s.readFile(ctx, storage.BlobPath(d), limit)
	if errors.Is(err, errTooLong) {
		return nil, fs.ErrNotExist
	}
	return content, err
}

// repositoryContent implements [signature.Repository].
type repositoryContent struct {
	source *contentStore
	name   string
}

func (r repositoryContent) Read(ctx context.Context, d digest.Digest, limit int64) ([]byte, error) {
	stored, err := r.source.canonical(ctx, d)
	if errors.Is(err, distribution.ErrBlobUnknown) {
		return nil, fs.ErrNotExist
	}
	if err != nil {
		return nil, err
	}
	return r.source.readBlob(ctx, stored, limit)
}

func (r repositoryContent) Tagged(ctx context.Context, tag string) (digest.Digest, error) {
	d, err := r.source.resolve(ctx, request.Target{Repository: r.name, Manifest: tag})
	if errors.Is(err, errUnknownManifest) {
		return "", nil
	}
	return d, err
}

// Referrers implements [signature.Repository].
func (r repositoryContent) Referrers(
	ctx context.Context, subject digest.Digest, types []string, limit int,
) (found []digest.Digest, err error) {
	left := maxReferrers
	err = r.source.eachReferring(ctx, r.name, referrerLinks, subject, "", func(link backReference) (more bool, err error) {
		if slices.Contains(types, link.ArtifactType) && len(found) < limit {
			found = append(found, link.Digest)
		}
		left--
		return left > 0 && len(found) < limit, nil
	})
	return found, err
}
