package spec

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"

	"github.com/distribution/distribution/v3/registry/api/errcode"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/request"
)

// listReferrers serves lists of referrers (OCI distribution spec, "Listing Referrers"). A list may have several
// pages: the parameters are n, the number of descriptors, and last, the digest after which a page begins.
func (s *Registry) listReferrers(w http.ResponseWriter, r *http.Request, to request.Target) error {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return request.NotAllowed(w, "lists of referrers", http.MethodGet, http.MethodHead)
	}
	d, err := digest.Parse(to.Subject)
	if err != nil {
		return errcode.ErrorCodeDigestInvalid.WithDetail(to.Subject)
	}
	query := r.URL.Query()
	limit, err := pageSize(query, 1, content.MaxReferrers, content.MaxReferrers)
	if err != nil {
		return err
	}
	artifactType := query.Get("artifactType")
	page, more, err := s.Referrers(r.Context(), to.Repository, d, artifactType, digest.Digest(query.Get("last")), limit)
	if err != nil {
		return err
	}
	header := w.Header()
	if artifactType != "" {
		header.Set("OCI-Filters-Applied", "artifactType")
	}
	if more {
		values := url.Values{"last": {page[len(page)-1].Digest.String()}, "n": {strconv.Itoa(limit)}}
		if artifactType != "" {
			values.Set("artifactType", artifactType)
		}
		linkNext(header, r, values)
	}
	encoded, err := json.Marshal(v1.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex, Manifests: page,
	})
	if err != nil {
		return err
	}
	header.Set("Content-Type", v1.MediaTypeImageIndex)
	header.Set("Content-Length", strconv.Itoa(len(encoded)))
	if r.Method == http.MethodGet {
		_, _ = w.Write(encoded) // the client may have disconnected
	}
	return nil
}

// pageSize returns the parameter n, the size of a page, between two limits; or otherwise without it.
func pageSize(query url.Values, least, most, otherwise int) (int, error) {
	n := query.Get("n")
	if n == "" {
		return otherwise, nil
	}
	size, err := strconv.Atoi(n)
	if err != nil || size < least {
		return 0, errcode.ErrorCodePaginationNumberInvalid.WithDetail(n)
	}
	return min(size, most), nil
}

// linkNext says that there is another page.
func linkNext(header http.Header, r *http.Request, parameters url.Values) {
	header.Set("Link", "<"+r.URL.Path+"?"+parameters.Encode()+`>; rel="next"`)
}
