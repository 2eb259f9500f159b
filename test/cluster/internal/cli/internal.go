package cli

import (
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/test/cluster/internal/cluster"
)

// newInternal returns the commands that run as processes of a cluster.
func newInternal() *cobra.Command {
	parent := &cobra.Command{Use: "internal", Hidden: true,
		Short: "Internal commands of a running cluster"}
	parent.AddCommand(internalEnter(), internalHold(), internalMounts(), internalForward(), internalProvision())
	return parent
}

func internalEnter() *cobra.Command {
	var entry cluster.Entry
	cmd := &cobra.Command{
		Use:  "enter -- COMMAND [ARG...]",
		Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return cluster.Enter(entry, args, os.Environ()) },
	}
	cmd.Flags().StringVar(&entry.Cgroup, "cgroup", "", "cgroup to join")
	cmd.Flags().StringVar(&entry.Netns, "netns", "", "network namespace to enter")
	cmd.Flags().StringVar(&entry.Mount, "mount", "",
		"/proc directory of the process whose mount and UTS namespaces to enter")
	return cmd
}

func internalHold() *cobra.Command {
	return &cobra.Command{
		Use:  "hold",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			<-cmd.Context().Done()
			return nil
		},
	}
}

func internalMounts() *cobra.Command {
	var dir, node string
	cmd := &cobra.Command{
		Use:  "mounts",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return cluster.MountNode(dir, node) },
	}
	cmd.Flags().StringVar(&dir, "cluster", "", "directory of the cluster")
	cmd.Flags().StringVar(&node, "node", "", "name of the node")
	return cmd
}

func internalForward() *cobra.Command {
	var listen, netns, to string
	cmd := &cobra.Command{
		Use:  "forward",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cluster.Forward(cmd.Context(), listen, netns, to)
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "", "address to listen on")
	cmd.Flags().StringVar(&netns, "netns", "", "network namespace to dial from")
	cmd.Flags().StringVar(&to, "to", "", "address to dial")
	return cmd
}

func internalProvision() *cobra.Command {
	var kubeconfig, volumes string
	cmd := &cobra.Command{
		Use:  "provision",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cluster.Provision(cmd.Context(), kubeconfig, volumes, slog.New(slog.NewTextHandler(os.Stderr, nil)))
		},
	}
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig for the API server")
	cmd.Flags().StringVar(&volumes, "volumes", "", "directory for volumes")
	return cmd
}
