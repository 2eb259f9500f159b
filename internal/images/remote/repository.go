package remote

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/errcode"

	"github.com/zarf-dev/zarf-registry/internal/images/blob"
	"github.com/zarf-dev/zarf-registry/internal/oci"
)

// Repository is a repository in a registry. It is safe for concurrent use.
type Repository struct {
	registry *Registry
	name     string
	remote   *remote.Repository

	referrersMu sync.Mutex // held while an index under a referrers tag is changed
}

// Name returns the repository's name without the registry's host.
func (r *Repository) Name() string { return r.name }

// Host returns the registry's host name and port.
func (r *Repository) Host() string { return r.registry.Host() }

// Resolve returns the descriptor of the manifest or index with a tag or digest. The error is [errdef.ErrNotFound] if
// it does not exist.
func (r *Repository) Resolve(ctx context.Context, ref string) (ocispec.Descriptor, error) {
	resp, err := r.requestManifest(ctx, http.MethodHead, ref)
	if err != nil {
		if code := statusCode(err); code == http.StatusMethodNotAllowed || code == http.StatusNotImplemented {
			desc, _, err := r.Manifest(ctx, ref)
			return desc, err
		}
		return ocispec.Descriptor{}, r.registry.wrap(ctx, err)
	}
	resp.Body.Close()
	desc := ocispec.Descriptor{MediaType: mediaType(resp), Size: resp.ContentLength}
	desc.Digest, err = expectedDigest(resp, ref)
	if err != nil {
		return ocispec.Descriptor{}, r.registry.wrap(ctx, err)
	}
	if desc.Digest == "" || desc.Size < 0 || desc.MediaType == "" {
		desc, _, err = r.Manifest(ctx, ref)
		return desc, err
	}
	return desc, nil
}

// Manifest returns the manifest or index with a tag or digest. Its content is verified against the requested digest
// and against the one in the response. The error is [errdef.ErrNotFound] if it does not exist.
func (r *Repository) Manifest(ctx context.Context, ref string) (_ ocispec.Descriptor, _ []byte, err error) {
	defer func() { err = r.registry.wrap(ctx, err) }()
	resp, err := r.requestManifest(ctx, http.MethodGet, ref)
	if err != nil {
		return ocispec.Descriptor{}, nil, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return ocispec.Descriptor{}, nil, err
	}
	want, err := expectedDigest(resp, ref)
	if err != nil {
		return ocispec.Descriptor{}, nil, err
	}
	if want == "" {
		want = digest.FromBytes(raw)
	}
	if got := want.Algorithm().FromBytes(raw); got != want {
		return ocispec.Descriptor{}, nil, protocolErrorf("returned a manifest with digest %s for %s: want %s", got, ref, want)
	}
	return ocispec.Descriptor{MediaType: mediaType(resp), Digest: want, Size: int64(len(raw))}, raw, nil
}

const (
	subjectHeader = "OCI-Subject" // of a registry with the referrers API
	tagHeader     = "OCI-Tag"     // of a registry with tag parameters
)

// PushManifest sends a manifest or index and tags it, unless tag is empty. raw is verified. If raw has a subject and
// the registry has no referrers API, the referrers list is kept under a tag, as the OCI distribution specification
// requires.
func (r *Repository) PushManifest(ctx context.Context, desc ocispec.Descriptor, raw []byte, tag string) (err error) {
	defer func() { err = r.registry.wrap(ctx, err) }()
	if err := oci.CheckDigest(desc.Digest); err != nil {
		return blob.NewError(err)
	}
	switch {
	case desc.Size != int64(len(raw)):
		return blob.SizeError(int64(len(raw)), desc)
	case desc.Digest.Algorithm().FromBytes(raw) != desc.Digest:
		return blob.MismatchError()
	}
	ref, query := tag, url.Values(nil)
	switch {
	case tag == "":
		ref = desc.Digest.String()
	case desc.Digest.Algorithm() != digest.Canonical:
		// If a request names a tag only, the registry chooses the digest, usually SHA-256.
		ref, query = desc.Digest.String(), url.Values{"tag": {tag}}
	}
	header, err := r.putManifest(ctx, desc, raw, ref, query)
	if err != nil {
		return err
	}
	if query != nil && !slices.Contains(header.Values(tagHeader), tag) {
		if header, err = r.putManifest(ctx, desc, raw, tag, nil); err != nil {
			return err
		}
	}
	if header.Get(subjectHeader) != "" {
		return nil
	}
	return r.addReferrer(ctx, desc, raw)
}

