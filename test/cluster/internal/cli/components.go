package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/test/cluster/internal/cluster"
)

func newKubeconfig(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "kubeconfig",
		Short:   "Print the path of a kubeconfig for use on this machine",
		Example: "  export KUBECONFIG=$(testcluster kubeconfig)",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.open()
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), c.Kubeconfig())
			return nil
		},
	}
}

// newActions returns the commands that do something to a node or to a component.
func newActions(a *app) []*cobra.Command {
	return []*cobra.Command{
		a.onNode("reboot", "Switch a node off and on again: its disk stays", (*cluster.Cluster).RebootNode),
		a.onNode("off", "Switch a node off", (*cluster.Cluster).SwitchOff),
		a.onNode("on", "Switch a node on again: its disk has stayed", (*cluster.Cluster).SwitchOn),
		a.onNode("unplug", "Cut a node off from all others and from the control plane", (*cluster.Cluster).Unplug),
		a.onNode("plug", "Reconnect a node that was cut off", (*cluster.Cluster).Plug),
		a.onComponent("kill", "Kill a component as a crash would; restart brings it back", (*cluster.Cluster).Kill),
		a.onComponent("pause", "Freeze a component: connections stay open without a response", (*cluster.Cluster).Pause),
		a.onComponent("resume", "Resume a paused component", (*cluster.Cluster).Resume),
		a.onComponent("restart", "Kill a component if it is running, and start it again", (*cluster.Cluster).Restart),
	}
}

type action func(c *cluster.Cluster, ctx context.Context, name string) error

func (a *app) onNode(verb, short string, do action) *cobra.Command {
	return a.on("NODE", verb, short, "  testcluster "+verb+" n2", do)
}

func (a *app) onComponent(verb, short string, do action) *cobra.Command {
	return a.on("COMPONENT", verb, short, fmt.Sprintf(`  testcluster %[1]s kube-apiserver
  testcluster %[1]s containerd.n1`, verb), do)
}

// on returns a command that acts on the node or component that its argument names.
func (a *app) on(argument, verb, short, example string, do action) *cobra.Command {
	return &cobra.Command{
		Use:     verb + " " + argument,
		Short:   short,
		Example: example,
		Args:    cobra.ExactArgs(1),
		PreRunE: needRoot,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.open()
			if err != nil {
				return err
			}
			return do(c, cmd.Context(), args[0])
		},
	}
}
