package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/internal/api/space"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/images"
	"github.com/zarf-dev/zarf-registry/internal/images/blobstore"
)

func newImagesStore(global *globalFlags) *cobra.Command {
	return group("store", "Manage the local store of blobs that pulls and copies share",
		newStoreInfo(global), newStoreVerify(global), newStorePrune(global))
}

// storeCommand is one of the commands about the local store.
type storeCommand struct {
	imageFlags
	prune blobstore.PruneOptions
}

func newStoreInfo(global *globalFlags) *cobra.Command {
	f := &storeCommand{imageFlags: newImageFlags(global)}
	cmd := &cobra.Command{
		Use:   "info",
		Short: "Show the directory, size and last use of the local store",
		Long: `info shows the directory of the store, its size, the size of interrupted downloads, which a
later run resumes, and when its blobs were used. It removes nothing.`,
		Example: `  zarf-registry images store info
  zarf-registry images store info --output json | jq .bytes`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd, func(ctx context.Context, store *blobstore.Store, _ *imageRun) error {
				info, err := store.Info(ctx)
				if err != nil {
					return err
				}
				return render(cmd.OutOrStdout(), f.output, info, printStoreInfo, nil)
			})
		},
	}
	f.storeDirFlag(cmd)
	outputFlag(cmd, &f.output)
	return cmd
}

func printStoreInfo(w io.Writer, info blobstore.Info) error {
	t := newTable(w, "directory", info.Dir)
	t.row("blobs", countedBytes(info.Blobs, info.Bytes))
	t.row("interrupted downloads", countedBytes(info.Partials, info.PartialBytes))
	if info.OldestUse != nil && info.NewestUse != nil {
		t.row("least recently used", info.OldestUse.UTC().Format(time.RFC3339))
		t.row("most recently used", info.NewestUse.UTC().Format(time.RFC3339))
	}
	return t.Flush()
}

func newStoreVerify(global *globalFlags) *cobra.Command {
	f := &storeCommand{imageFlags: newImageFlags(global)}
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Verify all blobs in the local store and remove damaged ones",
		Long: `verify reads every blob in the local store, compares it with its digest, and removes damaged ones;
they are downloaded again when needed. Running it is optional: blobs are verified before use.

Exit codes: 0 if all blobs are intact, 1 if some were damaged or verify failed, 3 if the command
line is invalid.`,
		Example: `  zarf-registry images store verify
  zarf-registry images store verify --output json | jq -r '.corrupt[]'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd, func(ctx context.Context, store *blobstore.Store, r *imageRun) error {
				report, err := store.Verify(ctx, func(done, total int64) {
					r.meter.Update(images.Progress{Total: total, Done: done})
				})
				r.meter.End()
				if err != nil {
					return err
				}
				var damaged []string
				for _, d := range report.Corrupt {
					damaged = append(damaged, d.String())
				}
				return render(cmd.OutOrStdout(), f.output, report, printStoreReport, damaged)
			})
		},
	}
	f.storeDirFlag(cmd)
	outputFlag(cmd, &f.output)
	return cmd
}

func printStoreReport(w io.Writer, report blobstore.Report) error {
	for _, d := range report.Corrupt {
		fmt.Fprintf(w, "removed damaged blob %s\n", d)
	}
	_, err := fmt.Fprintf(w, "intact blobs: %s\n", countedBytes(report.Blobs, report.Bytes))
	return err
}

func newStorePrune(global *globalFlags) *cobra.Command {
	f := &storeCommand{imageFlags: newImageFlags(global)}
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove the least recently used blobs from the local store",
		Long: `prune removes blobs and interrupted downloads from the local store, the least recently used first:
down to a size, beyond an age, both, or all. It may remove a blob that another process is
about to use; that process downloads it again. Downloads in progress are kept.`,
		Example: `  zarf-registry images store prune --size 5GB
  zarf-registry images store prune --older-than 30d --dry-run
  zarf-registry images store prune --all`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.checkPrune(cmd); err != nil {
				return &exitcode.Refusal{Err: err}
			}
			return f.run(cmd, func(ctx context.Context, store *blobstore.Store, _ *imageRun) error {
				pruned, err := store.Prune(ctx, f.prune)
				if err != nil {
					return err
				}
				return render(cmd.OutOrStdout(), f.output, pruned, f.printPruned, nil)
			})
		},
	}
	sizeFlag(cmd.Flags(), &f.prune.MaxSize, "size", "", "prune down to this size")
	ageFlag(cmd.Flags(), &f.prune.OlderThan, "older-than", "remove blobs not used for this long")
	cmd.Flags().BoolVar(&f.prune.All, "all", false, "remove everything")
	cmd.Flags().BoolVar(&f.prune.DryRun, "dry-run", false, "only show what would be removed")
	f.storeDirFlag(cmd)
	outputFlag(cmd, &f.output)
	return cmd
}

func (f *storeCommand) checkPrune(cmd *cobra.Command) error {
	size, age := cmd.Flags().Changed("size"), cmd.Flags().Changed("older-than")
	switch {
	case f.prune.All && (size || age):
		return errors.New("--all cannot be combined with --size or --older-than")
	case !f.prune.All && !size && !age:
		return errors.New("want --size, --older-than or --all")
	case size && f.prune.MaxSize == 0:
		return errors.New("invalid --size 0: use --all to remove everything")
	}
	return nil
}

func (f *storeCommand) printPruned(w io.Writer, p blobstore.Pruned) error {
	did := "removed"
	if f.prune.DryRun {
		did = "to be removed"
	}
	t := newTable(w, "blobs "+did, countedBytes(p.Blobs, p.Bytes))
	t.row("interrupted downloads "+did, countedBytes(p.Partials, p.PartialBytes))
	t.row("left", space.FormatBytes(p.RemainingBytes))
	return t.Flush()
}

// run opens the store without a size limit, so that opening it evicts nothing.
func (f *storeCommand) run(cmd *cobra.Command, do func(context.Context, *blobstore.Store, *imageRun) error) error {
	if err := f.validate(cmd.Flags()); err != nil {
		return &exitcode.Refusal{Err: err}
	}
	r, err := f.begin(cmd, "", nil)
	if err != nil {
		return err
	}
	store, err := r.store()
	if err == nil {
		err = do(cmd.Context(), store, r)
	}
	return errors.Join(err, r.end())
}
