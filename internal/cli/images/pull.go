package images

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/zarf-dev/zarf-registry/internal/cli/cmdflags"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/images"
	"github.com/zarf-dev/zarf-registry/internal/images/inventory"
	"github.com/zarf-dev/zarf-registry/internal/images/output"
)

type pullFlags struct {
	imageFlags
	out  string
	have string

	inventory *inventory.Set // of have; nil without it
}

func newPull(global *cmdflags.Global) *cobra.Command {
	f := &pullFlags{imageFlags: newImageFlags(global)}
	cmd := &cobra.Command{
		Use:   "pull REFERENCE...",
		Short: "Pull images into an OCI layout directory or archive",
		Long: `pull downloads images from registries into an OCI layout directory or, if --out ends in
.tar, into an OCI archive. zarf-registry images push, skopeo, crane and ORAS can read both. Any
OCI artifact can be pulled: container images, indexes, Helm charts, signatures.

References have the form of docker pull: nginx means docker.io/library/nginx:latest.
docker-daemon:NAME is an image of the local Docker engine.

Images in an existing layout are kept, except those with the same name. An existing archive
is replaced at the end. It needs the disk space of its content, which is reserved first.

With --have, an archive is thin: it leaves out what zarf-registry images inventory has listed in
the cluster. Only zarf-registry images push reads it.

Every blob is verified. What fits is kept in the local store (zarf-registry images store) for later
pulls. To continue an interrupted pull, run the same command again; without the store, only a
layout continues.

It prints the names of the images, one per line, or with --output json the names,
digests, bytes and seconds of each image. Images that fail are named on stderr with the
reason; the layout or archive gets the others, unless --fail-fast is given. Progress goes to stderr.

Exit codes: 0 if all images were pulled, 1 if one failed, 3 if the command line is invalid.`,
		Example: `  zarf-registry images pull nginx:1.27 ghcr.io/stefanprodan/podinfo:6.7.1 --out images.tar
  zarf-registry images pull -f images.txt --out layout --platform linux/amd64,linux/arm64
  zarf-registry images pull --referrers ghcr.io/stefanprodan/charts/podinfo:6.7.1 --out chart.tar
  zarf-registry images pull -f images.txt --have inventory.bin --out thin.tar
  zarf-registry images pull docker-daemon:team/app:1 --out app.tar`,
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	f.outFlags(cmd.Flags())
	cmd.Flags().StringVar(&f.have, "have", "",
		"leave out of an archive what the registry has, by the inventory in `FILE` (zarf-registry images inventory)")
	f.selectionFlags(cmd)
	f.transferFlags(cmd.Flags())
	f.storeFlags(cmd)
	f.login.Register(cmd, "the registries")
	cmdflags.AddOutput(cmd, &f.output)
	return cmd
}

func (f *pullFlags) run(cmd *cobra.Command, args []string) error {
	refs, host, err := f.check(cmd, args)
	if err != nil {
		return exitcode.Usage(err)
	}
	plain := func(string) bool { return f.login.PlainHTTP }
	return f.transfer(cmd, host, plain, func(ctx context.Context, r *imageRun) ([]images.Result, error) {
		return f.pull(ctx, r, refs)
	})
}

// check returns the references, and the registry to which the user name applies.
func (f *pullFlags) check(cmd *cobra.Command, args []string) (refs []string, host string, err error) {
	if err := errors.Join(f.validate(cmd.Flags()), f.checkOut(), f.readInventory()); err != nil {
		return nil, "", err
	}
	if refs, err = f.references(cmd, args); err != nil {
		return nil, "", err
	}
	host, err = f.login.Host(refs)
	return refs, host, err
}

func (f *pullFlags) checkOut() error {
	switch info, err := os.Stat(f.out); {
	case f.out == "":
		return errors.New("--out is required: want a layout directory, or an archive that ends in .tar")
	case f.archive() && err == nil && info.IsDir():
		return fmt.Errorf("invalid --out %s: it ends in .tar, but is a directory", f.out)
	case f.archive():
	case strings.HasSuffix(f.out, ".tar.gz"), strings.HasSuffix(f.out, ".tgz"), strings.HasSuffix(f.out, ".tar.zst"):
		return fmt.Errorf("invalid --out %s: archives are not compressed, because layers already are: use .tar", f.out)
	case err == nil && !info.IsDir():
		return fmt.Errorf("invalid --out %s: it is a file; archives end in .tar, and layouts are directories", f.out)
	}
	out, _ := filepath.Abs(f.out)
	if dir, err := f.storeAt(); err == nil && !f.noStore && out == filepath.Clean(dir) {
		return fmt.Errorf("invalid --out %s: it is the local store of blobs, which keeps no images: choose another "+
			"directory for either", f.out)
	}
	return nil
}

func (f *pullFlags) readInventory() error {
	if f.have == "" {
		return nil
	}
	if !f.archive() {
		return errors.New("--have requires an archive: a layout directory without some of its blobs would be of no use to " +
			"other tools")
	}
	if info, err := os.Stat(f.have); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("--have %s: is not a regular file", f.have)
	}
	file, err := os.Open(f.have)
	if err != nil {
		return fmt.Errorf("--have: %w", err)
	}
	defer file.Close()
	if f.inventory, err = inventory.Read(file); err != nil {
		return fmt.Errorf("--have %s: %w", f.have, err)
	}
	return nil
}

func (f *pullFlags) outFlags(flags *pflag.FlagSet) {
	flags.StringVar(&f.out, "out", "",
		"`PATH` of the output: an archive if it ends in .tar, otherwise a layout directory")
}

func (f *pullFlags) archive() bool { return strings.HasSuffix(f.out, ".tar") }

// pull returns the images that the output contains.
func (f *pullFlags) pull(ctx context.Context, r *imageRun, refs []string) ([]images.Result, error) {
	out, err := f.open(r)
	if err != nil {
		return nil, err
	}
	items, failed := r.resolve(ctx, refs)
	if f.ends(items, failed) {
		return nil, failed
	}
	results, err := images.Pull(ctx, items, out, r.options())
	return results, errors.Join(failed, err)
}

func (f *pullFlags) open(r *imageRun) (images.Output, error) {
	if f.archive() {
		archive, err := output.CreateArchive(f.out)
		if err != nil {
			return nil, err
		}
		r.atEnd(archive.Close)
		if f.inventory != nil {
			archive.Omit(f.inventory.Has)
		}
		return archive, nil
	}
	layout, err := output.OpenLayout(f.out)
	if err != nil {
		return nil, err
	}
	r.atEnd(layout.Close)
	return layout, nil
}
