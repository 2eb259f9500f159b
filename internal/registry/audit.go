package registry

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/api/gc"
)

// The actions of the audit trail.
const (
	actionPush   = "push"
	actionDelete = "delete"
	actionPrune  = "prune"
)

// auditMessage is the message of every line of the audit trail.
const auditMessage = "audit"

// auditPending is a change that a request will have made if it succeeds.
type auditPending struct {
	action     string
	repository string
	name       string // a tag or digest
	digest     string // unknown before a push
}

// pending returns the change that a request makes to the registry's content, or nil. It is called before the
// request, because a deleted tag no longer has a digest.
func (f *front) pending(r *http.Request, to target) *auditPending {
	switch {
	case r.Method == http.MethodPut && to.manifest != "":
		return &auditPending{action: actionPush, repository: to.repository, name: to.manifest}
	case r.Method == http.MethodDelete && to.manifest != "":
		change := &auditPending{actionDelete, to.repository, to.manifest, to.manifest}
		if digest.Digest(to.manifest).Validate() != nil {
			change.digest = f.tagged(r.Context(), to.repository, to.manifest).String()
		}
		return change
	case r.Method == http.MethodDelete && to.blob != "":
		return &auditPending{actionDelete, to.repository, to.blob, to.blob}
	}
	return nil
}

// audit logs the change of a successful request.
func (f *front) audit(ctx context.Context, change *auditPending, e *exchange, caller *caller) {
	if change == nil || e.code() >= http.StatusMultipleChoices {
		return
	}
	if change.action == actionPush {
		change.digest = e.Header().Get("Docker-Content-Digest")
	}
	// A push by digest may name tags, too.
	for _, name := range slices.Concat(e.Header().Values("OCI-Tag"), []string{change.name}) {
		logChange(ctx, f.log, change.action, referenceTo(change.repository, name), change.digest, caller.audit())
	}
}

// audit returns the attributes that identify the client.
func (c *caller) audit() []slog.Attr {
	attrs := []slog.Attr{slog.String("credential", c.credential), slog.String("user", c.user)}
	if c.certificate != "" {
		attrs = append(attrs, slog.String("certificate", c.certificate))
	}
	return append(attrs, slog.String("listener", c.listener), slog.String("remote", c.remote))
}

// LogPrune logs the removal of a manifest or blob by a program other than a registry.
func LogPrune(ctx context.Context, log *slog.Logger, program string, removed gc.Removed) {
	logPrune(ctx, log, removed, []slog.Attr{slog.String("program", program)})
}

func logPrune(ctx context.Context, log *slog.Logger, removed gc.Removed, identity []slog.Attr) {
	name := ""
	if removed.Repository != "" {
		name = referenceTo(removed.Repository, removed.Digest)
	}
	logChange(ctx, log, actionPrune, name, removed.Digest, identity)
}

// logChange writes a line of the audit trail, whatever the log's level. The handlers of internal/logging
// quote values, so no value can end the line or look like another attribute.
func logChange(ctx context.Context, log *slog.Logger, action, reference, digest string, identity []slog.Attr) {
	record := slog.NewRecord(time.Now(), slog.LevelInfo, auditMessage, 0)
	record.AddAttrs(slog.String("action", action))
	if reference != "" { // blobs belong to no repository
		record.AddAttrs(slog.String("reference", reference))
	}
	record.AddAttrs(slog.String("digest", digest))
	record.AddAttrs(identity...)
	_ = log.Handler().Handle(ctx, record) // there is no other place to report that the log is broken
}

// referenceTo is the name of a manifest or blob, by tag or digest.
func referenceTo(repository, name string) string {
	if digest.Digest(name).Validate() == nil {
		return repository + "@" + name
	}
	return repository + ":" + name
}
