// Package images implements the commands that move images, and list them; stored has those about what the cluster's
// registry stores. It parses flags and prints results; internal/images does the work.
package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/zarf-dev/zarf-registry/internal/cli/cmdflags"
	"github.com/zarf-dev/zarf-registry/internal/cli/images/registries"
	"github.com/zarf-dev/zarf-registry/internal/cli/images/stored"
	"github.com/zarf-dev/zarf-registry/internal/cli/render"
	"github.com/zarf-dev/zarf-registry/internal/cluster"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/images"
	"github.com/zarf-dev/zarf-registry/internal/images/blobstore"
	"github.com/zarf-dev/zarf-registry/internal/images/dockerdaemon"
	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/internal/images/meter"
	"github.com/zarf-dev/zarf-registry/internal/images/name"
	"github.com/zarf-dev/zarf-registry/internal/images/remote"
	"github.com/zarf-dev/zarf-registry/internal/images/source"
)

const (
	// maxConcurrency bounds parallel transfers: most registries and proxies treat more
	// connections as an attack.
	maxConcurrency = 100

	// maxRetries bounds --retries: with pauses of up to 8 s, 450 retries take an hour.
	maxRetries = 1000

	// defaultStoreSize holds the images of a few applications.
	defaultStoreSize = "20GB"

	storeVariable = "ZARF_REGISTRY_IMAGE_STORE"
)

// New returns the commands about images.
func New(global *cmdflags.Global) *cobra.Command {
	return cmdflags.Group("images", "Push, pull, list, copy and delete images (images push app.tar)",
		newPush(global), newPull(global), newCopy(global), newList(global),
		stored.NewMissing(global), stored.NewDelete(global), stored.NewPrune(global), stored.NewGarbageCollect(global),
		stored.NewScrub(global), stored.NewInventory(global), newExport(global), stored.NewBrowse(global),
		newStore(global))
}

// imageFlags are the flags that the images commands share. Each command registers
// those that it supports.
type imageFlags struct {
	cluster cmdflags.Cluster
	output  string

	concurrency, retries int

	failFast  bool
	limitRate int64 // bytes per second
	platform  string
	referrers bool
	sparse    bool // of export
	lists     []string

	login registries.Flags

	storeDir  string
	storeSize int64
	noStore   bool
}

func newImageFlags(global *cmdflags.Global) imageFlags {
	return imageFlags{cluster: cmdflags.Cluster{Global: global}}
}

func (f *imageFlags) transferFlags(flags *pflag.FlagSet) {
	cmdflags.AddNumber(flags, &f.concurrency, "oci-concurrency", 1, maxConcurrency, images.DefaultConcurrency,
		"number of parallel blob transfers; use 1 on a poor network")
	flags.BoolVar(&f.failFast, "fail-fast", false,
		"end at the first image that fails; otherwise the others are completed, and the exit code is 1")
	cmdflags.AddSize(flags, &f.limitRate, "limit-rate", "",
		"maximum bytes per second in each direction, over all connections, as in 500kB; 0 means no limit")
	f.retryFlag(flags)
}

func (f *imageFlags) retryFlag(flags *pflag.FlagSet) {
	cmdflags.AddNumber(flags, &f.retries, "retries", 0, maxRetries, remote.DefaultRetries,
		"number of retries without progress after a transient failure")
}

func (f *imageFlags) selectionFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringArrayVarP(&f.lists, "file", "f", nil,
		"read references from `LIST`, one per line, with comments after #; - is stdin; can be repeated")
	flags.StringVar(&f.platform, "platform", "auto",
		"`PLATFORMS` to select from an index that a tag names: a list such as linux/amd64,linux/arm64, all, or auto "+
			"(the platforms of the cluster's nodes, or of this machine if no cluster answers)")
	cmdflags.Complete(cmd, "platform", "auto", "all", "linux/amd64", "linux/arm64", "linux/amd64,linux/arm64")
	flags.BoolVar(&f.referrers, "referrers", false,
		"include artifacts that refer to the images: signatures, attestations, SBOMs")
}

func (f *imageFlags) storeFlags(cmd *cobra.Command) {
	f.storeDirFlag(cmd)
	cmdflags.AddSize(cmd.Flags(), &f.storeSize, "store-size", defaultStoreSize,
		"maximum size of the local store, by removing the least recently used blobs; 0 means no limit")
	cmd.Flags().BoolVar(&f.noStore, "no-store", false, "do not use the local store of blobs")
}

