// Package audit writes the audit trail: one line for each change of the registry's content.
//
// It does not log requests.
package audit

import (
	"context"
	"log/slog"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/registry/request"
)

// The actions of the audit trail. ActionPrune is the removal of a manifest or a blob by a garbage collection.
const (
	ActionPush   = "push"
	ActionDelete = "delete"
	ActionPrune  = "prune"
)

// auditMessage is the message of every line of the audit trail.
const auditMessage = "audit"

// Log writes a line of the audit trail, whatever the log's level: what the client of ctx has done to the tag or digest
// in a repository, which is empty for blobs that belong to none. More says who it was without a client. The handlers of
// internal/logging quote values, so no value can end the line or look like another attribute.
func Log(ctx context.Context, log *slog.Logger, action, repository, name, digest string, more ...slog.Attr) {
	record := slog.NewRecord(time.Now(), slog.LevelInfo, auditMessage, 0)
	record.AddAttrs(slog.String("action", action))
	if repository != "" {
		record.AddAttrs(slog.String("reference", request.Reference(repository, name)))
	}
	record.AddAttrs(slog.String("digest", digest))
	record.AddAttrs(append(request.CallerOf(ctx).Audit(), more...)...)
	_ = log.Handler().Handle(ctx, record) // there is no other place to report that the log is broken
}
