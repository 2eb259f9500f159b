package images

import (
	"encoding/json"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Progress is how far a run is, over all of its images. None of its numbers ever
// gets smaller, and a run that succeeded has Done + Skipped = Total. A blob that
// several images share counts for each of them.
type Progress struct {
	// Image is the name of one that moves now.
	Image string
	// Images and ImagesDone are how many there are and how many are done.
	Images, ImagesDone int
	// Total is the size of all that belongs to the images, in bytes.
	Total int64
	// Done is how much of it was transferred, each byte counted once.
	Done int64
	// Skipped is how much of it was where it should be already.
	Skipped int64
}

// Result tells what was done about an image. Its JSON has the fields' names in
// camel case, and seconds for the duration.
type Result struct {
	// Image is the image's name in its source.
	Image string `json:"image"`
	// Reference is where it is now: registry, repository, and tag or digest; its
	// normalised name, for an image that was pulled.
	Reference string `json:"reference"`
	// Digest is that of the manifest or index.
	Digest digest.Digest `json:"digest"`
	// Omitted is [Image.Omitted]: platforms that were not there to be taken.
	Omitted []ocispec.Platform `json:"omitted,omitempty"`
	// BlobsSent, BlobsMounted and BlobsSkipped count manifests, configurations and
	// layers: those that were transferred, those that the registry took from another
	// of its repositories, and those that were there.
	BlobsSent    int `json:"blobsSent"`
	BlobsMounted int `json:"blobsMounted"`
	BlobsSkipped int `json:"blobsSkipped"`
	// BytesSent counts all content that was sent to a registry, and BytesReceived
	// all that came from one, including what went twice because of an error.
	// BytesSkipped is the size of what was there or was mounted.
	BytesSent     int64 `json:"bytesSent"`
	BytesReceived int64 `json:"bytesReceived"`
	BytesSkipped  int64 `json:"bytesSkipped"`
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

// run adds up the tallies of a run's images.
type run struct {
	mu       sync.Mutex
	report   func(Progress)
	progress Progress
}

func newRun(report func(Progress), images int) *run {
	if report == nil {
		report = func(Progress) {}
	}
	return &run{report: report, progress: Progress{Images: images}}
}

// tally counts what became of an image's blobs.
type imageProgress struct {
	run    *run
	result Result
	start  time.Time
	blobs  map[digest.Digest]*blobProgress
	hops   int64 // how often a byte moves: once, or twice from registry to registry
}

type blobProgress struct {
	size     int64
	up, down int64 // how far it was sent, and received
	counted  int64 // how much of size Progress has, as done
	final    bool
}

// add makes a tally for another image of the run.
func (r *run) add(image Image, nodes []ocispec.Descriptor, hops int64) *imageProgress {
	t := &imageProgress{
		run:    r,
		result: Result{Image: image.name(), Digest: image.Descriptor.Digest, Omitted: image.Omitted},
		blobs:  map[digest.Digest]*blobProgress{},
		hops:   hops,
	}
	for _, node := range nodes {
		t.blobs[node.Digest] = &blobProgress{size: node.Size}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.progress.Total += totalSize(nodes)
	return t
}

// begin notes that the image's turn has come.
func (t *imageProgress) begin() { t.start = time.Now() }

// started reports the run with all of its images in it.
func (r *run) started() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report(r.progress)
}

// sent returns what is to be told of each part of a blob that goes out.
func (t *imageProgress) sent(desc ocispec.Descriptor) func(offset, n int64) {
	b := t.blobs[desc.Digest]
	return func(offset, n int64) {
		t.run.mu.Lock()
		defer t.run.mu.Unlock()
		t.result.BytesSent += n
		b.up = max(b.up, offset+n)
		t.moved(b)
	}
}

// received returns what is to be told of each part of a blob that comes in.
func (t *imageProgress) received(desc ocispec.Descriptor) func(offset, n int64) {
	b := t.blobs[desc.Digest]
	return func(offset, n int64) {
		t.run.mu.Lock()
		defer t.run.mu.Unlock()
		t.result.BytesReceived += n
		b.down = max(b.down, offset+n)
		t.moved(b)
	}
}

// moved counts what is new of a blob. The lock is held.
func (t *imageProgress) moved(b *blobProgress) {
	now := min(b.size, (b.up+b.down)/t.hops)
	if b.final || now <= b.counted {
		return
	}
	t.count(b, now)
}

func (t *imageProgress) count(b *blobProgress, upTo int64) {
	t.run.progress.Done += upTo - b.counted
	b.counted = upTo
	t.run.progress.Image = t.result.Image
	t.run.report(t.run.progress)
}

// local notes that a blob need not be received any more: it is on this machine. Of one
// that was never elsewhere, that says nothing.
func (t *imageProgress) local(desc ocispec.Descriptor) {
	t.run.mu.Lock()
	defer t.run.mu.Unlock()
	if t.hops == 1 {
		return
	}
	b := t.blobs[desc.Digest]
	b.down = b.size
	t.moved(b)
}

// done notes that a blob has arrived.
func (t *imageProgress) done(desc ocispec.Descriptor) {
	t.run.mu.Lock()
	defer t.run.mu.Unlock()
	if b := t.blobs[desc.Digest]; !b.final {
		t.result.BlobsSent++
		t.count(b, b.size)
		b.final = true
	}
}

// mounted notes that the registry had a blob in another repository.
func (t *imageProgress) mounted(desc ocispec.Descriptor) {
	t.run.mu.Lock()
	defer t.run.mu.Unlock()
	if t.skipped(t.blobs[desc.Digest]) {
		t.result.BlobsMounted++
	}
}

// skip notes that a blob was there.
func (t *imageProgress) skip(desc ocispec.Descriptor) {
	t.run.mu.Lock()
	defer t.run.mu.Unlock()
	if t.skipped(t.blobs[desc.Digest]) {
		t.result.BlobsSkipped++
	}
}

func (t *imageProgress) skipped(b *blobProgress) bool {
	if b.final {
		return false
	}
	b.final = true
	t.result.BytesSkipped += b.size - b.counted
	t.run.progress.Skipped += b.size - b.counted
	t.run.progress.Image = t.result.Image
	t.run.report(t.run.progress)
	return true
}

// finish notes that the image is whole where it should be; what nothing was said
// of was there.
func (t *imageProgress) finish(reference string) Result {
	t.run.mu.Lock()
	defer t.run.mu.Unlock()
	for _, b := range t.blobs {
		if t.skipped(b) {
			t.result.BlobsSkipped++
		}
	}
	t.run.progress.ImagesDone++
	t.run.report(t.run.progress)
	t.result.Reference = reference
	t.result.Duration = time.Since(t.start)
	return t.result
}