func (f *imageFlags) storeDirFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.storeDir, "store-dir", "",
		"`DIRECTORY` of the local store of blobs, which several processes can share "+
			"(default: $"+storeVariable+", or zarf-registry/images in the user's cache directory)")
	_ = cmd.MarkFlagDirname("store-dir") // fails only for an unknown flag
}

// validate checks the values of the flags that the command has, without asking a
// registry or cluster.
func (f *imageFlags) validate(flags *pflag.FlagSet) error {
	var errs []error
	if flags.Lookup("name") != nil {
		errs = append(errs, f.cluster.Validate())
	}
	if flags.Lookup("platform") != nil && f.platform != "auto" {
		if _, err := graph.ParsePlatforms(f.platform); err != nil {
			errs = append(errs, fmt.Errorf("--platform: %w", err))
		}
	}
	if f.noStore && (flags.Changed("store-dir") || flags.Changed("store-size")) {
		errs = append(errs, errors.New("--no-store cannot be combined with --store-dir or --store-size"))
	}
	return errors.Join(append(errs, f.login.Validate())...)
}

// references returns the references of the arguments and the list files.
func (f *imageFlags) references(cmd *cobra.Command, args []string) ([]string, error) {
	for _, ref := range args {
		if err := name.Check(ref); err != nil {
			return nil, err
		}
	}
	refs := slices.Clone(args)
	if i := slices.Index(f.lists, "-"); i >= 0 && (f.login.PasswordStdin || slices.Contains(f.lists[i+1:], "-")) {
		return nil, errors.New("--file: stdin can be read only once: for the password or for one list of references")
	}
	for _, file := range f.lists {
		list, err := cmdflags.ReadList(cmd.InOrStdin(), file)
		if err != nil {
			return nil, fmt.Errorf("--file: %w", err)
		}
		refs = append(refs, list...)
	}
	if len(refs) == 0 {
		return nil, errors.New("no images given: name them as arguments or in a list with --file")
	}
	return refs, nil
}

// storeAt returns the directory of the local store.
func (f *imageFlags) storeAt() (string, error) {
	if dir := cmp.Or(f.storeDir, os.Getenv(storeVariable)); dir != "" {
		return dir, nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no directory for the local store (%w): set --store-dir or %s", err, storeVariable)
	}
	return filepath.Join(dir, "zarf-registry", "images"), nil
}

// imageRun holds the clients and open files of one run of an images command.
type imageRun struct {
	*imageFlags
	meter      *meter.Meter
	log        *slog.Logger
	rate       *remote.Rate
	registries *registries.Set
	ends       []func() error
}

// begin prepares a run with validated flags. The user name applies to the registry at host.
// Registries for which plain returns true are reached without TLS.
func (f *imageFlags) begin(cmd *cobra.Command, host string, plain func(host string) bool) (*imageRun, error) {
	r := &imageRun{imageFlags: f, meter: meter.New(cmd.ErrOrStderr())}
	r.log = f.cluster.Progress(r.meter)
	if f.cluster.Log.Format != "auto" {
		// In a structured log, progress is made of records too.
		r.log = f.cluster.Progress(cmd.ErrOrStderr())
		r.meter = meter.New(recorded{r.log})
	}
	if f.limitRate > 0 {
		r.rate = remote.NewRate(f.limitRate)
	}
	var err error
	r.registries, err = f.login.Open(cmd.InOrStdin(), host, plain, r.retryOptions())
	if err != nil {
		return nil, exitcode.Usage(err)
	}
	r.atEnd(func() error { r.registries.Close(); return nil })
	return r, nil
}

// recorded logs each line as a message.
type recorded struct{ log *slog.Logger }

func (r recorded) Write(lines []byte) (int, error) {
	for line := range strings.Lines(string(lines)) {
		r.log.Info(strings.TrimSpace(line))
	}
	return len(lines), nil
}

// retryOptions returns the client options of the run: retries, rate and log.
func (r *imageRun) retryOptions() remote.Options {
	options := remote.Options{Retries: r.retries, Rate: r.rate, Log: r.log}
	if r.retries == 0 {
		options.Retries = -1 // disables retries
	}
	return options
}

