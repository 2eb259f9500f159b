package root

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/internal/gc"
	"github.com/zarf-dev/zarf-registry/internal/logging"
	"github.com/zarf-dev/zarf-registry/internal/registry"
)

func garbageCollectCommand() *cobra.Command {
	var config string
	var logs logging.Options
	var request gc.Request
	command := &cobra.Command{
		Use:   "garbage-collect",
		Short: "Remove blobs that no image needs",
		Long: `Remove blobs that no image needs: deleting an image removes its name only.

This is for a registry that does not run, or whose storage can be reached from elsewhere; one in a cluster is asked
with init-hook garbage-collect. A registry that runs meanwhile on the same storage keeps serving pulls. It finds in the
storage that garbage is being collected, and takes no manifests until that is done: pushes wait. Who is killed here
holds them up for one more minute.

What was pushed within --grace-period stays.`,
		Example: `  # what would go?
  registry garbage-collect --dry-run

  # images that were overwritten by another of the same tag as well
  registry garbage-collect --delete-untagged`,
		Args: noArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := request.Validate(); err != nil {
				return usageError{err}
			}
			if _, err := newLogger(logs, command.ErrOrStderr()); err != nil {
				return err
			}
			parsed, err := registry.LoadConfig(config)
			if err != nil {
				return setupError{err}
			}
			result, err := registry.GarbageCollect(command.Context(), parsed, request, func(e gc.Event) {
				if e.Removed != nil {
					fmt.Fprintln(command.OutOrStdout(), e.Removed)
				}
			})
			if err != nil {
				return err
			}
			verb := "freed"
			if request.DryRun {
				verb = "would free"
			}
			_, err = fmt.Fprintf(command.OutOrStdout(), "%s %d bytes: %d blobs, %d manifests\n", verb, result.Bytes, result.Blobs, result.Manifests)
			return err
		},
	}
	flags := command.Flags()
	flags.StringVar(&config, "config", defaultConfig, "`FILE` of the configuration")
	flags.BoolVar(&request.DryRun, "dry-run", false, "remove nothing, report what would be removed")
	flags.BoolVar(&request.DeleteUntagged, "delete-untagged", false, "also remove manifests that neither a tag nor an image index leads to")
	flags.DurationVar(&request.Grace, "grace-period", gc.DefaultGrace, "how long what was pushed stays in any case")
	flags.DurationVar(&request.Timeout, "timeout", gc.DefaultTimeout, "how long it may take in all")
	logs.Register(command.Flags())
	return command
}
