package root

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/internal/nodeconfig"
)

func configureCommand() *cobra.Command {
	var (
		options nodeconfig.Options
		report  string
	)
	command := &cobra.Command{
		Use:   "configure --config-dir DIR --host-root DIR",
		Short: "Write what this node's container runtime reads about registries",
		Long: `Write what this node's container runtime reads about registries: K3s' and RKE2's registries.yaml, containerd's hosts.toml, and
what CRI-O and podman read below /etc/containers. It ends when that is done; run again it changes nothing.

DIR of --config-dir holds config.json, and where they are needed registries.yaml and ca.crt. The node's directories that
config.json names are mounted below the one of --host-root, each at its own path.

Everything is checked before the first write: a configuration that cannot work, a file of somebody else without force, a
symbolic link, a file system that is read-only or full. Then nothing is changed, and the exit code is 3. Every file is
replaced as a whole, and what was there before is kept beside it as NAME.before-zarf-registry. What is not wanted any more
is put back, with --restore everything.

The output says what is done to each file, secrets masked. --report gets the same in short, as JSON, also after a failure.`,
		Example: `  registry-node configure --config-dir=/etc/zarf-registry/node-config --host-root=/host
  registry-node configure --config-dir=/etc/zarf-registry/node-config --host-root=/host --restore
  registry-node configure --config-dir=./config --host-root=/ --report=report.json   # on a node itself, as root`,
		Args: noArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			options.Log, options.Now = command.OutOrStdout(), time.Now()
			result, err := nodeconfig.Run(command.Context(), options)
			if errors.As(err, new(nodeconfig.Refusal)) {
				err = refusal{err}
			}
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
	flags.StringVar(&options.Sum, "config-sum", "", "`SUM` of config.json and registries.yaml as the chart wrote them, which are waited for; empty takes what there is")
	flags.BoolVar(&options.Restore, "restore", false, "want nothing: take away every file of the release, and put back what was there before")
	flags.StringVar(&report, "report", "/dev/termination-log", "`FILE` for the report; none if empty")
	for _, name := range []string{"config-dir", "host-root"} {
		if err := command.MarkFlagRequired(name); err != nil {
			panic(err)
		}
	}
	return command
}
