package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/internal/install"
	"github.com/zarf-dev/zarf-registry/internal/release/settings"
)

func newUninstall(global *globalFlags) *cobra.Command {
	f := newHookFlags(global)
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
		RunE: func(cmd *cobra.Command, _ []string) error { return f.uninstall(cmd) },
	}
	f.target(cmd.Flags())
	return cmd
}

func (f *hookFlags) uninstall(cmd *cobra.Command) error {
	ctx, c, stop, err := f.connect(cmd)
	if err != nil {
		return err
	}
	defer stop()
	log := f.progress(cmd.ErrOrStderr())
	helm, err := install.Connect(c.config, f.settings.Namespace, log)
	if err != nil {
		return err
	}
	found, err := install.Uninstall(ctx, helm, f.settings.Release, f.timeout,
		func(ctx context.Context, args []string) error {
			of, err := f.settings, error(nil)
			if args != nil {
				of, err = settings.OfJob(args)
			}
			if err != nil {
				return err
			}
			h, err := newHook(ctx, of, c, log)
			if err != nil {
				return err
			}
			h.Timeout = f.timeout
			return h.Cleanup(ctx)
		})
	if err != nil {
		return err
	}
	did := "is uninstalled"
	if !found {
		did = "does not exist; what was left of it is removed"
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "Release %s in namespace %s %s.\n", f.settings.Release, f.settings.Namespace,
		did)
	return err
}
