package registry

import (
	"encoding/json"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/distribution/distribution/v3/registry/api/errcode"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/oci"
)

// maxReferrers is the default and the maximum of descriptors in a response. A response also has at most
// oci.MaxManifestSize bytes, unless it has only one descriptor, because clients read it as a manifest.
const maxReferrers = 1000

var referrersRoute = regexp.MustCompile(`^/v2/(` + reference.NameRegexp.String() + `)/referrers/([^/]+)$`)

// referrersPath returns the parts of the path of a referrers list.
func referrersPath(path string) (repository, subject string, ok bool) {
	if !strings.Contains(path, "/referrers/") { // every request comes here
		return "", "", false
	}
	m := referrersRoute.FindStringSubmatch(path)
	if m == nil {
		return "", "", false
	}
	return m[1], m[len(m)-1], true
}

// withReferrers serves lists of referrers (OCI distribution spec, "Listing Referrers"). A list may have several
// pages: the parameters are n, the number of descriptors, and last, the digest after which a page begins.
func withReferrers(source *blobSource, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		repository, subject, ok := referrersPath(r.URL.Path)
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			writeError(w, errcode.ErrorCodeUnsupported.WithMessage("referrers can only be listed"))
			return
		}
		d, err := digest.Parse(subject)
		if err != nil {
			writeError(w, errcode.ErrorCodeDigestInvalid.WithDetail(subject))
			return
		}
		query := r.URL.Query()
		limit := maxReferrers
		if n := query.Get("n"); n != "" {
			if limit, err = strconv.Atoi(n); err != nil || limit < 1 {
				writeError(w, errcode.ErrorCodePaginationNumberInvalid.WithDetail(n))
				return
			}
			limit = min(limit, maxReferrers)
		}
		found, err := source.referrersOf(r.Context(), repository, d)
		if err != nil {
			source.log.Error("listing referrers failed", "repository", repository, "subject", subject, "error", err)
			writeError(w, errcode.ErrorCodeUnknown.WithMessage("listing referrers failed: see the registry's log"))
			return
		}
		artifactType := query.Get("artifactType")
		page, more := pageOf(found, artifactType, query.Get("last"), limit)
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
			writeError(w, err)
			return
		}
		header.Set("Content-Type", v1.MediaTypeImageIndex)
		header.Set("Content-Length", strconv.Itoa(len(content)))
		if r.Method == http.MethodGet {
			_, _ = w.Write(content) // the client may have disconnected
		}
	})
}

// pageOf returns the referrers after last, which are ordered by digest, and whether there are more.
func pageOf(found []v1.Descriptor, artifactType, last string, limit int) (page []v1.Descriptor, more bool) {
	page = []v1.Descriptor{}
	size := 0
	for _, d := range found {
		if d.Digest.String() <= last || artifactType != "" && d.ArtifactType != artifactType {
			continue
		}
		encoded, _ := json.Marshal(d) // was decoded
		size += len(encoded) + 1
		if len(page) == limit || len(page) > 0 && size > oci.MaxManifestSize-1024 { // the rest of the index
			return page, true
		}
		page = append(page, d)
	}
	return page, false
}
