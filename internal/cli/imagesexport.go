package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/images"
)

func newImagesExport(global *globalFlags) *cobra.Command {
	f := &pullFlags{imageFlags: newImageFlags(global)}
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write everything that the cluster's registry contains into an archive or layout",
		Long: `export writes all tags, untagged images, signatures and other referrers of the cluster's
registry into an OCI archive (--out ends in .tar) or an OCI layout directory: as a backup, or
to move to another registry. The registry's own repositories, zarf-registry/, are left out.

zarf-registry images push restores it, into this or another registry, under the same names.

What is pushed while export runs may be missing. An image that is deleted meanwhile is an
error. Blobs are kept in the local store; to continue an interrupted export, run it again.

Exit codes: 0 if everything is exported, 1 on failure, 3 if the command line is invalid.`,
		Example: `  zarf-registry images export --out backup.tar
  zarf-registry images push backup.tar                    # restores it`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.export(cmd) },
	}
	f.outFlags(cmd.Flags())
	f.transferFlags(cmd.Flags())
	f.storeFlags(cmd)
	f.cluster.register(cmd.Flags())
	outputFlag(cmd, &f.output)
	return cmd
}

func (f *pullFlags) export(cmd *cobra.Command) error {
	if err := errors.Join(f.validate(cmd.Flags()), f.checkOut()); err != nil {
		return &exitcode.Refusal{Err: err}
	}
	return f.transfer(cmd, "", nil, func(ctx context.Context, r *imageRun) ([]images.Result, error) {
		c, content, err := f.cluster.connectToCatalog(ctx)
		if err != nil {
			return nil, err
		}
		defer c.close()
		registry, err := f.cluster.openRegistry(c, r.retryOptions())
		if err != nil {
			return nil, err
		}
		refs, unreadable := exported(content, c.address, r.log)
		if len(refs) == 0 {
			return nil, errors.New("the registry has no images")
		}
		r.platform = "all"
		r.registries.use(c.address, registry) // and closes it
		results, err := f.pull(ctx, r, refs)
		if err == nil && unreadable > 0 {
			err = fmt.Errorf("the archive lacks %d unreadable manifests: push their images again", unreadable)
		}
		return results, err
	})
}

// exported returns the references of everything but the registry's own repositories: by each tag, or by the digest.
// Manifests that cannot be read are left out and counted.
func exported(content *catalog.Catalog, address string, log *slog.Logger) (refs []string, unreadable int) {
	for _, m := range content.Roots() {
		names := m.References(address)
		switch {
		case catalog.Own(m.Repository):
		case m.Problem != "":
			log.Warn("skipped an unreadable manifest", "image", names[0], "error", m.Problem)
			unreadable++
		default:
			refs = append(refs, names...)
		}
	}
	return refs, unreadable
}
