// Package root is the command tree of the registry-node program. It parses flags, configures
// logging and maps errors to exit codes; the packages proxy, cache, ready, probe, nodeconfig and heal of internal/node
// implement the commands.
//
// The program is delivered to every node in ConfigMaps, so it must stay small: no client-go, Helm,
// ORAS, distribution or Prometheus client. A test enforces that.
package root

import (
	"context"
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
)

// Run runs the command in args and returns its exit code. Results go to stdout, logs and errors to
// stderr. When ctx ends, a running proxy drains.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	command := New()
	command.SetArgs(args)
	command.SetOut(stdout)
	command.SetErr(stderr)
	found, err := command.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "registry-node: %v\n", err)
	if exitcode.IsRefusal(err) {
		fmt.Fprintf(stderr, "See %q.\n", found.CommandPath()+" --help")
		return exitcode.Refused
	}
	return exitcode.Failed
}

// New creates the command tree.
func New() *cobra.Command {
	command := &cobra.Command{
		Use:   "registry-node",
		Short: "Serve the cluster's registry on a node",
		Long: `The part of zarf-registry that runs next to a container runtime: a proxy that serves the cluster's registry
on loopback, and commands that configure the runtime and check that pulls work.

Exit codes: 0 done, 1 failed, 3 invalid flags or files, nothing was done.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noArgs,
		RunE: func(*cobra.Command, []string) error {
			return exitcode.Refuse("missing command: want proxy, cache, ready, probe, configure, heal, pause or version")
		},
		PersistentPreRunE: func(command *cobra.Command, _ []string) error {
			if err := command.ValidateRequiredFlags(); err != nil {
				return &exitcode.Refusal{Err: err}
			}
			return nil
		},
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	command.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &exitcode.Refusal{Err: err} })
	command.AddCommand(proxyCommand(), cacheCommand(), readyCommand(), probeCommand(), configureCommand(), healCommand(),
		pauseCommand(), versionCommand())
	return command
}

func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return exitcode.Refuse("unexpected argument %q", args[0])
	}
	return nil
}

func require(command *cobra.Command, flags ...string) {
	for _, name := range flags {
		if err := command.MarkFlagRequired(name); err != nil {
			panic(err)
		}
	}
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the Go version and the platform",
		Args:  noArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(command.OutOrStdout(), "registry-node %s %s/%s\n", runtime.Version(), runtime.GOOS,
				runtime.GOARCH)
			return err
		},
	}
}
