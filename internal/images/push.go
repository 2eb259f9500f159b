package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote/errcode"

	"github.com/zarf-dev/zarf-registry/internal/api/space"
	"github.com/zarf-dev/zarf-registry/internal/images/blob"
	"github.com/zarf-dev/zarf-registry/internal/images/remote"
	"github.com/zarf-dev/zarf-registry/internal/oci"
)

// Push sends whole images to the repositories and tags of their references ([Prefix.Repository]): an
// index with all its manifests and their blobs. Content of another registry passes through this
// machine.
//
// Push sends only what the repository lacks. It asks the registry to mount blobs that another
// repository has, and sends blobs that several images share once. It verifies every digest.
//
// Manifests are sent last and the tagged one at the very end, so an interrupted push leaves no partial
// image, and the next one sends what is missing. If images are from a thin archive, Push first makes sure that
// the registry has what the archive omits; otherwise it sends nothing, and the error is an [IncompleteError].
// Signatures and other referrers are sent before images with a tag, so that no tag names an image whose
// signature is still missing. Push stops at the first image that fails, and returns the results of those that
// succeeded.
func Push(ctx context.Context, items []Item, reg *remote.Registry, opts Options) ([]Result, error) {
	opts = opts.withDefaults()
	p := &pusher{
		reg:   reg,
		opts:  opts,
		slots: semaphore.NewWeighted(int64(opts.Concurrency)),
		run:   newRun(opts.Progress, len(items)),
		locks: map[digest.Digest]*blobLock{},
	}
	items = slices.Clone(items)
	slices.SortStableFunc(items, func(a, b Item) int { return cmp.Compare(rank(a), rank(b)) })
	images := make([]*imagePush, len(items))
	targets := map[string]Image{}
	for i, item := range items {
		image, err := p.plan(ctx, item)
		if err != nil {
			return nil, fmt.Errorf("image %s: %w", item.name(), err)
		}
		target := joinReference(image.repo.Name(), image.tag)
		if other, taken := targets[target]; taken && other.Descriptor.Digest != item.Descriptor.Digest {
			return nil, fmt.Errorf("%s and %s differ, but both would become %s: push them with different prefixes", other.name(),
				item.name(), target)
		}
		targets[target] = item.Image
		images[i] = image
	}
	if opts.Fits != nil {
		if err := opts.Fits(ctx, contentOf(images)); err != nil {
			return nil, err
		}
	}
	if err := p.complete(ctx, images); err != nil {
		return nil, err
	}
	push := func(ctx context.Context, image *imagePush, started func()) (Result, error) {
		result, err := image.push(ctx, started)
		if err != nil {
			return result, fmt.Errorf("pushing image %s to %s: %w", image.name(), reg.Host(), err)
		}
		return result, nil
	}
	tagged := sort.Search(len(items), func(i int) bool { return rank(items[i]) > 0 })
	results, err := forEachImage(ctx, opts, p.run, images[:tagged], push)
	if err != nil {
		return results, err
	}
	others, err := forEachImage(ctx, opts, p.run, images[tagged:], push)
	return append(results, others...), err
}

// IncompleteError means that the registry does not have blobs that a thin archive omits.
type IncompleteError struct {
	// Images are those that lack blobs, by the names that the archive has for them.
	Images []string
	// Blobs are the missing ones, and Size is the sum of their sizes in bytes.
	Blobs []digest.Digest
	Size  int64
}

func (e *IncompleteError) Error() string {
	return fmt.Sprintf("the registry does not have %d blobs (%s, the first is %s) that the archive omits; nothing "+
		"was pushed: write a new inventory, and pull these images again: %s", len(e.Blobs), space.FormatBytes(e.Size),
		e.Blobs[0], strings.Join(e.Images, " "))
}

