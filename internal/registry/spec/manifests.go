package spec

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/distribution/distribution/v3"
	"github.com/distribution/distribution/v3/registry/api/errcode"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/request"
)

// serveManifest serves requests for a manifest or a tag.
func (s *Registry) serveManifest(w http.ResponseWriter, r *http.Request, to request.Target) error {
	d, invalid := digest.Parse(to.Manifest)
	writes := r.Method == http.MethodPut || r.Method == http.MethodDelete
	switch {
	case invalid != nil && strings.Contains(to.Manifest, ":"):
		return errcode.ErrorCodeDigestInvalid.WithDetail(to.Manifest)
	case r.Method == http.MethodGet || r.Method == http.MethodHead:
		return s.getManifest(w, r, to)
	case writes && s.readOnly:
		return errReadOnly
	case r.Method == http.MethodPut:
		return s.putManifest(w, r, to)
	case !writes:
		return request.NotAllowed(w, "manifests", http.MethodGet, http.MethodHead, http.MethodPut, http.MethodDelete)
	case invalid != nil:
		return s.deleteTag(w, r, to)
	}
	return s.deleteManifest(w, r, to.Repository, d)
}

var errReadOnly = errcode.ErrorCodeUnsupported.WithMessage("the registry is read-only")

// getManifest serves a manifest. It does not exist if it is damaged. Clients that may push find it only if everything
// that it needs exists: with HEAD they ask whether they have to push.
func (s *Registry) getManifest(w http.ResponseWriter, r *http.Request, to request.Target) (err error) {
	ctx, unknown := r.Context(), errcode.ErrorCodeManifestUnknown.WithDetail(to.Manifest)
	d := digest.Digest(to.Manifest)
	if d.Validate() != nil {
		if d, err = s.Tagged(ctx, to.Repository, to.Manifest); err != nil {
			return err
		} else if d == "" {
			return unknown
		}
	}
	caller := request.CallerOf(ctx)
	complete := r.Method == http.MethodHead && (caller == nil || caller.Pushes)
	if complete { // a push that skips existing manifests
		use := s.collector.Rely(d)
		defer func() { use.Done(err == nil) }()
	}
	data, err := s.Manifest(ctx, to.Repository, d)
	if content.IsMissing(err) {
		return unknown
	}
	if err != nil {
		return err
	}
	described, err := content.Describe(data)
	mediaType := described.Type()
	if err == nil {
		err = described.CheckType(mediaType)
	}
	if err != nil {
		s.Log.Warn("stored manifest is invalid", "repository", to.Repository, "digest", d.String(), "error", err)
		return unknown
	}
	if complete {
		err := s.Lacking(ctx, to.Repository, described)
		if errors.As(err, new(distribution.ErrManifestBlobUnknown)) || errors.As(err, new(errcode.Error)) {
			return unknown
		}
		if err != nil {
			return err
		}
	}
	if !accepts(r, mediaType) {
		return errcode.ErrorCodeManifestUnknown.WithMessage("the header Accept lacks the manifest's type, " + mediaType)
	}
	header := w.Header()
	header.Set("Content-Type", mediaType)
	header.Set("Docker-Content-Digest", d.String())
	header.Set("ETag", fmt.Sprintf("%q", d))
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	return nil
}

// accepts reports whether a client takes a type: most take any or do not say. Docker's types are older than the header.
func accepts(r *http.Request, mediaType string) bool {
	accept := strings.Join(r.Header["Accept"], ",")
	return accept == "" || strings.Contains(accept, "*") || strings.Contains(accept, mediaType) ||
		mediaType != v1.MediaTypeImageManifest && mediaType != v1.MediaTypeImageIndex
}

// putManifest stores a manifest. When it returns, the manifest has all its digests, back links and tags. An upload that
// needs what another process's collection may remove waits: see package collect.
func (s *Registry) putManifest(w http.ResponseWriter, r *http.Request, to request.Target) (err error) {
	ctx := r.Context()
	data, done, err := content.Receive(ctx, r.Body)
	if err != nil { // the client has disconnected, or sends nothing
		return request.ErrCanceled
	}
	defer done()
	p, err := s.newPush(r, to, data)
	if err != nil {
		return err
	}
	created, err := p.reserve(r.Body)
	if err != nil {
		return err
	}
	// A slow client has not used up the time for which a reading of the lease is valid.
	if p.admission, err = s.collector.Admit(ctx, to.Repository, slices.Concat(p.digests, p.Needs)); err != nil {
		return err
	}
	own, needed := s.collector.Rely(p.digests...), s.collector.Rely(p.Needs...)
	defer func() {
		own.Done(err == nil)
		needed.Done(err == nil)
	}()
	if err := needed.Missing(ctx, to.Repository); err != nil {
		return err
	}
	if err := s.Lacking(ctx, to.Repository, p.Described); err != nil {
		return err
	}
	if err := s.store(ctx, p); err != nil {
		return err
	}
	for _, tag := range p.tags {
		if err := s.tag(ctx, p, tag); err != nil {
			return err
		}
	}
	if err := p.admission.Finish(ctx); err != nil {
		return err
	}
	created()
	for _, name := range p.names() {
		s.audit(ctx, request.ActionPush, p.repository, name, p.name())
	}
	p.describe(w.Header())
	w.WriteHeader(http.StatusCreated)
	return nil
}

// storeAttempts limits how often a manifest is written again that deletions have removed.
const storeAttempts = 5

// store writes a manifest with its links, until no deletion has removed any of them: see collect.Intent.
func (s *Registry) store(ctx context.Context, p *push) error {
	involved := slices.Clone(p.digests)
	for _, child := range p.Manifests {
		involved = append(involved, child.Digest)
	}
	found := false // before the last look at deletions: another push of an index may have written what was deleted
	for range storeAttempts {
		var err error
		if !found {
			err = s.Write(ctx, p.repository, p.content, p.digests, p.links)
		}
		if err == nil {
			err = s.collector.AwaitDeletions(ctx, p.repository, involved...)
		}
		if err == nil {
			err = s.LackingChild(ctx, p.repository, p.Described)
		}
		if errors.As(err, new(distribution.ErrManifestBlobUnknown)) { // not a refusal, which changes nothing
			err = request.Unavailable("a part of this image was deleted while it was pushed: push it again: %v", err)
		}
		if err != nil {
			return err
		}
		looked := found || len(p.Manifests) == 0
		if found, err = s.HasAll(ctx, p.repository, p.digests, p.links); err != nil || found && looked {
			return err
		}
	}
	return request.Unavailable("the manifest was deleted again and again while it was pushed: push it later")
}
