package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry"
	"oras.land/oras-go/v2/registry/remote/errcode"
)

// DefaultConcurrency is how many blobs are sent at once: enough to fill a link
// while some blobs are small, and no more than skopeo's.
const DefaultConcurrency = 6

// PushOptions change how [Push] works. The zero value is ready for use.
type PushOptions struct {
	// Concurrency is how many blobs are sent at once; 0 is
	// [DefaultConcurrency].
	Concurrency int
	// Progress is told how far the image is, often. It is not called
	// concurrently, and must be quick: it holds up what is being sent.
	Progress func(Progress)
}

// Progress is how far an image is. None of its numbers ever gets smaller, and
// an image that was pushed has Sent + Skipped = Total.
type Progress struct {
	// Image is the image's name.
	Image string
	// Total is the size of all that belongs to the image, in bytes.
	Total int64
	// Sent is how much of it was sent, each byte counted once.
	Sent int64
	// Skipped is how much of it the registry had.
	Skipped int64
}

// Result tells what a push did. Its JSON has the fields' names in camel case, and
// seconds for the duration.
type Result struct {
	// Image is the image's name in its source.
	Image string `json:"image"`
	// Reference is where it is now: registry, repository, and tag or digest.
	Reference string `json:"reference"`
	// Digest is that of the manifest or index.
	Digest digest.Digest `json:"digest"`
	// Omitted is [Image.Omitted]: platforms that were not there to be pushed.
	Omitted []ocispec.Platform `json:"omitted,omitempty"`
	// BlobsSent and BlobsSkipped count manifests, configurations and layers that
	// were sent, and that the registry had.
	BlobsSent    int `json:"blobsSent"`
	BlobsSkipped int `json:"blobsSkipped"`
	// BytesSent counts all content that left, including what was sent again after
	// an error; BytesSkipped is the size of what the registry had.
	BytesSent    int64 `json:"bytesSent"`
	BytesSkipped int64 `json:"bytesSkipped"`
	// Duration is how long it took.
	Duration time.Duration `json:"-"`
}

// MarshalJSON implements [json.Marshaler].
func (r Result) MarshalJSON() ([]byte, error) {
	type fields Result
	return json.Marshal(struct {
		fields
		Seconds float64 `json:"seconds"`
	}{fields(r), r.Duration.Seconds()})
}

// Push sends an image, whole, to the repository and tag that its reference maps
// to ([Repository]): an index with all its manifests, and what they refer to.
// What the registry already has in that repository is not sent. Every blob's
// digest is verified on its way.
//
// A request that fails for a reason that may pass is repeated, and so is a blob's
// upload, from its beginning. Manifests go last and the tag with them, so a push
// that was interrupted leaves nothing that looks whole, and the next one sends
// what is missing. Errors name the image and the blob.
func Push(ctx context.Context, src content.ReadOnlyStorage, image Image, reg *Registry, opts PushOptions) (Result, error) {
	result, err := push(ctx, src, image, reg, opts)
	if err != nil {
		return result, fmt.Errorf("pushing image %s to %s: %w", image.name(), reg.Host(), err)
	}
	return result, nil
}

func push(ctx context.Context, src content.ReadOnlyStorage, image Image, reg *Registry, opts PushOptions) (Result, error) {
	repository, tag, err := Repository(image.Reference)
	if err != nil {
		return Result{}, err
	}
	if d, err := digest.Parse(tag); err == nil && d != image.Descriptor.Digest {
		return Result{}, fmt.Errorf("its name asks for %s, but it is %s", d, image.Descriptor.Digest)
	}
	repo, err := reg.remote.Repository(ctx, repository)
	if err != nil {
		return Result{}, err
	}
	nodes, err := graph(ctx, src, image.Descriptor)
	if err != nil {
		return Result{}, err
	}
	start := time.Now()
	dst := &destination{
		Repository: repo,
		src:        src,
		root:       image.Descriptor,
		policy:     reg.policy,
		tally:      newTally(image.name(), nodes, opts.Progress),
	}
	if opts.Concurrency <= 0 {
		opts.Concurrency = DefaultConcurrency
	}
	_, err = oras.Copy(ctx, rooted{src, image.Descriptor}, "", dst, tag, oras.CopyOptions{
		CopyGraphOptions: oras.CopyGraphOptions{Concurrency: opts.Concurrency, MaxMetadataBytes: maxMetadata},
	})
	if err == nil {
		dst.tally.skipRest()
	}
	result := dst.tally.result()
	result.Reference = reg.Host() + "/" + repository + ":" + tag
	if tag == image.Descriptor.Digest.String() {
		result.Reference = reg.Host() + "/" + repository + "@" + tag
	}
	result.Digest = image.Descriptor.Digest
	result.Omitted = image.Omitted
	result.Duration = time.Since(start)
	var copyErr *oras.CopyError
	if errors.As(err, &copyErr) {
		// What failed, and at which end, the error inside says better.
		err = copyErr.Err
	}
	return result, err
}

// rooted is content with one image to copy.
type rooted struct {
	content.ReadOnlyStorage
	root ocispec.Descriptor
}

// Fetch says in its error what it was that could not be read.
func (r rooted) Fetch(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
	rc, err := r.ReadOnlyStorage.Fetch(ctx, desc)
	if err != nil {
		return nil, blame(desc, err)
	}
	return rc, nil
}

// Resolve returns the image for whichever reference.
func (r rooted) Resolve(context.Context, string) (ocispec.Descriptor, error) { return r.root, nil }

// destination is a repository in a registry that keeps a tally of what it gets,
// and to which blobs are sent until they have arrived.
type destination struct {
	registry.Repository
	src    content.ReadOnlyStorage
	root   ocispec.Descriptor
	policy *patience
	tally  *tally

	rootExisted bool // written before the root is pushed, by the one goroutine that copies it
}

