package registry

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry/handlers"

	"github.com/zarf-dev/zarf-registry/internal/reloadstatus"
	"github.com/zarf-dev/zarf-registry/internal/tlsfiles"
)

const (
	// headerTimeout bounds a TLS handshake and, separately, a request's header. Where a
	// thousand nodes connect while all processors send what others pull, a handshake has
	// taken more than 10 s; to give it up then would cost its processor time again.
	headerTimeout = 30 * time.Second
	// idleTimeout is longer than clients keep unused connections (90 s in Go's
	// own transport): where the client is the one to close, no request meets a
	// connection that is just going away.
	idleTimeout = 3 * time.Minute
	// aboutTimeout bounds a whole request for health or metrics, whose answers are
	// of a few KiB.
	aboutTimeout = 30 * time.Second
	// maxHeader bounds a request's header, in bytes. The longest are the URLs of
	// uploads, of a few hundred bytes.
	maxHeader = 64 << 10
)

// Options are what a Server is made of. Addresses are HOST:PORT or :PORT; an
// empty one switches its listener off.
type Options struct {
	// Config comes from LoadConfig. The Server takes it over.
	//
	// Its http.secret signs the state of uploads, which clients carry from one
	// request to the next. Where it is empty that of UploadSecret does.
	Config *configuration.Configuration

	// UploadSecret is the file of what signs the state of uploads, of at least 32
	// bytes. Replicas that have the same continue each other's uploads, and a registry
	// its own after a restart. It is read once. Where it is empty a secret is derived
	// from the file of Htpasswd as it is at the start: then that holds as long as the
	// users who may push stay the same.
	UploadSecret string

	// Listen is where clients with certificates are served; it needs TLSDir.
	Listen string
	// TLSDir holds tls.crt, tls.key and ca.crt, which are followed.
	TLSDir string
	// PlainListen is where clients without TLS are served. At least one of
	// Listen and PlainListen is required. With PullHtpasswd the listener is open
	// exactly while that file is there.
	PlainListen string
	// AnonymousPull lets anyone read at PlainListen.
	AnonymousPull bool
	// ExposeListen is where clients outside of the cluster are served, with TLS and
	// without client certificates: a user name and a password decide. It is always
	// open.
	ExposeListen string
	// ExposeTLSDir holds tls.crt and tls.key for ExposeListen, which are followed; an
	// authority is not looked for. Empty takes the certificate of TLSDir.
	ExposeTLSDir string
	// ExposeHtpasswd is the file of users who may only pull at ExposeListen, besides those
	// of Htpasswd and PullHtpasswd; or empty. It is followed, and may come and go.
	ExposeHtpasswd string
	// ExposeAnonymousPull lets anyone read at ExposeListen.
	ExposeAnonymousPull bool
	// HealthListen serves /healthz and /readyz.
	HealthListen string
	// MetricsListen serves /metrics, and /loaded as internal/reloadstatus has it.
	MetricsListen string

	// Htpasswd is the file of the users who may pull and push; required. It is
	// followed: looked at every second. What cannot be used leaves the users before
	// in force and is logged.
	Htpasswd string
	// PullHtpasswd is the file of the users who may only pull, or empty; it needs
	// PlainListen, which it opens. It is followed, and may come and go: when it
	// comes its users are accepted and the listener opens; when it goes the
	// listener closes, requests under way have 10 minutes to end, and its users are
	// not accepted any more. While it was never usable the listener stays closed.
	PullHtpasswd string

	// ShutdownDelay is how long the server goes on after it was told to end, not
	// ready any more, so that nobody is sent to it when it stops.
	ShutdownDelay time.Duration
	// DrainTimeout is how long requests may then take to end. Zero cuts them off.
	DrainTimeout time.Duration

	// Log is required.
	Log *slog.Logger
}

