// Package spec serves the OCI distribution specification: uploads and the list of repositories with distribution's
// handlers, everything else itself, on distribution's storage layout.
//
// Others say what is stored (content), what a push may rely on (collect), what fits (volume), and who may (front).
package spec

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"

	"github.com/distribution/distribution/v3"
	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry/api/errcode"
	"github.com/distribution/distribution/v3/registry/handlers"
	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/distribution/distribution/v3/registry/storage/driver/factory"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

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
	headers   http.Header // of all responses
	maxTags   int         // in a page
	collector *collect.Collector
	tags      tagLocks
	commits   commits
	app       *handlers.App // distribution's
	limited   http.Handler
}

// openDriver gives distribution a driver that is open.
type openDriver struct{ storagedriver.StorageDriver }

const openDriverName = "zarf-registry"

func init() { factory.Register(openDriverName, openDriver{}) }

// Create implements [factory.StorageDriverFactory].
func (openDriver) Create(_ context.Context, parameters map[string]any) (storagedriver.StorageDriver, error) {
	return parameters["driver"].(storagedriver.StorageDriver), nil
}

// Open takes ownership of the configuration, whose driver is open. Use must be called before the first request.
func Open(config *configuration.Configuration, driver storagedriver.StorageDriver, log *slog.Logger) (
	s *Registry, err error,
) {
	defer func() { // distribution panics on an invalid configuration
		if p := recover(); p != nil {
			err = fmt.Errorf("configuration: %v", p)
		}
	}()
	s = &Registry{Store: &content.Store{Driver: driver, Log: log}, readOnly: storage.ReadOnly(config.Storage),
		headers: config.HTTP.Headers}
	config.HTTP.Headers = nil
	config.Storage = maps.Clone(config.Storage)
	delete(config.Storage, config.Storage.Type())
	config.Storage[openDriverName] = configuration.Parameters{"driver": content.ForUploads(driver)}
	config.Middleware = map[string][]configuration.Middleware{
		"registry": {{Name: ownUploads, Options: configuration.Parameters{"source": s}}},
	}
	s.app = handlers.NewApp(context.Background(), config)
	s.maxTags = config.Tags.MaxTags
	return s, nil
}

// Use sets what keeps the content that pushes rely on, and what refuses pushes that do not fit.
func (s *Registry) Use(collector *collect.Collector, space *volume.Space) {
	s.collector = collector
	s.limited = space.Limit(http.HandlerFunc(s.serve))
}

// Shutdown ends distribution's background work.
func (s *Registry) Shutdown() error { return s.app.Shutdown() }

// ServeHTTP implements [http.Handler].
func (s *Registry) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.limited.ServeHTTP(w, r) }

func (s *Registry) serve(w http.ResponseWriter, r *http.Request) {
	maps.Copy(w.Header(), s.headers)
	to := request.TargetOf(r)
	_, invalid := reference.WithName(to.Repository)
	var err error
	switch {
	case to.Repository != "" && invalid != nil:
		err = errcode.ErrorCodeNameInvalid.WithDetail(invalid.Error())
	case to.Subject != "":
		err = s.listReferrers(w, r, to)
	case to.Tags && (r.Method == http.MethodGet || r.Method == http.MethodHead):
		err = s.listTags(w, r, to.Repository)
	case to.Manifest != "":
		err = s.serveManifest(w, r, to)
	case to.Blob != "":
		err = s.serveBlob(w, r, to)
	case to.Upload && r.Method != http.MethodPost:
		err = s.continueUpload(w, r, to)
	case to.Upload && r.URL.Query().Get("digest") != "" && !r.URL.Query().Has("mount"):
		err = s.uploadAtOnce(w, r)
	case to.Upload:
		err = s.beginUpload(w, r, to)
	default:
		s.distribute(w, r)
	}
	if err != nil {
		s.fail(w, r, err)
	}
}

// audit writes a line of the audit trail: a client has changed what a name refers to, a tag or a digest.
func (s *Registry) audit(ctx context.Context, action, repository, name string, d digest.Digest) {
	request.Audit(ctx, s.Log, action, repository, name, d.String())
}

// fail responds with an error, which is logged if it is not the client's.
func (s *Registry) fail(w http.ResponseWriter, r *http.Request, err error) {
	volume.RecordNoSpace(r.Context(), err)
	if missing, ok := errors.AsType[distribution.ErrManifestBlobUnknown](err); ok {
		err = errcode.ErrorCodeManifestBlobUnknown.WithDetail(missing.Digest)
	} else if errors.Is(err, distribution.ErrBlobUnknown) {
		err = errcode.ErrorCodeBlobUnknown.WithDetail(request.TargetOf(r).Blob)
	} else if !errors.As(err, new(errcode.Error)) && r.Context().Err() == nil {
		s.Log.Error("request failed", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	request.WriteError(w, err)
}

// requestKey is the context key of a request that distribution serves, for the blob stores that it calls.
type requestKey struct{}

// requestOf returns the request that a context belongs to.
func requestOf(ctx context.Context) *http.Request {
	if r, ok := ctx.Value(requestKey{}).(*http.Request); ok {
		return r
	}
	return &http.Request{URL: &url.URL{}}
}

// distribute passes a request on to distribution, which would parse a body like a form, and prefer its parameters.
func (s *Registry) distribute(w http.ResponseWriter, r *http.Request) {
	r.Form = r.URL.Query()
	s.app.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), requestKey{}, r)))
}