// complete makes blobs that thin archives omit part of the images' repositories. It skips images that the registry
// has already, and push does not ask for them again.
func (p *pusher) complete(ctx context.Context, images []*imagePush) error {
	var missing IncompleteError
	sizes := map[digest.Digest]int64{}
	lacks := make([]bool, len(images))
	var mu sync.Mutex
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(p.opts.Concurrency)
	for i, image := range images {
		if len(image.Missing) == 0 {
			continue
		}
		group.Go(func() error {
			// push reports errors.
			if have, err := image.repo.Resolve(ctx, image.tag); err == nil && have.Digest == image.Descriptor.Digest {
				image.there = true
				return nil
			}
			err := forEachBlob(ctx, p.slots, image.Missing, func() {}, func(ctx context.Context, desc ocispec.Descriptor) error {
				err := image.blob(ctx, desc)
				if _, ok := errors.AsType[missingBlobError](err); ok {
					mu.Lock()
					defer mu.Unlock()
					sizes[desc.Digest], lacks[i] = desc.Size, true
					return nil
				}
				return err
			})
			if err != nil {
				return fmt.Errorf("image %s: %w", image.name(), err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if len(sizes) == 0 {
		return nil
	}
	for i, image := range images {
		if lacks[i] {
			missing.Images = append(missing.Images, image.name())
		}
	}
	missing.Blobs = slices.Sorted(maps.Keys(sizes))
	for _, size := range sizes {
		missing.Size += size
	}
	return &missing
}

// contentOf returns everything that images consist of, each digest once, apart from what thin archives omit.
func contentOf(images []*imagePush) (all []ocispec.Descriptor) {
	seen := map[digest.Digest]bool{}
	for _, image := range images {
		for _, desc := range image.Missing {
			seen[desc.Digest] = true
		}
	}
	for _, image := range images {
		for _, desc := range image.nodes {
			if !seen[desc.Digest] {
				seen[desc.Digest] = true
				all = append(all, desc)
			}
		}
	}
	return all
}

// rank is 0 for what has a digest or cosign's tag for its name, as referrers do, and 1 for other images.
func rank(item Item) int {
	named, err := parseReference(item.Reference)
	if err != nil {
		return 1 // plan reports it
	}
	if _, byDigest := named.(reference.Digested); byDigest || cosignTag.MatchString(tagOf(named)) {
		return 0
	}
	return 1
}

// pusher is the state of a Push.
type pusher struct {
	reg   *remote.Registry
	opts  Options
	slots *semaphore.Weighted // one per blob in transfer
	run   *run

	mu    sync.Mutex
	locks map[digest.Digest]*blobLock
}

// blobLock serializes the transfers of a blob, and records which repositories have it.
type blobLock struct {
	ch    chan struct{}
	repos []string
}

// imagePush is the push of one image.
type imagePush struct {
	Item
	*pusher
	repo     *remote.Repository
	tag      string // or digest
	there    bool   // the tag has the image already
	nodes    []ocispec.Descriptor
	progress *imageProgress
}

// plan reads an image's manifests. It sends nothing.
func (p *pusher) plan(ctx context.Context, item Item) (*imagePush, error) {
	repository, tag, err := p.opts.Prefix.Repository(item.Reference)
	if err != nil {
		return nil, err
	}
	if d, err := digest.Parse(tag); err == nil && d != item.Descriptor.Digest {
		return nil, fmt.Errorf("its reference has digest %s, but its content has %s", d, item.Descriptor.Digest)
	}
	repo, err := p.reg.Repository(repository)
	if err != nil {
		return nil, err
	}
	nodes, err := graph(ctx, item.Content, item.Descriptor)
	if err != nil {
		return nil, err
	}
	transfersPerByte := int64(1)
	if _, elsewhere := item.Content.(*remoteContent); elsewhere {
		transfersPerByte = 2
	}
	return &imagePush{Item: item, pusher: p, repo: repo, tag: tag, nodes: nodes,
		progress: p.run.add(item.Image, nodes, transfersPerByte)}, nil
}

// push sends what the repository lacks: blobs, then manifests with dependencies first, and the tagged
// one last.
func (p *imagePush) push(ctx context.Context, started func()) (Result, error) {
	p.progress.begin()
	reference := joinReference(p.reg.Host()+"/"+p.repo.Name(), p.tag)
	if p.there {
		return p.progress.finish(reference), nil
	}
	// If the tag already has the digest, one request is enough. An error response is not fatal: the tag
	// need not exist.
	have, err := p.repo.Resolve(ctx, p.tag)
	var answer *errcode.ErrorResponse
	switch {
	case err == nil && have.Digest == p.Descriptor.Digest:
		return p.progress.finish(reference), nil
	case err != nil && !errors.Is(err, errdef.ErrNotFound) && !errors.As(err, &answer):
		return p.progress.result, err
	}
	var manifests, blobs []ocispec.Descriptor
	for _, desc := range p.nodes {
		if oci.IsManifestOrIndex(desc.MediaType) {
			manifests = append(manifests, desc)
		} else {
			blobs = append(blobs, desc)
		}
	}
	if err := forEachBlob(ctx, p.slots, blobs, started, p.blob); err != nil {
		return p.progress.result, err
	}
	if err := p.slots.Acquire(ctx, 1); err != nil {
		return p.progress.result, err
	}
	defer p.slots.Release(1)
	for _, desc := range manifests {
		if err := p.manifest(ctx, desc); err != nil {
			return p.progress.result, wrapDescriptor(desc, err)
		}
	}
	return p.progress.finish(reference), ctx.Err()
}

// blob makes a blob part of the repository.
func (p *imagePush) blob(ctx context.Context, desc ocispec.Descriptor) error {
	lock := p.blobLock(desc.Digest)
	select {
	case lock.ch <- struct{}{}:
		defer func() { <-lock.ch }()
	case <-ctx.Done():
		return ctx.Err()
	}
	from := ""
	for _, repository := range lock.repos {
		if repository == p.repo.Name() {
			p.progress.skip(desc)
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
			lock.repos = append(lock.repos, p.repo.Name())
			p.progress.skip(desc)
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
	lock.repos = append(lock.repos, p.repo.Name())
	if mounted {
		p.progress.mounted(desc)
	} else {
		p.progress.done(desc)
	}
	return nil
}

func (p *imagePush) send(ctx context.Context, desc ocispec.Descriptor, from string) (mounted bool, err error) {
	// Remote content is downloaded only if the registry needs it.
	var here *blob.Blob
	open := func() (io.ReadCloser, error) {
		if here == nil {
			b, err := p.Content.Blob(ctx, desc, p.progress.received(desc))
			if err != nil {
				return nil, err
			}
			p.progress.local(desc)
			here = &b
		}
		return here.Open()
	}
	return p.repo.PushBlob(ctx, desc, from, open, p.progress.sent(desc))
}

// manifest sends a manifest or index, and tags the image's own.
func (p *imagePush) manifest(ctx context.Context, desc ocispec.Descriptor) error {
	tag := ""
	if desc.Digest == p.Descriptor.Digest {
		tag = p.tag
		if tag == desc.Digest.String() {
			tag = ""
		}
	} else if ok, err := p.repo.Exists(ctx, desc); err != nil || ok {
		if ok {
			p.progress.skip(desc)
		}
		return err
	}
	b, err := p.Content.Blob(ctx, desc, p.progress.received(desc))
	if err != nil {
		return err
	}
	raw, err := readAll(b) // PushManifest verifies it
	if err != nil {
		return err
	}
	if err := p.repo.PushManifest(ctx, desc, raw, tag); err != nil {
		return err
	}
	p.progress.sent(desc)(0, desc.Size)
	p.progress.done(desc)
	return nil
}

func (p *pusher) blobLock(d digest.Digest) *blobLock {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.locks[d]
	if t == nil {
		t = &blobLock{ch: make(chan struct{}, 1)}
		p.locks[d] = t
	}
	return t
}
