// Package spec serves the OCI distribution specification: distribution's handlers, with what they lack. That is lists
// of referrers, digests other than SHA-256, tags as parameters of a push, uploads in a single request, mounts from any
// repository, and conditional deletions.
//
// It does not decide who may do what. It asks package content what is stored, package collect what a push may rely on,
// and package volume whether it fits.
package spec

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"

	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry/handlers"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/internal/registry/collect"
	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/request"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
	"github.com/zarf-dev/zarf-registry/internal/registry/volume"
)

// Registry serves requests. All methods are safe for concurrent use, except Use.
type Registry struct {
	*content.Store
	readOnly  bool
	collector *collect.Collector
	space     *volume.Space
	tags      tagLocks
	commits   commits
	app       *handlers.App // distribution's
	next      http.Handler  // the app, but for tests
	limited   http.Handler
}

// Open returns a registry, and takes ownership of the configuration. Use must be called before the first request.
func Open(config *configuration.Configuration, log *slog.Logger) (s *Registry, err error) {
	defer func() { // distribution panics on an invalid configuration
		if p := recover(); p != nil {
			err = fmt.Errorf("configuration: %v", p)
		}
	}()
	s = &Registry{Store: &content.Store{Log: log}, readOnly: storage.ReadOnly(config.Storage)}
	config.Middleware = map[string][]configuration.Middleware{
		"registry": {{Name: unbufferedBlobs, Options: configuration.Parameters{"source": s}}}, // sets Driver
		"storage":  {{Name: content.IntactContent}},
	}
	storage.UseDurableFiles(config)
	s.app = handlers.NewApp(context.Background(), config)
	s.next = s.app
	return s, nil
}

// Use sets what keeps the content that pushes rely on, and what refuses pushes that do not fit.
func (s *Registry) Use(collector *collect.Collector, space *volume.Space) {
	s.collector, s.space = collector, space
	s.limited = space.Limit(http.HandlerFunc(s.serve))
}

// Shutdown ends distribution's background work.
func (s *Registry) Shutdown() error { return s.app.Shutdown() }

// ServeHTTP implements [http.Handler].
func (s *Registry) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.limited.ServeHTTP(w, r) }

// intent is what a request asks for beyond what distribution knows. It is in the request's context, for the stores that
// distribution calls.
type intent struct {
	push      push                          // of a manifest
	admission *collect.Admission            // of that; nil of other requests
	store     func() (digest.Digest, error) // stores the manifest, also again after a deletion
	condition *condition                    // of a deletion, or nil
	mount     digest.Digest                 // of the blob to mount, or ""
	upload    string                        // the path and query of an upload
	status    bool                          // the client asks for that of an upload
	complete  bool                          // a manifest exists only if everything that it needs does
}

type intentKey struct{}

// intentOf returns the intent of the request that a context belongs to.
func intentOf(ctx context.Context) *intent {
	if in, ok := ctx.Value(intentKey{}).(*intent); ok {
		return in
	}
	return &intent{}
}

func (s *Registry) serve(w http.ResponseWriter, r *http.Request) {
	to, in := request.TargetOf(r), &intent{}
	r = r.WithContext(context.WithValue(r.Context(), intentKey{}, in))
	switch {
	case to.Subject != "":
		s.listReferrers(w, r, to)
	case r.Method == http.MethodPut && to.Manifest != "":
		s.pushManifest(w, r, to, in)
	case r.Method == http.MethodDelete && isConditional(r, to):
		s.deleteUnmodified(w, r, in)
	case r.Method == http.MethodPost && to.Upload && isSinglePost(r):
		s.uploadAtOnce(w, r)
	case to.Upload && r.Method != http.MethodPost:
		s.continueUpload(w, r, to)
	default:
		if d, err := digest.Parse(r.URL.Query().Get("mount")); err == nil && to.Upload {
			// What is refused is refused before it is sent.
			if err := s.collector.AdmitBlob(r.Context(), d); err != nil {
				request.WriteError(w, err)
				return
			}
			in.mount = d
		}
		s.distribute(w, r)
	}
}

// distribute passes a request on to distribution.
//
// Manifests of every media type are for clients that accept any or do not say what they accept: distribution would
// respond to them that the manifest is unknown. Clients that may push find manifests only if everything that these
// need exists: with HEAD they ask whether they have to push. All parameters come from the URL: a body is content, also
// if its type is that of a form, which distribution would parse and prefer. An invalid digest to mount is left to
// distribution.
func (s *Registry) distribute(w http.ResponseWriter, r *http.Request) {
	in := intentOf(r.Context())
	if accept := strings.Join(r.Header["Accept"], ","); accept == "" || strings.Contains(accept, "*") {
		r.Header.Set("Accept", oci.Accept)
	}
	in.upload = r.URL.RequestURI()
	in.status = r.Method == http.MethodGet || r.Method == http.MethodHead
	if r.Method == http.MethodHead {
		caller := request.CallerOf(r.Context())
		in.complete = caller == nil || caller.Pushes
	}
	r.Form = r.URL.Query()
	s.next.ServeHTTP(w, r)
}
