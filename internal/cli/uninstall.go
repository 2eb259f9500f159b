package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"helm.sh/helm/v3/pkg/release"

	"github.com/zarf-dev/zarf-registry/internal/cli/cmdflags"
	"github.com/zarf-dev/zarf-registry/internal/cli/hook"
	"github.com/zarf-dev/zarf-registry/internal/install"
	"github.com/zarf-dev/zarf-registry/internal/release/settings"
)

type uninstallFlags struct {
	*hook.Flags
	dryRun bool
	ask    cmdflags.Confirmation
}

func newUninstall(global *cmdflags.Global) *cobra.Command {
	f := &uninstallFlags{Flags: hook.NewFlags(global)}
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove the registry; the volume with its images stays",
		Long: `uninstall does the work of the chart's cleanup Job from this machine, and then removes the
release, as helm uninstall does: nodes get back their original files, and no certificates,
credentials or programs stay. Unlike helm uninstall, it needs no image on any node.

The volume claim stays, unless the values have registry.persistence.retain=false. If the
release is gone already, uninstall removes what is left of it. To continue an interrupted
run, run the same command again. On a terminal, it asks before it begins; --dry-run lists what
would be deleted.

Exit codes: 0 on success, 1 on failure or timeout, 3 if a retry would fail in the same way.`,
		Example: `  zarf-registry uninstall
  zarf-registry uninstall --dry-run
  zarf-registry uninstall --namespace registry --yes`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.Target(cmd.Flags())
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "only list what would be deleted")
	f.ask.Register(cmd)
	return cmd
}

func (f *uninstallFlags) run(cmd *cobra.Command) error {
	ctx, c, stop, err := f.Connect(cmd)
	if err != nil {
		return err
	}
	defer stop()
	log, progress := f.Observe(cmd.ErrOrStderr())
	helm, err := install.Connect(c.Config, f.Settings.Namespace, log)
	if err != nil {
		return err
	}
	rel, err := install.Installed(helm, f.Settings.Release)
	if err != nil {
		return err
	}
	if f.dryRun {
		return f.plan(cmd.OutOrStdout(), rel)
	}
	err = f.ask.Ask(cmd, "Uninstall it?", func(w io.Writer) error { return f.plan(w, rel) })
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
			h, err := hook.New(ctx, of, c, log, progress)
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

// plan lists what an uninstall deletes. The release is nil if it does not exist.
func (f *uninstallFlags) plan(w io.Writer, rel *release.Release) error {
	if rel == nil {
		_, err := fmt.Fprintf(w, "Release %s in namespace %s does not exist; what is left of it would be deleted.\n",
			f.Settings.Release, f.Settings.Namespace)
		return err
	}
	objects, err := install.Objects(rel)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "Release %s in namespace %s, revision %d of chart %s, has these objects:\n", rel.Name, rel.Namespace,
		rel.Version, rel.Chart.Metadata.Version)
	for _, o := range objects {
		does := "delete"
		if o.Kept {
			does = "keep"
		}
		fmt.Fprintf(w, "  %-7s %s\n", does, o)
	}
	_, err = fmt.Fprintln(w, "Its certificates, credentials and programs would be deleted too, and nodes would get back "+
		"their original files.")
	return err
}
