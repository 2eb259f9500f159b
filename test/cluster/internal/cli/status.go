package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/test/cluster/internal/cluster"
)

func newStatus(a *app) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the components and nodes of a cluster",
		Long:  "Show the components and nodes of a cluster. The exit code is 1 unless all of them run.",
		Example: `  testcluster status
  testcluster status --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return fmt.Errorf("invalid --output %q: want text or json", output)
			}
			c, err := a.open()
			if err != nil {
				return err
			}
			status, err := c.Status(cmd.Context())
			if err != nil {
				return err
			}
			if output == "json" {
				encoder := json.NewEncoder(cmd.OutOrStdout())
				encoder.SetIndent("", "  ")
				err = encoder.Encode(status)
			} else {
				err = printStatus(cmd, status)
			}
			if err == nil && !status.Healthy() {
				err = errors.New("not all components and nodes are running")
			}
			return err
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}

func printStatus(cmd *cobra.Command, s cluster.Status) error {
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "NODE\tREADY\tADDRESSES\tPODS\tPAUSE IMAGE\n")
	for _, n := range s.Nodes {
		fmt.Fprintf(w, "%s\t%t\t%s\t%s\t%s\n", n.Name, n.Ready, strings.Join(n.Addresses, ","), strings.Join(n.Pods, ","),
			n.PauseImage)
	}
	fmt.Fprintf(w, "\nCOMPONENT\tSTATE\tPID\n")
	for _, component := range s.Components {
		fmt.Fprintf(w, "%s\t%s\t%d\n", component.ID, component.State, component.PID)
	}
	fmt.Fprintf(w, "\nserver\t%s\nkubeconfig\t%s\nlogs\t%s\n", s.Server, s.Kubeconfig, s.Logs)
	if s.APIError != "" {
		fmt.Fprintf(w, "API server\t%s\n", s.APIError)
	}
	return w.Flush()
}
