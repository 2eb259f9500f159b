package root

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/internal/node/nodeconfig"
)

func configureCommand() *cobra.Command {
	var (
		options nodeconfig.Options
		report  string
	)
	command := &cobra.Command{
		Use:   "configure --config-dir DIR --host-root DIR",
		Short: "Write the registry configuration of this node's container runtime",
		Long: `Write the registry configuration of this node's container runtime: registries.yaml of K3s and RKE2, hosts.toml
of containerd, and the files of CRI-O and podman below /etc/containers. The command is idempotent.

The directory in --config-dir contains config.json and, where needed, registries.yaml and ca.crt. The node's directories
that config.json lists are mounted below the directory in --host-root, each at its own path.

Everything is checked before the first write: an invalid configuration, a file of somebody else without force, a
symbolic link, a read-only or full file system. If a check fails, nothing is changed and the exit code is 3. Files are
replaced atomically, and a previous file is kept as NAME.before-zarf-registry. Previous files are restored once ours are
no longer configured, or all of them with --restore.

The output lists the changes to each file, with secrets masked. --report gets a summary as JSON, also after a failure.`,
		Example: `  registry-node configure --config-dir=/etc/zarf-registry/node-config --host-root=/host
  registry-node configure --config-dir=/etc/zarf-registry/node-config --host-root=/host --restore
  registry-node configure --config-dir=./config --host-root=/ --report=report.json   # on a node itself, as root`,
		Args: noArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			options.Log = command.OutOrStdout()
			result, err := nodeconfig.Run(command.Context(), options)
			if report != "" {
				if failed := nodeconfig.WriteReport(report, result); failed != nil && err == nil {
					err = failed
				} else if failed != nil {
					fmt.Fprintf(command.ErrOrStderr(), "registry-node: %v\n", failed)
				}
			}
			return err
		},
	}
	flags := command.Flags()
	flags.StringVar(&options.ConfigDir, "config-dir", "", "`DIR` with config.json, registries.yaml and ca.crt")
	flags.StringVar(&options.HostRoot, "host-root", "", "`DIR` that the node's directories are mounted below")
	flags.StringVar(&options.Sum, "config-sum", "",
		"wait until the file sum in --config-dir contains `SUM`; if empty, use whatever is mounted")
	flags.BoolVar(&options.Restore, "restore", false, "remove every file of the release and restore the previous files")
	flags.StringVar(&report, "report", "/dev/termination-log", "`FILE` for the report; none if empty")
	require(command, "config-dir", "host-root")
	return command
}
