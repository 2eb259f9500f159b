package images

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/zarf-dev/zarf-registry/internal/api/space"
	"github.com/zarf-dev/zarf-registry/internal/cli/cmdflags"
	"github.com/zarf-dev/zarf-registry/internal/cli/images/registries"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/images"
	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/internal/images/name"
	"github.com/zarf-dev/zarf-registry/internal/images/remote"
	"github.com/zarf-dev/zarf-registry/internal/images/source"
)

// destinationFlags select the destination of images and their names there.
type destinationFlags struct {
	to, path, reference string
	zarfTags            bool

	// Set by check. host is that of to, "" for the cluster's registry.
	host   string
	prefix name.Prefix
}

func (f *destinationFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.to, "to", "", "push to the registry at `HOST[:PORT]` instead of the cluster's")
	flags.StringVar(&f.path, "prefix", "",
		"`PATH` to prepend to each repository: with team, nginx becomes team/library/nginx")
	flags.StringVar(&f.reference, "reference", "", "`NAME` for a single image, instead of its own")
	flags.BoolVar(&f.zarfTags, "zarf-tags", false,
		"push each tag also as TAG-zarf-CRC32, which Zarf's agent sets in pods")
}

func (f *destinationFlags) check(flags *pflag.FlagSet, login *registries.Flags) (err error) {
	if flags.Changed("to") { // also to "", by an unset variable
		if f.host, err = login.DialledHost("to", f.to); err != nil {
			return err
		}
	} else if login.PlainHTTP {
		return errors.New("HTTP without TLS requires --to: the cluster's registry uses mutual TLS")
	} else if login.Username != "" && flags.Lookup("from-username") == nil {
		return errors.New("a user name requires --to: the cluster's registry has its own credential")
	}
	if f.prefix, err = name.ParsePrefix(f.path); err != nil {
		return fmt.Errorf("--prefix: %w", err)
	}
	if f.reference != "" {
		if _, _, err := name.Repository(f.reference); err != nil {
			return fmt.Errorf("--reference: %w", err)
		}
	}
	return nil
}

type pushFlags struct {
	imageFlags
	destinationFlags
}

