package images

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
	"oras.land/oras-go/v2/errdef"

	"github.com/zarf-dev/zarf-registry/internal/images/blobstore"
	"github.com/zarf-dev/zarf-registry/internal/images/name"
	"github.com/zarf-dev/zarf-registry/internal/images/remote"
	"github.com/zarf-dev/zarf-registry/internal/oci"
)

// ResolveOptions configure [Resolve].
type ResolveOptions struct {
	// Registry returns the client for a registry by its host, as returned by [name.Host]. It may be called
	// concurrently, and several times for a host.
	Registry func(ctx context.Context, host string) (*remote.Registry, error)
	// Daemon returns images of the Docker engine, and an error about those that it lacks. It is called at most once, with
	// all names. It may be nil if there are none.
	Daemon func(ctx context.Context, names []string) (*Source, error)
	// Store keeps manifests and configurations.
	Store *blobstore.Store
	// Keep makes [Pull] keep blobs in Store as well, as far as they fit.
	Keep bool
	// Sparse accepts indexes in registries that lack some of their manifests, as they are.
	Sparse bool
	// Platforms are those to keep of an index that a tag refers to. An index that a digest refers to
	// stays complete.
	Platforms Platforms
	// Referrers includes signatures, attestations and SBOMs of the images, from the registry's referrers
	// API and cosign's tags.
	Referrers bool
	// Concurrency is how many requests are sent at once. 0 is [DefaultConcurrency].
	Concurrency int
	// Log gets a line about each image that does not match the platforms. Nil discards it.
	Log *slog.Logger
}

