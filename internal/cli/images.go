package cli

import (
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
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/zarf-dev/zarf-registry/internal/blobstore"
	"github.com/zarf-dev/zarf-registry/internal/cluster"
	"github.com/zarf-dev/zarf-registry/internal/dockerdaemon"
	"github.com/zarf-dev/zarf-registry/internal/hook"
	"github.com/zarf-dev/zarf-registry/internal/images"
	"github.com/zarf-dev/zarf-registry/internal/logging"
	"github.com/zarf-dev/zarf-registry/internal/meter"
	"github.com/zarf-dev/zarf-registry/internal/remote"
)

func newImages() *cobra.Command {
	cmd := group("images", "Pull, push, copy and list images",
		newImagesPull(), newImagesPush(), newImagesCopy(), newImagesList(), newImagesCache())
	// What is wrong with the command line, another try would meet again.
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &hook.Refused{Err: err} })
	return cmd
}

const (
	// maxConcurrency bounds what may be done at once: more connections than that,
	// most registries and proxies take for an attack.
	maxConcurrency = 100

	// maxRetries bounds --retries: with pauses of up to 8 s, an hour takes 450.
	maxRetries = 1000

	// defaultCacheSize keeps the images of a few applications.
	defaultCacheSize = "20GB"

	// cacheTrust is how long blobs in the cache that are as they were when they were
	// verified need not be read again: a day's work on the same images.
	cacheTrust = 24 * time.Hour

	// nodesTimeout is how long the cluster has to tell its nodes' platforms: who has
	// a kubeconfig of a cluster that is off should not wait for it.
	nodesTimeout = 3 * time.Second

	cacheVariable = "ZARF_REGISTRY_IMAGE_CACHE"
)

// imageFlags are the flags that the commands about images share. Each registers
// those that it has.
type imageFlags struct {
	cluster clusterFlags
	output  string
	log     logging.Options

	concurrency, imageConcurrency, retries int

	platform  string
	referrers bool
	lists     []string

	login registryFlags

	cacheDir  string
	cacheSize int64
	noCache   bool
}

// reportFlags say how results and what happens on the way are told. --output is -o,
// as it is everywhere, unless that is where images are pulled to.
func (f *imageFlags) reportFlags(cmd *cobra.Command) {
	short := "o"
	if cmd.Flags().ShorthandLookup(short) != nil {
		short = ""
	}
	cmd.Flags().StringVarP(&f.output, "output", short, "text", "text or json")
	complete(cmd, "output", "text", "json")
	progressFlags(cmd.Flags(), &f.log)
}

func (f *imageFlags) transferFlags(flags *pflag.FlagSet) {
	numberFlag(flags, &f.concurrency, "oci-concurrency", 1, maxConcurrency, images.DefaultConcurrency, "how many blobs are transferred at once; 1 where the network is poor")
	numberFlag(flags, &f.imageConcurrency, "image-concurrency", 1, maxConcurrency, 1, "how many images are begun at once; with 1, the next begins when all blobs of one are on their way")
	f.retryFlag(flags)
}

func (f *imageFlags) retryFlag(flags *pflag.FlagSet) {
	numberFlag(flags, &f.retries, "retries", 0, maxRetries, remote.DefaultRetries, "how often what failed for a reason that may pass is tried again without getting further")
}

func (f *imageFlags) selectionFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringArrayVarP(&f.lists, "file", "f", nil, "read references from `LIST`, one a line, with comments after #; - is stdin; may be given several times")
	flags.StringVar(&f.platform, "platform", "auto", "what to take of an index that a tag names: `PLATFORMS` such as linux/amd64,linux/arm64, all, or auto: those of the cluster's nodes, or this machine's where no cluster answers")
	complete(cmd, "platform", "auto", "all", "linux/amd64", "linux/arm64", "linux/amd64,linux/arm64")
	flags.BoolVar(&f.referrers, "referrers", false, "take along what refers to the images: signatures, attestations, SBOMs")
}

func (f *imageFlags) cacheFlags(cmd *cobra.Command) {
	f.cacheDirFlag(cmd)
	sizeFlag(cmd.Flags(), &f.cacheSize, "cache-size", defaultCacheSize, "what the cache may hold; what was longest not used is removed. 0 is no bound")
	cmd.Flags().BoolVar(&f.noCache, "no-cache", false, "use no cache")
}

func (f *imageFlags) cacheDirFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.cacheDir, "cache-dir", "", "the cache, an OCI layout `DIRECTORY` of blobs that several processes may use at once (default: "+cacheVariable+", else zarf-registry/images in the user's cache directory)")
	_ = cmd.MarkFlagDirname("cache-dir") // it fails for a flag that does not exist only
}

// complete adds the values that a shell offers for a flag.
func complete(cmd *cobra.Command, flag string, values ...string) {
	// It fails for a flag that does not exist only.
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// least refuses fewer arguments.
func least(n int, want string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) < n {
			return &hook.Refused{Err: errors.New(want)}
		}
		return nil
	}
}

