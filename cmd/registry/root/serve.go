package root

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/internal/logging"
	"github.com/zarf-dev/zarf-registry/internal/registry"
	"github.com/zarf-dev/zarf-registry/internal/version"
)

// defaultConfig is where the chart mounts the configuration.
const defaultConfig = "/etc/zarf-registry/config/config.yml"

// defaultDrain fits into the 30 s that Kubernetes gives a pod to end.
const defaultDrain = 20 * time.Second

func serveCommand() *cobra.Command {
	var config string
	var logs logging.Options
	var options registry.Options
	command := &cobra.Command{
		Use:   "serve",
		Short: "Serve the registry until it is told to end",
		Long: `Serve the registry until SIGTERM, then drain.

The configuration file has distribution's format, of which the storage section is the one that matters; each of
its settings can be overridden by the environment: REGISTRY_STORAGE_S3_ACCESSKEY is storage.s3.accesskey. The drivers
are filesystem, s3 and inmemory. Settings that this registry would ignore are refused.

At --listen a client certificate is required. One of the organization zarf-registry:node may read; one of
zarf-registry:push may read, and write with a user name and a password of --htpasswd. At --plain-listen the user name
and the password alone decide. Certificates, CAs and users are followed when their files change.

With --pull-htpasswd, --plain-listen is open exactly while that file is there: within a second of its coming its users
are accepted and the address is open, within a second of its going new connections are refused, requests under way
have 10 minutes to end, and its users are not accepted any more. A file that cannot be used opens nothing, and leaves
the users before in force. An address that is taken is tried again. Without --pull-htpasswd it is always open.

At --expose-listen clients outside of the cluster are served: with TLS and without a client certificate. The users of
--htpasswd may read and write, those of --pull-htpasswd and --expose-htpasswd read. Its certificate is that of --listen
without --expose-tls-dir.

The repository zarf-registry/probe-proxy is served at --listen only, zarf-registry/probe-nodeport at --plain-listen
only, but a certificate of zarf-registry:push leads to both: so a pull from one of them proves its way.`,
		Example: `  # as the chart does
  registry serve

  # S3, with the keys in the environment
  REGISTRY_STORAGE_S3_ACCESSKEY=… REGISTRY_STORAGE_S3_SECRETKEY=… registry serve --config=s3.yml

  # without TLS, on loopback, to try something out
  htpasswd -Bbn me secret > users
  registry serve --config=config.yml --listen= --plain-listen=127.0.0.1:5000 --htpasswd=users`,
		Args: noArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			log, err := newLogger(logs, command.ErrOrStderr())
			if err != nil {
				return err
			}
			options.Log = log
			if options.Config, err = registry.LoadConfig(config); err != nil {
				return setupError{err}
			}
			server, err := registry.Open(options)
			if err != nil {
				return setupError{err}
			}
			log.Info("starting", "version", version.Version, "config", config, "storage", options.Config.Storage.Type())
			return server.Serve(command.Context())
		},
	}
	flags := command.Flags()
	flags.StringVar(&config, "config", defaultConfig, "`FILE` of the configuration")
	flags.StringVar(&options.Listen, "listen", ":5000", "`ADDRESS` for clients with a certificate; empty for none")
	flags.StringVar(&options.TLSDir, "tls-dir", "/etc/zarf-registry/tls", "`DIRECTORY` of tls.crt, tls.key and ca.crt")
	flags.StringVar(&options.PlainListen, "plain-listen", "", "`ADDRESS` for clients without TLS, open while the file of --pull-htpasswd is there; empty for none")
	flags.BoolVar(&options.AnonymousPull, "anonymous-pull", false, "let anyone read at --plain-listen, while that is open")
	flags.StringVar(&options.Htpasswd, "htpasswd", "/etc/zarf-registry/credentials/htpasswd", "`FILE` of the users who may pull and push, bcrypt only")
	flags.StringVar(&options.UploadSecret, "upload-secret", "", "`FILE` of what signs the state of uploads, the same for all replicas; empty derives it from --htpasswd")
	flags.StringVar(&options.PullHtpasswd, "pull-htpasswd", "", "`FILE` of the users who may only pull, which opens --plain-listen while it is there; empty for none")
	flags.StringVar(&options.ExposeListen, "expose-listen", "", "`ADDRESS` for clients outside of the cluster, with TLS; empty for none")
	flags.StringVar(&options.ExposeTLSDir, "expose-tls-dir", "", "`DIRECTORY` of tls.crt and tls.key for --expose-listen; empty for the certificate of --listen")
	flags.StringVar(&options.ExposeHtpasswd, "expose-htpasswd", "", "`FILE` of more users who may only pull, at --expose-listen; empty for none")
	flags.BoolVar(&options.ExposeAnonymousPull, "expose-anonymous-pull", false, "let anyone read at --expose-listen")
	flags.StringVar(&options.HealthListen, "health-listen", ":5080", "`ADDRESS` of /healthz and /readyz; empty for none")
	flags.StringVar(&options.MetricsListen, "metrics-listen", ":5090", "`ADDRESS` of /metrics and /loaded; empty for none")
	flags.DurationVar(&options.ShutdownDelay, "shutdown-delay", 0, "how long to go on, not ready, when told to end")
	flags.DurationVar(&options.DrainTimeout, "drain-timeout", defaultDrain, "how long requests may then take to end")
	logs.Register(command.Flags())
	return command
}
