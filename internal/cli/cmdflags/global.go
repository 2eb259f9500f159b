package cmdflags

import (
	"io"
	"log/slog"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/zarf-dev/zarf-registry/internal/cli/render"
	"github.com/zarf-dev/zarf-registry/internal/cluster"
	"github.com/zarf-dev/zarf-registry/internal/logging"
	"github.com/zarf-dev/zarf-registry/internal/release"
)

// Global are the flags of all commands: cluster, release and log.
type Global struct {
	Access    cluster.Access
	Namespace string // of the release and its objects
	Release   string
	Log       logging.Options

	accessFlags *pflag.FlagSet
}

// Attach adds the flags to a command and to those below it. Those of the cluster are kubectl's, from client-go:
// cli-runtime's ConfigFlags would connect to localhost:8080 if no cluster is configured.
func (f *Global) Attach(cmd *cobra.Command) {
	f.accessFlags = pflag.NewFlagSet("", pflag.ContinueOnError)
	f.accessFlags.StringVar(&f.Access.Kubeconfig, "kubeconfig", "",
		"Path to the kubeconfig file (default: KUBECONFIG, ~/.kube/config, then the pod's service account)")
	kubectl := clientcmd.RecommendedConfigOverrideFlags("")
	kubectl.ClusterOverrideFlags.APIServer.ShortName = "s"
	kubectl.ContextOverrideFlags.Namespace.LongName = "" // ours has a default
	// API servers have no passwords any more, and --username is that of a registry.
	kubectl.AuthOverrideFlags.Username.LongName, kubectl.AuthOverrideFlags.Password.LongName = "", ""
	clientcmd.BindOverrideFlags(&f.Access.Overrides, f.accessFlags, kubectl)

	flags := cmd.PersistentFlags()
	flags.AddFlagSet(f.accessFlags)
	flags.StringVarP(&f.Namespace, "namespace", "n", defaultNamespace(),
		"Namespace of the release and its objects; $ZARF_REGISTRY_NAMESPACE sets the default")
	flags.StringVar(&f.Release, "release", defaultRelease(),
		"Name of the release; $ZARF_REGISTRY_RELEASE sets the default")
	f.Log.Register(flags)
	flags.Lookup("log-level").Usage = "Minimum log `LEVEL`: debug, info, warn or error"
	flags.Lookup("log-format").Usage = "Log `FORMAT`: json, text, or auto (readable lines)"
	f.completeFlags(cmd)
	Complete(cmd, "log-level", "debug", "info", "warn", "error")
	Complete(cmd, "log-format", "json", "text", "auto")
}

// ValidateLog rejects an unknown format of the log.
func (f *Global) ValidateLog() error {
	_, err := f.Log.New(io.Discard)
	return err
}

// SelectsCluster reports whether a flag says which cluster is meant, or how to connect to it.
func (f *Global) SelectsCluster() (selects bool) {
	f.accessFlags.VisitAll(func(flag *pflag.Flag) { selects = selects || flag.Changed })
	return selects
}

// Progress returns the logger for validated flags: readable lines, unless a format is given.
func (f *Global) Progress(w io.Writer) *slog.Logger {
	log, _ := f.Observe(w)
	return log
}

// Observe returns the logger, and what writes the progress of a run in the same form.
func (f *Global) Observe(w io.Writer) (*slog.Logger, release.Progress) {
	if f.Log.Format != "auto" {
		if log, err := f.Log.New(w); err == nil {
			return log, release.Logged{Log: log}
		}
	}
	lines := render.NewProgress(w, f.Log.Level)
	return slog.New(lines), lines
}