func (o *Options) validate() error {
	switch {
	case o.Listen == "" && o.PlainListen == "" && o.ExposeListen == "":
		return errors.New("there is nothing to serve: give --listen, --plain-listen or --expose-listen")
	case o.Listen != "" && o.TLSDir == "":
		return errors.New("--listen needs --tls-dir, the directory of tls.crt, tls.key and ca.crt")
	case o.Htpasswd == "":
		return errors.New("--htpasswd is required: nobody could push")
	case o.AnonymousPull && o.PlainListen == "":
		return errors.New("--anonymous-pull is about --plain-listen, which is not given; with TLS a client certificate is always required")
	case o.PullHtpasswd != "" && o.PlainListen == "":
		return errors.New("--pull-htpasswd is about --plain-listen, which is not given; with TLS the client certificate decides who may read")
	case o.ExposeListen != "" && o.ExposeTLSDir == "" && o.Listen == "":
		return errors.New("--expose-listen needs --expose-tls-dir, the directory of tls.crt and tls.key, or the certificate of --listen")
	case o.ExposeListen == "" && (o.ExposeTLSDir != "" || o.ExposeHtpasswd != "" || o.ExposeAnonymousPull):
		return errors.New("--expose-tls-dir, --expose-htpasswd and --expose-anonymous-pull are about --expose-listen, which is not given")
	case o.ShutdownDelay < 0 || o.DrainTimeout < 0:
		return errors.New("--shutdown-delay and --drain-timeout must not be negative")
	}
	return nil
}

// Server is a registry with its listeners. Serve it once.
type Server struct {
	options      Options
	app          *handlers.App
	source       *blobSource
	gate         *gate
	collections  collections
	certificates *tlsfiles.Source // nil without Options.Listen
	exposed      *tlsfiles.Source // of Options.ExposeTLSDir; nil where the certificate is that of Options.Listen
	idle         *idleConnections // nil without Options.Listen
	credentials  *credentials
	plain        *plainListener // nil unless it follows Options.PullHtpasswd
	health       *storageHealth
	metrics      *metrics
	log          *slog.Logger
	draining     atomic.Bool
	now          func() time.Time
	after        func(time.Duration) <-chan time.Time
	stall        time.Duration
}

// Open checks the options and everything that they name: files, certificates,
// credentials, and that a filesystem can be written to. It listens nowhere yet,
// and does not connect to S3.
func Open(options Options) (*Server, error) {
	if err := options.validate(); err != nil {
		return nil, err
	}
	s := &Server{options: options, metrics: newMetrics(), log: options.Log, now: time.Now, after: time.After, stall: stallTimeout}

	var err error
	if options.Listen != "" {
		if s.certificates, err = tlsfiles.Open(options.TLSDir, tlsfiles.WithLogger(s.log)); err != nil {
			return nil, err
		}
		s.idle = newIdleConnections(s.certificates)
		s.metrics.watchCertificates(s.certificates)
	}
	if options.ExposeTLSDir != "" {
		if s.exposed, err = tlsfiles.Open(options.ExposeTLSDir, tlsfiles.WithoutCAs(), tlsfiles.WithLogger(s.log)); err != nil {
			return nil, err
		}
		s.metrics.watchExposed(s.exposed)
	}
	if s.credentials, err = openCredentials(s.log, options.Htpasswd, options.PullHtpasswd, options.ExposeHtpasswd); err != nil {
		return nil, err
	}
	s.metrics.watchCredentials(s.credentials)
	if options.PullHtpasswd != "" {
		s.plain = newPlainListener(s.plainEndpoint, s.log)
		s.metrics.watchPlain(s.plain)
	}

	config := options.Config
	if config.HTTP.Secret == "" {
		if config.HTTP.Secret, err = s.uploadSecret(); err != nil {
			return nil, err
		}
	}
	if root, ok := filesystemRoot(config.Storage); ok {
		if err := prepareRoot(s.log, root, readOnly(config.Storage)); err != nil {
			return nil, err
		}
	}
	driver, err := openDriver(context.Background(), config.Storage)
	if err != nil {
		return nil, err
	}
	s.health = newStorageHealth(config, driver, s.log)
	s.metrics.watchStorage(s.health)
	if s.app, s.source, err = newApp(config, s.log); err != nil {
		return nil, err
	}
	root, _ := filesystemRoot(config.Storage)
	s.gate = newGate(s.source.driver, root)
	s.metrics.watchCollections(s)
	return s, nil
}

// minUploadSecret is what nobody can guess: 256 bits.
const minUploadSecret = 32

func (s *Server) uploadSecret() (string, error) {
	path := s.options.UploadSecret
	if path == "" {
		return s.credentials.secret("state of uploads"), nil
	}
	secret, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("reading what signs the state of uploads: %w", err)
	}
	if secret = bytes.TrimSpace(secret); len(secret) < minUploadSecret {
		return "", fmt.Errorf("%s, which signs the state of uploads, has %d bytes: it needs at least %d", path, len(secret), minUploadSecret)
	}
	return string(secret), nil
}

