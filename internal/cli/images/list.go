package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"oras.land/oras-go/v2/errdef"

	"github.com/zarf-dev/zarf-registry/internal/api/space"
	"github.com/zarf-dev/zarf-registry/internal/cli/cmdflags"
	"github.com/zarf-dev/zarf-registry/internal/cli/images/stored"
	"github.com/zarf-dev/zarf-registry/internal/cli/render"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/images"
	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/internal/images/name"
	"github.com/zarf-dev/zarf-registry/internal/images/remote"
	"github.com/zarf-dev/zarf-registry/internal/images/source"
)

type listFlags struct {
	imageFlags
	from   string
	stored stored.ListFlags
}

func newList(global *cmdflags.Global) *cobra.Command {
	f := &listFlags{imageFlags: newImageFlags(global)}
	cmd := &cobra.Command{
		Use:   "list [SOURCE...]",
		Short: "List images in the cluster's registry, another registry, archives or layouts",
		Long: `list shows the tags of the cluster's registry, or with --from of another one, or the images
in OCI archives, OCI layout directories, docker archives, Zarf packages and, with
docker-daemon:NAME, in the Docker engine: reference, digest, platforms and size. The size is
that of the complete image, each blob counted once; images may share blobs. Untagged images
are not listed.

Of the cluster's registry, it also shows the bytes that no other image shares, the numbers of
signatures and SBOMs, when the image was last pushed, and which workloads use it, as
zarf-registry images prune --help defines it. --repositories adds up each repository.

Exit codes: 0 on success, 1 on failure, 3 if the command line is invalid.`,
		Example: `  zarf-registry images list
  zarf-registry images list app.tar
  zarf-registry images list --from registry.example.com:5000
  zarf-registry images list --output json | jq -r '.items[] | select(.usedBy == []).reference'`,
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.from, "from", "", "list the registry at `HOST[:PORT]` instead of the cluster's")
	flags.BoolVar(&f.stored.Untagged, "untagged", false, "also list images of the cluster's registry without a tag")
	cmdflags.AddNoTrunc(flags, &f.stored.NoTrunc)
	flags.BoolVar(&f.stored.Repositories, "repositories", false, "list the repositories of the cluster's registry")
	cmdflags.AddNumber(flags, &f.concurrency, "oci-concurrency", 1, maxConcurrency, images.DefaultConcurrency,
		"number of parallel requests")
	f.retryFlag(flags)
	f.storeFlags(cmd)
	f.login.Register(cmd, "the registry of --from")
	f.cluster.Register(flags)
	cmdflags.AddOutput(cmd, &f.output, render.FormatName)
	return cmd
}

func (f *listFlags) run(cmd *cobra.Command, args []string) error {
	host, err := f.check(cmd, args)
	if err != nil {
		return exitcode.Usage(err)
	}
	r, err := f.begin(cmd, host, func(string) bool { return f.login.PlainHTTP })
	if err != nil {
		return err
	}
	if host == "" && len(args) == 0 {
		return errors.Join(stored.List(cmd, &r.cluster, r.log, f.output, f.stored), r.end())
	}
	var list []stored.Listed
	if len(args) > 0 {
		list, err = r.listSources(cmd.Context(), args)
	} else {
		list, err = r.listRegistry(cmd.Context(), host, f.from)
	}
	err = errors.Join(err, r.end())
	if err != nil && len(list) == 0 {
		return err
	}
	return errors.Join(err, stored.PrintImages(cmd.OutOrStdout(), f.output, stored.Images{Items: list},
		func(w io.Writer, list stored.Images) error { return printList(w, list, f.stored.NoTrunc) }))
}

// check returns the host of --from, "" for the cluster's registry.
func (f *listFlags) check(cmd *cobra.Command, args []string) (host string, err error) {
	if err := f.validate(cmd.Flags()); err != nil {
		return "", err
	}
	if cmd.Flags().Changed("from") {
		if host, err = f.login.DialledHost("from", f.from); err != nil {
			return "", err
		}
	}
	given := f.login.Given()
	switch {
	case f.stored.Untagged && f.stored.Repositories:
		return "", errors.New("--untagged cannot be combined with --repositories")
	case (f.stored.Untagged || f.stored.Repositories) && (host != "" || len(args) > 0):
		return "", errors.New("--untagged and --repositories apply to the cluster's registry only")
	case host != "" && len(args) > 0:
		return "", errors.New("--from lists a registry and cannot be combined with archives, layouts or images of the " +
			"Docker engine")
	case host == "" && given != "":
		return "", fmt.Errorf("%s requires --from", given)
	}
	return host, checkSources(args)
}

