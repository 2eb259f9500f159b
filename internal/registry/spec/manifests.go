package spec

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/distribution/distribution/v3"
	"github.com/distribution/distribution/v3/registry/api/errcode"
	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/registry/content"
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
) (digest.Digest, error) {
	pushed := intentOf(ctx).push
	m.source.collector.Rely(pushed.digests...)
	if err := m.source.collector.Need(ctx, m.repository.Named().Name(), pushed.needs); err != nil {
		return "", err
	}
	if err := m.source.Lacking(ctx, m.repository.Named().Name(), pushed.described); err != nil {
		if missing, ok := errors.AsType[distribution.ErrManifestBlobUnknown](err); ok {
			err = distribution.ErrManifestVerification{missing}
		}
		return "", err
	}
	mediaType, data, err := manifest.Payload()
	if err != nil {
		return "", err
	}
	name, named := m.repository.Named().Name(), cmp.Or(pushed.named, pushed.digests[0])
	linking := m.source.Linking(name)
	linking.RLock()
	defer linking.RUnlock()
	// They come first, so that no interrupted push leaves a manifest without them: the client would find it, and skip it.
	if err := m.source.AddBackLinks(ctx, name, v1.Descriptor{MediaType: mediaType, Digest: named}, data); err != nil {
		return "", err
	}
	stored, err := m.ManifestService.Put(content.Replacing(ctx, storage.BlobPath(pushed.digests[0])), manifest, options...)
	if hasForbiddenURLs(err) {
		return "", errcode.ErrorCodeManifestInvalid.WithMessage("a layer of the image is stored at a URL from which this " +
			"registry does not let nodes pull")
	}
	if err != nil {
		return "", err
	}
	if pushed.named != "" {
		if err := m.source.Link(ctx, storage.RevisionPath(name, named), stored); err != nil {
			return "", err
		}
	}
	for _, tag := range pushed.tags {
		if err := m.repository.Tags(ctx).Tag(ctx, tag, v1.Descriptor{Digest: named}); err != nil {
			return "", err
		}
	}
	return stored, nil
}

// hasForbiddenURLs reports whether distribution refuses a manifest for the URLs of a layer, which would be a 500.
func hasForbiddenURLs(err error) bool {
	var problems distribution.ErrManifestVerification
	return errors.As(err, &problems) && slices.ContainsFunc(problems, func(problem error) bool {
		return strings.HasSuffix(problem.Error(), "URL on layer")
	})
}

// Delete removes a manifest, with all its digests and the tags of those that the caller did not name.
func (m manifestStore) Delete(ctx context.Context, d digest.Digest) error {
	linking := m.source.Linking(m.repository.Named().Name())
	linking.Lock()
	defer linking.Unlock()
	if err := m.checkUnmodified(ctx, d); err != nil {
		return err
	}
	manifest, err := m.Get(ctx, d)
	if errors.As(err, new(storagedriver.Error)) {
		return err
	}
	if err != nil { // it is missing or damaged
		err := m.ManifestService.Delete(ctx, d)
		if errors.Is(err, distribution.ErrBlobUnknown) { // an interrupted deletion may have left its tags
			err = cmp.Or(m.untag(ctx, d), err)
		}
		return err
	}
	mediaType, data, err := manifest.Payload()
	if err != nil {
		return err
	}
	name := m.repository.Named().Name()
	for _, algorithm := range []digest.Algorithm{digest.SHA256, digest.SHA384, digest.SHA512} {
		other := algorithm.FromBytes(data)
		if found, err := m.source.Exists(ctx, storage.RevisionPath(name, other)); err != nil || !found {
			if err != nil {
				return err
			}
			continue
		}
		if err := m.ManifestService.Delete(ctx, other); err != nil {
			return err
		}
		removed := v1.Descriptor{MediaType: mediaType, Digest: other}
		if err := m.source.RemoveBackLinks(ctx, name, removed, data); err != nil {
			return err
		}
		if other != d {
			if err := m.untag(ctx, other); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m manifestStore) untag(ctx context.Context, d digest.Digest) error {
	service := m.repository.Tags(ctx)
	tags, err := service.Lookup(ctx, v1.Descriptor{Digest: d})
	for _, tag := range tags {
		if err == nil {
			err = service.Untag(ctx, tag)
		}
	}
	return err
}

// Get returns a manifest. It does not exist if it is damaged, or if it must be complete and is not.
func (m manifestStore) Get(
	ctx context.Context, d digest.Digest, options ...distribution.ManifestServiceOption,
) (distribution.Manifest, error) {
	name := m.repository.Named().Name()
	unknown := distribution.ErrManifestUnknownRevision{Name: name, Revision: d}
	if intentOf(ctx).complete { // a push that skips existing manifests
		m.source.collector.Rely(d)
	}
	manifest, err := m.ManifestService.Get(ctx, d, options...)
	var data []byte
	if err == nil {
		_, data, err = manifest.Payload()
	}
	if err != nil {
		if _, found := m.source.Manifest(ctx, name, d); content.IsDamaged(found) {
			err = unknown
		}
		return nil, err
	}
	if d.Algorithm().FromBytes(data) != d {
		return nil, unknown
	}
	if !intentOf(ctx).complete {
		return manifest, nil
	}
	described, err := content.Describe(data)
	if err != nil {
		return manifest, nil //nolint:nilerr // not a manifest as this registry understands it
	}
	err = m.source.Lacking(ctx, name, described)
	if errors.As(err, new(distribution.ErrManifestBlobUnknown)) || errors.As(err, new(errcode.Error)) {
		return nil, unknown
	}
	return manifest, err
}
