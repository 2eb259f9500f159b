package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

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

func newLogs(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "logs [COMPONENT]",
		Short: "List the logs of a cluster, or print one",
		Example: `  testcluster logs
  testcluster logs kubelet.n1`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.open()
			if err != nil {
				return err
			}
			if len(args) == 1 {
				if strings.Contains(args[0], "/") {
					return fmt.Errorf("invalid component %q: testcluster logs lists the names", args[0])
				}
				if err := copyFile(cmd.OutOrStdout(), filepath.Join(c.LogDir(), args[0]+".log")); err != nil {
					return fmt.Errorf("opening the log of %s: %w; testcluster logs lists all logs", args[0], err)
				}
				return nil
			}
			entries, err := os.ReadDir(c.LogDir())
			if err != nil {
				return fmt.Errorf("listing logs: %w", err)
			}
			for _, e := range entries {
				fmt.Fprintln(cmd.OutOrStdout(), strings.TrimSuffix(e.Name(), ".log"))
			}
			return nil
		},
	}
}

func newKill(a *app) *cobra.Command {
	return a.onComponent("kill", "Kill a component as a crash would; restart brings it back",
		func(ctx context.Context, c *cluster.Cluster, id string) error { return c.Kill(ctx, id) })
}

func newPause(a *app) *cobra.Command {
	return a.onComponent("pause", "Freeze a component: connections stay open without a response",
		func(_ context.Context, c *cluster.Cluster, id string) error { return c.Pause(id) })
}

func newResume(a *app) *cobra.Command {
	return a.onComponent("resume", "Resume a paused component",
		func(_ context.Context, c *cluster.Cluster, id string) error { return c.Resume(id) })
}

func newRestart(a *app) *cobra.Command {
	return a.onComponent("restart", "Kill a component if it is running, and start it again",
		func(ctx context.Context, c *cluster.Cluster, id string) error { return c.Restart(ctx, id) })
}

func (a *app) onComponent(verb, short string, do func(context.Context, *cluster.Cluster, string) error) *cobra.Command {
	return a.on("COMPONENT", verb, short, fmt.Sprintf(`  testcluster %[1]s kube-apiserver
  testcluster %[1]s containerd.n1`, verb), do)
}