// listSources lists the images in sources, in the given order.
func (r *imageRun) listSources(ctx context.Context, sources []string) ([]stored.Listed, error) {
	list := []stored.Listed{}
	var failed []error
	paths, engine := splitSources(sources)
	for _, path := range paths {
		opened, err := r.open(ctx, path)
		if err != nil {
			return nil, err
		}
		failed = append(failed, opened.Incomplete())
		for _, image := range opened.Images() {
			list = append(list, listedImage(path, image))
		}
	}
	if len(engine) > 0 {
		items, err := r.fromEngine(ctx, engine)
		failed = append(failed, err)
		for _, item := range items {
			list = append(list, listedImage(strings.TrimSuffix(name.DaemonPrefix, ":"), item.Image))
		}
	}
	return list, errors.Join(failed...)
}

func listedImage(source string, image graph.Image) stored.Listed {
	l := stored.Listed{
		Source: source, Reference: image.Reference,
		Digest: image.Descriptor.Digest, MediaType: image.Descriptor.MediaType, Size: image.Size,
		Platforms: []string{},
	}
	for _, p := range image.Platforms {
		l.Platforms = append(l.Platforms, graph.Platforms{p}.String())
	}
	return l
}

// listRegistry lists all tags of the registry at host, sorted. References begin with address.
func (r *imageRun) listRegistry(ctx context.Context, host, address string) ([]stored.Listed, error) {
	registry, err := r.registries.Get(ctx, host)
	if err == nil {
		err = registry.Ping(ctx)
	}
	if err != nil {
		return nil, err
	}
	store, err := r.store()
	if err != nil {
		return nil, err
	}
	refs, err := r.tags(ctx, registry, address)
	if err != nil {
		return nil, err
	}
	slices.Sort(refs)
	items, err := source.Resolve(ctx, refs, source.ResolveOptions{
		Registry: func(context.Context, string) (*remote.Registry, error) { return registry, nil },
		Store:    store, Concurrency: r.concurrency, Log: r.log,
	})
	list := []stored.Listed{}
	for _, item := range items {
		list = append(list, listedImage("", item.Image))
	}
	return list, err
}

// tags returns the references of all tags in a registry, unsorted.
func (r *imageRun) tags(ctx context.Context, registry *remote.Registry, address string) ([]string, error) {
	var repositories []string
	err := registry.Repositories(ctx, func(names []string) error {
		repositories = append(repositories, names...)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf(
			"cannot list the repositories of %s (many registries do not support it; use their own tools): %w", address, err)
	}
	var mu sync.Mutex
	var refs []string
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(r.concurrency)
	for _, name := range repositories {
		group.Go(func() error {
			repository, err := registry.Repository(name)
			if err != nil {
				return err
			}
			err = repository.Tags(ctx, func(tags []string) error {
				mu.Lock()
				defer mu.Unlock()
				for _, tag := range tags {
					refs = append(refs, address+"/"+name+":"+tag)
				}
				return nil
			})
			if err != nil && !errors.Is(err, errdef.ErrNotFound) { // then all of its tags are deleted
				return fmt.Errorf("repository %s/%s: %w", address, name, err)
			}
			return nil
		})
	}
	return refs, group.Wait()
}

// printList writes a table. The source is a column if there are several.
func printList(w io.Writer, list stored.Images, noTrunc bool) error {
	several := slices.ContainsFunc(list.Items, func(l stored.Listed) bool { return l.Source != list.Items[0].Source })
	first := 0
	if !several {
		first = 1
	}
	t := render.NewTable(w, []string{"SOURCE", "REFERENCE", "DIGEST", "PLATFORMS", "SIZE"}[first:]...)
	t.Short = !noTrunc
	for _, l := range list.Items {
		t.Row([]string{l.Source, cmp.Or(l.Reference, "-"), l.Digest.String(), cmp.Or(strings.Join(l.Platforms, ","), "-"),
			space.FormatBytes(l.Size)}[first:]...)
	}
	return t.Flush()
}
