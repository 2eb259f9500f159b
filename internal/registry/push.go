package registry

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/distribution/distribution/v3"
	"github.com/distribution/distribution/v3/registry/api/errcode"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/quota"
	"github.com/zarf-dev/zarf-registry/internal/registry/request"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// push is what a manifest upload asks for beyond what distribution supports. It is in the upload's context.
type push struct {
	// named is the manifest's digest in the URL, if it is not the SHA-256 digest.
	named digest.Digest
	// tags are the parameters tag of a push by digest.
	tags []string
	// subject is the manifest's, if it has one.
	subject digest.Digest
	// digests are the manifest's own, needs what it refers to, apart from its subject, which may be missing.
	digests, needs []digest.Digest
	described      content.Described
}

type pushKey struct{}

// withPushes adds to manifest uploads: digests other than SHA-256, tags as parameters of a push by digest, and
// the response header OCI-Subject.
func withPushes(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPut {
			next.ServeHTTP(w, r)
			return
		}
		to := request.TargetOf(r)
		if to.Manifest == "" {
			next.ServeHTTP(w, r)
			return
		}
		data, err := io.ReadAll(io.LimitReader(r.Body, oci.MaxManifestSize+1))
		if err != nil { // the client has disconnected, or sends nothing
			request.WriteError(w, request.ErrCanceled)
			return
		}
		p, stored, err := newPush(to.Manifest, r.URL.Query(), data)
		if err != nil {
			request.WriteError(w, err)
			return
		}
		response := &pushResponse{ResponseWriter: w, push: p, manifests: "/v2/" + to.Repository + "/manifests/"}
		if body, ok := r.Body.(*quota.Body); ok { // the space is limited
			written, occupied, err := content.BackLinksSize(to.Repository, v1.Descriptor{MediaType: r.Header.Get("Content-Type"),
				Digest: cmp.Or(p.named, p.digests[0])}, data)
			if err != nil {
				request.WriteError(w, errcode.ErrorCodeManifestInvalid.WithDetail(err.Error()))
				return
			}
			if err := body.Reserve(occupied); err != nil {
				request.WriteError(w, err)
				return
			}
			response.created = func() { body.Wrote(written) }
		}
		r = r.WithContext(context.WithValue(r.Context(), pushKey{}, p))
		r.Body = readCloser{bytes.NewReader(data), r.Body}
		r.URL = &url.URL{Path: strings.TrimSuffix(r.URL.Path, to.Manifest) + stored}
		next.ServeHTTP(response, r)
	})
}

// newPush also returns the tag or digest under which distribution stores the manifest.
func newPush(name string, query url.Values, data []byte) (p push, stored string, err error) {
	if len(data) > oci.MaxManifestSize {
		return push{}, "", errTooLarge
	}
	m, err := content.Describe(data)
	if err != nil {
		return push{}, "", errcode.ErrorCodeManifestInvalid.WithDetail(err.Error())
	}
	r, err := content.ParseReferences(data)
	if err != nil {
		return push{}, "", errcode.ErrorCodeManifestInvalid.WithDetail(err.Error())
	}
	p = push{subject: m.Subject, digests: []digest.Digest{digest.FromBytes(data)}, needs: r.Needs,
		described: m}
	d := digest.Digest(name)
	if d.Validate() != nil {
		return p, name, nil
	}
	if d.Algorithm().FromBytes(data) != d {
		return push{}, "", errcode.ErrorCodeDigestInvalid.WithDetail("the digest of the content is " +
			d.Algorithm().FromBytes(data).String())
	}
	p.tags = query["tag"]
	for _, tag := range p.tags {
		if tag == "" || reference.TagRegexp.FindString(tag) != tag {
			return push{}, "", errcode.ErrorCodeTagInvalid.WithDetail(tag)
		}
	}
	if d.Algorithm() != digest.Canonical {
		p.named = d
		p.digests = append(p.digests, d)
	}
	return p, digest.FromBytes(data).String(), nil
}

// pushResponse is the response to a manifest upload.
type pushResponse struct {
	http.ResponseWriter
	push      push
	manifests string // the path of the repository's manifests
	created   func() // called for a push that succeeds, unless nil
}

