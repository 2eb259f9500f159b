package verify

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"

	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/poll"
	"github.com/zarf-dev/zarf-registry/internal/registry/request"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

const (
	// auditAgain is how often all tagged images are verified, for the metric: signatures may have been added or
	// deleted.
	auditAgain = time.Hour
	// auditRetry is the wait after an audit that failed.
	auditRetry = 10 * time.Second
	// maxAuditLogs is how many unsigned images an audit logs.
	maxAuditLogs = 100
)

// enforcedPath exists in the storage while signatures are enforced: a registry that restarts enforces them at once. It
// is next to the record of garbage collection.
const enforcedPath = "/docker/registry/v2/zarf-registry/signatures-enforced"

// Run decides whether to enforce signatures, and audits the stored images, until ctx ends.
func (v *Verifier) Run(ctx context.Context) {
	for !v.decide(ctx) {
		if poll.Sleep(ctx, auditRetry) != nil {
			return
		}
	}
	for v.On() {
		for !v.indexed() {
			if poll.Sleep(ctx, time.Second) != nil {
				return
			}
		}
		wait := auditAgain
		if err := v.audit(ctx); err != nil {
			if ctx.Err() != nil {
				return
			}
			v.log.Error("verifying the stored images failed, retrying", "error", err, "enforcing", v.enforcing.Load())
			wait = auditRetry
		}
		if poll.Sleep(ctx, wait) != nil {
			return
		}
	}
}

// decide finds out whether signatures are already enforced. It reports whether that is known.
func (v *Verifier) decide(ctx context.Context) bool {
	var err error
	if v.mode == Enforce {
		var enforced bool
		enforced, err = v.source.Exists(ctx, enforcedPath)
		v.enforcing.Store(enforced)
	} else {
		err = stopEnforcing(ctx, v.source)
	}
	if err != nil {
		v.log.Error("finding out whether signatures are enforced failed, retrying", "error", err)
		return false
	}
	close(v.decided)
	return true
}

// stopEnforcing makes the next registry that enforces signatures audit the stored images first.
func stopEnforcing(ctx context.Context, source *content.Store) error {
	enforced, err := source.Exists(ctx, enforcedPath)
	if err == nil && enforced {
		err = source.Driver.Delete(ctx, enforcedPath)
	}
	if storage.IsNotFound(err) { // another replica was faster
		return nil
	}
	return err
}

// audit verifies all tagged images, logs those that are not signed, and begins to enforce signatures.
func (v *Verifier) audit(ctx context.Context) error {
	began := v.Now()
	tags, err := v.listTags(ctx)
	if err != nil {
		return fmt.Errorf("listing tags: %w", err)
	}
	var unsigned atomic.Int64
	atOnce := maxShare / 2 // the rest is for clients
	err = storage.InParallel(ctx, tags, atOnce, func(ctx context.Context, tag request.Target) error {
		return v.auditTag(ctx, tag, &unsigned)
	})
	if err != nil {
		return err
	}
	first := v.unsigned.Swap(unsigned.Load()) < 0
	if v.mode == Enforce && !v.enforcing.Swap(true) {
		if err := v.source.Driver.PutContent(ctx, enforcedPath, []byte("\n")); err != nil {
			v.log.Warn("signatures are enforced, but after a restart only when all images have been verified again",
				"error", err)
		}
	}
	if first || unsigned.Load() > 0 {
		v.log.Info("verified the stored images", "tags", len(tags), "unsigned", unsigned.Load(),
			"enforcing", v.enforcing.Load(), "duration", v.Now().Sub(began).String())
	}
	return nil
}

func (v *Verifier) listTags(ctx context.Context) (tags []request.Target, err error) {
	err = storage.WalkFiles(ctx, v.source.Driver, storage.RepositoriesPath, func(info storagedriver.FileInfo) error {
		if m := storage.CurrentLink.FindStringSubmatch(info.Path()); m != nil {
			tags = append(tags, request.Target{Repository: m[1], Manifest: m[2]})
		}
		return nil
	})
	return tags, err
}

// auditTag counts and logs the image of a tag if it is not signed.
func (v *Verifier) auditTag(ctx context.Context, tag request.Target, unsigned *atomic.Int64) error {
	d, err := v.source.Resolve(ctx, tag.Repository, tag.Manifest)
	var found verdict
	if err == nil {
		found, err = v.check(ctx, tag.Repository, d)
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, content.ErrUnknownManifest): // just deleted
		return nil
	case err == nil && found.outcome != outcomeUnsigned:
		return nil
	}
	switch n := unsigned.Add(1); {
	case n > maxAuditLogs:
	case err != nil: // a damaged manifest must not prevent that others are denied
		v.log.Error("verifying an image failed", "image", request.Reference(tag.Repository, tag.Manifest), "error", err)
	default:
		v.logUnsigned(tag.Repository, tag.Manifest, d, found)
	}
	return nil
}
