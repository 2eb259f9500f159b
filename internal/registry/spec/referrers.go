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
		w.Header().Set("Allow", "GET, HEAD")
		return errcode.ErrorCodeUnsupported.WithMessage("referrers can only be listed")
	}
	d, err := digest.Parse(to.Subject)
	if err != nil {
		return errcode.ErrorCodeDigestInvalid.WithDetail(to.Subject)
	}
	query := r.URL.Query()
	limit := content.MaxReferrers
	if n := query.Get("n"); n != "" {
		if limit, err = strconv.Atoi(n); err != nil || limit < 1 {
			return errcode.ErrorCodePaginationNumberInvalid.WithDetail(n)
		}
		limit = min(limit, content.MaxReferrers)
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
		header.Set("Link", "<"+r.URL.Path+"?"+values.Encode()+`>; rel="next"`)
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
