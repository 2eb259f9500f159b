// Package root is the command tree of the registry program. It parses flags,
// sets up logs and turns errors into exit codes; what the commands do is in
// internal/registry.
package root

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/logging"
	"github.com/zarf-dev/zarf-registry/internal/registry"
)

// usageError is an error of flags or arguments.
type usageError struct{ error }

// setupError is an error of what the flags name.
type setupError struct{ error }

func (e setupError) Unwrap() error { return e.error }

// Run runs the command of args and returns its exit code. Results go to stdout,
// logs and errors to stderr. When ctx ends, a running server drains.
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
		fmt.Fprintf(stderr, "registry: the configuration %s cannot be used:\n", config.Path)
		for _, problem := range config.Problems {
			fmt.Fprintf(stderr, "  * %s\n", problem)
		}
		return exitcode.Refused
	case errors.As(err, new(usageError)):
		fmt.Fprintf(stderr, "registry: %v\nSee %q.\n", err, found.CommandPath()+" --help")
		return exitcode.Refused
	}
	fmt.Fprintf(stderr, "registry: %v\n", err)
	if errors.As(err, new(setupError)) {
		return exitcode.Refused
	}
	return exitcode.Failed
}

// New makes the command tree.
func New() *cobra.Command {
	command := &cobra.Command{
		Use:   "registry",
		Short: "The OCI registry of a Kubernetes cluster",
		Long: `The OCI registry of a Kubernetes cluster: mutual TLS, storage on a volume or in S3.

Exit codes: 0 done, 1 failed, 3 flags, configuration or a file that they name cannot be used and nothing was done.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noArgs,
		RunE: func(*cobra.Command, []string) error {
			return usageError{errors.New("give a command: serve, garbage-collect or version")}
		},
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	command.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	command.AddCommand(serveCommand(), garbageCollectCommand(), versionCommand())
	return command
}

func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("unexpected argument %q", args[0])}
	}
	return nil
}

// newLogger makes the logger that the flags ask for, and routes distribution's
// logs to it.
func newLogger(o logging.Options, w io.Writer) (*slog.Logger, error) {
	log, err := o.New(w)
	if err != nil {
		return nil, usageError{err}
	}
	registry.RouteLogs(log)
	return log, nil
}
