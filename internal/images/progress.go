package images

import (
	"encoding/json"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Progress is the progress of a run over all of its images. Its numbers never decrease, and a
// successful run ends with Done + Skipped = Total. A blob that several images share counts for each.
type Progress struct {
	// Image is the name of an image that is being transferred.
	Image string
	// Images and ImagesDone count all and the completed images.
	Images, ImagesDone int
	// Total is the size of all images in bytes.
	Total int64
	// Done is how many bytes were transferred, each counted once.
	Done int64
	// Skipped is how many bytes were at the destination already.
	Skipped int64
}

// Result is the outcome for one image. Its JSON has camel-case field names and the duration in
// seconds.
type Result struct {
	// Image is the image's name in its source.
	Image string `json:"image"`
	// Reference is the image's new name with registry, repository, and tag or digest. For a pulled image
	// it is the normalized name.
	Reference string `json:"reference"`
	// Digest is that of the manifest or index.
	Digest digest.Digest `json:"digest"`
	// Omitted is [Image.Omitted].
	Omitted []ocispec.Platform `json:"omitted,omitempty"`
	// BlobsSent, BlobsMounted and BlobsSkipped count manifests, configs and layers: transferred, mounted
	// from another repository of the registry, and present already.
	BlobsSent    int `json:"blobsSent"`
	BlobsMounted int `json:"blobsMounted"`
	BlobsSkipped int `json:"blobsSkipped"`
	// BytesSent counts content sent to a registry and BytesReceived content received from one, including
	// retransmissions. BytesSkipped is the size of what was present or mounted.
	BytesSent     int64 `json:"bytesSent"`
	BytesReceived int64 `json:"bytesReceived"`
	BytesSkipped  int64 `json:"bytesSkipped"`
	// Duration is how long the transfer took.
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

// run sums up the progress of a run's images.
type run struct {
	mu       sync.Mutex
	report   func(Progress)
	progress Progress
}

func newRun(report func(Progress)) *run {
	if report == nil {
		report = func(Progress) {}
	}
	return &run{report: report}
}

// imageProgress tracks the blobs of an image.
type imageProgress struct {
	run              *run
	result           Result
	start            time.Time
	blobs            map[digest.Digest]*blobProgress
	transfersPerByte int64 // how often a byte is transferred: once, or twice from registry to registry
}

type blobProgress struct {
	size     int64
	up, down int64 // bytes sent and received, each counted once
	counted  int64 // how much of size is in Progress.Done
	final    bool
}

// add adds an image to the run.
func (r *run) add(image Image, nodes []ocispec.Descriptor, transfersPerByte int64) *imageProgress {
	t := &imageProgress{
		run:              r,
		result:           Result{Image: image.name(), Digest: image.Descriptor.Digest, Omitted: image.Omitted},
		blobs:            map[digest.Digest]*blobProgress{},
		transfersPerByte: transfersPerByte,
	}
	for _, node := range nodes {
		t.blobs[node.Digest] = &blobProgress{size: node.Size}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.progress.Images++
	r.progress.Total += totalSize(nodes)
	return t
}

// begin records that the transfer of the image starts.
func (t *imageProgress) begin() { t.start = time.Now() }

// started reports the run with all of its images.
func (r *run) started() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report(r.progress)
}

// sent returns a callback for bytes of a blob that were sent.
func (t *imageProgress) sent(desc ocispec.Descriptor) func(offset, n int64) {
	b := t.blobs[desc.Digest]
	return t.moved(b, &b.up, &t.result.BytesSent)
}

// received returns a callback for bytes of a blob that were received.
func (t *imageProgress) received(desc ocispec.Descriptor) func(offset, n int64) {
	b := t.blobs[desc.Digest]
	return t.moved(b, &b.down, &t.result.BytesReceived)
}

// moved returns a callback that advances end, the bytes of b in one direction, and adds to total, which
// includes retransmissions.
func (t *imageProgress) moved(b *blobProgress, end, total *int64) func(offset, n int64) {
	return func(offset, n int64) {
		t.run.mu.Lock()
		defer t.run.mu.Unlock()
		*total += n
		*end = max(*end, offset+n)
		t.advance(b)
	}
}

// advance counts new bytes of a blob. The caller holds the lock.
func (t *imageProgress) advance(b *blobProgress) {
	now := min(b.size, (b.up+b.down)/t.transfersPerByte)
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

// done records that a blob was transferred.
func (t *imageProgress) done(desc ocispec.Descriptor) {
	t.run.mu.Lock()
	defer t.run.mu.Unlock()
	if b := t.blobs[desc.Digest]; !b.final {
		t.result.BlobsSent++
		t.count(b, b.size)
		b.final = true
	}
}

// mounted records that the registry mounted a blob from another repository.
func (t *imageProgress) mounted(desc ocispec.Descriptor) {
	t.run.mu.Lock()
	defer t.run.mu.Unlock()
	if t.skipped(t.blobs[desc.Digest]) {
		t.result.BlobsMounted++
	}
}

// skip records that a blob was present already.
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

// finish records that the image is complete. Blobs that were not recorded were present.
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
