// Package cli implements init-hook's command tree: the commands of the chart's hook
// Jobs and those for a workstation. It parses flags, connects the packages that do
// the work, and turns errors into messages and exit codes. It contains no logic
// about the registry.
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
	"github.com/zarf-dev/zarf-registry/internal/install"
	"github.com/zarf-dev/zarf-registry/internal/version"
)

// Run executes the command line and returns the process's exit code: 0 on success,
// otherwise one of the codes of package exitcode.
func Run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := New(stdout, stderr)
	root.SetArgs(args)
	return execute(ctx, root, stderr)
}

func execute(ctx context.Context, root *cobra.Command, stderr io.Writer) int {
	if err := root.ExecuteContext(ctx); err != nil {
		if _, printed := errors.AsType[*silent](err); printed {
			return exitcode.Failed
		}
		fmt.Fprintf(stderr, "Error: %v\n", err)
		if advice := cluster.Advice(err); advice != "" {
			fmt.Fprintf(stderr, "%s\n", advice)
		}
		_, blocked := errors.AsType[*install.Blocked](err)
		if blocked || exitcode.IsRefusal(err) {
			return exitcode.Refused
		}
		return exitcode.Failed
	}
	return 0
}

// New returns the command tree. Results go to stdout, logs and progress to stderr.
func New(stdout, stderr io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:   "init-hook",
		Short: "Set up, verify and fill an image registry inside a Kubernetes cluster",
		Long: `init-hook is the companion of the zarf-registry chart. From a workstation, run install,
preflight, status, images, certs, credentials, garbage-collect, heal and support-bundle. The
chart's hook Jobs run prepare, finish and cleanup, its CronJobs run certs renew,
garbage-collect and images prune, and helm test runs check.`,
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
		(&hookFlags{}).prepare(),
		(&hookFlags{}).finish(),
		(&hookFlags{}).cleanup(),
		newImages(),
		newCerts(),
		newCredentials(),
		newCheck(),
		newGarbageCollect(),
		newHeal(),
		newSupportBundle(),
		newVersion(),
	)
	return root
}

func newImages() *cobra.Command {
	cmd := group("images", "Pull, push, copy, list and delete images",
		newImagesPull(), newImagesPush(), newImagesCopy(), newImagesList(), newImagesMissing(), newImagesDelete(),
		newImagesPrune(), newImagesInventory(), newImagesVerify(), newImagesExport(), newImagesBrowse(), newImagesWarm(),
		newImagesCache())
	// A retry would fail on the same command line.
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &exitcode.Refusal{Err: err} })
	return cmd
}

func newCerts() *cobra.Command {
	return group("certs", "Manage the certificates of registry, proxies and push clients",
		(&certsShowFlags{}).command(), (&hookFlags{}).certsCA(), (&hookFlags{}).certsRenew(), (&hookFlags{}).certsRotate())
}

func newCredentials() *cobra.Command {
	return group("credentials", "Manage the credentials of the registry",
		(&hookFlags{}).credentialsList(), (&hookFlags{}).credentialsRotate())
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
