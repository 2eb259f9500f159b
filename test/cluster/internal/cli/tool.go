package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/test/cluster/internal/build"
)

func newTool(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "tool NAME",
		Short: "Print the path of a pinned tool, building it first if needed",
		Long: `Print the path of a tool in the version that this repository is tested with, building
it into the cache first if needed. Available tools: ` + strings.Join(build.ToolNames(), ", ") + `.`,
		Example: `  $(testcluster tool golangci-lint) run
  $(testcluster tool kubectl) get nodes`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			recipe, err := build.Tool(args[0])
			if err != nil {
				return err
			}
			cache, err := build.OpenCache(a.log)
			if err != nil {
				return err
			}
			if err := cache.Ensure(cmd.Context(), recipe); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), cache.Program(recipe, args[0]))
			return nil
		},
	}
}
