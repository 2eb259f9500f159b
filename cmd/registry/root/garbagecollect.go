package root

import (
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/internal/api/gc"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/logging"
	"github.com/zarf-dev/zarf-registry/internal/registry"
	"github.com/zarf-dev/zarf-registry/internal/registry/collect"
	"github.com/zarf-dev/zarf-registry/internal/registry/request"
)

func garbageCollectCommand() *cobra.Command {
	var config string
	var logs logging.Options
	var request gc.Request
	command := &cobra.Command{
		Use:   "garbage-collect",
		Short: "Remove blobs that no image needs",
		Long: `Remove blobs that no image needs. Deleting an image removes only its manifest from a repository.

Use this command if the registry is stopped, or if its storage is accessible from elsewhere. For a registry in a
cluster, use zarf-registry images garbage-collect. A running registry with the same storage keeps serving pulls and
pushes; pushes of what is about to be removed wait until the collection has finished. If this command is killed, they
wait for another minute.

Everything pushed within --grace-period is kept.`,
		Example: `  # show what would be removed
  registry garbage-collect --dry-run

  # also remove images whose tag was moved to another image
  registry garbage-collect --delete-untagged`,
		Args: noArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := request.Validate(); err != nil {
				return usageError{err}
			}
			log, err := newLogger(logs, command.ErrOrStderr())
			if err != nil {
				return err
			}
			parsed, err := registry.LoadConfig(config)
			if err != nil {
				return &exitcode.Refusal{Err: err}
			}
			result, err := collect.Offline(command.Context(), parsed, request,
				reportRemoved(command, log, request.DryRun))
			if err != nil {
				return err
			}
			verb := "freed"
			if request.DryRun {
				verb = "would free"
			}
			_, err = fmt.Fprintf(command.OutOrStdout(), "%s %d bytes: %d blobs, %d manifests\n",
				verb, result.Bytes, result.Blobs, result.Manifests)
			return err
		},
	}
	flags := command.Flags()
	flags.StringVar(&config, "config", defaultConfig, "configuration `FILE`")
	flags.BoolVar(&request.DryRun, "dry-run", false, "print what would be removed, without removing it")
	flags.BoolVar(&request.DeleteUntagged, "delete-untagged", false,
		"also remove manifests that neither a tag nor an image index refers to")
	flags.DurationVar(&request.Grace, "grace-period", gc.DefaultGrace, "minimum age before collection")
	flags.DurationVar(&request.Timeout, "timeout", gc.DefaultTimeout, "maximum duration of the collection")
	logs.Register(command.Flags())
	return command
}

// reportRemoved returns a function that prints what is removed, and logs it unless it is a dry run.
func reportRemoved(command *cobra.Command, log *slog.Logger, dryRun bool) func(gc.Event) {
	return func(e gc.Event) {
		if e.Problem != "" {
			log.Warn("stored content is damaged", "problem", e.Problem)
		}
		if e.Removed == nil {
			return
		}
		fmt.Fprintln(command.OutOrStdout(), e.Removed)
		if !dryRun {
			request.Audit(command.Context(), log, request.ActionPrune, e.Removed.Repository, e.Removed.Digest, e.Removed.Digest,
				slog.String("program", command.CommandPath()))
		}
	}
}