// putManifest sends a manifest under a tag or digest, and returns the header of the response.
func (r *Repository) putManifest(ctx context.Context, desc ocispec.Descriptor, raw []byte, ref string,
	query url.Values) (http.Header, error) {
	req, err := r.newRequest(ctx, http.MethodPut, "manifests/"+ref, bytes.NewReader(raw), auth.ActionPull,
		auth.ActionPush)
	if err != nil {
		return nil, err
	}
	req.URL.RawQuery = query.Encode()
	req.Header.Set("Content-Type", desc.MediaType)
	resp, err := r.registry.client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusCreated {
		err := newResponseError(resp)
		if hasErrorCode(err, errcode.ErrorCodeDigestInvalid) && desc.Digest.Algorithm() != digest.Canonical {
			err = protocolErrorf("rejected the manifest's digest %s: it may not support %s", desc.Digest,
				desc.Digest.Algorithm())
		}
		return nil, err
	}
	resp.Body.Close()
	return resp.Header, r.checkStored(ctx, resp, desc)
}

// checkStored checks under which digest the registry says that it has stored a manifest or blob.
func (r *Repository) checkStored(ctx context.Context, resp *http.Response, desc ocispec.Descriptor) error {
	got, err := expectedDigest(resp, desc.Digest.String())
	header := resp.Header.Get(oci.HeaderDigest)
	if err != nil || header == "" || header == got.String() {
		return err
	}
	// A registry that knows several algorithms may mention another one.
	ok, err := r.Exists(ctx, desc)
	if err == nil && !ok {
		err = protocolErrorf("stored %s under digest %s: it does not support %s", desc.Digest, header, got.Algorithm())
	}
	return err
}

// Exists reports whether the repository has a manifest or blob. desc's media type tells which of the two it is.
func (r *Repository) Exists(ctx context.Context, desc ocispec.Descriptor) (bool, error) {
	var err error
	if oci.IsManifestOrIndex(desc.MediaType) {
		var resp *http.Response
		if resp, err = r.requestManifest(ctx, http.MethodHead, desc.Digest.String()); err == nil {
			resp.Body.Close()
		}
	} else {
		err = r.headBlob(ctx, desc)
	}
	if statusCode(err) == http.StatusNotFound {
		return false, nil
	}
	return err == nil, r.registry.wrap(ctx, err)
}

// Tags calls yield with each page of the repository's tags, and stops at yield's first error.
func (r *Repository) Tags(ctx context.Context, yield func(tags []string) error) error {
	return list(ctx, r.registry, yield, func(yield func([]string) error) error { return r.remote.Tags(ctx, "", yield) })
}

func (r *Repository) headBlob(ctx context.Context, desc ocispec.Descriptor) error {
	req, err := r.newRequest(withTransfer(ctx, receivesBlob), http.MethodHead, "blobs/"+desc.Digest.String(), nil,
		auth.ActionPull)
	if err != nil {
		return err
	}
	resp, err := r.registry.client.Do(req)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return newResponseError(resp)
	}
	resp.Body.Close()
	if resp.ContentLength >= 0 && resp.ContentLength != desc.Size {
		return blobSizeError(resp.ContentLength, desc)
	}
	return nil
}

func (r *Repository) requestManifest(ctx context.Context, method, ref string) (*http.Response, error) {
	req, err := r.newRequest(ctx, method, "manifests/"+url.PathEscape(ref), nil, auth.ActionPull)
	if err != nil {
		return nil, err
	}
	if d, err := digest.Parse(ref); err == nil {
		req.URL.Path, req.URL.RawPath = strings.TrimSuffix(req.URL.Path, ref)+d.String(), ""
	}
	req.Header.Set("Accept", oci.Accept)
	resp, err := r.registry.client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, newResponseError(resp)
	}
	return resp, nil
}

// newRequest prepares a request for a path in the repository.
func (r *Repository) newRequest(ctx context.Context, method, path string, body io.Reader,
	actions ...string) (*http.Request, error) {
	ctx = auth.AppendRepositoryScope(ctx, r.remote.Reference, actions...)
	scheme := "https"
	if r.remote.PlainHTTP {
		scheme = "http"
	}
	return http.NewRequestWithContext(ctx, method, scheme+"://"+r.registry.Host()+"/v2/"+r.name+"/"+path, body)
}

// expectedDigest returns the digest that ref asks for or, if ref is a tag, the one in the response. It is empty if
// neither has one.
func expectedDigest(resp *http.Response, ref string) (digest.Digest, error) {
	asked, err := digest.Parse(ref)
	if err != nil {
		asked = "" // a tag
	}
	header := resp.Header.Get(oci.HeaderDigest)
	if header == "" {
		return asked, nil
	}
	got, err := digest.Parse(header)
	switch {
	case err != nil:
		return "", protocolErrorf("returned digest %q for %s: %v", header, ref, err)
	case asked != "" && got.Algorithm() == asked.Algorithm() && got != asked:
		return "", protocolErrorf("returned digest %s for %s", got, asked)
	case asked != "":
		return asked, nil
	}
	return got, oci.CheckDigest(got)
}

func mediaType(resp *http.Response) string {
	mediaType, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	return strings.TrimSpace(mediaType)
}
