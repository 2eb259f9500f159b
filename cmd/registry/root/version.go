package root

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/internal/version"
)

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(command.OutOrStdout(), "registry %s %s %s/%s\n", version.Version, runtime.Version(),
				runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}
