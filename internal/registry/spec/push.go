package spec

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"slices"

	"github.com/distribution/distribution/v3/registry/api/errcode"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/internal/registry/collect"
	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/request"
	"github.com/zarf-dev/zarf-registry/internal/registry/volume"
)

// push is a manifest that a client uploads.
type push struct {
	content.Described
	repository string
	content    []byte
	// digests are its own: SHA-256, and the one in the URL, if that is another.
	digests []digest.Digest
	// tags are the one in the URL, or the parameters of a push by digest.
	tags     []string
	byDigest bool
	links    content.BackLinks

	admission *collect.Admission
}

// name is the digest by which the client knows the manifest.
func (p *push) name() digest.Digest { return p.digests[len(p.digests)-1] }

// names are what the client has named: tags, and the digest of a push by that.
func (p *push) names() []string {
	if !p.byDigest {
		return p.tags
	}
	return append(slices.Clone(p.tags), p.name().String())
}

// newPush returns an OCI error if the manifest is not valid.
func (s *Registry) newPush(r *http.Request, to request.Target, data []byte) (*push, error) {
	if len(data) > oci.MaxManifestSize {
		return nil, errcode.ErrorCodeSizeInvalid.WithMessage("a manifest may have at most 4 MiB")
	}
	p := &push{repository: to.Repository, content: data, digests: []digest.Digest{digest.FromBytes(data)}}
	if d := digest.Digest(to.Manifest); d.Validate() != nil {
		p.tags = []string{to.Manifest}
	} else {
		if got := d.Algorithm().FromBytes(data); got != d {
			return nil, errcode.ErrorCodeDigestInvalid.WithDetail("the digest of the content is " + got.String())
		}
		if d != p.digests[0] {
			p.digests = append(p.digests, d)
		}
		p.byDigest, p.tags = true, r.URL.Query()["tag"]
	}
	for _, tag := range p.tags {
		if tag == "" || reference.TagRegexp.FindString(tag) != tag {
			return nil, errcode.ErrorCodeTagInvalid.WithDetail(tag)
		}
	}
	if err := p.parse(r.Header.Get("Content-Type")); err != nil {
		return nil, errcode.ErrorCodeManifestInvalid.WithDetail(err.Error())
	}
	return p, nil
}

func (p *push) parse(mediaType string) (err error) {
	if p.Described, err = content.Describe(p.content); err != nil {
		return err
	}
	if p.SchemaVersion != 2 {
		return errors.New("the schema version is not 2")
	}
	p.links = p.BackLinks(p.repository, p.name())
	if mediaType, _, err = mime.ParseMediaType(mediaType); err != nil {
		return err
	}
	return p.CheckType(mediaType)
}

// reserve keeps space for the manifest's back links. Created must be called if they are stored.
func (p *push) reserve(body io.Reader) (created func(), err error) {
	limited := body.(*volume.Body)
	written, occupied := p.links.Size()
	return func() { limited.Wrote(written) }, limited.Reserve(occupied)
}

// describe adds to the header of the response.
func (p *push) describe(header http.Header) {
	header.Set("Docker-Content-Digest", p.name().String())
	header.Set("Location", "/v2/"+p.repository+"/manifests/"+p.name().String())
	if p.Subject != nil {
		header.Set("OCI-Subject", p.Subject.Digest.String())
	}
	if p.byDigest {
		for _, tag := range p.tags {
			header.Add("OCI-Tag", tag)
		}
	}
}