// Exists tells whether the repository has the content.
func (d *destination) Exists(ctx context.Context, desc ocispec.Descriptor) (bool, error) {
	ok, err := d.Repository.Exists(ctx, desc)
	switch {
	case err != nil:
		return false, blame(desc, err)
	case ok && desc.Digest == d.root.Digest:
		d.rootExisted = true
	case ok:
		d.tally.skip(desc)
	}
	return ok, nil
}

// Push sends content and does not tag it.
func (d *destination) Push(ctx context.Context, desc ocispec.Descriptor, r io.Reader) error {
	if isManifest(desc.MediaType) || isIndex(desc.MediaType) {
		return d.sent(desc, d.Repository.Push(ctx, desc, d.tally.reader(desc, r)))
	}
	return d.sent(desc, d.upload(ctx, desc, r))
}

// PushReference sends the root and tags it, unless both are as they should be.
func (d *destination) PushReference(ctx context.Context, desc ocispec.Descriptor, r io.Reader, tag string) error {
	if d.rootExisted {
		if tagged, err := d.Resolve(ctx, tag); err == nil && tagged.Digest == desc.Digest {
			d.tally.skip(desc)
			return nil
		}
	}
	return d.sent(desc, d.Repository.PushReference(ctx, desc, d.tally.reader(desc, r), tag))
}

func (d *destination) sent(desc ocispec.Descriptor, err error) error {
	if err != nil {
		return blame(desc, err)
	}
	d.tally.done(desc)
	return nil
}

// upload sends a blob. The transport repeats requests, but not one whose body
// it cannot have twice: this is the only one. It begins again with a new
// upload, since what has become of the old one is not known.
func (d *destination) upload(ctx context.Context, desc ocispec.Descriptor, r io.Reader) error {
	for attempt := 0; ; attempt++ {
		err := d.Repository.Push(ctx, desc, d.tally.reader(desc, r))
		if err == nil || errors.Is(err, errdef.ErrAlreadyExists) {
			return nil
		}
		if !failedUpload(err) {
			return err
		}
		pause := d.policy.pause(ctx, attempt, nil, err)
		if pause == never {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
		// The blob may have arrived and the answer not.
		if ok, err := d.Repository.Exists(ctx, desc); err == nil && ok {
			return nil
		}
		again, err := d.src.Fetch(ctx, desc)
		if err != nil {
			return err
		}
		defer again.Close()
		r = again
	}
}

// failedUpload tells whether it was the request with the blob in it that failed.
// The others were repeated by the transport as often as they may be.
func failedUpload(err error) bool {
	var refused *errcode.ErrorResponse
	if errors.As(err, &refused) {
		return refused.Method == http.MethodPut
	}
	var failed *url.Error
	return errors.As(err, &failed) && failed.Op == "Put"
}

// tally counts what was sent of an image and what was not.
type tally struct {
	mu       sync.Mutex
	report   func(Progress)
	progress Progress
	blobs    map[digest.Digest]*blobTally
	wire     int64
	sent     int
	skipped  int
}

type blobTally struct {
	size    int64
	counted int64 // how much of size Progress.Sent contains
	settled bool
}

func newTally(image string, nodes []ocispec.Descriptor, report func(Progress)) *tally {
	if report == nil {
		report = func(Progress) {}
	}
	t := &tally{
		report:   report,
		progress: Progress{Image: image, Total: totalSize(nodes)},
		blobs:    map[digest.Digest]*blobTally{},
	}
	for _, node := range nodes {
		t.blobs[node.Digest] = &blobTally{size: node.Size}
	}
	t.report(t.progress)
	return t
}

// reader counts what is read of a blob that is being sent. Bytes that are sent
// again count for the wire and not for the progress.
func (t *tally) reader(desc ocispec.Descriptor, r io.Reader) io.Reader {
	return &tallyReader{r: r, tally: t, blob: t.blobs[desc.Digest]}
}

type tallyReader struct {
	r      io.Reader
	tally  *tally
	blob   *blobTally
	offset int64
}

// Read implements [io.Reader].
func (r *tallyReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if n > 0 {
		r.offset += int64(n)
		r.tally.mu.Lock()
		r.tally.wire += int64(n)
		if !r.blob.settled && r.offset > r.blob.counted {
			r.tally.count(r.blob, r.offset)
		}
		r.tally.mu.Unlock()
	}
	return n, err
}

// count notes that a blob was sent up to the given offset. The lock is held.
func (t *tally) count(b *blobTally, upTo int64) {
	t.progress.Sent += upTo - b.counted
	b.counted = upTo
	t.report(t.progress)
}

// done notes that the registry has taken a blob.
func (t *tally) done(desc ocispec.Descriptor) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if b := t.blobs[desc.Digest]; !b.settled {
		b.settled = true
		t.sent++
		t.count(b, b.size)
	}
}

// skip notes that the registry had a blob.
func (t *tally) skip(desc ocispec.Descriptor) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.settleSkipped(t.blobs[desc.Digest])
}

// skipRest notes that the registry had all that it was not asked for: what a
// manifest refers to that it had.
func (t *tally) skipRest() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, b := range t.blobs {
		t.settleSkipped(b)
	}
}

func (t *tally) settleSkipped(b *blobTally) {
	if b.settled {
		return
	}
	b.settled = true
	t.skipped++
	t.progress.Skipped += b.size - b.counted
	t.report(t.progress)
}

func (t *tally) result() Result {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Result{
		Image:        t.progress.Image,
		BlobsSent:    t.sent,
		BlobsSkipped: t.skipped,
		BytesSent:    t.wire,
		BytesSkipped: t.progress.Skipped,
	}
}
