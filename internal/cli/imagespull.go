package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/internal/hook"
	"github.com/zarf-dev/zarf-registry/internal/images"
)

// pullFlags are the flags of images pull.
type pullFlags struct {
	imageFlags
	out string
}

func newImagesPull() *cobra.Command {
	f := &pullFlags{}
	cmd := &cobra.Command{
		Use:   "pull REFERENCE...",
		Short: "Pull images into an OCI layout directory or archive",
		Long: `pull brings images from registries into an OCI layout directory or, where --out ends in
.tar, an OCI archive, which init-hook images push, skopeo, crane and ORAS read. All kinds
of artifacts can be pulled: container images, indexes, Helm charts, signatures.

References are what docker pull takes: nginx is docker.io/library/nginx:latest. Behind
docker-daemon: they name images of the Docker engine on this machine.

Of an index that a tag names, --platform chooses what is taken. What a digest names stays
whole. An image that is not there is an error before anything is transferred.

A layout keeps what it has; an image of the same name is replaced. An archive is replaced
as a whole, when all images are there.

Every blob is verified and kept in a cache, which later pulls and copies take it from. A
pull that was interrupted goes on when it is run again; --no-cache does so for a layout
only.

Credentials are those of docker login and podman login, and of credential helpers
(REGISTRY_AUTH_FILE, DOCKER_CONFIG), or of --username.

It prints the names of the images, one a line, or with --output json an array of what was
done about each: names, digests, bytes, seconds. When one fails, those that a layout has
got by then are printed all the same. Progress goes to stderr.

Exit codes: 0 when all images are there, 1 when one failed, 3 when the command line cannot
be right.`,
		Example: `  init-hook images pull nginx:1.27 ghcr.io/stefanprodan/podinfo:6.7.1 -o images.tar
  init-hook images pull -f images.txt -o layout --platform linux/amd64,linux/arm64
  init-hook images pull --referrers ghcr.io/stefanprodan/charts/podinfo:6.7.1 -o chart.tar
  init-hook images pull docker-daemon:team/app:1 -o app.tar`,
		ValidArgsFunction: completeReferences,
		RunE:              func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	cmd.Flags().StringVarP(&f.out, "out", "o", "", "the `PATH` to pull to: an archive if it ends in .tar, else a layout directory")
	f.selectionFlags(cmd)
	f.transferFlags(cmd.Flags())
	f.cacheFlags(cmd)
	f.login.register(cmd, "the registries")
	accessFlags(cmd.Flags(), &f.cluster.access)
	f.reportFlags(cmd)
	return cmd
}

// completeReferences offers what a reference may begin with, for the shell knows no
// registry.
func completeReferences(_ *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return []string{images.DaemonPrefix}, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

func (f *pullFlags) run(cmd *cobra.Command, args []string) error {
	refs, host, err := f.check(cmd, args)
	if err != nil {
		return &hook.Refused{Err: err}
	}
	r, err := f.begin(cmd, host, func(string) bool { return f.login.plainHTTP })
	if err != nil {
		return err
	}
	results, failure := f.pull(cmd.Context(), r, refs)
	return r.report(cmd, results, errors.Join(failure, r.end()))
}

// check returns the references, and the registry that --username is for.
func (f *pullFlags) check(cmd *cobra.Command, args []string) (refs []string, host string, err error) {
	if err := errors.Join(f.validate(cmd.Flags()), f.checkOut()); err != nil {
		return nil, "", err
	}
	if refs, err = f.references(cmd, args); err != nil {
		return nil, "", err
	}
	host = soleHost(refs)
	if f.login.username != "" && host == "" {
		return nil, "", errors.New("--username is for one registry, but the images are not all of one: pull them one registry at a time, or log in with docker login")
	}
	return refs, host, nil
}

func (f *pullFlags) checkOut() error {
	switch info, err := os.Stat(f.out); {
	case f.out == "":
		return errors.New("--out is missing: it takes where to pull to, a layout directory or an archive that ends in .tar")
	case f.archive() && err == nil && info.IsDir():
		return fmt.Errorf("--out is %s, which ends in .tar, but is a directory", f.out)
	case f.archive():
	case strings.HasSuffix(f.out, ".tar.gz"), strings.HasSuffix(f.out, ".tgz"), strings.HasSuffix(f.out, ".tar.zst"):
		return fmt.Errorf("--out is %s, but archives are not compressed, for layers are already: let it end in .tar", f.out)
	case err == nil && !info.IsDir():
		return fmt.Errorf("--out is %s, a file: archives end in .tar, and layouts are directories", f.out)
	}
	if dir, err := f.cacheAt(); err == nil && !f.noCache && samePlace(f.out, dir) {
		return fmt.Errorf("--out is %s, which is the cache, and that holds no images, only blobs that come and go: choose another place for either", f.out)
	}
	parent := filepath.Dir(f.out)
	if info, err := os.Stat(parent); err != nil || !info.IsDir() {
		return fmt.Errorf("--out is %s, but there is no directory %s", f.out, parent)
	}
	return nil
}

// samePlace is whether two paths are of one directory, which need not be there yet.
func samePlace(a, b string) bool {
	infoA, errA := os.Stat(a)
	infoB, errB := os.Stat(b)
	if errA == nil && errB == nil {
		return os.SameFile(infoA, infoB)
	}
	a, errA = filepath.Abs(a)
	b, errB = filepath.Abs(b)
	return errA == nil && errB == nil && a == b
}

func (f *pullFlags) archive() bool { return strings.HasSuffix(f.out, ".tar") }

// pull returns what the output has got.
func (f *pullFlags) pull(ctx context.Context, r *imageRun, refs []string) ([]images.Result, error) {
	if f.archive() {
		return f.pullArchive(ctx, r, refs)
	}
	store, err := r.cache()
	if err != nil {
		return nil, err
	}
	layout, err := images.OpenLayout(f.out)
	if err != nil {
		return nil, err
	}
	r.atEnd(layout.Close)
	if store == nil {
		store = layout.Store()
	}
	items, err := r.resolve(ctx, refs, store)
	if err != nil {
		return nil, err
	}
	return images.Pull(ctx, items, layout, r.options())
}

func (f *pullFlags) pullArchive(ctx context.Context, r *imageRun, refs []string) ([]images.Result, error) {
	archive, err := images.CreateArchive(f.out)
	if err != nil {
		return nil, err
	}
	// Beside the archive there is room for what goes into it.
	store, err := r.cacheOr(filepath.Dir(f.out))
	if err != nil {
		return nil, err
	}
	items, err := r.resolve(ctx, refs, store)
	if err != nil {
		return nil, err
	}
	results, err := images.Pull(ctx, items, archive, r.options())
	if err == nil {
		err = archive.Write(ctx)
	}
	if err != nil {
		return nil, err // whatever arrived, the archive does not have it
	}
	return results, nil
}