// Resolve finds images by name, in registries or in the Docker engine ([name.DaemonPrefix]), and reads
// their manifests to know their size. It reads no other blobs. The items are in the order of the
// names, each followed by its referrers. Duplicate names yield one item.
//
// The error lists every image that was not found or does not match the platforms. The items are the others.
func Resolve(ctx context.Context, refs []string, opts ResolveOptions) ([]Item, error) {
	if opts.Concurrency <= 0 {
		opts.Concurrency = DefaultConcurrency
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	found := make([][]Item, len(refs))
	failed := make([]error, len(refs))
	var local []int
	group := new(errgroup.Group)
	group.SetLimit(opts.Concurrency)
	seen := map[string]bool{}
	for i, ref := range refs {
		if seen[ref] {
			continue
		}
		seen[ref] = true
		if strings.HasPrefix(ref, name.DaemonPrefix) {
			local = append(local, i)
			continue
		}
		group.Go(func() error {
			found[i], failed[i] = opts.resolve(ctx, ref)
			return nil
		})
	}
	_ = group.Wait()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var lacking error
	if len(local) > 0 {
		var names []string
		for _, i := range local {
			names = append(names, strings.TrimPrefix(refs[i], name.DaemonPrefix))
		}
		var source *Source
		source, lacking = opts.Daemon(ctx, names)
		if source == nil {
			local = nil
		}
		for n, i := range local {
			var err error
			found[i], err = opts.fromDaemon(ctx, source, names[n])
			if err != nil && (lacking == nil || !errors.Is(err, errNotSent)) {
				failed[i] = fmt.Errorf("image %s: %w", refs[i], err)
			}
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	var items []Item
	have := map[string]bool{}
	for _, item := range slices.Concat(found...) {
		key := item.Reference + " " + item.Descriptor.Digest.String()
		if !have[key] {
			have[key] = true
			items = append(items, item)
		}
	}
	return items, errors.Join(errors.Join(failed...), lacking)
}

// resolve finds one image and, if requested, its referrers.
func (o ResolveOptions) resolve(ctx context.Context, ref string) ([]Item, error) {
	named, err := name.Named(ref)
	if err != nil {
		return nil, err
	}
	items, err := o.inRegistry(ctx, named)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", ref, err)
	}
	return items, nil
}

func (o ResolveOptions) inRegistry(ctx context.Context, named reference.Named) ([]Item, error) {
	reg, err := o.Registry(ctx, name.HostOf(named))
	if err != nil {
		return nil, err
	}
	repo, err := reg.Repository(reference.Path(named))
	if err != nil {
		return nil, err
	}
	from := &remoteContent{repo, o.Store, o.Keep, o.Sparse, &Store{}}
	item, whole, err := o.item(ctx, from, named)
	if err != nil {
		return nil, err
	}
	items := []Item{item}
	if !o.Referrers {
		return items, nil
	}
	referrers, err := o.referrers(ctx, from, named, item.Descriptor)
	if err != nil {
		return nil, fmt.Errorf("listing referrers: %w", err)
	}
	if whole.Digest != item.Descriptor.Digest {
		left, err := o.directReferrers(ctx, from, named, whole.Digest, nil)
		if err != nil {
			return nil, fmt.Errorf("listing referrers: %w", err)
		}
		if len(left) > 0 {
			o.Log.Warn("signatures and other referrers of the whole index are left out, because only some of its platforms are "+
				"selected: select all to include them", "image", named.String(), "referrers", len(left))
		}
	}
	return append(items, referrers...), nil
}

// item finds one image in a repository. whole is what its name refers to, with all platforms.
func (o ResolveOptions) item(ctx context.Context, from *remoteContent, named reference.Named) (
	item Item, whole ocispec.Descriptor, err error) {
	if from.parts { // some registries do not tell of it, but serve it
		whole, _, err = from.repo.Manifest(ctx, name.Tag(named))
	} else {
		whole, err = from.repo.Resolve(ctx, name.Tag(named))
	}
	if err != nil {
		return item, whole, err
	}
	if err := checkMediaType(whole); err != nil {
		return item, whole, err
	}
	image := Image{Reference: named.String(), Descriptor: oci.Plain(whole)}
	if _, byDigest := named.(reference.Digested); !byDigest {
		if err := o.Platforms.filter(ctx, from, &image, from.made.addJSON); err != nil {
			return item, whole, err
		}
	}
	item, err = o.describeImage(ctx, from, image)
	return item, whole, err
}

// describeImage reads an image's manifests, and sets its size and platforms.
func (o ResolveOptions) describeImage(ctx context.Context, from Content, image Image) (Item, error) {
	nodes, err := graph(ctx, from, image.Descriptor)
	if err != nil {
		return Item{}, err
	}
	image.Size = totalSize(nodes)
	if image.Platforms, err = platformsIn(ctx, from, image.Descriptor); err != nil {
		return Item{}, err
	}
	lacking, err := lackingManifests(ctx, from, image.Descriptor, nodes)
	if err != nil {
		return Item{}, err
	}
	if len(lacking) > 0 {
		image.Omitted = platformsOf(lacking)
		o.Log.Warn("the index is sparse: the registry lacks some of its manifests", "image", image.Reference, "manifests",
			len(lacking), "platforms", Platforms(image.Omitted).String())
	}
	if !o.Platforms.runs(image) {
		o.Log.Warn("image does not run on the requested platforms", "image", image.Reference, "platforms",
			Platforms(image.Platforms).String(), "requested", o.Platforms.String())
	}
	return Item{image, from}, nil
}

// maxReferrers limits the referrers of one image: signatures can have signatures without end.
const maxReferrers = 1000

// cosignTags are the suffixes of the tags that cosign uses without the referrers API.
// https://github.com/sigstore/cosign/blob/v3.0.2/specs/SIGNATURE_SPEC.md#tag-based-discovery
var cosignTags = []string{".sig", ".att", ".sbom"}

// cosignTag matches such a tag.
var cosignTag = regexp.MustCompile(`^sha256-[0-9a-f]{64}\.(sig|att|sbom)$`)

// referrers finds the referrers of an image, of its manifests, and of those referrers and their manifests.
func (o ResolveOptions) referrers(ctx context.Context, from *remoteContent, named reference.Named,
	root ocispec.Descriptor) ([]Item, error) {
	var queue []digest.Digest
	seen := map[digest.Digest]bool{}
	enqueue := func(root ocispec.Descriptor) error {
		nodes, err := graph(ctx, from, root)
		if err != nil {
			return err
		}
		for _, node := range slices.Backward(nodes) { // an index before its manifests
			if oci.IsManifestOrIndex(node.MediaType) && !seen[node.Digest] {
				seen[node.Digest] = true
				queue = append(queue, node.Digest)
			}
		}
		return nil
	}
	if err := enqueue(root); err != nil {
		return nil, err
	}
	var items []Item
	for len(queue) > 0 {
		found, err := o.directReferrers(ctx, from, named, queue[0], seen)
		if err != nil {
			return nil, err
		}
		queue = queue[1:]
		for _, item := range found {
			if seen[item.Descriptor.Digest] {
				continue
			}
			if len(items) == maxReferrers {
				return nil, fmt.Errorf("has more than %d referrers", maxReferrers)
			}
			items = append(items, item)
			if err := enqueue(item.Descriptor); err != nil {
				return nil, err
			}
		}
	}
	return items, nil
}

// directReferrers finds what refers to a manifest, except what was seen: what the registry lists, and cosign's tags.
func (o ResolveOptions) directReferrers(ctx context.Context, from *remoteContent, named reference.Named,
	referrers digest.Digest, seen map[digest.Digest]bool) ([]Item, error) {
	o.Platforms = nil
	repository := reference.TrimNamed(named)
	var listed []digest.Digest
	err := from.repo.Referrers(ctx, referrers, func(page []ocispec.Descriptor) error {
		for _, desc := range page {
			if seen[desc.Digest] || slices.Contains(listed, desc.Digest) {
				continue
			}
			if len(listed) == maxReferrers {
				return fmt.Errorf("%s has more than %d referrers", referrers, maxReferrers)
			}
			listed = append(listed, desc.Digest)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var items []Item
	for _, d := range listed {
		byDigest, err := reference.WithDigest(repository, d)
		if err != nil {
			return nil, err
		}
		item, _, err := o.item(ctx, from, byDigest)
		if errors.Is(err, errdef.ErrNotFound) {
			o.Log.Warn("registry lists a referrer that does not exist", "image", named.String(), "referrer", d.String())
			continue
		}
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	for _, ending := range cosignTags {
		tag, err := reference.WithTag(repository, referrers.Algorithm().String()+"-"+referrers.Encoded()+ending)
		if err != nil {
			break // SHA-512 digests are too long for a tag
		}
		item, _, err := o.item(ctx, from, tag)
		if errors.Is(err, errdef.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	return items, nil
}

// fromDaemon finds an image by name in what the Docker engine saved.
func (o ResolveOptions) fromDaemon(ctx context.Context, source *Source, ref string) ([]Item, error) {
	named, err := name.Named(ref)
	if err != nil {
		return nil, err
	}
	for _, image := range source.Images() {
		other, err := name.Named(image.Reference)
		if err != nil || other.String() != named.String() {
			continue
		}
		image.Reference = named.String()
		if err := o.Platforms.filter(ctx, source, &image, source.made.addJSON); err != nil {
			return nil, err
		}
		item, err := o.describeImage(ctx, source, image)
		return []Item{item}, err
	}
	if slices.ContainsFunc(source.Images(), func(image Image) bool { return image.Reference == "" }) {
		return nil, fmt.Errorf("an image given by its ID has no name in a registry: run docker tag %s NAME:TAG, and use "+
			"%sNAME:TAG", ref, name.DaemonPrefix)
	}
	return nil, fmt.Errorf("%w: got %s", errNotSent, names(source.Images()))
}

var errNotSent = errors.New("the Docker engine did not send it")

// checkMediaType rejects content that is not a supported manifest or index.
func checkMediaType(desc ocispec.Descriptor) error {
	switch {
	case oci.IsManifestOrIndex(desc.MediaType):
		return nil
	case oci.IsSchema1(desc.MediaType):
		return errors.New("uses Docker's manifest schema 1, which is no longer supported: build or push it again")
	}
	return fmt.Errorf("media type %q is neither a manifest nor an index", desc.MediaType)
}
