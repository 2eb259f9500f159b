// Package cli is init-hook's command tree: the chart's hook Jobs and the
// workstation's commands in one program. It parses, connects the packages that do
// the work, and turns errors into one line that says what to do next. It decides
// nothing.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/internal/cluster"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/hook"
	"github.com/zarf-dev/zarf-registry/internal/install"
	"github.com/zarf-dev/zarf-registry/internal/version"
)

// Run executes the command line and returns the process's exit code: 0 when it
// did what was asked, else one of those of package exitcode.
func Run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := New(stdout, stderr)
	root.SetArgs(args)
	return execute(ctx, root, stderr)
}

func execute(ctx context.Context, root *cobra.Command, stderr io.Writer) int {
	if err := root.ExecuteContext(ctx); err != nil {
		if _, said := errors.AsType[*silent](err); said {
			return exitcode.Failed
		}
		fmt.Fprintf(stderr, "Error: %v\n", err)
		if advice := cluster.Advice(err); advice != "" {
			fmt.Fprintf(stderr, "%s\n", advice)
		}
		_, refused := errors.AsType[*hook.Refused](err)
		_, blocked := errors.AsType[*install.Blocked](err)
		if refused || blocked {
			return exitcode.Refused
		}
		return exitcode.Failed
	}
	return 0
}

// silent is an error whose output has said everything.
type silent struct{ err error }

func (e *silent) Error() string { return e.err.Error() }

// New returns the command tree. Results go to stdout, logs and progress to stderr.
func New(stdout, stderr io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:   "init-hook",
		Short: "Set up, prove and fill the registry of a Kubernetes cluster that has none",
		Long: `init-hook is the companion of the zarf-registry chart. People run install, status,
preflight, images, certs, credentials and garbage-collect from a workstation; the chart's
hook Jobs run prepare, finish and cleanup, its CronJobs certs renew and garbage-collect,
and helm test runs check.`,
		Version:       version.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.AddCommand(
		newInstall(),
		newPreflight(),
		newStatus(),
		newPrepare(),
		newFinish(),
		newCleanup(),
		newImages(),
		newCerts(),
		newCredentials(),
		newCheck(),
		newGarbageCollect(),
		newVersion(),
	)
	return root
}

// group is a command that only leads to others, and refuses a name that none has.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(commands...)
	return cmd
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), version.Version)
			return err
		},
	}
}
