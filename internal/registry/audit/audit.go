// Package audit writes the audit trail: one line for each change of the registry's content.
//
// It does not log requests.
package audit

import (
	"context"
	"log/slog"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/api/gc"
	"github.com/zarf-dev/zarf-registry/internal/registry/request"
)

// The actions of the audit trail.
const (
	ActionPush   = "push"
	ActionDelete = "delete"
	actionPrune  = "prune"
)

// auditMessage is the message of every line of the audit trail.
const auditMessage = "audit"

// Prune logs the removal of a manifest or blob by a garbage collection. Identity is who has asked for it.
func Prune(ctx context.Context, log *slog.Logger, removed gc.Removed, identity ...slog.Attr) {
	name := ""
	if removed.Repository != "" {
		name = request.Reference(removed.Repository, removed.Digest)
	}
	Log(ctx, log, actionPrune, name, removed.Digest, identity...)
}

// Log writes a line of the audit trail, whatever the log's level. The handlers of internal/logging
// quote values, so no value can end the line or look like another attribute.
func Log(ctx context.Context, log *slog.Logger, action, reference, digest string, identity ...slog.Attr) {
	record := slog.NewRecord(time.Now(), slog.LevelInfo, auditMessage, 0)
	record.AddAttrs(slog.String("action", action))
	if reference != "" { // blobs belong to no repository
		record.AddAttrs(slog.String("reference", reference))
	}
	record.AddAttrs(slog.String("digest", digest))
	record.AddAttrs(identity...)
	_ = log.Handler().Handle(ctx, record) // there is no other place to report that the log is broken
}