// NewHandler makes the registry without its front: whoever reaches it may read and
// write everything. It is for what measures or tests clients. Config comes from
// LoadConfig; the handler takes it over and serves until the process ends.
func NewHandler(config *configuration.Configuration, log *slog.Logger) (http.Handler, error) {
	app, _, err := newApp(config, log)
	if err != nil {
		return nil, err
	}
	return withMounts(app), nil
}

// newApp makes distribution's handler, which reports a bad configuration by a
// panic.
func newApp(config *configuration.Configuration, log *slog.Logger) (app *handlers.App, source *blobSource, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("configuration: %v", p)
		}
	}()
	source = &blobSource{log: log}
	useUnbufferedBlobs(config, source)
	return handlers.NewApp(context.Background(), config), source, nil
}

// endpoint is a listener and what answers at it.
type endpoint struct {
	name     string
	address  string
	listener net.Listener
	server   *http.Server
}

// endpoints lists those that serve the registry and those that serve about it, all
// but a plain listener that opens and closes.
func (s *Server) endpoints() (registry, about []*endpoint) {
	if s.options.Listen != "" {
		front := s.front("tls", policy{mutualTLS: true})
		front.certificates = s.certificates
		e := s.endpoint(front.name, s.options.Listen, front)
		e.server.TLSConfig = tlsfiles.ServerConfig(s.certificates, tls.RequireAndVerifyClientCert, "http/1.1")
		e.server.ConnContext = front.connContext
		e.server.ConnState = s.idle.state
		registry = append(registry, e)
	}
	if s.options.PlainListen != "" && s.plain == nil {
		registry = append(registry, s.plainEndpoint())
	}
	if s.options.ExposeListen != "" {
		certificates := s.exposed
		if certificates == nil {
			certificates = s.certificates
		}
		front := s.front("exposed", policy{exposed: true, anonymousPull: s.options.ExposeAnonymousPull})
		e := s.endpoint(front.name, s.options.ExposeListen, front)
		e.server.TLSConfig = tlsfiles.ServerConfig(certificates, tls.NoClientCert, "http/1.1")
		registry = append(registry, e)
	}
	if s.options.HealthListen != "" {
		about = append(about, s.endpoint("health", s.options.HealthListen, s.healthHandler()))
	}
	if s.options.MetricsListen != "" {
		about = append(about, s.endpoint("metrics", s.options.MetricsListen, exactly(map[string]http.Handler{
			"/metrics":        s.metrics.handler(),
			reloadstatus.Path: reloadstatus.Handler(s.loaded),
		})))
	}
	for _, e := range about {
		e.server.ReadTimeout, e.server.WriteTimeout = aboutTimeout, aboutTimeout
	}
	return registry, about
}

// loaded is what is in use of the mounted files.
func (s *Server) loaded() reloadstatus.Report {
	report := reloadstatus.Report{Credentials: s.credentials.report(), Collection: s.collectionReport()}
	if s.certificates != nil {
		report.Certificates = s.certificates.Report()
	}
	return report
}

func (s *Server) plainEndpoint() *endpoint {
	front := s.front("plain", policy{anonymousPull: s.options.AnonymousPull})
	return s.endpoint(front.name, s.options.PlainListen, front)
}

func (s *Server) front(name string, policy policy) *front {
	next := withGate(s.gate, withMounts(s.app))
	if policy.mutualTLS {
		next = s.withCollections(next)
	}
	return &front{
		name:        name,
		policy:      policy,
		credentials: s.credentials,
		next:        next,
		metrics:     s.metrics,
		log:         s.log,
		draining:    &s.draining,
		now:         s.now,
		stall:       s.stall,
	}
}

func (s *Server) endpoint(name, address string, handler http.Handler) *endpoint {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &endpoint{
		name:    name,
		address: address,
		server: &http.Server{
			Handler:           handler,
			ReadHeaderTimeout: headerTimeout,
			IdleTimeout:       idleTimeout,
			MaxHeaderBytes:    maxHeader,
			Protocols:         protocols,
			ErrorLog:          log.New(serverLog{s.log, name}, "", 0),
		},
	}
}

