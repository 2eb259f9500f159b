package root

import (
	"context"
	"log/slog"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/logging"
	"github.com/zarf-dev/zarf-registry/internal/registry"
)

// defaultConfig is the path at which the chart mounts the configuration.
const defaultConfig = "/etc/zarf-registry/config/config.yml"

// defaultDrain fits into the default termination grace period of a pod, 30 s.
const defaultDrain = 20 * time.Second

func serveCommand() *cobra.Command {
	var logs logging.Options
	var serve serveFlags
	command := &cobra.Command{
		Use:   "serve",
		Short: "Serve the registry",
		Long: `Serve the registry until SIGTERM, then drain.

The configuration file has distribution's format; its main section is storage, with one of the drivers filesystem, s3
and inmemory. Environment variables override it: REGISTRY_STORAGE_S3_ACCESSKEY is storage.s3.accesskey. Settings that
this registry does not support are errors.

--listen requires a client certificate. A certificate with the organization zarf-registry:node or zarf-registry:cache
may read; one with zarf-registry:push may read, and write with a user name and a password from --htpasswd; so may one
with zarf-registry:client, except below zarf-registry/. --plain-listen requires only a user name and a password.
Certificates, CAs and users are reloaded when their files change.

With --pull-htpasswd, --plain-listen is open only while that file exists. Within a second after the file appears, its
users are accepted and the address is open. Within a second after it disappears, its users and new connections are
refused, and requests in progress have 10 minutes to finish. An invalid file does not open the address; if it was valid
before, the previous users stay in force. If the address is in use, opening it is retried. Without --pull-htpasswd,
--plain-listen is always open.

--loopback-listen serves port-forwards without TLS, such as those of Zarf. Users of --htpasswd may read and write, users
of --pull-htpasswd may read, and nobody reads without a password. It is always open, and may have the port of
--plain-listen. The catalog there leaves out the repositories below zarf-registry/, which cannot be changed there.

--expose-listen serves clients outside the cluster, with TLS and without client certificates. Users of --htpasswd may
read and write; users of --pull-htpasswd and --expose-htpasswd may read. Without --expose-tls-dir it uses the
certificate of --listen.

The repository zarf-registry/probe-proxy is served at --listen only, and zarf-registry/probe-nodeport at --plain-listen
only: a pull from one of them verifies that path. A certificate with zarf-registry:push has access to both.`,
		Example: `  # like the chart
  registry serve

  # S3, with the keys from the environment
  REGISTRY_STORAGE_S3_ACCESSKEY=… REGISTRY_STORAGE_S3_SECRETKEY=… registry serve --config=s3.yml

  # without TLS on the loopback address, for experiments
  htpasswd -Bbn me secret > users
  registry serve --config=config.yml --listen= --plain-listen=127.0.0.1:5000 --htpasswd=users`,
		Args: noArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			log, err := newLogger(logs, command.ErrOrStderr())
			if err != nil {
				return err
			}
			return serve.run(command.Context(), log)
		},
	}
	serve.register(command.Flags())
	logs.Register(command.Flags())
	return command
}

type serveFlags struct {
	options registry.Options
	config  string
}

// run serves until the context ends, and then drains.
func (f *serveFlags) run(ctx context.Context, log *slog.Logger) (err error) {
	f.options.Log = log
	if f.options.Config, err = registry.LoadConfig(f.config); err != nil {
		return &exitcode.Refusal{Err: err}
	}
	storage := f.options.Config.Storage.Type() // Open takes the configuration
	limitMemory()
	server, err := registry.Open(f.options)
	if err != nil {
		return &exitcode.Refusal{Err: err}
	}
	log.Info("starting", "version", f.options.Version, "config", f.config, "storage", storage)
	return server.Serve(ctx)
}

func (f *serveFlags) register(flags *pflag.FlagSet) {
	options := &f.options
	flags.StringVar(&options.Version, "program-version", "dev",
		"`VERSION` to report in the log and in the metric build_info")
	flags.StringVar(&f.config, "config", defaultConfig, "configuration `FILE`")
	flags.StringVar(&options.Listen, "listen", ":5000", "`ADDRESS` for clients with a certificate; empty disables it")
	flags.StringVar(&options.TLSDir, "tls-dir", "/etc/zarf-registry/tls", "`DIRECTORY` of tls.crt, tls.key and ca.crt")
	flags.StringVar(&options.PlainListen, "plain-listen", "",
		"`ADDRESS` for clients without TLS, open only while the file of --pull-htpasswd exists; empty disables it")
	flags.BoolVar(&options.AnonymousPull, "anonymous-pull", false,
		"allow anonymous reads at --plain-listen while it is open")
	flags.StringVar(&options.Htpasswd, "htpasswd", "/etc/zarf-registry/credentials/htpasswd",
		"`FILE` of users who may pull and push, bcrypt only")
	flags.StringVar(&options.UploadSecret, "upload-secret", "",
		"`FILE` of the secret that signs upload state, the same for all replicas; empty derives it from --htpasswd")
	flags.StringVar(&options.PullHtpasswd, "pull-htpasswd", "",
		"`FILE` of users who may only pull; --plain-listen is open while it exists; empty for none")
	flags.StringVar(&options.LoopbackListen, "loopback-listen", "",
		"loopback `ADDRESS` for port-forwards, without TLS; reads need a password, too; empty disables it")
	flags.StringVar(&options.ExposeListen, "expose-listen", "",
		"`ADDRESS` for clients outside the cluster, with TLS; empty disables it")
	flags.StringVar(&options.ExposeTLSDir, "expose-tls-dir", "",
		"`DIRECTORY` of tls.crt and tls.key for --expose-listen; empty for the certificate of --listen")
	flags.StringVar(&options.ExposeHtpasswd, "expose-htpasswd", "",
		"`FILE` of more users who may only pull, at --expose-listen; empty for none")
	flags.BoolVar(&options.ExposeAnonymousPull, "expose-anonymous-pull", false, "allow anonymous reads at --expose-listen")
	flags.StringVar(&options.HealthListen, "health-listen", ":5080",
		"`ADDRESS` of /healthz and /readyz; empty disables it")
	flags.StringVar(&options.MetricsListen, "metrics-listen", ":5090",
		"`ADDRESS` of /metrics and /loaded; empty disables it")
	flags.DurationVar(&options.ShutdownDelay, "shutdown-delay", 0,
		"how long to accept connections after shutdown begins, while not ready")
	flags.DurationVar(&options.DrainTimeout, "drain-timeout", defaultDrain, "how long requests may then take to finish")
}
