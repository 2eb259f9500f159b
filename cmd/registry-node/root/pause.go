package root

import "github.com/spf13/cobra"

func pauseCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "pause",
		Short: "Do nothing until SIGTERM",
		Long: `Do nothing until SIGTERM, and end with exit code 0. It stands in for the pause image, in pods that have done their work and on
nodes that have no such image.`,
		Example: `  registry-node pause`,
		Args:    noArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			releaseMemory() // it stays for as long as the node
			<-command.Context().Done()
			return nil
		},
	}
}
