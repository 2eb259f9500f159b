package source

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/zarf-dev/zarf-registry/internal/images/blobstore"
	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/internal/images/name"
	"github.com/zarf-dev/zarf-registry/internal/images/remote"
	"github.com/zarf-dev/zarf-registry/internal/oci"
)

// ResolveOptions configure [Resolve].
type ResolveOptions struct {
	// Registry returns the client for a registry by its host, as returned by [name.Host]. It may be called
	// concurrently, and several times for a host.
	Registry func(ctx context.Context, host string) (*remote.Registry, error)
	// Engine returns images of the Docker engine, and an error about those that it lacks. It is called at most once, with
	// all names. It may be nil if there are none.
	Engine func(ctx context.Context, names []string) (*Source, error)
	// Store keeps what is downloaded, as far as it fits, unless it is nil.
	Store *blobstore.Store
	// Sparse accepts indexes in registries that lack some of their manifests, as they are.
	Sparse bool
	// Platforms are those to keep of an index that a tag refers to. An index that a digest refers to
	// stays complete.
	Platforms graph.Platforms
	// Referrers includes signatures, attestations and SBOMs of the images, from the registry's referrers
	// API and cosign's tags.
	Referrers bool
	// Concurrency is how many images are resolved at once, at least one.
	Concurrency int
	// Log gets warnings about what is left out. Nil discards it.
	Log *slog.Logger
}

// Resolve finds images by name, in registries or in the Docker engine ([name.DaemonPrefix]), and reads
// their manifests to know their size. It reads no other blobs. The items are in the order of the
// names, each followed by its referrers. Duplicate names yield one item.
//
// The error lists every image that was not found or does not match the platforms. The items are the others.
func Resolve(ctx context.Context, refs []string, opts ResolveOptions) ([]graph.Item, error) {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	found := make([][]graph.Item, len(refs))
	failed := make([]error, len(refs))
	var local []int
	group := new(errgroup.Group)
	group.SetLimit(max(1, opts.Concurrency))
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
	lacking := opts.inEngine(ctx, refs, local, found, failed)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var items []graph.Item
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
func (o ResolveOptions) resolve(ctx context.Context, ref string) ([]graph.Item, error) {
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

func (o ResolveOptions) inRegistry(ctx context.Context, named reference.Named) ([]graph.Item, error) {
	reg, err := o.Registry(ctx, name.HostOf(named))
	if err != nil {
		return nil, err
	}
	repo, err := reg.Repository(reference.Path(named))
	if err != nil {
		return nil, err
	}
	from := &repository{repo: repo, store: o.Store, sparse: o.Sparse}
	item, whole, err := o.item(ctx, from, named)
	if err != nil {
		return nil, err
	}
	items := []graph.Item{item}
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
func (o ResolveOptions) item(ctx context.Context, from *repository, named reference.Named) (
	item graph.Item, whole ocispec.Descriptor, err error) {
	if from.sparse { // some registries do not tell of it, but serve it
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
	image := graph.Image{Reference: named.String(), Descriptor: oci.Plain(whole)}
	if _, byDigest := named.(reference.Digested); !byDigest {
		if err := o.Platforms.Filter(ctx, from, &image, &from.made); err != nil {
			return item, whole, err
		}
	}
	item, err = o.describeImage(ctx, from, image)
	return item, whole, err
}

// describeImage reads an image's manifests, and sets its size and platforms.
func (o ResolveOptions) describeImage(ctx context.Context, from graph.Content, image graph.Image) (graph.Item, error) {
	nodes, err := graph.Nodes(ctx, from, image.Descriptor)
	if err != nil {
		return graph.Item{}, err
	}
	image.Size = graph.Size(nodes)
	if image.Platforms, err = graph.PlatformsIn(ctx, from, image.Descriptor); err != nil {
		return graph.Item{}, err
	}
	lacking, err := lackingManifests(ctx, from, image.Descriptor, nodes)
	if err != nil {
		return graph.Item{}, err
	}
	if len(lacking) > 0 {
		image.Omitted = graph.PlatformsOf(lacking)
		o.Log.Warn("the index is sparse: the registry lacks some of its manifests", "image", image.Reference, "manifests",
			len(lacking), "platforms", graph.Platforms(image.Omitted).String())
	}
	return graph.Item{Image: image, Content: from}, nil
}

// lackingManifests returns the manifests of an index that are not among its nodes.
func lackingManifests(ctx context.Context, src graph.Content, desc ocispec.Descriptor, nodes []ocispec.Descriptor) (
	[]ocispec.Descriptor, error) {
	if !oci.IsIndex(desc.MediaType) {
		return nil, nil
	}
	var index ocispec.Index
	if err := graph.FetchJSON(ctx, src, desc, &index); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(index.Manifests, func(m ocispec.Descriptor) bool {
		return slices.ContainsFunc(nodes, func(node ocispec.Descriptor) bool { return node.Digest == m.Digest })
	}), nil
}

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
