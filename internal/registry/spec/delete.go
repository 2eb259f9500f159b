package spec

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/distribution/distribution/v3/registry/api/errcode"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/registry/request"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// deletion is the deletion of a manifest that must not have changed since a time.
type deletion struct {
	since time.Time
	// changed is why the manifest was not deleted.
	changed error
}

func isConditional(r *http.Request, to request.Target) bool {
	return r.Header.Get("If-Unmodified-Since") != "" && digest.Digest(to.Manifest).Validate() == nil
}

// deleteUnmodified lets clients delete a manifest by digest with the header If-Unmodified-Since, so that a client
// that has read the catalog does not delete what was pushed meanwhile. Unlike in HTTP, the response is 412 also if an
// index in the repository refers to the manifest, and an invalid date is refused: ignoring it could delete too much.
// A manifest that was pushed in that very second counts as pushed later.
func (s *Registry) deleteUnmodified(w http.ResponseWriter, r *http.Request, in *intent) {
	since, err := http.ParseTime(r.Header.Get("If-Unmodified-Since"))
	if err != nil {
		invalid := errcode.ErrorCodeUnsupported.WithMessage(fmt.Sprintf("If-Unmodified-Since: %v", err))
		request.WriteErrorAs(w, http.StatusBadRequest, invalid)
		return
	}
	in.deletion = &deletion{since: since}
	response := request.Buffer(w)
	s.distribute(response, r)
	if changed := in.deletion.changed; changed != nil {
		request.ClearHeader(w.Header())
		request.WriteErrorAs(w, http.StatusPreconditionFailed, changed)
		return
	}
	response.Send(w)
}

// checkUnmodified returns an error if the request is conditional and its condition fails. The caller holds
// m.source.linking, so that no push comes in between.
func (m manifestStore) checkUnmodified(ctx context.Context, d digest.Digest) error {
	condition := intentOf(ctx).deletion
	if condition == nil {
		return nil
	}
	name := m.repository.Named().Name()
	link, err := m.source.Driver.Stat(ctx, storage.RevisionPath(name, d))
	if storage.IsNotFound(err) {
		return nil // there is nothing to delete
	}
	if err != nil {
		return err
	}
	if !link.ModTime().Truncate(time.Second).Before(condition.since) {
		condition.changed = request.Denied("%s@%s was pushed again at %s", name, d, link.ModTime().UTC().Format(time.RFC3339))
		return condition.changed
	}
	index, err := m.source.IndexOf(ctx, name, d)
	if err != nil {
		return err
	}
	if index != "" {
		condition.changed = request.Denied("index %s@%s refers to %s", name, index, d)
	}
	return condition.changed
}
