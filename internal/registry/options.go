package registry

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/distribution/distribution/v3/configuration"
)

// Options configure a Server: they are the flags of registry serve, whose help explains them. Addresses are HOST:PORT
// or :PORT; an empty one disables its listener. Files and directories are followed: changes are loaded in a second.
type Options struct {
	Version string // in the log and in the metric build_info

	// Config comes from LoadConfig. The Server takes ownership of it. Its http.secret signs the upload state that clients
	// carry from one request to the next. If it is empty, UploadSecret is used.
	Config *configuration.Configuration
	// UploadSecret is a file of at least 32 bytes, read once. Replicas with the same secret continue each other's uploads;
	// so does a registry after a restart. If it is empty, the secret is derived from the first Htpasswd file.
	UploadSecret string

	// Listen serves clients with certificates. It needs TLSDir, with tls.crt, tls.key and ca.crt.
	Listen, TLSDir string
	// PlainListen serves clients without TLS. With PullHtpasswd, it is open only while that file exists.
	PlainListen string
	// AnonymousPull lets every client read at PlainListen.
	AnonymousPull bool
	// LoopbackListen serves port-forwards, without TLS. It may have the port of PlainListen, and is always open.
	LoopbackListen string
	// ExposeListen serves clients outside the cluster, with TLS and users: with the certificate of ExposeTLSDir, whose
	// ca.crt is ignored, or else with that of TLSDir.
	ExposeListen, ExposeTLSDir string
	// ExposeHtpasswd is the optional file of users who may only pull, and only at ExposeListen.
	ExposeHtpasswd string
	// ExposeAnonymousPull lets every client read at ExposeListen.
	ExposeAnonymousPull bool
	HealthListen        string // for /healthz and /readyz
	MetricsListen       string // for /metrics, and /loaded as defined by package loaded

	// Htpasswd is the required file of the users who may pull and push. An invalid version is logged, and not used.
	Htpasswd string
	// PullHtpasswd is the optional file of the users who may only pull. It needs PlainListen. The file may appear and
	// disappear: see Users and plainListener. PlainListen stays closed until the file has been valid once.
	PullHtpasswd string

	// ShutdownDelay is how long the server accepts connections after it reports not ready, so that clients leave it.
	ShutdownDelay time.Duration
	// DrainTimeout is how long requests may then take to finish. Zero cuts them off at once.
	DrainTimeout time.Duration

	Log *slog.Logger // required
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
