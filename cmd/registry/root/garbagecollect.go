package root

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/internal/logging"
	"github.com/zarf-dev/zarf-registry/internal/registry"
)

func garbageCollectCommand() *cobra.Command {
	var config string
	var logs logging.Options
	var options registry.CollectOptions
	command := &cobra.Command{
		Use:   "garbage-collect",
		Short: "Remove blobs that no image needs",
		Long: `Remove blobs that no image needs: deleting an image removes its name only.

It is safe while nobody pushes; pulls may go on. A layer that is pushed meanwhile and whose manifest is not there yet
counts as garbage, and the push then fails or leaves an image without it. So stop the registry, or set
storage.maintenance.readonly.enabled and restart it, or know that nothing pushes.`,
		Example: `  # what would go?
  registry garbage-collect --dry-run

  # images that were overwritten by another of the same tag as well
  registry garbage-collect --delete-untagged`,
		Args: noArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if _, err := newLogger(logs, command.ErrOrStderr()); err != nil {
				return err
			}
			parsed, err := registry.LoadConfig(config)
			if err != nil {
				return setupError{err}
			}
			options.Report = command.OutOrStdout()
			collected, err := registry.GarbageCollect(command.Context(), parsed, options)
			if err != nil {
				return err
			}
			verb := "freed"
			if options.DryRun {
				verb = "would free"
			}
			_, err = fmt.Fprintf(command.OutOrStdout(), "%s %d bytes: %d blobs, %d manifests\n", verb, collected.Bytes, collected.Blobs, collected.Manifests)
			return err
		},
	}
	flags := command.Flags()
	flags.StringVar(&config, "config", defaultConfig, "`FILE` of the configuration")
	flags.BoolVar(&options.DryRun, "dry-run", false, "remove nothing, report what would be removed")
	flags.BoolVar(&options.DeleteUntagged, "delete-untagged", false, "also remove manifests that neither a tag nor an image index leads to")
	logs.Register(command.Flags())
	return command
}
