package root

import (
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/internal/api/space"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/logging"
	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles"
	"github.com/zarf-dev/zarf-registry/internal/node/cache"
)

func cacheCommand() *cobra.Command {
	var (
		log    logging.Options
		config cache.Config
		tlsDir string
		size   string
		ready  int
	)
	command := &cobra.Command{
		Use:   "cache --listen ADDRESS --registry HOST:PORT --tls-dir DIR --dir DIR --size SIZE",
		Short: "Cache the cluster's registry for the proxies of many nodes",
		Long: `Cache the cluster's registry for the proxies of many nodes: an HTTPS server for clients whose certificates have
the role of a node, which fetches blobs and manifests once from the registry and stores them in --dir.

What a tag names is asked of the registry each time, and whether it still serves stored content every 10 s. While the
registry is unreachable, clients get a 503, or with --stale-for, what the registry served last.

The directory belongs to the cache, which deletes other files in it. Content of a previous run is used again. Changed
certificates are reloaded. On SIGTERM the cache waits for requests in flight, at most for --drain-timeout.`,
		Example: `  registry-node cache --listen=:5000 --registry=zarf-registry.zarf.svc:5000 \
    --tls-dir=/etc/zarf-registry/tls --dir=/var/cache/zarf-registry --size=10Gi --metrics-listen=:9102`,
		Args: noArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			logger, err := log.New(command.ErrOrStderr())
			if err != nil {
				return &exitcode.Refusal{Err: err}
			}
			debug.SetMemoryLimit(cacheMemoryLimit)
			config.Logger = logger
			config.Program, config.Version = program(command, config.Version)
			if config.Size, err = space.ParseQuantity(size); err != nil {
				return &exitcode.Refusal{Err: err}
			}
			if config.Source, err = tlsfiles.Open(tlsDir, tlsfiles.WithLogger(logger)); err != nil {
				return &exitcode.Refusal{Err: err}
			}
			c, err := cache.New(config)
			if err != nil {
				return &exitcode.Refusal{Err: err}
			}
			if ready != 0 {
				tellReady(logger, ready) // the previous cache must end before this one listens
			}
			return serve(command.Context(), c, config.Source, logger, config.Version)
		},
	}
	flags := command.Flags()
	registerVersion(flags, &config.Version)
	flags.StringVar(&config.Listen, "listen", "", "`ADDRESS` to serve on: host and port, or :port for all addresses")
	flags.StringVar(&config.MetricsListen, "metrics-listen", "",
		"`ADDRESS` of /healthz, /readyz, /metrics and /loaded; disabled if empty")
	flags.StringVar(&config.Registry, "registry", "", "`HOST:PORT` of the registry's Service")
	flags.StringVar(&tlsDir, "tls-dir", "", "`DIR` with tls.crt, tls.key and ca.crt")
	flags.StringVar(&config.Dir, "dir", "", "`DIR` of the stored content")
	flags.StringVar(&size, "size", "", "`SIZE` of the stored content at most, such as 10Gi")
	flags.DurationVar(&config.StaleFor, "stale-for", 0,
		"how long tags and content are served that an unreachable registry cannot confirm; 0 disables it")
	flags.DurationVar(&config.DrainTimeout, "drain-timeout", cache.DefaultDrainTimeout,
		"how long requests in flight may take after SIGTERM")
	registerReady(flags, &ready)
	log.Register(flags)
	require(command, "listen", "registry", "tls-dir", "dir", "size")
	return command
}

// cacheMemoryLimit is when Go collects garbage more often than when memory in use has doubled, in bytes. As many
// clients as may connect need 120 MiB, and the kernel's buffers the rest of a pod's 512 MiB.
const cacheMemoryLimit = 192 << 20
