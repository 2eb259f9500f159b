package images

import (
	"cmp"
	"io"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/internal/api/space"
	"github.com/zarf-dev/zarf-registry/internal/cli/cmdflags"
	"github.com/zarf-dev/zarf-registry/internal/cli/render"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/images/blobstore"
)

func newStore(global *cmdflags.Global) *cobra.Command {
	return cmdflags.Group("store", "Manage the local store of blobs that pulls and copies share",
		newStoreInfo(global), newStorePrune(global))
}

// storeCommand is one of the commands about the local store.
type storeCommand struct {
	imageFlags
	size int64
}

func newStoreInfo(global *cmdflags.Global) *cobra.Command {
	f := &storeCommand{imageFlags: newImageFlags(global)}
	cmd := &cobra.Command{
		Use:   "info",
		Short: "Show the directory and size of the local store",
		Long: `info shows the directory of the store, its size, and the size of interrupted downloads, which a
later run resumes. It removes nothing.

Exit codes: 0 on success, 1 on failure, 3 if the command line is invalid.`,
		Example: `  zarf-registry images store info
  zarf-registry images store info --output json | jq .bytes`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			store, err := f.open(cmd)
			if err != nil {
				return err
			}
			info, err := store.Info(cmd.Context())
			if err != nil {
				return err
			}
			return render.Report(cmd.OutOrStdout(), f.output, render.BlobStore, info, printStoreInfo, nil)
		},
	}
	f.storeDirFlag(cmd)
	cmdflags.AddOutput(cmd, &f.output)
	return cmd
}

func printStoreInfo(w io.Writer, info blobstore.Info) error {
	t := render.NewTable(w, "directory", info.Dir)
	t.Row("blobs", render.CountedBytes(info.Blobs, info.Bytes))
	t.Row("interrupted downloads", render.CountedBytes(info.Partials, info.PartialBytes))
	return t.Flush()
}

func newStorePrune(global *cmdflags.Global) *cobra.Command {
	f := &storeCommand{imageFlags: newImageFlags(global)}
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove the least recently used blobs from the local store",
		Long: `prune removes blobs and interrupted downloads from the local store, the least recently used first,
down to a size or, without --size, all. It may remove a blob that another process is about to use;
that process downloads it again. Downloads in progress are kept.

Exit codes: 0 on success, 1 on failure, 3 if the command line is invalid.`,
		Example: `  zarf-registry images store prune --size 5GB
  zarf-registry images store prune`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			store, err := f.open(cmd)
			if err != nil {
				return err
			}
			pruned, err := store.Prune(cmd.Context(), f.size)
			if err != nil {
				return err
			}
			return render.Report(cmd.OutOrStdout(), f.output, render.BlobStorePruned, pruned, printPruned, nil)
		},
	}
	cmdflags.AddSize(cmd.Flags(), &f.size, "size", "", "prune down to this size")
	f.storeDirFlag(cmd)
	cmdflags.AddOutput(cmd, &f.output)
	return cmd
}

func printPruned(w io.Writer, p blobstore.Pruned) error {
	t := render.NewTable(w, "blobs removed", render.CountedBytes(p.Blobs, p.Bytes))
	t.Row("interrupted downloads removed", render.CountedBytes(p.Partials, p.PartialBytes))
	t.Row("left", space.FormatBytes(p.RemainingBytes))
	return t.Flush()
}

// open opens the store without a size limit, so that it evicts nothing by itself.
func (f *storeCommand) open(cmd *cobra.Command) (*blobstore.Store, error) {
	dir, err := f.storeAt()
	if err := cmp.Or(f.validate(cmd.Flags()), err); err != nil {
		return nil, exitcode.Usage(err)
	}
	return blobstore.Open(dir, blobstore.Options{})
}
