package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/test/cluster/internal/build"
	"github.com/zarf-dev/zarf-registry/test/cluster/internal/cluster"
)

func newExec(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "exec NODE -- COMMAND [ARG...]",
		Short: "Run a command on a node, or next to the control plane (cp)",
		Long: `Run a command in the namespaces of a node. ctr and crictl find the node's containerd,
kubectl the API server. "cp" stands for the control plane's network namespace.`,
		Example: `  testcluster exec n1 -- ctr images ls
  testcluster exec n1 -- curl -s http://127.0.0.1:31999/v2/
  testcluster exec cp -- ip route`,
		PreRunE: needRoot,
		RunE: func(_ *cobra.Command, args []string) error {
			node, command, err := splitExec(args)
			if err != nil {
				return err
			}
			c, err := a.open()
			if err != nil {
				return err
			}
			return c.Exec(node, command)
		},
	}
	cmd.Flags().SetInterspersed(false) // flags after the node belong to the command
	return cmd
}

// splitExec splits the arguments of exec. The dashes are optional.
func splitExec(args []string) (node string, command []string, err error) {
	if len(args) > 1 && args[1] == "--" {
		args = slices.Delete(slices.Clone(args), 1, 2)
	}
	if len(args) < 2 {
		return "", nil, errors.New("usage: testcluster exec NODE -- COMMAND [ARG...]")
	}
	return args[0], args[1:], nil
}

func newLoad(a *app) *cobra.Command {
	var nodes []string
	var wait bool
	cmd := &cobra.Command{
		Use:   "load ARCHIVE...",
		Short: "Load image archives into the container runtime of nodes",
		Example: `  testcluster load dist/images/init-hook.tar --nodes n1
  testcluster load one.tar two.tar`,
		Args:    cobra.MinimumNArgs(1),
		PreRunE: needRoot,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.open()
			if err != nil {
				return err
			}
			if len(nodes) == 0 {
				for _, n := range c.Nodes {
					nodes = append(nodes, n.Name)
				}
			}
			return c.Load(cmd.Context(), args, nodes, wait)
		},
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until the nodes report the images, which takes up to 35 s")
	cmd.Flags().StringSliceVar(&nodes, "nodes", nil, "nodes to load into (default all)")
	return cmd
}

func newAddNode(a *app) *cobra.Command {
	var node cluster.Node
	cmd := &cobra.Command{
		Use:   "add-node [NAME]",
		Short: "Add a node and wait until it is ready",
		Example: `  testcluster add-node
  testcluster add-node edge --pause-image example.com/pause:1 \
    --node-labels zone=edge --register-with-taints dedicated=edge:NoSchedule`,
		Args:    cobra.MaximumNArgs(1),
		PreRunE: needRoot,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.open()
			if err != nil {
				return err
			}
			if len(args) > 0 {
				node.Name = args[0]
			}
			programs := make(map[string]string)
			if node.Runtime != "" {
				recipe, err := build.Runtime(node.Runtime)
				if err != nil {
					return fmt.Errorf("--runtime: %w", err)
				}
				cache, err := build.OpenCache(a.log)
				if err != nil {
					return err
				}
				if err := cache.Ensure(cmd.Context(), recipe); err != nil {
					return err
				}
				addPrograms(programs, recipe.Name+"/", cache, recipe)
			}
			name, err := c.AddNode(cmd.Context(), node, programs)
			if err != nil {
				return err
			}
			a.log("node %s is ready", name)
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&node.PauseImage, "pause-image", "", "pause image of the node (default the cluster's)")
	flags.StringVar(&node.Runtime, "runtime", "", "container runtime of the node (default the cluster's)")
	flags.StringSliceVar(&node.Taints, "register-with-taints", nil, "taints, as key=value:Effect")
	flags.StringSliceVar(&node.Labels, "node-labels", nil, "labels, as key=value")
	return cmd
}

func newRemoveNode(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "remove-node NAME",
		Short:   "Switch a node off and remove it",
		Example: "  testcluster remove-node n3",
		Args:    cobra.ExactArgs(1),
		PreRunE: needRoot,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.open()
			if err != nil {
				return err
			}
			if err := c.RemoveNode(cmd.Context(), args[0]); err != nil {
				return err
			}
			a.log("node %s is gone", args[0])
			return nil
		},
	}
}

func newReboot(a *app) *cobra.Command {
	return a.onNode("reboot", "Switch a node off and on again: its disk stays",
		func(ctx context.Context, c *cluster.Cluster, node string) error { return c.RebootNode(ctx, node) })
}

func newUnplug(a *app) *cobra.Command {
	return a.onNode("unplug", "Cut a node off from all others and from the control plane",
		func(ctx context.Context, c *cluster.Cluster, node string) error { return c.Unplug(ctx, node) })
}

func newPlug(a *app) *cobra.Command {
	return a.onNode("plug", "Reconnect a node that was cut off",
		func(ctx context.Context, c *cluster.Cluster, node string) error { return c.Plug(ctx, node) })
}

func (a *app) onNode(verb, short string, do func(context.Context, *cluster.Cluster, string) error) *cobra.Command {
	return a.on("NODE", verb, short, "  testcluster "+verb+" n2", do)
}

// on returns a command that acts on the node or component that its argument names.
func (a *app) on(argument, verb, short, example string, do func(context.Context, *cluster.Cluster,
	string) error) *cobra.Command {
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
			return do(cmd.Context(), c, args[0])
		},
	}
}