func newPush(global *cmdflags.Global) *cobra.Command {
	f := &pushFlags{imageFlags: newImageFlags(global)}
	cmd := &cobra.Command{
		Use:   "push SOURCE...",
		Short: "Push images from archives, layouts and the Docker engine into the cluster's registry",
		Long: `push uploads images from OCI archives, OCI layout directories, docker archives (written by
docker save), Zarf packages (files or unpacked) and, with docker-daemon:NAME, from the local
Docker engine into the cluster's registry. The connection is a port-forward with mutual TLS
and the push credential. With --to, the destination is another registry.

The registry's name is dropped from the path: ghcr.io/a/b:1 becomes 127.0.0.1:31999/a/b:1,
and nginx becomes 127.0.0.1:31999/library/nginx:latest, or with --prefix mirror
127.0.0.1:31999/mirror/library/nginx:latest.

Of a Zarf package, only the images are read; its checksums are verified, its signature is not.

A thin archive, which zarf-registry images pull --have wrote, is completed with what the registry
has. Images of which something is missing are named, and must be pulled again.

Blobs that images share are sent once. Blobs that the registry already has are not sent;
blobs of its other repositories are mounted. Interrupted uploads resume. To continue an
interrupted push, run the same command again.

It prints the references that pods use, one per line, or with --output json the
references, digests, bytes and seconds of each image. Images that fail are named on stderr
with the reason; the others are pushed, unless --fail-fast is given. Progress goes to stderr.

If the images do not fit into the cluster's registry, nothing is sent.

Exit codes: 0 if all images are in the registry, 1 if one failed, 3 if the command line is
invalid or the images do not fit.`,
		Example: `  zarf-registry images push app.tar
  docker save nginx:1.27 -o nginx.tar && zarf-registry images push nginx.tar
  zarf-registry images push docker-daemon:team/app:1
  zarf-registry images push --to registry.example.com --prefix mirror images.tar
  zarf-registry images push --zarf-tags zarf-package-podinfo-amd64-6.7.1.tar.zst`,
		Args: cmdflags.MinimumArgs(1, "nothing to push: name archives, layout directories or "+name.DaemonPrefix+"NAME"),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	f.register(cmd)
	f.transferFlags(cmd.Flags())
	f.login.Register(cmd, "the registry of --to")
	f.cluster.Register(cmd.Flags())
	cmdflags.AddOutput(cmd, &f.output)
	return cmd
}

func (f *pushFlags) run(cmd *cobra.Command, args []string) error {
	if err := f.check(cmd, args); err != nil {
		return exitcode.Usage(err)
	}
	plain := func(string) bool { return f.login.PlainHTTP }
	return f.transfer(cmd, f.host, plain, func(ctx context.Context, r *imageRun) ([]images.Result, error) {
		// All sources are opened before anything is sent.
		items, failed := r.sources(ctx, args, f.reference)
		if f.ends(items, failed) {
			return nil, failed
		}
		results, err := r.push(ctx, items, &f.destinationFlags)
		return results, errors.Join(failed, err)
	})
}

func (f *pushFlags) check(cmd *cobra.Command, sources []string) error {
	if err := f.validate(cmd.Flags()); err != nil {
		return err
	}
	if err := f.destinationFlags.check(cmd.Flags(), &f.login); err != nil {
		return err
	}
	if f.reference != "" && len(sources) > 1 {
		return errors.New("--reference names a single image: give one source")
	}
	return checkSources(sources)
}

// checkSources rejects invalid names of images in the Docker engine.
func checkSources(sources []string) error {
	_, engine := splitSources(sources)
	for _, source := range engine {
		if err := name.Check(source); err != nil {
			return err
		}
	}
	return nil
}

// splitSources separates layouts and archives from images of the Docker engine.
func splitSources(sources []string) (paths, engine []string) {
	for _, source := range sources {
		if strings.HasPrefix(source, name.DaemonPrefix) {
			engine = append(engine, source)
		} else {
			paths = append(paths, source)
		}
	}
	return paths, engine
}

// sources opens layouts and archives, then images of the Docker engine, and returns the complete images in them, and
// errors about others. It returns no image if a source does not exist or has no names.
func (r *imageRun) sources(ctx context.Context, sources []string, reference string) ([]graph.Item, error) {
	var items []graph.Item
	var failed []error
	paths, engine := splitSources(sources)
	for _, path := range paths {
		opened, err := r.open(ctx, path)
		if errors.Is(err, fs.ErrNotExist) || ctx.Err() != nil {
			return nil, err
		}
		if err != nil {
			failed = append(failed, err)
			continue
		}
		list, err := opened.Items(reference)
		if err != nil {
			return nil, errors.Join(err, opened.Incomplete())
		}
		items = append(items, list...)
		failed = append(failed, opened.Incomplete())
	}
	if len(engine) > 0 {
		list, err := r.fromEngine(ctx, engine)
		if len(list) > 0 && reference != "" {
			list[0].Reference = reference
		}
		items, failed = append(items, list...), append(failed, err)
	}
	return items, errors.Join(failed...)
}

// open opens a layout or an archive until the end of the run.
func (r *imageRun) open(ctx context.Context, path string) (*source.Source, error) {
	opened, err := source.Open(ctx, path)
	if errors.Is(err, fs.ErrNotExist) && name.Check(path) == nil {
		err = fmt.Errorf("%w: push accepts archives and layout directories; use zarf-registry images copy for images in "+
			"registries", err)
	}
	if err == nil {
		r.atEnd(opened.Close)
	}
	return opened, err
}

// fromEngine finds images of the Docker engine.
func (r *imageRun) fromEngine(ctx context.Context, refs []string) ([]graph.Item, error) {
	return source.Resolve(ctx, refs, source.ResolveOptions{Engine: r.engine, Log: r.log})
}

// push pushes images to the registry of --to, or to the cluster's. The references in the results begin
// with --to, or with the address that pods use.
func (r *imageRun) push(ctx context.Context, items []graph.Item, to *destinationFlags) ([]images.Result, error) {
	registry, address, err := r.destination(ctx, to.host, to.to)
	if err != nil {
		return nil, err
	}
	if err := registry.Ping(ctx); err != nil {
		return nil, err
	}
	if to.zarfTags {
		if items, err = source.WithZarfTags(items); err != nil {
			return nil, err
		}
	}
	options := r.options()
	options.Prefix = to.prefix
	if to.host == "" {
		options.Fits = func(ctx context.Context, content []ocispec.Descriptor) error {
			return fits(ctx, registry, content, r.log)
		}
	}
	named := func(result images.Result) images.Result {
		result.Reference = address + strings.TrimPrefix(result.Reference, registry.Host())
		return result
	}
	done := options.Done
	options.Done = func(result images.Result) { done(named(result)) }
	results, err := images.Push(ctx, items, registry, options)
	for i, result := range results {
		results[i] = named(result)
	}
	return results, err
}

// spaceReporter is a registry that reports how full it is: a [remote.Registry].
type spaceReporter interface {
	Space(context.Context) (space.Usage, error)
	Missing(context.Context, []digest.Digest) ([]digest.Digest, error)
}

// fits returns an [exitcode.Refusal] if what the registry lacks of the content does not fit into its storage. If that
// cannot be determined, it is nil: the registry refuses what does not fit.
func fits(ctx context.Context, registry spaceReporter, content []ocispec.Descriptor, log *slog.Logger) error {
	sizes, digests, need := map[digest.Digest]int64{}, []digest.Digest{}, int64(0)
	for _, desc := range content {
		sizes[desc.Digest], digests = desc.Size, append(digests, desc.Digest)
		need += desc.Size
	}
	usage, err := registry.Space(ctx)
	if err == nil && usage.Lacks(need) { // otherwise it fits, whatever the registry has of it
		need = 0
		digests, err = registry.Missing(ctx, digests)
		for _, d := range digests {
			need += sizes[d]
		}
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		log.Warn("cannot determine whether the images fit into the registry, sending them", "error", err)
		return nil
	case need == 0 || !usage.Lacks(need):
		return nil
	}
	return exitcode.Refuse("the images need %s that the registry does not have, and it accepts %s more (%s; it accepts "+
		"pushes up to %d %%): %s; nothing was sent", space.FormatBytes(need), space.FormatBytes(usage.Available()),
		usage, space.Full, space.Remedy)
}

// destination returns a registry and the address that its references begin with.
func (r *imageRun) destination(ctx context.Context, host, to string) (*remote.Registry, string, error) {
	if host != "" {
		registry, err := r.registries.Get(ctx, host)
		return registry, to, err
	}
	c, err := r.cluster.Connect(ctx)
	if err != nil {
		return nil, "", err
	}
	registry, err := r.cluster.OpenRegistry(c, r.retryOptions())
	if err != nil {
		return nil, "", err
	}
	r.atEnd(func() error { registry.Close(); return nil })
	return registry, c.Address, nil
}

func (r *imageRun) options() images.Options {
	return images.Options{
		Concurrency: r.concurrency, FailFast: r.failFast, Progress: r.meter.Update, Done: r.meter.Done,
	}
}
