package images

import (
	"encoding/json"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/images/graph"
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
	// Omitted is [graph.Image.Omitted].
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
	run    *run
	result Result
	start  time.Time // of the transfer
	blobs  map[digest.Digest]*blobProgress
}

type blobProgress struct {
	size    int64
	counted int64 // how much of size is in Progress.Done
	final   bool
}

func (r *run) add(image graph.Image, nodes []ocispec.Descriptor) *imageProgress {
	t := &imageProgress{
		run:    r,
		result: Result{Image: image.Name(), Digest: image.Descriptor.Digest, Omitted: image.Omitted},
		blobs:  map[digest.Digest]*blobProgress{},
	}
	for _, node := range nodes {
		t.blobs[node.Digest] = &blobProgress{size: node.Size}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.progress.Images++
	r.progress.Total += graph.Size(nodes)
	return t
}

// sent returns a callback for bytes of a blob that were sent.
func (t *imageProgress) sent(desc ocispec.Descriptor) func(offset, n int64) {
	return t.moved(desc, &t.result.BytesSent)
}

// received returns a callback for bytes of a blob that were received.
func (t *imageProgress) received(desc ocispec.Descriptor) func(offset, n int64) {
	return t.moved(desc, &t.result.BytesReceived)
}

// relayed returns a callback for bytes of a blob that were received and are sent on, which is what counts as progress.
func (t *imageProgress) relayed() func(offset, n int64) {
	return func(_, n int64) {
		t.run.mu.Lock()
		defer t.run.mu.Unlock()
		t.result.BytesReceived += n
	}
}

// moved returns a callback that adds to total, which includes retransmissions, and counts new bytes of a blob.
func (t *imageProgress) moved(desc ocispec.Descriptor, total *int64) func(offset, n int64) {
	b := t.blobs[desc.Digest]
	return func(offset, n int64) {
		t.run.mu.Lock()
		defer t.run.mu.Unlock()
		*total += n
		if now := min(b.size, offset+n); !b.final && now > b.counted {
			t.count(b, now)
		}
	}
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
func (t *imageProgress) mounted(desc ocispec.Descriptor) { t.present(desc, &t.result.BlobsMounted) }

// skip records that a blob was present already.
func (t *imageProgress) skip(desc ocispec.Descriptor) { t.present(desc, &t.result.BlobsSkipped) }

func (t *imageProgress) present(desc ocispec.Descriptor, total *int) {
	t.run.mu.Lock()
	defer t.run.mu.Unlock()
	if t.skipped(t.blobs[desc.Digest]) {
		*total++
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
