package root

import "github.com/spf13/cobra"

func pauseCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "pause",
		Short: "Do nothing until SIGTERM",
		Long: `Do nothing until SIGTERM, then exit with code 0. It replaces the pause image in pods that have done their work,
on nodes that lack that image.`,
		Example: `  registry-node pause`,
		Args:    noArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			releaseMemory() // the process lives as long as the node
			<-command.Context().Done()
			return nil
		},
	}
}
