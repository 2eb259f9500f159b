package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/semaphore"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote/errcode"

	"github.com/zarf-dev/zarf-registry/internal/api/space"
	"github.com/zarf-dev/zarf-registry/internal/images/blob"
	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/internal/images/name"
	"github.com/zarf-dev/zarf-registry/internal/images/remote"
	"github.com/zarf-dev/zarf-registry/internal/oci"
)

// Push sends whole images to the repositories and tags of their references ([name.Repository]): an
// index with all its manifests and their blobs. Content of another registry passes through this
// machine.
//
// Push sends only what the repository lacks. It asks the registry to mount blobs that another
// repository has, and sends blobs that several images share once. It verifies every digest.
//
// Manifests are sent last and the tagged one at the very end, so an interrupted push leaves no partial
// image, and the next one sends what is missing. If an image is from a thin archive, Push first makes sure that
// the registry has what the archive omits. Signatures and other referrers are sent before images with a tag, so that
// no tag names an image whose signature is still on its way.
//
// Push returns the results of the images that succeeded, and the errors of the others. It sends nothing if different
// images would get one name, and stops if the registry cannot be reached any more.
func Push(ctx context.Context, items []graph.Item, reg *remote.Registry, opts Options) ([]Result, error) {
	opts = opts.withDefaults()
	p := &pusher{
		reg:   reg,
		opts:  opts,
		slots: semaphore.NewWeighted(int64(opts.Concurrency)),
		run:   newRun(opts.Progress),
		locks: map[digest.Digest]*blobLock{},
	}
	items = slices.Clone(items)
	slices.SortStableFunc(items, func(a, b graph.Item) int { return cmp.Compare(rank(a), rank(b)) })
	var images []*imagePush
	var failed []error
	targets := map[string]graph.Image{}
	for _, item := range items {
		image, err := p.plan(ctx, item)
		if err != nil {
			failed = append(failed, fmt.Errorf("image %s: %w", item.Name(), err))
			continue
		}
		target := name.Join(image.repo.Name(), image.tag)
		if other, taken := targets[target]; taken && other.Descriptor.Digest != item.Descriptor.Digest {
			return nil, fmt.Errorf("%s and %s differ, but both would become %s: push them with different prefixes", other.Name(),
				item.Name(), target)
		}
		targets[target] = item.Image
		images = append(images, image)
	}
	if err := errors.Join(failed...); ctx.Err() != nil || err != nil && opts.FailFast {
		return nil, cmp.Or(err, ctx.Err())
	}
	if opts.Fits != nil {
		if err := opts.Fits(ctx, contentOf(images)); err != nil {
			return nil, err
		}
	}
	lost := func(err error) bool {
		var answer *errcode.ErrorResponse
		return !errors.As(err, &answer) && !isContent(err) && reg.Ping(ctx) != nil
	}
	var results []Result
	tagged := slices.IndexFunc(images, func(image *imagePush) bool { return rank(image.Item) > 0 })
	for _, images := range [][]*imagePush{images[:max(0, tagged)], images[max(0, tagged):]} {
		done, err := forEachImage(ctx, opts, p.run, images, lost,
			func(ctx context.Context, image *imagePush, started func()) (Result, error) {
				result, err := image.push(ctx, started)
				if err != nil {
					return result, fmt.Errorf("pushing image %s to %s: %w", image.Name(), reg.Host(), err)
				}
				return result, nil
			})
		results = append(results, done...)
		if err != nil {
			failed = append(failed, err)
		}
		if err != nil && (opts.FailFast || ctx.Err() != nil) {
			break
		}
	}
	return results, errors.Join(failed...)
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

// isContent reports whether an error is about content as it was read, not about where it goes.
func isContent(err error) bool {
	_, ok := errors.AsType[*blob.Error](err)
	return ok
}

// registryContent is content of a registry.
type registryContent interface {
	Location() (host, repository string)
}

// cosignTag matches the tags under which cosign stores what refers to an image, without the referrers API.
// https://github.com/sigstore/cosign/blob/v3.0.2/specs/SIGNATURE_SPEC.md#tag-based-discovery
var cosignTag = regexp.MustCompile(`^sha256-[0-9a-f]{64}\.(sig|att|sbom)$`)

// rank is 0 for what has a digest or cosign's tag for its name, as referrers do, and 1 for other images.
func rank(item graph.Item) int {
	named, err := name.Named(item.Reference)
	if err != nil {
		return 1 // plan reports it
	}
	if _, byDigest := named.(reference.Digested); byDigest || cosignTag.MatchString(name.Tag(named)) {
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
	sync.Mutex
	repos []string
}

type imagePush struct {
	graph.Item
	*pusher
	repo     *remote.Repository
	tag      string // or digest
	nodes    []ocispec.Descriptor
	progress *imageProgress
}

// plan reads an image's manifests. It sends nothing.
func (p *pusher) plan(ctx context.Context, item graph.Item) (*imagePush, error) {
	repository, tag, err := name.Repository(item.Reference)
	if err != nil {
		return nil, err
	}
	if d, err := digest.Parse(tag); err == nil && d != item.Descriptor.Digest {
		return nil, fmt.Errorf("its reference has digest %s, but its content has %s", d, item.Descriptor.Digest)
	}
	repo, err := p.reg.Repository(p.opts.Prefix.Join(repository))
	if err != nil {
		return nil, err
	}
	nodes, err := graph.Nodes(ctx, item.Content, item.Descriptor)
	if err != nil {
		return nil, err
	}
	return &imagePush{Item: item, pusher: p, repo: repo, tag: tag, nodes: nodes,
		progress: p.run.add(item.Image, nodes)}, nil
}

// push sends what the repository lacks: blobs, then manifests with dependencies first, and the tagged
// one last.
func (p *imagePush) push(ctx context.Context, started func()) (Result, error) {
	p.progress.start = time.Now()
	reference := name.Join(p.reg.Host()+"/"+p.repo.Name(), p.tag)
	// If the tag already has the digest, one request is enough. An error response is not fatal: the tag
	// need not exist.
	have, err := p.repo.Resolve(ctx, p.tag)
	var answer *errcode.ErrorResponse
	switch {
	case err == nil && have.Digest == p.Descriptor.Digest:
		if err := p.refer(ctx, p.Descriptor); err != nil {
			return p.progress.result, graph.Wrap(p.Descriptor, err)
		}
		return p.progress.finish(reference), nil
	case err != nil && !errors.Is(err, errdef.ErrNotFound) && !errors.As(err, &answer):
		return p.progress.result, err
	}
	if err := p.complete(ctx); err != nil {
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
			return p.progress.result, graph.Wrap(desc, err)
		}
	}
	return p.progress.finish(reference), ctx.Err()
}

// complete makes blobs that a thin archive omits part of the repository.
func (p *imagePush) complete(ctx context.Context) error {
	var mu sync.Mutex
	var lacking []ocispec.Descriptor
	err := forEachBlob(ctx, p.slots, p.Missing, func() {}, func(ctx context.Context, desc ocispec.Descriptor) error {
		err := p.blob(ctx, desc)
		if isContent(err) && errors.Is(err, errdef.ErrNotFound) {
			mu.Lock()
			defer mu.Unlock()
			lacking = append(lacking, desc)
			return nil
		}
		return err
	})
	if err != nil || len(lacking) == 0 {
		return err
	}
	return fmt.Errorf("the registry does not have %d blobs (%s, one is %s) that the archive omits: write a new "+
		"inventory, and pull this image again", len(lacking), space.FormatBytes(graph.Size(lacking)), lacking[0].Digest)
}

// blob makes a blob part of the repository.
func (p *imagePush) blob(ctx context.Context, desc ocispec.Descriptor) error {
	lock := p.blobLock(desc.Digest)
	lock.Lock()
	defer lock.Unlock()
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
		if source, ok := p.Content.(registryContent); ok {
			if host, repository := source.Location(); host == p.reg.Host() {
				from = repository // a copy within the registry
			}
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
			b, err := p.Content.Blob(ctx, desc, p.progress.relayed())
			if err != nil {
				return nil, err
			}
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
			return p.refer(ctx, desc)
		}
		return err
	}
	raw, err := content.FetchAll(ctx, p.Content, desc)
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

// refer lists a manifest that the repository has among the referrers of its subject, if it has one: a push may have
// been interrupted before.
func (p *imagePush) refer(ctx context.Context, desc ocispec.Descriptor) error {
	raw, err := content.FetchAll(ctx, p.Content, desc)
	if err != nil {
		return err
	}
	return p.repo.EnsureReferrer(ctx, desc, raw)
}

func (p *pusher) blobLock(d digest.Digest) *blobLock {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.locks[d]
	if t == nil {
		t = &blobLock{}
		p.locks[d] = t
	}
	return t
}
