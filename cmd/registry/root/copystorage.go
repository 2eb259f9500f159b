package root

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/logging"
	"github.com/zarf-dev/zarf-registry/internal/registry"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// progressInterval is how often a long copy reports.
const progressInterval = 10 * time.Second

func copyStorageCommand() *cobra.Command {
	var config, from string
	var logs logging.Options
	command := &cobra.Command{
		Use:   "copy-storage",
		Short: "Copy all images from a volume into the configured storage",
		Long: `Copy all images from a volume into the configured storage, which must be empty: tags, untagged images,
referrers, everything but unfinished uploads. No registry may use either of them meanwhile.

If it is interrupted, run it again: it copies only what is missing. Once it has succeeded, it does nothing any more,
because the storage may have changed since. The chart runs it with registry.storage.s3.copyFromVolume=true.`,
		Example: `  registry copy-storage --config=s3.yml --from=/var/lib/registry`,
		Args:    noArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if from == "" {
				return usageError{errors.New("--from is required: the directory to copy")}
			}
			log, err := newLogger(logs, command.ErrOrStderr())
			if err != nil {
				return err
			}
			parsed, err := registry.LoadConfig(config)
			if err != nil {
				return &exitcode.Refusal{Err: err}
			}
			last := time.Now()
			copied, err := storage.Copy(command.Context(), from, parsed, func(c storage.Copied) {
				if time.Since(last) >= progressInterval {
					log.Info("copying storage", "blobs", c.Blobs, "bytes", c.Bytes)
					last = time.Now()
				}
			})
			if err != nil {
				return fmt.Errorf("copying %s: %w", from, err)
			}
			if copied.Already {
				_, err = fmt.Fprintln(command.OutOrStdout(), "nothing to do: an earlier run has copied everything")
				return err
			}
			_, err = fmt.Fprintf(command.OutOrStdout(), "copied %d blobs, %d bytes, and %d links\n", copied.Blobs, copied.Bytes,
				copied.Links)
			return err
		},
	}
	flags := command.Flags()
	flags.StringVar(&config, "config", defaultConfig, "configuration `FILE` with the storage to copy into")
	flags.StringVar(&from, "from", "", "`DIRECTORY` to copy")
	logs.Register(command.Flags())
	return command
}
