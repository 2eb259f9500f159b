package spec

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"

	"github.com/distribution/reference"

	"github.com/zarf-dev/zarf-registry/internal/api/deletion"
	"github.com/zarf-dev/zarf-registry/internal/registry/audit"
	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/request"
)

// Deletions serves deletions of many manifests.
func (s *Registry) Deletions(draining *atomic.Bool) http.Handler {
	return request.Methods("deletions", func(w http.ResponseWriter, r *http.Request) {
		if s.readOnly {
			request.WriteError(w, errReadOnly)
			return
		}
		var query deletion.Request
		err := json.NewDecoder(http.MaxBytesReader(w, r.Body, deletion.MaxRequest)).Decode(&query)
		if err == nil {
			err = validate(query)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		request.Stream(r.Context(), draining, w, func() any { return struct{}{} },
			func(ctx context.Context, send func(any)) {
				last := deletion.Event{End: true}
				err := s.deleteManifests(ctx, query.Manifests, query.Since,
					func(m content.RepositoryDigest, existed bool, kept error) {
						e := deletion.Event{Repository: m.Repository, Digest: m.Digest}
						if kept != nil {
							e.Kept = kept.Error()
						} else if existed {
							s.audit(ctx, audit.ActionDelete, m.Repository, m.Digest.String(), m.Digest)
						}
						send(e)
					})
				if err != nil {
					s.Log.Error("deleting manifests failed", "error", err)
					last = deletion.Event{Error: err.Error()}
				}
				send(last)
			})
	}, http.MethodPost)
}

func validate(query deletion.Request) error {
	if query.Since.IsZero() {
		return errors.New("since is missing: when the catalog was read")
	}
	for repository, digests := range query.Manifests {
		if _, err := reference.WithName(repository); err != nil {
			return fmt.Errorf("repository %q: %w", repository, err)
		}
		for _, d := range digests {
			if err := d.Validate(); err != nil {
				return fmt.Errorf("manifest %q of %s: %w", d, repository, err)
			}
		}
	}
	return nil
}
