package registry

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/distribution/distribution/v3/configuration"
)

// Options configure a Server. Addresses are HOST:PORT or :PORT; an empty address disables its listener.
// Files and directories are followed: changes are loaded within a second, unless stated otherwise.
type Options struct {
	// Version is what the log and the metric build_info report.
	Version string

	// Config comes from LoadConfig. The Server takes ownership of it.
	//
	// Its http.secret signs the upload state that clients carry from one request to the next. If it is
	// empty, UploadSecret is used.
	Config *configuration.Configuration

	// UploadSecret is the file of the secret that signs upload state, at least 32 bytes. Replicas with
	// the same secret continue each other's uploads; so does a registry after a restart. It is read
	// once. If it is empty, the secret is derived from the Htpasswd file as it is at startup, and stays
	// the same only as long as that file does.
	UploadSecret string

	// Listen serves clients with certificates. It needs TLSDir.
	Listen string
	// TLSDir holds tls.crt, tls.key and ca.crt.
	TLSDir string
	// PlainListen serves clients without TLS. At least one of Listen, PlainListen and ExposeListen is
	// required. With PullHtpasswd, the listener is open only while that file exists.
	PlainListen string
	// AnonymousPull lets every client read at PlainListen.
	AnonymousPull bool
	// LoopbackListen serves clients that reach the pod's loopback address, by a port-forward, without TLS:
	// the users of Htpasswd may read and write, those of PullHtpasswd may read. Nobody reads without a
	// password. It may have the port of PlainListen, and is always open.
	LoopbackListen string
	// ExposeListen serves clients outside the cluster, with TLS and without client certificates: they
	// authenticate with a user name and a password.
	ExposeListen string
	// ExposeTLSDir holds tls.crt and tls.key for ExposeListen; ca.crt is ignored. If it is empty, the
	// certificate of TLSDir is used.
	ExposeTLSDir string
	// ExposeHtpasswd is the optional file of users who may only pull, and only at ExposeListen. The users
	// of Htpasswd and PullHtpasswd are accepted there too. The file may appear and disappear.
	ExposeHtpasswd string
	// ExposeAnonymousPull lets every client read at ExposeListen.
	ExposeAnonymousPull bool
	// HealthListen serves /healthz and /readyz.
	HealthListen string
	// MetricsListen serves /metrics, and /loaded as defined by package loaded.
	MetricsListen string

	// Htpasswd is the file of the users who may pull and push; required. If a new version is invalid, the
	// previous users stay in force and the error is logged.
	Htpasswd string
	// PullHtpasswd is the optional file of the users who may only pull. It needs PlainListen. The file may
	// appear and disappear: when it appears, the listener opens; when it disappears, its users are refused
	// and the listener closes, and requests in progress have 10 minutes to finish. The listener stays
	// closed until the file has been valid once.
	PullHtpasswd string

	// ShutdownDelay is how long the server keeps accepting connections after it reports not ready, so that
	// clients stop using it before it closes.
	ShutdownDelay time.Duration
	// DrainTimeout is how long requests may then take to finish. Zero cuts them off at once.
	DrainTimeout time.Duration

	// Log is required.
	Log *slog.Logger
}

func (o *Options) validate() error {
	switch {
	case o.Listen == "" && o.PlainListen == "" && o.ExposeListen == "":
		return errors.New("no listener is configured: set --listen, --plain-listen or --expose-listen")
	case o.Listen != "" && o.TLSDir == "":
		return errors.New("--listen needs --tls-dir, the directory of tls.crt, tls.key and ca.crt")
	case o.Htpasswd == "":
		return errors.New("--htpasswd is required: without it no client can push")
	case o.AnonymousPull && o.PlainListen == "":
		return errors.New("--anonymous-pull needs --plain-listen: --listen always requires a client certificate")
	case o.PullHtpasswd != "" && o.PlainListen == "":
		return errors.New("--pull-htpasswd needs --plain-listen: at --listen the client certificate authorizes reads")
	case o.LoopbackListen != "" && !isLoopback(o.LoopbackListen):
		return fmt.Errorf("invalid --loopback-listen %s: want a loopback address, such as 127.0.0.1:5001, "+
			"because clients send passwords without TLS", o.LoopbackListen)
	case o.ExposeListen != "" && o.ExposeTLSDir == "" && o.Listen == "":
		return errors.New("--expose-listen needs --expose-tls-dir, the directory of tls.crt and tls.key, " +
			"or the certificate of --listen")
	case o.ExposeListen == "" && (o.ExposeTLSDir != "" || o.ExposeHtpasswd != "" || o.ExposeAnonymousPull):
		return errors.New("--expose-tls-dir, --expose-htpasswd and --expose-anonymous-pull need --expose-listen")
	case o.ShutdownDelay < 0 || o.DrainTimeout < 0:
		return errors.New("--shutdown-delay and --drain-timeout must not be negative")
	}
	return nil
}

// isLoopback reports whether an address is IP:PORT with a loopback IP.
func isLoopback(address string) bool {
	parsed, err := netip.ParseAddrPort(address)
	return err == nil && parsed.Addr().IsLoopback()
}