// validate refuses what nothing needs to be asked about, of the flags that the
// command has.
func (f *imageFlags) validate(flags *pflag.FlagSet) error {
	errs := []error{validOutput(f.output)}
	if flags.Lookup("namespace") != nil {
		errs = append(errs, f.cluster.validate())
	}
	if flags.Lookup("log-format") != nil && !slices.Contains([]string{"json", "text", "auto"}, f.log.Format) {
		errs = append(errs, fmt.Errorf("invalid --log-format %q: want json, text or auto", f.log.Format))
	}
	if flags.Lookup("platform") != nil && f.platform != "auto" {
		if _, err := images.ParsePlatforms(f.platform); err != nil {
			errs = append(errs, fmt.Errorf("--platform: %w", err))
		}
	}
	if f.noCache && (flags.Changed("cache-dir") || flags.Changed("cache-size")) {
		errs = append(errs, errors.New("--no-cache leaves nothing to say by --cache-dir and --cache-size: give either"))
	}
	return errors.Join(append(errs, f.login.validate())...)
}

// references are those of the arguments and of the list files, each once.
func (f *imageFlags) references(cmd *cobra.Command, args []string) ([]string, error) {
	var refs []string
	for _, ref := range args {
		if err := images.CheckReference(ref); err != nil {
			return nil, err
		}
		refs = append(refs, ref)
	}
	if i := slices.Index(f.lists, "-"); i >= 0 && (f.login.passwordStdin || slices.Contains(f.lists[i+1:], "-")) {
		return nil, errors.New("--file: stdin can be one thing only: the password, or one list of references")
	}
	for _, name := range f.lists {
		list, err := func() ([]string, error) {
			if name == "-" {
				return images.ReadList(cmd.InOrStdin(), "stdin")
			}
			file, err := os.Open(name)
			if err != nil {
				return nil, err
			}
			defer file.Close()
			return images.ReadList(file, name)
		}()
		if err != nil {
			return nil, fmt.Errorf("--file: %w", err)
		}
		refs = append(refs, list...)
	}
	if len(refs) == 0 {
		return nil, errors.New("there is nothing to do: name images, or a list of them with --file")
	}
	var unique []string
	for _, ref := range refs {
		if !slices.Contains(unique, ref) {
			unique = append(unique, ref)
		}
	}
	return unique, nil
}

// cacheAt is the cache's directory.
func (f *imageFlags) cacheAt() (string, error) {
	if f.cacheDir != "" {
		return f.cacheDir, nil
	}
	if dir := os.Getenv(cacheVariable); dir != "" {
		return dir, nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("there is no place for the cache (%w): name one with --cache-dir or %s", err, cacheVariable)
	}
	return filepath.Join(dir, "zarf-registry", "images"), nil
}

// imageRun is what a command about images works with.
type imageRun struct {
	*imageFlags
	meter      *meter.Meter
	log        *slog.Logger
	registries *registries
	ends       []func() error
}

// begin prepares a run whose flags were validated. --username is for the registry at
// host, and those that plain tells are reached without TLS.
func (f *imageFlags) begin(cmd *cobra.Command, host string, plain func(host string) bool) (*imageRun, error) {
	r := &imageRun{imageFlags: f, meter: meter.New(cmd.ErrOrStderr())}
	var err error
	if r.log, err = newProgress(r.meter, &f.log); err != nil {
		return nil, &hook.Refused{Err: err}
	}
	if f.log.Format != "auto" {
		// Whoever reads the log reads nothing but records.
		if r.log, err = newProgress(cmd.ErrOrStderr(), &f.log); err != nil {
			return nil, &hook.Refused{Err: err}
		}
		r.meter = meter.New(recorded{r.log})
	}
	r.registries, err = f.login.registries(cmd.InOrStdin(), host, plain, r.patience())
	if err != nil {
		return nil, &hook.Refused{Err: err}
	}
	r.atEnd(func() error { r.registries.close(); return nil })
	return r, nil
}

// recorded writes lines as the messages of a log.
type recorded struct{ log *slog.Logger }

// Write implements [io.Writer].
func (r recorded) Write(lines []byte) (int, error) {
	for line := range strings.Lines(string(lines)) {
		r.log.Info(strings.TrimSpace(line))
	}
	return len(lines), nil
}

// patience is how hard the run's clients try.
func (r *imageRun) patience() remote.Options {
	options := remote.Options{Retries: r.retries, MaxIdleConns: r.concurrency, Log: r.log}
	if r.retries == 0 {
		options.Retries = -1 // the client's words for never
	}
	return options
}

// atEnd has something done when the run ends; what came last comes first.
func (r *imageRun) atEnd(end func() error) { r.ends = append(r.ends, end) }

// end closes what the run has opened. The error is about how it is left, for what
// cannot be closed was written in part.
func (r *imageRun) end() error {
	r.meter.End()
	var errs []error
	for _, end := range slices.Backward(r.ends) {
		errs = append(errs, end())
	}
	return errors.Join(errs...)
}

