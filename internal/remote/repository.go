package remote

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/zarf-dev/zarf-registry/internal/blob"
	"github.com/zarf-dev/zarf-registry/internal/oci"
)

// Repository is a repository in a registry. It is safe for concurrent use.
type Repository struct {
	registry *Registry
	name     string
	remote   *remote.Repository
}

const digestHeader = "Docker-Content-Digest"

// Name is the repository's name, without the registry's.
func (r *Repository) Name() string { return r.name }

// Host is the registry's name and port.
func (r *Repository) Host() string { return r.registry.Host() }

// Resolve returns the descriptor of the manifest or index that has a tag or a
// digest. It is [errdef.ErrNotFound] where there is none.
func (r *Repository) Resolve(ctx context.Context, ref string) (ocispec.Descriptor, error) {
	resp, err := r.manifest(ctx, http.MethodHead, ref)
	if err != nil {
		if code := status(err); code == http.StatusMethodNotAllowed || code == http.StatusNotImplemented {
			desc, _, err := r.Manifest(ctx, ref)
			return desc, err
		}
		return ocispec.Descriptor{}, r.registry.explain(ctx, err)
	}
	resp.Body.Close()
	desc := ocispec.Descriptor{MediaType: mediaType(resp), Size: resp.ContentLength}
	desc.Digest, err = answeredDigest(resp, ref)
	if err != nil {
		return ocispec.Descriptor{}, r.registry.explain(ctx, err)
	}
	if desc.Digest == "" || desc.Size < 0 || desc.MediaType == "" {
		desc, _, err = r.Manifest(ctx, ref)
		return desc, err
	}
	return desc, nil
}

// Manifest returns the manifest or index that has a tag or a digest, verified
// against the digest that was asked for and the one that the registry says it
// has. It is [errdef.ErrNotFound] where there is none.
func (r *Repository) Manifest(ctx context.Context, ref string) (ocispec.Descriptor, []byte, error) {
	desc, raw, err := r.fetchManifest(ctx, ref)
	return desc, raw, r.registry.explain(ctx, err)
}

func (r *Repository) fetchManifest(ctx context.Context, ref string) (ocispec.Descriptor, []byte, error) {
	resp, err := r.manifest(ctx, http.MethodGet, ref)
	if err != nil {
		return ocispec.Descriptor{}, nil, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return ocispec.Descriptor{}, nil, err
	}
	want, err := answeredDigest(resp, ref)
	if err != nil {
		return ocispec.Descriptor{}, nil, err
	}
	if want == "" {
		want = digest.FromBytes(raw)
	}
	if got := want.Algorithm().FromBytes(raw); got != want {
		return ocispec.Descriptor{}, nil, answerErrorf("gives a manifest with digest %s for %s, which is to have %s", got, ref, want)
	}
	return ocispec.Descriptor{MediaType: mediaType(resp), Digest: want, Size: int64(len(raw))}, raw, nil
}

func (r *Repository) manifest(ctx context.Context, method, ref string) (*http.Response, error) {
	req, err := r.request(ctx, method, "manifests/"+url.PathEscape(ref), auth.ActionPull)
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
		return nil, refused(resp)
	}
	return resp, nil
}

// answeredDigest is the digest that an answer says that it is about, or that it
// was asked for, or "".
func answeredDigest(resp *http.Response, ref string) (digest.Digest, error) {
	asked, err := digest.Parse(ref)
	if err != nil {
		asked = "" // a tag
	}
	header := resp.Header.Get(digestHeader)
	if header == "" {
		return asked, nil
	}
	said, err := digest.Parse(header)
	switch {
	case err != nil:
		return "", answerErrorf("gives %q as digest for %s: %v", header, ref, err)
	case asked != "" && said.Algorithm() == asked.Algorithm() && said != asked:
		return "", answerErrorf("gives something else, %s, for %s", said, asked)
	case asked != "":
		return asked, nil
	}
	return said, nil
}

func mediaType(resp *http.Response) string {
	mediaType, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	return strings.TrimSpace(mediaType)
}

// request prepares a request about something in the repository.
func (r *Repository) request(ctx context.Context, method, path string, actions ...string) (*http.Request, error) {
	ctx = auth.AppendRepositoryScope(ctx, r.remote.Reference, actions...)
	scheme := "https"
	if r.remote.PlainHTTP {
		scheme = "http"
	}
	return http.NewRequestWithContext(ctx, method, scheme+"://"+r.registry.Host()+"/v2/"+r.name+"/"+path, nil)
}

// Exists tells whether the repository has a manifest or a blob; which of the two
// it is, its media type tells.
func (r *Repository) Exists(ctx context.Context, desc ocispec.Descriptor) (bool, error) {
	ok, err := r.exists(ctx, desc)
	return ok, r.registry.explain(ctx, err)
}

func (r *Repository) exists(ctx context.Context, desc ocispec.Descriptor) (bool, error) {
	var err error
	if oci.IsManifestOrIndex(desc.MediaType) {
		var resp *http.Response
		if resp, err = r.manifest(ctx, http.MethodHead, desc.Digest.String()); err == nil {
			resp.Body.Close()
		}
	} else {
		err = r.headBlob(ctx, desc)
	}
	if status(err) == http.StatusNotFound {
		return false, nil
	}
	return err == nil, err
}

func (r *Repository) headBlob(ctx context.Context, desc ocispec.Descriptor) error {
	req, err := r.request(streaming(ctx, down), http.MethodHead, "blobs/"+desc.Digest.String(), auth.ActionPull)
	if err != nil {
		return err
	}
	resp, err := r.registry.client.Do(req)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return refused(resp)
	}
	resp.Body.Close()
	if resp.ContentLength >= 0 && resp.ContentLength != desc.Size {
		return answerErrorf("says that the blob has %d bytes where its descriptor says %d", resp.ContentLength, desc.Size)
	}
	return nil
}

// PushManifest sends a manifest or index and gives it a tag, or none if tag is "".
// raw is verified. Where it has a subject and the registry does not keep the list of what
// refers to it, the list is kept under a tag, as OCI's distribution specification
// says.
func (r *Repository) PushManifest(ctx context.Context, desc ocispec.Descriptor, raw []byte, tag string) error {
	switch {
	case desc.Size != int64(len(raw)):
		return blob.SizeError(int64(len(raw)), desc)
	case desc.Digest.Validate() != nil:
		return blob.NewError(desc.Digest.Validate())
	case desc.Digest.Algorithm().FromBytes(raw) != desc.Digest:
		return blob.MismatchError()
	}
	if tag == "" {
		tag = desc.Digest.String()
	}
	return r.registry.explain(ctx, r.remote.PushReference(ctx, desc, bytes.NewReader(raw), tag))
}

// Tags calls each with the repository's tags, in the pages that the registry
// gives. It ends with each's first error.
func (r *Repository) Tags(ctx context.Context, each func(tags []string) error) error {
	return r.registry.listed(ctx, func(own *ownError) error {
		return r.remote.Tags(ctx, "", func(tags []string) error { return own.keep(each(tags)) })
	})
}

// Referrers calls each with the manifests that name desc as their subject, such as
// signatures. It ends with each's first error.
func (r *Repository) Referrers(ctx context.Context, desc ocispec.Descriptor, each func([]ocispec.Descriptor) error) error {
	err := r.registry.listed(ctx, func(own *ownError) error {
		return r.remote.Referrers(ctx, desc, "", func(referrers []ocispec.Descriptor) error { return own.keep(each(referrers)) })
	})
	if errors.Is(err, errdef.ErrNotFound) {
		return nil
	}
	return err
}
