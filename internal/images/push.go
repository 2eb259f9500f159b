package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote/errcode"

	"github.com/zarf-dev/zarf-registry/internal/blob"
	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/internal/remote"
)

// DefaultConcurrency is how many blobs are transferred at once: enough to fill a
// link while some blobs are small, and no more than skopeo's.
const DefaultConcurrency = 6

// Options change how [Push] and [Pull] work. The zero value is ready for use.
type Options struct {
	// Prefix is put before the path of every repository that is pushed to.
	Prefix Prefix
	// Concurrency is how many blobs are transferred at once, over all images; 0 is
	// [DefaultConcurrency].
	Concurrency int
	// ImageConcurrency is how many images are begun at once; 0 is 1. The next one
	// begins when all blobs of one are on their way or there, so that there are
	// Concurrency of them on their way to the end.
	ImageConcurrency int
	// Progress is told how far the run is, often. It is not called concurrently, and
	// must be quick: it holds up what is being transferred.
	Progress func(Progress)
	// Done is told of each image that is whole where it should be. It is not called
	// concurrently.
	Done func(Result)
}

func (o Options) withDefaults() Options {
	if o.Concurrency <= 0 {
		o.Concurrency = DefaultConcurrency
	}
	if o.ImageConcurrency <= 0 {
		o.ImageConcurrency = 1
	}
	if o.Done == nil {
		o.Done = func(Result) {}
	}
	return o
}

// Push sends images, whole, to the repositories and tags that their references
// map to ([Prefix.Repository]): an index with all its manifests, and what they
// refer to. Content that lies in another registry is brought to this machine on
// its way.
//
// What a repository has already is not sent; what another repository of the
// registry has, it is asked to take from there; what several of the images share
// is sent once. Every blob's digest is verified on its way.
//
// Manifests go last and the tag with them, so a push that was interrupted leaves
// nothing that looks whole, and the next one sends what is missing. It ends with
// the first image that fails; the results are those of the images that did not.
// Errors name the image and the blob.
func Push(ctx context.Context, items []Item, reg *remote.Registry, opts Options) ([]Result, error) {
	opts = opts.withDefaults()
	p := &pusher{
		reg:   reg,
		opts:  opts,
		slots: semaphore.NewWeighted(int64(opts.Concurrency)),
		run:   newRun(opts.Progress, len(items)),
		turns: map[digest.Digest]*turn{},
	}
	images := make([]*pushed, len(items))
	targets := map[string]Image{}
	for i, item := range items {
		image, err := p.plan(ctx, item)
		if err != nil {
			return nil, fmt.Errorf("image %s: %w", item.name(), err)
		}
		target := joined(image.repo.Name(), image.tag)
		if other, taken := targets[target]; taken && other.Descriptor.Digest != item.Descriptor.Digest {
			return nil, fmt.Errorf("%s and %s differ, but both would become %s: push them with different prefixes", other.name(), item.name(), target)
		}
		targets[target] = item.Image
		images[i] = image
	}
	return inOrder(ctx, opts, p.run, images, func(ctx context.Context, image *pushed, begun func()) (Result, error) {
		result, err := image.push(ctx, begun)
		if err != nil {
			return result, fmt.Errorf("pushing image %s to %s: %w", image.name(), reg.Host(), err)
		}
		return result, nil
	})
}

// inOrder does something about each of a run's images, begun in their order, and
// returns the results of those that it was done for, in that order, too. do calls
// begun when the next image may begin. Where an image fails, those before it are
// brought to their end, and those after it are stopped.
func inOrder[T any](ctx context.Context, opts Options, r *run, images []T, do func(ctx context.Context, image T, begun func()) (Result, error)) ([]Result, error) {
	r.started()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var (
		mu      sync.Mutex
		running sync.WaitGroup
		cancels = make([]context.CancelFunc, len(images))
		results = make([]*Result, len(images))
		errs    = make([]error, len(images))
		first   = len(images) // of those that failed
	)
	places := semaphore.NewWeighted(int64(opts.ImageConcurrency))
	for i, image := range images {
		if places.Acquire(ctx, 1) != nil {
			break
		}
		mu.Lock()
		if first < i {
			mu.Unlock()
			break
		}
		own, cancel := context.WithCancel(ctx)
		cancels[i] = cancel
		mu.Unlock()
		begun := sync.OnceFunc(func() { places.Release(1) })
		running.Go(func() {
			defer cancel()
			defer begun()
			result, err := do(own, image, begun)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				results[i] = &result
				opts.Done(result)
				return
			}
			errs[i] = err
			if i < first {
				first = i
				for _, cancel := range cancels[i+1:] {
					if cancel != nil {
						cancel()
					}
				}
			}
		})
	}
	running.Wait()
	list := []Result{}
	for _, result := range results {
		if result != nil {
			list = append(list, *result)
		}
	}
	if first < len(images) {
		return list, errs[first]
	}
	return list, ctx.Err()
}

// inSlots does something about each of an image's blobs, as many at a time as there
// are slots, which images share. begun is called when the last of them has its slot.
func inSlots(ctx context.Context, slots *semaphore.Weighted, blobs []ocispec.Descriptor, begun func(), do func(context.Context, ocispec.Descriptor) error) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, desc := range blobs {
		if err := slots.Acquire(ctx, 1); err != nil {
			break // the group has the reason, or the caller
		}
		group.Go(func() error {
			defer slots.Release(1)
			if err := do(ctx, desc); err != nil {
				return blame(desc, err)
			}
			return nil
		})
	}
	begun()
	return group.Wait()
}

// pusher is a run of Push.
type pusher struct {
	reg   *remote.Registry
	opts  Options
	slots *semaphore.Weighted // one for each blob under way
	run   *run

	mu    sync.Mutex
	turns map[digest.Digest]*turn
}