// cache opens the cache, or returns nil where there is to be none.
func (r *imageRun) cache() (*blobstore.Store, error) {
	if r.noCache {
		return nil, nil
	}
	dir, err := r.cacheAt()
	if err != nil {
		return nil, err
	}
	store, err := blobstore.Open(dir, blobstore.Options{MaxSize: r.cacheSize, Trust: cacheTrust, Log: r.log})
	if err != nil {
		return nil, err
	}
	r.atEnd(store.Close)
	return store, nil
}

// temporary opens a store that is gone after the run, in the directory for
// temporary files if parent is "".
func (r *imageRun) temporary(parent string) (*blobstore.Store, error) {
	store, err := blobstore.OpenTemp(parent)
	if err != nil {
		return nil, err
	}
	r.atEnd(store.Close)
	return store, nil
}

// cacheOr opens the cache or, without one, a store that is gone after the run.
func (r *imageRun) cacheOr(parent string) (*blobstore.Store, error) {
	store, err := r.cache()
	if store == nil && err == nil {
		store, err = r.temporary(parent)
	}
	return store, err
}

// resolve finds images in registries and in the Docker engine.
func (r *imageRun) resolve(ctx context.Context, refs []string, store *blobstore.Store) ([]images.Item, error) {
	platforms, err := r.platforms(ctx)
	if err != nil {
		return nil, err
	}
	return images.Resolve(ctx, refs, images.ResolveOptions{
		Registry: r.registries.get, Daemon: r.daemon(store), Store: store,
		Platforms: platforms, Referrers: r.referrers, Concurrency: r.concurrency, Log: r.log,
	})
}

// daemon returns what reads images of the Docker engine, once, into the store.
func (r *imageRun) daemon(store *blobstore.Store) func(context.Context, []string) (*images.Source, error) {
	return func(ctx context.Context, names []string) (*images.Source, error) {
		client, err := dockerdaemon.Open(ctx)
		if err != nil {
			return nil, err
		}
		defer func() { _ = client.Close() }()
		r.log.Info("reading from the Docker engine", "images", strings.Join(names, ","))
		var source *images.Source
		err = client.Save(ctx, names, func(stream io.Reader) error {
			source, err = images.OpenStream(ctx, stream, store)
			return err
		})
		if err != nil {
			return nil, err
		}
		r.atEnd(source.Close)
		return source, nil
	}
}

// platforms are those of --platform. What auto turned out to be is told.
func (r *imageRun) platforms(ctx context.Context) (images.Platforms, error) {
	if r.platform != "auto" {
		return images.ParsePlatforms(r.platform)
	}
	text, err := "", error(nil)
	if _, client, connectErr := cluster.Connect(r.cluster.access); connectErr == nil {
		text, err = nodePlatforms(ctx, client)
	} else if r.cluster.access != (cluster.Access{}) {
		return nil, connectErr // somebody has named one
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if text != "" {
		r.log.Info("taking the platforms of the cluster's nodes (--platform)", "platforms", text)
	} else {
		text = "linux/" + runtime.GOARCH
		if err != nil {
			r.log.Warn("the cluster does not tell the platforms of its nodes, taking this machine's (--platform)", "platforms", text, "error", err)
		} else {
			r.log.Info("taking this machine's platform, for there is no cluster to ask (--platform)", "platforms", text)
		}
	}
	return images.ParsePlatforms(text)
}

// nodePlatforms are those of the cluster's Linux nodes, as --platform takes them,
// sorted: images for Windows are rarely in one index with others.
func nodePlatforms(ctx context.Context, client kubernetes.Interface) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, nodesTimeout, fmt.Errorf("no answer within %s", nodesTimeout))
	defer cancel()
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return "", err
	}
	var found []string
	for _, node := range nodes.Items {
		info := node.Status.NodeInfo
		if platform := info.OperatingSystem + "/" + info.Architecture; info.OperatingSystem == "linux" && info.Architecture != "" && !slices.Contains(found, platform) {
			found = append(found, platform)
		}
	}
	slices.Sort(found)
	if len(found) == 0 {
		return "", errors.New("it has no Linux node")
	}
	return strings.Join(found, ","), nil
}

// report prints what became of images, all or those before the first that failed,
// and returns the error in words of the command line.
func (r *imageRun) report(cmd *cobra.Command, results []images.Result, failure error) error {
	if failure != nil && cmd.Context().Err() != nil {
		failure = errors.New("interrupted: the same command goes on where this one ended")
		if r.noCache {
			failure = errors.New("interrupted")
		}
	}
	if failure != nil && len(results) == 0 {
		return failure
	}
	var err error
	if r.output == "json" {
		err = printJSON(cmd.OutOrStdout(), results)
	} else {
		for _, result := range results {
			if _, err = fmt.Fprintln(cmd.OutOrStdout(), result.Reference); err != nil {
				break
			}
		}
	}
	return errors.Join(failure, err)
}
