package spec

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/distribution/distribution/v3"
	"github.com/distribution/distribution/v3/registry/api/errcode"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/request"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
	"github.com/zarf-dev/zarf-registry/internal/registry/volume"
)

// manifestStore stores a repository's manifests, with the links that distribution lacks.
type manifestStore struct {
	distribution.ManifestService
	repository distribution.Repository
	source     *Registry
}

// Put stores a manifest. When it returns, the manifest has all its digests, back links and tags.
func (m manifestStore) Put(
	ctx context.Context, manifest distribution.Manifest, options ...distribution.ManifestServiceOption,
) (digest.Digest, error) {
	stored, err := m.put(ctx, manifest, options...)
	volume.RecordNoSpace(ctx, err)
	return stored, err
}

func (m manifestStore) put(
	ctx context.Context, manifest distribution.Manifest, options ...distribution.ManifestServiceOption,
) (stored digest.Digest, err error) {
	in := intentOf(ctx)
	pushed := in.push
	own, needed := m.source.collector.Rely(pushed.digests...), m.source.collector.Rely(pushed.needs...)
	defer func() {
		own.Done(err == nil)
		needed.Done(err == nil)
	}()
	if err := needed.Missing(ctx, m.repository.Named().Name()); err != nil {
		return "", err
	}
	if err := m.source.Lacking(ctx, m.repository.Named().Name(), pushed.described); err != nil {
		if missing, ok := errors.AsType[distribution.ErrManifestBlobUnknown](err); ok {
			err = distribution.ErrManifestVerification{missing}
		}
		return "", err
	}
	in.store = func() (digest.Digest, error) { return m.store(ctx, manifest, pushed, options...) }
	stored, err = in.store()
	if hasForbiddenURLs(err) {
		return "", errcode.ErrorCodeManifestInvalid.WithMessage("a layer of the image is stored at a URL from which this " +
			"registry does not let nodes pull")
	}
	if err != nil {
		return "", err
	}
	for _, tag := range pushed.tags {
		if err := m.repository.Tags(ctx).Tag(ctx, tag, v1.Descriptor{Digest: cmp.Or(pushed.named, stored)}); err != nil {
			return "", err
		}
	}
	return stored, nil
}

// storeAttempts limits how often a manifest is written again that deletions have removed.
const storeAttempts = 5

// store writes a manifest with its links, until no deletion has removed any of them: see collect.Intent.
func (m manifestStore) store(
	ctx context.Context, manifest distribution.Manifest, pushed push, options ...distribution.ManifestServiceOption,
) (digest.Digest, error) {
	mediaType, data, err := manifest.Payload()
	if err != nil {
		return "", err
	}
	name := m.repository.Named().Name()
	linked := v1.Descriptor{MediaType: mediaType, Digest: cmp.Or(pushed.named, pushed.digests[0])}
	involved := slices.Clone(pushed.digests)
	for _, child := range pushed.described.Children {
		involved = append(involved, child.Digest)
	}
	for range storeAttempts {
		// They come first, so that no interrupted push leaves a manifest without them: the client would find it, and skip it.
		if err := m.source.AddBackLinks(ctx, name, linked, data); err != nil {
			return "", err
		}
		replacing := content.Replacing(ctx, storage.BlobPath(pushed.digests[0]))
		stored, err := m.ManifestService.Put(replacing, manifest, options...)
		if err == nil && pushed.named != "" {
			err = m.source.Link(ctx, storage.RevisionPath(name, pushed.named), stored)
		}
		if err == nil {
			err = m.source.collector.AwaitDeletions(ctx, name, involved...)
		}
		if err != nil {
			return "", err
		}
		if err := m.source.LackingChild(ctx, name, pushed.described); err != nil {
			return "", distribution.ErrManifestVerification{err}
		}
		if found, err := m.source.IsLinked(ctx, name, linked, data); found || err != nil {
			return stored, err
		}
	}
	return "", request.Unavailable("the manifest was deleted again and again while it was pushed: push it later")
}

// hasForbiddenURLs reports whether distribution refuses a manifest for the URLs of a layer, which would be a 500.
func hasForbiddenURLs(err error) bool {
	var problems distribution.ErrManifestVerification
	return errors.As(err, &problems) && slices.ContainsFunc(problems, func(problem error) bool {
		return strings.HasSuffix(problem.Error(), "URL on layer")
	})
}

// Get returns a manifest. It does not exist if it is damaged, or if it must be complete and is not.
func (m manifestStore) Get(
	ctx context.Context, d digest.Digest, _ ...distribution.ManifestServiceOption,
) (manifest distribution.Manifest, err error) {
	name := m.repository.Named().Name()
	unknown := distribution.ErrManifestUnknownRevision{Name: name, Revision: d}
	if intentOf(ctx).complete { // a push that skips existing manifests
		use := m.source.collector.Rely(d)
		defer func() { use.Done(err == nil) }()
	}
	data, err := m.source.Manifest(ctx, name, d)
	if errors.Is(err, content.ErrUnknownManifest) || content.IsDamaged(err) {
		return nil, unknown
	}
	if err != nil {
		return nil, err
	}
	described, err := content.Describe(data) // which limits what distribution's decoders take
	if err == nil {
		manifest, _, err = distribution.UnmarshalManifest(described.Type(), data)
	}
	if err != nil {
		m.source.Log.Warn("stored manifest is invalid", "repository", name, "digest", d.String(), "error", err)
		return nil, unknown
	}
	if !intentOf(ctx).complete {
		return manifest, nil
	}
	err = m.source.Lacking(ctx, name, described)
	if errors.As(err, new(distribution.ErrManifestBlobUnknown)) || errors.As(err, new(errcode.Error)) {
		return nil, unknown
	}
	return manifest, err
}
