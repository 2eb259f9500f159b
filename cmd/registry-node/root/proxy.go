package root

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/logging"
	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles"
	"github.com/zarf-dev/zarf-registry/internal/node/proxy"
	"github.com/zarf-dev/zarf-registry/internal/node/ready"
)

func proxyCommand() *cobra.Command {
	var (
		log    logging.Options
		config proxy.Config
		tlsDir string
		tls    string
		fd     int
		file   string
	)
	command := &cobra.Command{
		Use:   "proxy --listen ADDRESS --registry HOST:PORT --tls-dir DIR",
		Short: "Serve the cluster's registry on this node for pulls",
		Long: `Serve the cluster's registry on this node for pulls: an HTTP/1.1 reverse proxy that connects to the registry
with mutual TLS.

It serves GET and HEAD only. Credentials of clients are not forwarded: the certificate in --tls-dir authorizes pulls.
While the registry is unavailable, requests wait and are retried for --retry-timeout, and interrupted bodies are
resumed. Changed certificates are reloaded. On SIGTERM the proxy waits for requests in flight, at most for
--drain-timeout.

The proxy connects to the ClusterIP of the registry's Service, from the environment variable <NAME>_SERVICE_HOST, where
NAME is the first label of the host in --registry. It resolves the host only if the variable is missing or the address
does not work. The registry's certificate must always match the host in --registry.

With --cache, blobs and manifests come from a cache pod, and from the registry if no cache works.`,
		Example: `  registry-node proxy --listen=127.0.0.1:31999 --registry=zarf-registry.zarf.svc:5000 \
    --tls-dir=/etc/zarf-registry/tls --metrics-listen=:9102
  registry-node proxy --listen=127.0.0.1:31999 --listen=[::1]:31999 --tls=always \
    --registry=zarf-registry.zarf.svc:5000 --tls-dir=/etc/zarf-registry/tls`,
		Args: noArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			logger, err := log.New(command.ErrOrStderr())
			if err != nil {
				return &exitcode.Refusal{Err: err}
			}
			debug.SetMemoryLimit(memoryLimit)
			config.Logger = logger
			config.Idle = releaseMemory
			config.Program, config.Version = program(command, config.Version)
			if err := tellWhenReady(&config, fd, file); err != nil {
				return err
			}
			switch tls {
			case "always", "never":
				config.ServeTLS = tls == "always"
			default:
				return exitcode.Refuse("invalid --tls %q: want always or never", tls)
			}
			if config.Source, err = tlsfiles.Open(tlsDir, tlsfiles.WithLogger(logger)); err != nil {
				return &exitcode.Refusal{Err: err}
			}
			p, err := proxy.New(config)
			if err != nil {
				return &exitcode.Refusal{Err: err}
			}
			return serve(command.Context(), p, config.Source, logger, config.Version)
		},
	}
	flags := command.Flags()
	registerVersion(flags, &config.Version)
	flags.StringArrayVar(&config.Listen, "listen", nil,
		"`ADDRESS` to serve on: IP address and port, or :port for all addresses; may be repeated")
	flags.StringVar(&config.MetricsListen, "metrics-listen", "",
		"`ADDRESS` of /healthz, /readyz, /metrics and /loaded; disabled if empty")
	flags.StringVar(&config.Registry, "registry", "", "`HOST:PORT` of the registry's Service")
	flags.StringVar(&config.Cache, "cache", "",
		"`HOST:PORT` of the Service of caches, from which pulls come first; none if empty")
	flags.StringVar(&tlsDir, "tls-dir", "", "`DIR` with tls.crt, tls.key and ca.crt")
	flags.StringVar(&tls, "tls", "never",
		"`WHEN` to serve TLS next to plain HTTP on the same port: always or never; never refuses TLS clients at once")
	flags.DurationVar(&config.RetryTimeout, "retry-timeout", proxy.DefaultRetryTimeout,
		"how long a request waits for an unavailable registry")
	flags.DurationVar(&config.DrainTimeout, "drain-timeout", proxy.DefaultDrainTimeout,
		"how long requests in flight may take after SIGTERM")
	flags.BoolVar(&config.ReusePort, "reuse-port", false,
		"share the port with a successor (SO_REUSEPORT), for updates without downtime")
	registerReady(flags, &fd)
	registerReadyFile(flags, &file)
	log.Register(command.Flags())
	require(command, "listen", "registry", "tls-dir")
	return command
}

// memoryLimit is when Go collects garbage more often than when memory in use has doubled, in bytes. Pulls
// need less. With as many clients as may connect, the rest of a pod's 128 MiB is for the kernel's buffers.
const memoryLimit = 48 << 20

// server is a proxy or a cache.
type server interface {
	Listen(ctx context.Context) error
	Run(ctx context.Context) error
}

// serve runs a server until ctx ends and it has drained. It reloads certificates until the last request has been
// answered.
func serve(ctx context.Context, s server, source *tlsfiles.Source, log *slog.Logger, version string) error {
	if err := s.Listen(ctx); err != nil {
		return err
	}
	log.Info("starting", "version", version)
	watch, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	go source.Run(watch)
	return s.Run(ctx)
}

func registerVersion(flags *pflag.FlagSet, version *string) {
	flags.StringVar(version, "program-version", "dev",
		"`VERSION` to report in the log and in the metric build_info; if the loader started the program, its digest")
}

func registerReady(flags *pflag.FlagSet, fd *int) {
	flags.IntVar(fd, "ready-fd", 0,
		"`FD` to write a byte to when the previous program may end, as the loader expects from a successor; 0 disables it")
}

// program returns the SHA-256 of the program, if the loader started it, and the version to report.
func program(command *cobra.Command, version string) (sum, reported string) {
	sum = os.Getenv(programVariable)
	if sum != "" && !command.Flags().Changed("program-version") {
		version = fmt.Sprintf("%.12s", sum)
	}
	return sum, version
}

// programVariable is where the loader writes the program's SHA-256.
const programVariable = "ZARF_REGISTRY_PROGRAM"

// tellWhenReady makes a proxy tell the loader, and "registry-node ready", when it serves.
func tellWhenReady(config *proxy.Config, fd int, path string) error {
	tell := func() {}
	if path != "" {
		file, err := ready.Open(path)
		if err != nil {
			return err
		}
		note := func(err error) {
			if err != nil {
				config.Logger.Warn("cannot tell whether the proxy listens", "file", path, "error", err.Error())
			}
		}
		config.Waiting = func(reason string) { note(file.Waiting(reason)) }
		tell = func() { note(file.Listening()) }
	}
	config.Ready = func() {
		tell()
		if fd != 0 {
			tellReady(config.Logger, fd)
		}
	}
	return nil
}

// tellReady makes the loader end the previous program.
func tellReady(logger *slog.Logger, fd int) {
	f := os.NewFile(uintptr(fd), "ready-fd")
	if f == nil {
		logger.Warn("cannot report readiness: --ready-fd is no file descriptor", "fd", fd)
		return
	}
	if _, err := f.Write([]byte{'\n'}); err != nil {
		logger.Warn("cannot report readiness", "error", err.Error())
	}
	_ = f.Close()
}

// releaseMemory returns the memory used by pulls to the system. Go would keep most of it for
// minutes: 15 MB resident instead of 10, on every node of the cluster, for a proxy that is idle
// nearly all of the time. A smaller GOGC or a memory limit saves less and costs CPU time under
// load. The first collection empties the buffer pools, the second frees their buffers.
func releaseMemory() {
	runtime.GC()
	debug.FreeOSMemory()
}
