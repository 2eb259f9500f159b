package inspect

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/distribution/distribution/v3/registry/api/errcode"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/api/space"
	"github.com/zarf-dev/zarf-registry/internal/registry/request"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// maxSpaceQuery is in bytes: a digest takes at most 140 in JSON.
const maxSpaceQuery = space.MaxDigests * 160

// blobFinder returns the SHA-256 digest of a blob that a client then relies on, if it is stored.
type blobFinder func(ctx context.Context, d digest.Digest) (stored digest.Digest, ok bool)

// Space serves how full the storage is, and which blobs it lacks. Everyone with a client certificate may read
// how full it is; asking for blobs requires the push credential.
func Space(usage func() space.Usage, find blobFinder) http.Handler {
	return request.Methods("requests for the storage's space", func(w http.ResponseWriter, r *http.Request) {
		var response any = usage()
		if r.Method == http.MethodPost {
			var query space.Query
			err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxSpaceQuery)).Decode(&query)
			if err != nil || len(query.Digests) > space.MaxDigests {
				http.Error(w, "want a JSON object with at most 10000 digests", http.StatusBadRequest)
				return
			}
			if response, err = missing(r, query.Digests, find); err != nil {
				request.WriteError(w, err)
				return
			}
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		_ = json.NewEncoder(w).Encode(response) // the client may have disconnected
	}, http.MethodGet, http.MethodHead, http.MethodPost)
}

// missing returns the blobs that are not stored.
func missing(r *http.Request, digests []digest.Digest, find blobFinder) (space.Answer, error) {
	answer := space.Answer{Missing: []digest.Digest{}}
	for _, d := range digests {
		if err := d.Validate(); err != nil {
			return answer, errcode.ErrorCodeDigestInvalid.WithMessage(err.Error())
		}
	}
	found, err := storage.InOrder(r.Context(), digests, storage.Concurrency,
		func(ctx context.Context, d digest.Digest) (bool, error) {
			_, ok := find(ctx, d)
			return ok, ctx.Err()
		})
	if err != nil {
		return answer, request.Unavailable("%v", err)
	}
	for i, d := range digests {
		if !found[i] {
			answer.Missing = append(answer.Missing, d)
		}
	}
	return answer, nil
}
