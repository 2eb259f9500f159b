package spec

import (
	"net/http"
	"slices"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/registry/request"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// beginUpload begins an upload. A client may name the blob and leave it to the registry to find it (OCI distribution
// spec 1.1, "Mounting a blob from another repository"): POST /v2/NAME/blobs/uploads/?mount=DIGEST. Distribution would
// only look in the repository that the client specifies with from=REPOSITORY. This registry mounts every stored blob,
// because clients that may push to one repository may read all of them.
//
// What a collection would refuse is refused before it is sent. An invalid digest is left to distribution.
func (s *Registry) beginUpload(w http.ResponseWriter, r *http.Request, to request.Target) error {
	d, err := digest.Parse(r.URL.Query().Get("mount"))
	if err != nil || s.readOnly {
		s.distribute(w, r)
		return nil
	}
	if err := s.collector.AdmitBlob(r.Context(), d); err != nil {
		return err
	}
	stored, found := s.collector.Stored(r.Context(), d)
	if !found {
		// Distribution would mount what the other repository has a link to, even if a collection has removed it.
		r = r.Clone(r.Context())
		r.URL.RawQuery = ""
		s.distribute(w, r)
		return nil
	}
	for _, name := range slices.Compact([]digest.Digest{stored, d}) {
		if err := s.Link(r.Context(), storage.LayerPath(to.Repository, name), stored); err != nil {
			return err
		}
	}
	blobCreated(w, to.Repository, d)
	return nil
}

// blobCreated responds that a repository has a blob.
func blobCreated(w http.ResponseWriter, repository string, d digest.Digest) {
	w.Header().Set("Docker-Content-Digest", d.String())
	w.Header().Set("Location", "/v2/"+repository+"/blobs/"+d.String())
	w.WriteHeader(http.StatusCreated)
}
