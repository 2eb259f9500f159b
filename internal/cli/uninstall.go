package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/internal/cli/cmdflags"
	"github.com/zarf-dev/zarf-registry/internal/cli/hook"
	"github.com/zarf-dev/zarf-registry/internal/install"
	"github.com/zarf-dev/zarf-registry/internal/release/settings"
)

func newUninstall(global *cmdflags.Global) *cobra.Command {
	f := hook.NewFlags(global)
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove the registry; the volume with its images stays",
		Long: `uninstall does the work of the chart's cleanup Job from this machine, and then removes the
release, as helm uninstall does: nodes get back their original files, and no certificates,
credentials or programs stay. Unlike helm uninstall, it needs no image on any node.

The volume claim stays, unless the values have registry.persistence.retain=false. If the
release is gone already, uninstall removes what is left of it. To continue an interrupted
run, run the same command again.

Exit codes: 0 on success, 1 on failure or timeout, 3 if a retry would fail in the same way.`,
		Example: `  zarf-registry uninstall
  zarf-registry uninstall --namespace registry`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return uninstall(cmd, f) },
	}
	f.Target(cmd.Flags())
	return cmd
}

func uninstall(cmd *cobra.Command, f *hook.Flags) error {
	ctx, c, stop, err := f.Connect(cmd)
	if err != nil {
		return err
	}
	defer stop()
	log := f.Progress(cmd.ErrOrStderr())
	helm, err := install.Connect(c.Config, f.Settings.Namespace, log)
	if err != nil {
		return err
	}
	found, err := install.Uninstall(ctx, helm, f.Settings.Release, f.Timeout,
		func(ctx context.Context, args []string) error {
			of, err := f.Settings, error(nil)
			if args != nil {
				of, err = settings.OfJob(args)
			}
			if err != nil {
				return err
			}
			h, err := hook.New(ctx, of, c, log)
			if err != nil {
				return err
			}
			h.Timeout = f.Timeout
			return h.Cleanup(ctx)
		})
	if err != nil {
		return err
	}
	did := "is uninstalled"
	if !found {
		did = "does not exist; what was left of it is removed"
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "Release %s in namespace %s %s.\n", f.Settings.Release, f.Settings.Namespace,
		did)
	return err
}