// turn is whose turn it is with a blob, and which repositories have it for sure.
type turn struct {
	lock  chan struct{}
	repos []string
}

// pushed is an image that is being pushed.
type pushed struct {
	Item
	*pusher
	repo  *remote.Repository
	tag   string // or digest
	nodes []ocispec.Descriptor
	tally *tally
}

// plan looks at an image before anything is sent.
func (p *pusher) plan(ctx context.Context, item Item) (*pushed, error) {
	repository, tag, err := p.opts.Prefix.Repository(item.Reference)
	if err != nil {
		return nil, err
	}
	if d, err := digest.Parse(tag); err == nil && d != item.Descriptor.Digest {
		return nil, fmt.Errorf("its name asks for %s, but it is %s", d, item.Descriptor.Digest)
	}
	repo, err := p.reg.Repository(repository)
	if err != nil {
		return nil, err
	}
	nodes, err := graph(ctx, item.Content, item.Descriptor)
	if err != nil {
		return nil, err
	}
	legs := int64(1)
	if _, elsewhere := item.Content.(*remoteContent); elsewhere {
		legs = 2
	}
	return &pushed{Item: item, pusher: p, repo: repo, tag: tag, nodes: nodes, tally: p.run.add(item.Image, nodes, legs)}, nil
}

// push sends what is missing of the image: its blobs, then its manifests, those
// that others refer to first, and at last the one that has the tag.
func (p *pushed) push(ctx context.Context, begun func()) (Result, error) {
	p.tally.begin()
	reference := joined(p.reg.Host()+"/"+p.repo.Name(), p.tag)
	// One question is all it takes where the image is there. Whatever the registry
	// answers else, not to know a tag that is yet to come is no reason to end.
	have, err := p.repo.Resolve(ctx, p.tag)
	var answer *errcode.ErrorResponse
	switch {
	case err == nil && have.Digest == p.Descriptor.Digest:
		return p.tally.finish(reference), nil
	case err != nil && !errors.Is(err, errdef.ErrNotFound) && !errors.As(err, &answer):
		return p.tally.result, err
	}
	var manifests, blobs []ocispec.Descriptor
	for _, desc := range p.nodes {
		if oci.IsManifestOrIndex(desc.MediaType) {
			manifests = append(manifests, desc)
		} else {
			blobs = append(blobs, desc)
		}
	}
	if err := inSlots(ctx, p.slots, blobs, begun, p.blob); err != nil {
		return p.tally.result, err
	}
	if err := p.slots.Acquire(ctx, 1); err != nil {
		return p.tally.result, err
	}
	defer p.slots.Release(1)
	for _, desc := range manifests {
		if err := p.manifest(ctx, desc); err != nil {
			return p.tally.result, blame(desc, err)
		}
	}
	return p.tally.finish(reference), ctx.Err()
}

// blob sees to it that the repository has a blob.
func (p *pushed) blob(ctx context.Context, desc ocispec.Descriptor) error {
	turn := p.turn(desc.Digest)
	select {
	case turn.lock <- struct{}{}:
		defer func() { <-turn.lock }()
	case <-ctx.Done():
		return ctx.Err()
	}
	from := ""
	for _, repository := range turn.repos {
		if repository == p.repo.Name() {
			p.tally.skip(desc)
			return nil
		}
		from = repository
	}
	if from == "" {
		ok, err := p.repo.Exists(ctx, desc)
		if err != nil {
			return err
		}
		if ok {
			turn.repos = append(turn.repos, p.repo.Name())
			p.tally.skip(desc)
			return nil
		}
		if source, ok := p.Content.(*remoteContent); ok && source.repo.Host() == p.reg.Host() {
			from = source.repo.Name() // a copy within the registry
		}
	}
	mounted, err := p.send(ctx, desc, from)
	if err != nil {
		return err
	}
	turn.repos = append(turn.repos, p.repo.Name())
	if mounted {
		p.tally.mounted(desc)
	} else {
		p.tally.done(desc)
	}
	return nil
}

func (p *pushed) send(ctx context.Context, desc ocispec.Descriptor, from string) (mounted bool, err error) {
	// Content that lies elsewhere is read only when the registry wants it.
	var here *blob.Blob
	open := func() (io.ReadCloser, error) {
		if here == nil {
			b, err := p.Content.Blob(ctx, desc, p.tally.received(desc))
			if err != nil {
				return nil, err
			}
			p.tally.local(desc)
			here = &b
		}
		return here.Open()
	}
	return p.repo.PushBlob(ctx, desc, from, open, p.tally.sent(desc))
}

// manifest sends a manifest or index, and the tag with the image's own.
func (p *pushed) manifest(ctx context.Context, desc ocispec.Descriptor) error {
	tag := ""
	if desc.Digest == p.Descriptor.Digest {
		tag = p.tag
		if tag == desc.Digest.String() {
			tag = ""
		}
	} else if ok, err := p.repo.Exists(ctx, desc); err != nil || ok {
		if ok {
			p.tally.skip(desc)
		}
		return err
	}
	b, err := p.Content.Blob(ctx, desc, p.tally.received(desc))
	if err != nil {
		return err
	}
	raw, err := readAllBlob(b, desc)
	if err != nil {
		return err
	}
	if err := p.repo.PushManifest(ctx, desc, raw, tag); err != nil {
		return err
	}
	p.tally.sent(desc)(0, desc.Size)
	p.tally.done(desc)
	return nil
}

func (p *pusher) turn(d digest.Digest) *turn {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.turns[d]
	if t == nil {
		t = &turn{lock: make(chan struct{}, 1)}
		p.turns[d] = t
	}
	return t
}
