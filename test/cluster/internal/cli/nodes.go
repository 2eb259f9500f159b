package cli

import (
	"errors"
	"fmt"

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

// splitExec splits the arguments of exec.
func splitExec(args []string) (node string, command []string, err error) {
	if len(args) < 3 || args[1] != "--" {
		return "", nil, errors.New("usage: testcluster exec NODE -- COMMAND [ARG...]")
	}
	return args[0], args[2:], nil
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
		Use:   "add-node NAME",
		Short: "Add a node and wait until it is ready",
		Example: `  testcluster add-node n3
  testcluster add-node edge --pause-image example.com/pause:1 \
    --register-with-taints dedicated=edge:NoSchedule`,
		Args:    cobra.ExactArgs(1),
		PreRunE: needRoot,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.open()
			if err != nil {
				return err
			}
			node.Name = args[0]
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
			if err := c.AddNode(cmd.Context(), node, programs); err != nil {
				return err
			}
			a.log("node %s is ready", node.Name)
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&node.PauseImage, "pause-image", "", "pause image of the node (default the cluster's)")
	flags.StringVar(&node.Runtime, "runtime", "", "container runtime of the node (default the cluster's)")
	flags.StringSliceVar(&node.Taints, "register-with-taints", nil, "taints, as key=value:Effect")
	return cmd
}

func newInstallKubernetes(a *app) *cobra.Command {
	var version string
	cmd := &cobra.Command{
		Use:   "install-kubernetes NODE",
		Short: "Install kubeadm, kubelet, kubectl and images of another version on a node that kubeadm made",
		Long: `Install programs and images as packages and an administrator would, before
"kubeadm upgrade". What runs keeps running.`,
		Example: "  testcluster install-kubernetes n1 --kubernetes 1.37",
		Args:    cobra.ExactArgs(1),
		PreRunE: needRoot,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.open()
			if err != nil {
				return err
			}
			cache, err := build.OpenCache(a.log)
			if err != nil {
				return err
			}
			programs := make(map[string]string)
			for _, recipe := range []func(minor string) (build.Recipe, error){build.Kubernetes, build.Kubeadm} {
				r, err := recipe(version)
				if err != nil {
					return fmt.Errorf("--kubernetes: %w", err)
				}
				if err := cache.Ensure(cmd.Context(), r); err != nil {
					return err
				}
				addPrograms(programs, "", cache, r)
			}
			return c.InstallKubernetes(cmd.Context(), args[0], version, programs)
		},
	}
	cmd.Flags().StringVar(&version, "kubernetes", build.DefaultKubernetes, "version of Kubernetes")
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
