// Package cli implements the command line of testcluster: one file for each command. It parses
// flags, calls package cluster, and turns errors into messages and an exit code.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/test/cluster/internal/cluster"
)

// defaultName is the name of the cluster unless --name is given.
const defaultName = "zarf-registry"

// Main runs testcluster and returns its exit code.
func Main(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := newRoot()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintf(os.Stderr, "testcluster: %v\n", err)
	if guilty, ok := errors.AsType[*cluster.ComponentError](err); ok {
		fmt.Fprintf(os.Stderr, "\nthe last lines of %s:\n%s\n", guilty.LogPath, indent(guilty.LogTail(20)))
	}
	return 1
}

// app is shared by all commands: the cluster's name, and the destination of progress messages.
type app struct {
	name  string
	start time.Time
}

func newRoot() *cobra.Command {
	a := &app{start: time.Now()}
	root := &cobra.Command{
		Use:   "testcluster",
		Short: "A Kubernetes cluster of several nodes on one Linux machine, without Docker",
		Long: `testcluster boots a real Kubernetes cluster on one Linux machine: each node has its
own network and mount namespace, its own containerd, kubelet and kube-proxy. Nothing
of it can reach outside, and nothing needs to be pulled: programs are built from
source once, into a cache.`,
		Example: `  testcluster up --nodes 2
  export KUBECONFIG=$(testcluster kubeconfig)
  testcluster load dist/images/probe.tar --nodes n1
  testcluster exec n1 -- ctr images ls
  testcluster down`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.PersistentFlags().StringVar(&a.name, "name", defaultName, "name of the cluster")
	root.AddCommand(
		newBuild(a), newUp(a), newDown(a), newStatus(a), newExec(a), newLoad(a),
		newAddNode(a), newRemoveNode(a), newInstallKubernetes(a), newKubeconfig(a), newTool(a), newInternal(),
	)
	root.AddCommand(newActions(a)...)
	return root
}

// log writes a progress message with the time since the program started.
func (a *app) log(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%6.1fs  %s\n", time.Since(a.start).Seconds(), fmt.Sprintf(format, args...))
}

// open opens the cluster of the command.
func (a *app) open() (*cluster.Cluster, error) { return cluster.Open(a.name, a.log) }

// needRoot fails before anything is changed.
func needRoot(*cobra.Command, []string) error {
	if os.Geteuid() != 0 {
		return errors.New("namespaces and mounts need root: run it with sudo")
	}
	return nil
}

func indent(text string) string {
	return "  " + strings.ReplaceAll(text, "\n", "\n  ")
}