// atEnd registers a function for the end of the run. The last one registered runs first.
func (r *imageRun) atEnd(end func() error) { r.ends = append(r.ends, end) }

// end closes everything that the run opened. An error may mean that a file was written
// only in part.
func (r *imageRun) end() error {
	r.meter.End()
	var errs []error
	for _, end := range slices.Backward(r.ends) {
		errs = append(errs, end())
	}
	return errors.Join(errs...)
}

// store opens the local store. It returns nil with --no-store.
func (r *imageRun) store() (*blobstore.Store, error) {
	if r.noStore {
		return nil, nil
	}
	dir, err := r.storeAt()
	if err != nil {
		return nil, err
	}
	store, err := blobstore.Open(dir, blobstore.Options{Cache: true, MaxSize: r.storeSize, Log: r.log})
	if err != nil {
		return nil, err
	}
	r.atEnd(store.Close)
	return store, nil
}

// resolve resolves references in registries and in the Docker engine. It returns what it found, and errors about the
// rest.
func (r *imageRun) resolve(ctx context.Context, refs []string) ([]graph.Item, error) {
	platforms, err := r.platforms(ctx)
	if err != nil {
		return nil, err
	}
	store, err := r.store()
	if err != nil {
		return nil, err
	}
	return source.Resolve(ctx, refs, source.ResolveOptions{
		Registry: r.registries.Get, Engine: r.engine, Store: store, Sparse: r.sparse,
		Platforms: platforms, Referrers: r.referrers, Concurrency: r.concurrency, Log: r.log,
	})
}

// ends reports whether nothing is to be transferred after some images failed.
func (f *imageFlags) ends(items []graph.Item, failed error) bool {
	return len(items) == 0 || failed != nil && f.failFast
}

// engine opens images that the Docker engine saves. The error may be about some of them.
func (r *imageRun) engine(ctx context.Context, names []string) (*source.Source, error) {
	client, err := dockerdaemon.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = client.Close() }()
	r.log.Info("reading from the Docker engine", "images", strings.Join(names, ","))
	var missing error
	saved, err := source.FromEngine(ctx, func(file *os.File) (err error) {
		missing, err = client.Save(ctx, names, file)
		return err
	})
	if err != nil {
		return nil, errors.Join(missing, err)
	}
	r.atEnd(saved.Close)
	return saved, missing
}

// platforms returns the platforms of --platform. It logs what auto resolves to.
func (r *imageRun) platforms(ctx context.Context) (graph.Platforms, error) {
	if r.platform != "auto" {
		return graph.ParsePlatforms(r.platform)
	}
	var text string
	var err error
	if _, client, connectErr := cluster.Connect(r.cluster.Access); connectErr == nil {
		text, err = stored.NodePlatforms(ctx, client)
	} else if r.cluster.SelectsCluster() {
		return nil, connectErr // a cluster was selected explicitly
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if text != "" {
		r.log.Info("using the platforms of the cluster's nodes (--platform)", "platforms", text)
	} else {
		text = "linux/" + runtime.GOARCH
		if err != nil {
			r.log.Warn("cannot read the platforms of the cluster's nodes, using this machine's (--platform)",
				"platforms", text, "error", err)
		} else {
			r.log.Info("no cluster configured, using this machine's platform (--platform)", "platforms", text)
		}
	}
	return graph.ParsePlatforms(text)
}

// transfer runs do and prints its results: on failure, those of the images that were completed.
func (f *imageFlags) transfer(cmd *cobra.Command, host string, plain func(host string) bool,
	do func(context.Context, *imageRun) ([]images.Result, error)) error {
	r, err := f.begin(cmd, host, plain)
	if err != nil {
		return err
	}
	results, failure := do(cmd.Context(), r)
	failure = errors.Join(failure, r.end())
	if failure != nil && cmd.Context().Err() != nil {
		failure = errors.New("interrupted: run the same command again to continue")
	}
	if failure != nil && len(results) == 0 {
		return failure
	}
	return errors.Join(failure, render.Report(cmd.OutOrStdout(), f.output, render.TransferList,
		render.List[images.Result]{Items: results}, printReferences, nil))
}

func printReferences(w io.Writer, list render.List[images.Result]) error {
	var refs []string
	for _, result := range list.Items {
		refs = append(refs, result.Reference)
	}
	return render.Names(w, refs)
}
