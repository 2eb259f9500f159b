package root

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/internal/logging"
	"github.com/zarf-dev/zarf-registry/internal/proxy"
	"github.com/zarf-dev/zarf-registry/internal/tlsfiles"
	"github.com/zarf-dev/zarf-registry/internal/version"
)

func proxyCommand() *cobra.Command {
	var (
		log    logging.Options
		config proxy.Config
		tlsDir string
		tls    string
	)
	command := &cobra.Command{
		Use:   "proxy --listen ADDRESS --registry HOST:PORT --tls-dir DIR",
		Short: "Serve the cluster's registry on this node, for pulling",
		Long: `Serve the cluster's registry on this node, for pulling: an HTTP/1.1 reverse proxy that reaches the registry with mutual TLS.

GET and HEAD only; credentials of clients are not passed on, the certificate in --tls-dir authorises. While the registry is
away requests wait and are tried again, for --retry-timeout; a body that breaks off is continued. The certificates are read
again when they change. SIGTERM ends the proxy after the requests under way, or after --drain-timeout.

The registry is reached at its Service's ClusterIP, from the environment: <NAME>_SERVICE_HOST, where NAME is the first label
of --registry. Where there is no such variable, and where that address does not work, the name is looked up. Whatever the
address, the registry's certificate must be for the name in --registry.`,
		Example: `  registry-node proxy --listen=127.0.0.1:31999 --registry=zarf-registry.zarf.svc:5000 \
    --tls-dir=/etc/zarf-registry/tls --metrics-listen=:9102
  registry-node proxy --listen=127.0.0.1:31999 --listen=[::1]:31999 --tls=always \
    --registry=zarf-registry.zarf.svc:5000 --tls-dir=/etc/zarf-registry/tls`,
		Args: noArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			logger, err := log.New(command.ErrOrStderr())
			if err != nil {
				return refusal{err}
			}
			config.Logger = logger
			config.Idle = releaseMemory
			switch tls {
			case "always", "never":
				config.ServeTLS = tls == "always"
			default:
				return refusal{fmt.Errorf("--tls is %q, want always or never", tls)}
			}
			if config.Source, err = tlsfiles.Open(tlsDir, tlsfiles.WithLogger(logger)); err != nil {
				return refusal{err}
			}
			p, err := proxy.New(config)
			if err != nil {
				return refusal{err}
			}
			if err := p.Listen(command.Context()); err != nil {
				return err
			}
			logger.Info("starting", "version", version.Version)
			watch, cancel := context.WithCancel(context.WithoutCancel(command.Context()))
			defer cancel()
			go config.Source.Run(watch) // until the last request is answered
			return p.Run(command.Context())
		},
	}
	flags := command.Flags()
	flags.StringArrayVar(&config.Listen, "listen", nil, "`ADDRESS` to serve on, an IP address and a port, or :port for all addresses; may be repeated")
	flags.StringVar(&config.MetricsListen, "metrics-listen", "", "`ADDRESS` of /healthz, /readyz, /metrics and /loaded; none if empty")
	flags.StringVar(&config.Registry, "registry", "", "`HOST:PORT` of the registry's Service")
	flags.StringVar(&tlsDir, "tls-dir", "", "`DIR` with tls.crt, tls.key and ca.crt")
	flags.StringVar(&tls, "tls", "never", "`WHEN` to answer TLS too, beside plain HTTP on the same port: always or never; with never a client that tries TLS is told so at once")
	flags.DurationVar(&config.RetryTimeout, "retry-timeout", proxy.DefaultRetryTimeout, "how long a request waits for a registry that is away")
	flags.DurationVar(&config.DrainTimeout, "drain-timeout", proxy.DefaultDrainTimeout, "how long requests under way may take after SIGTERM")
	flags.BoolVar(&config.ReusePort, "reuse-port", false, "share the port with a successor (SO_REUSEPORT), for updates without a gap")
	log.Register(command.Flags())
	for _, name := range []string{"listen", "registry", "tls-dir"} {
		if err := command.MarkFlagRequired(name); err != nil {
			panic(err)
		}
	}
	return command
}

// releaseMemory gives back what pulls have used. Go would keep most of it for minutes: 15 MB resident instead of 10, on
// every node of the cluster, for a proxy that idles nearly all of the time. A smaller GOGC or a memory limit save less
// and cost CPU time under load. The first collection empties the pools of buffers, the second frees what was in them.
func releaseMemory() {
	runtime.GC()
	debug.FreeOSMemory()
}