// Serve listens and serves until ctx ends, then drains: not ready at once, no
// new connections after Options.ShutdownDelay, and all cut off after
// Options.DrainTimeout. It returns nil after that, or the error of a listener. A
// plain listener that follows Options.PullHtpasswd returns none: it tries again.
func (s *Server) Serve(ctx context.Context) error {
	registry, about := s.endpoints()
	if err := listen(ctx, slices.Concat(about, registry)); err != nil {
		return err
	}
	return s.serve(ctx, registry, about)
}

// listen opens all listeners or none.
func listen(ctx context.Context, endpoints []*endpoint) error {
	for i, e := range endpoints {
		if err := e.listen(ctx); err != nil {
			for _, open := range endpoints[:i] {
				_ = open.listener.Close()
			}
			return err
		}
	}
	return nil
}

func (e *endpoint) listen(ctx context.Context) (err error) {
	var config net.ListenConfig
	if e.listener, err = config.Listen(ctx, "tcp", e.address); err != nil {
		return fmt.Errorf("listening for %s: %w", e.name, err)
	}
	return nil
}

func (s *Server) serve(ctx context.Context, registry, about []*endpoint) error {
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { s.credentials.run(background, func() { s.followPullers(background) }) })
	// Not waited for: a storage may hang.
	go s.health.run(background)
	go s.gate.follow(background, s.health.interval)
	if s.certificates != nil {
		running.Go(func() { s.certificates.Run(background) })
	}
	if s.exposed != nil {
		running.Go(func() { s.exposed.Run(background) })
	}
	defer running.Wait()
	defer stop()

	failed := make(chan error, len(registry)+len(about))
	for _, e := range slices.Concat(about, registry) {
		s.log.Info("listening", "for", e.name, "address", e.listener.Addr().String())
		running.Go(func() { failed <- e.serve() })
	}

	var err error
	var delay time.Duration
	select {
	case err = <-failed:
	case <-ctx.Done():
		delay = s.options.ShutdownDelay
	}
	s.draining.Store(true)
	s.log.Info("shutting down", "delay", delay.String(), "drain", s.options.DrainTimeout.String())
	<-s.after(delay)
	if s.plain != nil {
		registry = append(registry, s.plain.retire()...)
	}
	s.drain(registry)
	for _, e := range about {
		_ = e.server.Close()
	}
	return errors.Join(err, s.app.Shutdown())
}

func (e *endpoint) serve() error {
	var err error
	if e.server.TLSConfig != nil {
		err = e.server.ServeTLS(e.listener, "", "")
	} else {
		err = e.server.Serve(e.listener)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serving %s at %s: %w", e.name, e.listener.Addr(), err)
}

func (s *Server) drain(endpoints []*endpoint) {
	ctx, cancel := context.WithTimeout(context.Background(), s.options.DrainTimeout)
	defer cancel()
	var draining sync.WaitGroup
	for _, e := range endpoints {
		draining.Go(func() {
			if err := e.drain(ctx); err != nil {
				s.log.Warn("requests were cut off: raise --drain-timeout", "listener", e.name, "error", err)
			}
		})
	}
	draining.Wait()
}

// drain closes the listener and idle connections at once, and the others as their
// requests end. When ctx ends before, it cuts them off and returns why.
func (e *endpoint) drain(ctx context.Context) error {
	err := e.server.Shutdown(ctx)
	if err != nil {
		_ = e.server.Close()
	}
	return err
}

// followPullers opens the plain listener while users who may only pull are in
// force, and closes it while not.
func (s *Server) followPullers(ctx context.Context) {
	switch {
	case s.plain == nil:
	case s.credentials.pullable():
		s.plain.open(ctx, "there are users in "+s.options.PullHtpasswd)
	default:
		s.plain.close("there are no users in " + s.options.PullHtpasswd)
	}
}

// healthHandler answers /healthz while the process runs, for liveness: no
// restart mends a storage. /readyz tells whether requests should be sent here.
func (s *Server) healthHandler() http.Handler {
	return exactly(map[string]http.Handler{
		"/healthz": status(func() error { return nil }),
		"/readyz": status(func() error {
			if s.draining.Load() {
				return errors.New("shutting down")
			}
			return s.health.err(time.Now())
		}),
	})
}

// status answers 200, or 503 with what is wrong.
func status(check func() error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		if err := check(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "ok\n") // the prober may have gone
	})
}

// exactly serves reading of these paths, and nothing else.
func exactly(paths map[string]http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler, ok := paths[r.URL.Path]
		switch {
		case !ok:
			http.NotFound(w, r)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		default:
			handler.ServeHTTP(w, r)
		}
	})
}
