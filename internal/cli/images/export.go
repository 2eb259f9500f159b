package images

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
	"github.com/zarf-dev/zarf-registry/internal/cli/cmdflags"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/images"
)

func newExport(global *cmdflags.Global) *cobra.Command {
	f := &pullFlags{imageFlags: newImageFlags(global)}
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write everything that the cluster's registry contains into an archive or layout",
		Long: `export writes all tags, untagged images, signatures and other referrers of the cluster's
registry into an OCI archive (--out ends in .tar) or an OCI layout directory: as a backup, or
to move to another registry. The registry's own repositories, zarf-registry/, are left out.

zarf-registry images push restores it, into this or another registry, under the same names.

Damaged and incomplete images are named with the reason; everything else is exported, unless
--fail-fast is given. An index without some of its manifests is exported as it is.

What is pushed while export runs may be missing. An archive needs the disk space of its content;
the local store keeps what fits into it. To continue an interrupted export, run it again.

Exit codes: 0 if everything is exported, 1 if something is missing, 3 if the command line is invalid.`,
		Example: `  zarf-registry images export --out backup.tar
  zarf-registry images push backup.tar                    # restores it`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.export(cmd) },
	}
	f.outFlags(cmd.Flags())
	f.transferFlags(cmd.Flags())
	f.storeFlags(cmd)
	f.cluster.Register(cmd.Flags())
	cmdflags.AddOutput(cmd, &f.output)
	return cmd
}

func (f *pullFlags) export(cmd *cobra.Command) error {
	if err := errors.Join(f.validate(cmd.Flags()), f.checkOut()); err != nil {
		return exitcode.Usage(err)
	}
	return f.transfer(cmd, "", nil, func(ctx context.Context, r *imageRun) ([]images.Result, error) {
		c, content, err := f.cluster.ConnectToCatalog(ctx)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		cmdflags.WarnAbout(r.log, content)
		registry, err := f.cluster.OpenRegistry(c, r.retryOptions())
		if err != nil {
			return nil, err
		}
		refs, unreadable := exported(content, c.Address)
		switch {
		case unreadable != nil && f.failFast:
			return nil, unreadable
		case len(refs) == 0 && unreadable == nil:
			return nil, errors.New("the registry has no images")
		}
		r.platform, r.sparse = "all", true
		r.registries.Use(c.Address, registry) // and closes it
		results, err := f.pull(ctx, r, refs)
		return results, errors.Join(unreadable, err)
	})
}

// exported returns the references of everything but the registry's own repositories: by each tag, or by the digest.
// unreadable are errors about manifests that are left out.
func exported(content *catalog.Catalog, address string) (refs []string, unreadable error) {
	for _, m := range content.Roots() {
		if !catalog.Own(m.Repository) && m.Problem == "" {
			refs = append(refs, m.References(address)...)
		}
	}
	var problems []error
	for _, m := range content.Manifests {
		if !catalog.Own(m.Repository) && m.Problem != "" {
			problems = append(problems, fmt.Errorf("manifest %s: %s: push its image again", m.References(address)[0], m.Problem))
		}
	}
	return refs, errors.Join(problems...)
}
