package front

import (
	"context"
	"net/http"
	"slices"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/registry/audit"
	"github.com/zarf-dev/zarf-registry/internal/registry/request"
)

// auditPending is a change that a request will have made if it succeeds.
type auditPending struct {
	action     string
	repository string
	name       string // a tag or digest
	digest     string // unknown before a push
}

// pending returns the change that a request makes to the registry's content, or nil. It is called before the
// request, because a deleted tag no longer has a digest.
func (f *Front) pending(r *http.Request, to request.Target) *auditPending {
	switch {
	case r.Method == http.MethodPut && to.Manifest != "":
		return &auditPending{action: audit.ActionPush, repository: to.Repository, name: to.Manifest}
	case r.Method == http.MethodDelete && to.Manifest != "":
		change := &auditPending{audit.ActionDelete, to.Repository, to.Manifest, to.Manifest}
		if digest.Digest(to.Manifest).Validate() != nil {
			change.digest = f.Tagged(r.Context(), to.Repository, to.Manifest).String()
		}
		return change
	case r.Method == http.MethodDelete && to.Blob != "":
		return &auditPending{audit.ActionDelete, to.Repository, to.Blob, to.Blob}
	}
	return nil
}

// audit logs the change of a successful request.
func (f *Front) audit(ctx context.Context, change *auditPending, e *exchange, peer *peer) {
	if change == nil || e.code() >= http.StatusMultipleChoices {
		return
	}
	if change.action == audit.ActionPush {
		change.digest = e.Header().Get("Docker-Content-Digest")
	}
	// A push by digest may name tags, too.
	for _, name := range slices.Concat(e.Header().Values("OCI-Tag"), []string{change.name}) {
		audit.Log(ctx, f.Log, change.action, request.Reference(change.repository, name), change.digest, peer.Audit()...)
	}
}
