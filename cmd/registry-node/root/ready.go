package root

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/zarf-dev/zarf-registry/internal/node/ready"
)

func readyCommand() *cobra.Command {
	var file string
	command := &cobra.Command{
		Use:   "ready --file FILE",
		Short: "Check that this pod's own proxy listens",
		Long: `Check that this pod's own proxy listens: that a running process which was started with --ready-file=FILE has
opened its ports. On the node's network, a request to a port cannot tell, because the previous proxy answers there too.

Exit codes: 0 it listens, 1 it does not, and stderr says why.`,
		Example: `  registry-node ready --file=/program/ready`,
		Args:    noArgs,
		RunE:    func(*cobra.Command, []string) error { return ready.Check(file) },
	}
	command.Flags().StringVar(&file, "file", "", "`FILE` that the proxy got as --ready-file")
	require(command, "file")
	return command
}

func registerReadyFile(flags *pflag.FlagSet, file *string) {
	flags.StringVar(file, "ready-file", "",
		"`FILE` that \"registry-node ready\" looks at, in a directory that only this pod has; none if empty")
}
