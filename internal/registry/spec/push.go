package spec

import (
	"bytes"
	"cmp"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/distribution/distribution/v3/registry/api/errcode"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/request"
	"github.com/zarf-dev/zarf-registry/internal/registry/volume"
)

// push is what a manifest upload asks for beyond what distribution supports.
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

// pushManifest serves uploads of manifests. It adds to them digests other than SHA-256, tags as parameters of a push by
// digest, and the response header OCI-Subject. An upload that needs what another process's collection may remove waits:
// see package collect.
func (s *Registry) pushManifest(w http.ResponseWriter, r *http.Request, to request.Target, in *intent) {
	data, done, err := content.Receive(r.Context(), r.Body)
	if err != nil { // the client has disconnected, or sends nothing
		request.WriteError(w, request.ErrCanceled)
		return
	}
	defer done()
	pushed, stored, err := newPush(to.Manifest, r.URL.Query(), data)
	if err != nil {
		request.WriteError(w, err)
		return
	}
	created, err := reserve(r, to.Repository, pushed, data)
	if err != nil {
		request.WriteError(w, err)
		return
	}
	// A slow client has not used up the time for which a reading of the lease is valid.
	admission, err := s.collector.Admit(r.Context(), to.Repository, slices.Concat(pushed.digests, pushed.needs))
	if err != nil {
		request.WriteError(w, err)
		return
	}
	in.push, in.admission = pushed, admission
	r.Body = io.NopCloser(bytes.NewReader(data))
	r.URL = &url.URL{Path: strings.TrimSuffix(r.URL.Path, to.Manifest) + stored}
	response := request.Buffer(w)
	s.distribute(response, r)
	if err := admission.Finish(r.Context(), response.Status < http.StatusMultipleChoices); err != nil {
		request.ClearHeader(w.Header())
		request.WriteError(w, err)
		return
	}
	if response.Status == http.StatusCreated {
		created()
		pushed.describe(w.Header(), "/v2/"+to.Repository+"/manifests/")
	}
	response.Send(w)
}

// reserve keeps space for a manifest's back links. Created must be called if they are stored.
func reserve(r *http.Request, repository string, pushed push, data []byte) (created func(), err error) {
	body, limited := r.Body.(*volume.Body)
	if !limited {
		return func() {}, nil
	}
	written, occupied, err := content.BackLinksSize(repository, v1.Descriptor{MediaType: r.Header.Get("Content-Type"),
		Digest: cmp.Or(pushed.named, pushed.digests[0])}, data)
	if err != nil {
		return nil, errcode.ErrorCodeManifestInvalid.WithDetail(err.Error())
	}
	return func() { body.Wrote(written) }, body.Reserve(occupied)
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
	p = push{subject: m.Subject, digests: []digest.Digest{digest.FromBytes(data)}, needs: m.Needs, described: m}
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

// describe adds to the header of the response. Manifests is the path of the repository's manifests.
func (p push) describe(header http.Header, manifests string) {
	if p.named != "" {
		header.Set("Docker-Content-Digest", p.named.String())
		header.Set("Location", manifests+p.named.String())
	}
	if p.subject != "" {
		header.Set("OCI-Subject", p.subject.String())
	}
	for _, tag := range p.tags {
		header.Add("OCI-Tag", tag)
	}
}

// errTooLarge means that a manifest is larger than oci.MaxManifestSize.
var errTooLarge = errcode.ErrorCodeSizeInvalid.WithMessage("a manifest may have at most 4 MiB")
