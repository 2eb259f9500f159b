package registry

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"

	"github.com/distribution/distribution/v3/registry/api/errcode"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/internal/registry/request"
)

// maxReferrers is the default and the maximum of descriptors in a response. A response also has at most
// oci.MaxManifestSize bytes, unless it has only one descriptor, because clients read it as a manifest.
const maxReferrers = 1000

// withReferrers serves lists of referrers (OCI distribution spec, "Listing Referrers"). A list may have several
// pages: the parameters are n, the number of descriptors, and last, the digest after which a page begins.
func withReferrers(source *contentStore, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		repository, subject := request.TargetOf(r).Repository, request.TargetOf(r).Subject
		if subject == "" {
			next.ServeHTTP(w, r)
			return
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			request.WriteError(w, errcode.ErrorCodeUnsupported.WithMessage("referrers can only be listed"))
			return
		}
		d, err := digest.Parse(subject)
		if err != nil {
			request.WriteError(w, errcode.ErrorCodeDigestInvalid.WithDetail(subject))
			return
		}
		query := r.URL.Query()
		limit := maxReferrers
		if n := query.Get("n"); n != "" {
			if limit, err = strconv.Atoi(n); err != nil || limit < 1 {
				request.WriteError(w, errcode.ErrorCodePaginationNumberInvalid.WithDetail(n))
				return
			}
			limit = min(limit, maxReferrers)
		}
		artifactType := query.Get("artifactType")
		page, more, err := source.referrers(r.Context(), repository, d, artifactType, digest.Digest(query.Get("last")), limit)
		if err != nil {
			source.log.Error("listing referrers failed", "repository", repository, "subject", subject, "error", err)
			request.WriteError(w, errcode.ErrorCodeUnknown.WithMessage("listing referrers failed: see the registry's log"))
			return
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
		content, err := json.Marshal(v1.Index{
			Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex, Manifests: page,
		})
		if err != nil {
			request.WriteError(w, err)
			return
		}
		header.Set("Content-Type", v1.MediaTypeImageIndex)
		header.Set("Content-Length", strconv.Itoa(len(content)))
		if r.Method == http.MethodGet {
			_, _ = w.Write(content) // the client may have disconnected
		}
	})
}

// referrers returns the referrers of a subject after last, ordered by digest, and whether there are more.
func (s *contentStore) referrers(
	ctx context.Context, repository string, subject digest.Digest, artifactType string, last digest.Digest, limit int,
) (page []v1.Descriptor, more bool, err error) {
	page = []v1.Descriptor{}
	size := 0
	err = s.eachReferring(ctx, repository, referrerLinks, subject, last, func(link backReference) (bool, error) {
		if artifactType != "" && link.ArtifactType != artifactType {
			return true, nil
		}
		if len(page) == limit {
			more = true
			return false, nil
		}
		if link.Incomplete {
			if err := s.complete(ctx, repository, &link); err != nil {
				if errors.Is(err, errUnknownManifest) { // just deleted
					err = nil
				}
				return err == nil, err
			}
		}
		encoded, _ := json.Marshal(link.Descriptor) // was decoded
		size += len(encoded) + 1
		if len(page) > 0 && size > oci.MaxManifestSize-1024 { // the rest of the index
			more = true
			return false, nil
		}
		page = append(page, link.Descriptor)
		return true, nil
	})
	return page, more, err
}