func (r *pushResponse) WriteHeader(status int) {
	if status == http.StatusCreated {
		if r.created != nil {
			r.created()
		}
		header := r.Header()
		if r.push.named != "" {
			header.Set("Docker-Content-Digest", r.push.named.String())
			header.Set("Location", r.manifests+r.push.named.String())
		}
		if r.push.subject != "" {
			header.Set("OCI-Subject", r.push.subject.String())
		}
		for _, tag := range r.push.tags {
			header.Add("OCI-Tag", tag)
		}
	}
	r.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (r *pushResponse) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// manifestStore stores a repository's manifests, with the links that distribution lacks.
type manifestStore struct {
	distribution.ManifestService
	repository distribution.Repository
	source     *contentStore
}

// Put stores a manifest. When it returns, the manifest has all its digests, back links and tags.
func (m manifestStore) Put(
	ctx context.Context, manifest distribution.Manifest, options ...distribution.ManifestServiceOption,
) (digest.Digest, error) {
	stored, err := m.put(ctx, manifest, options...)
	quota.RecordNoSpace(ctx, err)
	return stored, err
}

func (m manifestStore) put(
	ctx context.Context, manifest distribution.Manifest, options ...distribution.ManifestServiceOption,
) (digest.Digest, error) {
	pushed, _ := ctx.Value(pushKey{}).(push)
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
	linking := m.source.Linking(m.repository.Named().Name())
	linking.RLock()
	defer linking.RUnlock()
	stored, err := m.ManifestService.Put(content.Replacing(ctx, storage.BlobPath(pushed.digests[0])), manifest, options...)
	if hasForbiddenURLs(err) {
		return "", errcode.ErrorCodeManifestInvalid.WithMessage("a layer of the image is stored at a URL from which this " +
			"registry does not let nodes pull")
	}
	if err != nil {
		return "", err
	}
	mediaType, data, err := manifest.Payload()
	if err != nil {
		return "", err
	}
	name, named := m.repository.Named().Name(), stored
	if pushed.named != "" {
		named = pushed.named
		if err := m.source.Link(ctx, storage.RevisionPath(name, named), stored); err != nil {
			return "", err
		}
	}
	if err := m.source.AddBackLinks(ctx, name, v1.Descriptor{MediaType: mediaType, Digest: named}, data); err != nil {
		return "", err
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
	manifest, err := m.Get(ctx, d)
	if err != nil {
		return m.ManifestService.Delete(ctx, d)
	}
	if err := m.checkUnmodified(ctx, d); err != nil {
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

// errTooLarge means that a manifest is larger than oci.MaxManifestSize.
var errTooLarge = errcode.ErrorCodeSizeInvalid.WithMessage("a manifest may have at most 4 MiB")

// readCloser combines a reader and a closer.
type readCloser struct {
	io.Reader
	io.Closer
}

// completeKey is the context key of requests for which a manifest exists only if it is complete.
type completeKey struct{}

// withCompleteness lets clients that may push find manifests only if everything that these need exists: with HEAD they
// ask whether they have to push.
func withCompleteness(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead {
			if caller := request.CallerOf(r.Context()); caller == nil || caller.Pushes {
				r = r.WithContext(context.WithValue(r.Context(), completeKey{}, true))
			}
		}
		next.ServeHTTP(w, r)
	})
}

// Get returns a manifest. It does not exist if it is damaged, or if it must be complete and is not.
func (m manifestStore) Get(
	ctx context.Context, d digest.Digest, options ...distribution.ManifestServiceOption,
) (distribution.Manifest, error) {
	name := m.repository.Named().Name()
	unknown := distribution.ErrManifestUnknownRevision{Name: name, Revision: d}
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
	if ctx.Value(completeKey{}) == nil {
		return manifest, nil
	}
	described, err := content.Describe(data)
	if err != nil {
		return manifest, nil //nolint:nilerr // not a manifest as this registry understands it
	}
	err = m.source.Lacking(ctx, name, described)
	var coded errcode.Error
	if errors.As(err, new(distribution.ErrManifestBlobUnknown)) || errors.As(err, &coded) {
		return nil, unknown
	}
	return manifest, err
}
