// Package root is the command tree of the registry program. It parses flags, sets up logging and maps
// errors to exit codes. The commands are implemented in internal/registry and the packages below it.
package root

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/registry"
)

// Run runs the command in args and returns its exit code. It writes results to stdout, and logs and errors
// to stderr. When ctx ends, a running server drains.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	command := New()
	command.SetArgs(args)
	command.SetOut(stdout)
	command.SetErr(stderr)
	command.SetContext(ctx)
	found, err := command.ExecuteC()
	if err == nil {
		return 0
	}
	var config *registry.ConfigError
	switch {
	case errors.As(err, &config):
		fmt.Fprintf(stderr, "registry: invalid configuration %s:\n", config.Path)
		for _, problem := range config.Problems {
			fmt.Fprintf(stderr, "  * %s\n", problem)
		}
		return exitcode.Refused
	case errors.As(err, new(usageError)):
		fmt.Fprintf(stderr, "registry: %v\nSee %q.\n", err, found.CommandPath()+" --help")
		return exitcode.Refused
	}
	fmt.Fprintf(stderr, "registry: %v\n", err)
	if exitcode.IsRefusal(err) {
		return exitcode.Refused
	}
	return exitcode.Failed
}

// New returns the command tree.
func New() *cobra.Command {
	command := &cobra.Command{
		Use:   "registry",
		Short: "The OCI registry of a Kubernetes cluster",
		Long: `The OCI registry of a Kubernetes cluster: mutual TLS, storage on a volume or in S3.

Exit codes: 0 success, 1 failure, 3 invalid flags, configuration or files (nothing was done).`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noArgs,
		RunE: func(*cobra.Command, []string) error {
			return usageError{errors.New("missing command: want serve, garbage-collect or version")}
		},
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	command.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	command.AddCommand(serveCommand(), garbageCollectCommand(), versionCommand())
	return command
}
