package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/zarf-dev/zarf-registry/internal/api/space"
	"github.com/zarf-dev/zarf-registry/internal/cli/cmdflags"
	"github.com/zarf-dev/zarf-registry/internal/cli/render"
	"github.com/zarf-dev/zarf-registry/internal/cluster"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/status"
	"github.com/zarf-dev/zarf-registry/internal/status/support"
)

const (
	// defaultTail shows days of a registry with some pushes, and all of a proxy.
	defaultTail = 5000
	// defaultBundleTimeout is ample: a cluster of two nodes takes seconds, and 200 pods that do not answer take
	// four minutes.
	defaultBundleTimeout = 5 * time.Minute
)

type bundleFlags struct {
	cmdflags.Cluster
	out     string
	since   time.Duration
	tail    int64
	timeout time.Duration
	output  string
}

func newSupportBundle(global *cmdflags.Global) *cobra.Command {
	f := &bundleFlags{Cluster: cmdflags.Cluster{Global: global}}
	cmd := &cobra.Command{
		Use:   "support-bundle",
		Short: "Write what a bug report needs into one archive",
		Long: `support-bundle writes what a bug report needs into one archive: status and preflight, the
release's objects, nodes, events, logs of all containers, also of their previous run, Helm's
values and history, metrics, and a summary. It changes nothing.

The archive contains no Secrets. In values and objects, it masks what has the name of a secret,
such as password, token or auth, and user names in URLs.

Objects that this identity may not read, pods that do not answer, and what is not read within
--timeout are missing; summary.txt says which, and so does the output.

Exit codes: 0 if the archive was written, 1 if not, 3 if the command line is invalid.`,
		Example: `  zarf-registry support-bundle
  zarf-registry support-bundle --out bundle.tar.gz --since 24h
  zarf-registry support-bundle --out - | ssh workstation 'cat >bundle.tar.gz'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	flags := cmd.Flags()
	f.Register(flags)
	flags.StringVar(&f.out, "out", "",
		"`FILE` to write, - for stdout (default zarf-registry-support-TIME.tar.gz)")
	cmdflags.AddDuration(flags, &f.since, "since", time.Second, 0, "maximum age of log lines (default: any)")
	flags.Int64Var(&f.tail, "tail", defaultTail, "number of last lines of each log, -1 for all")
	cmdflags.AddTimeout(flags, &f.timeout, defaultBundleTimeout)
	cmdflags.AddOutput(cmd, &f.output)
	return cmd
}

// check rejects flags that are wrong in any cluster.
func (f *bundleFlags) check() error {
	errs := []error{f.Validate()}
	if f.tail < -1 || f.tail == 0 {
		errs = append(errs, fmt.Errorf("invalid --tail %d: want a positive number, or -1 for all lines", f.tail))
	}
	if f.out == "-" && render.IsData(f.output) {
		errs = append(errs, errors.New("--out - and --output both write to stdout: write the archive to a file"))
	}
	return errors.Join(errs...)
}

func (f *bundleFlags) run(cmd *cobra.Command) error {
	if err := f.check(); err != nil {
		return exitcode.Usage(err)
	}
	log := f.Progress(cmd.ErrOrStderr())
	config, client, err := cluster.Connect(f.Access)
	if err != nil {
		return err
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("using the kubeconfig: %w", err)
	}
	now := time.Now() // of the archive's name, and of the directory in it
	options := support.Options{
		Namespace: f.Namespace, Release: f.Release, Name: f.Name, Client: client, Objects: objects,
		Fetch:   cluster.NewRegistry(config, client, f.Namespace, f.Release).Fetch,
		Reports: f.reports(cmd.ErrOrStderr(), config, client), Since: f.since, Tail: f.tail, Timeout: f.timeout,
		Log: log, Now: func() time.Time { return now },
	}
	if f.out == "-" {
		result, err := support.Write(cmd.Context(), cmd.OutOrStdout(), options)
		if err != nil {
			return fmt.Errorf("writing the support bundle: %w", err)
		}
		return printBundle(cmd.ErrOrStderr(), bundle{Path: "-", Result: result})
	}
	written, err := writeBundle(cmd.Context(), cmp.Or(f.out, support.Directory(now)+".tar.gz"), options)
	if err != nil {
		return fmt.Errorf("writing the support bundle: %w", err)
	}
	return render.Report(cmd.OutOrStdout(), f.output, render.SupportBundle, *written, printBundle, nil)
}

// bundle is what support-bundle prints as JSON.
type bundle struct {
	Path string `json:"path"`
	// Size is in bytes; 0 on stdout.
	Size int64 `json:"size"`
	*support.Result
}

// writeBundle replaces the file at path once the archive is complete. Others may not read it.
func writeBundle(ctx context.Context, path string, options support.Options) (_ *bundle, err error) {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(file.Name()) // the first error says what is wrong
		}
	}()
	defer file.Close()
	result, err := support.Write(ctx, file, options)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if err := file.Close(); err != nil {
		return nil, err
	}
	return &bundle{path, info.Size(), result}, os.Rename(file.Name(), path)
}

func printBundle(w io.Writer, b bundle) error {
	size := ""
	if b.Size > 0 {
		size = ", " + space.FormatBytes(b.Size)
	}
	fmt.Fprintf(w, "%s: %d files%s\n", b.Path, len(b.Files), size)
	if len(b.Missing) > 0 {
		fmt.Fprintf(w, "\nNot in the archive (%d):\n", len(b.Missing))
	}
	for _, what := range b.Missing {
		fmt.Fprintf(w, "  - %s\n", what)
	}
	return nil
}

// reports are the outputs of other commands.
func (f *bundleFlags) reports(stderr io.Writer, config *rest.Config, client kubernetes.Interface) []support.Report {
	var report *status.Report // of status.txt
	return []support.Report{
		{Name: "status.txt", Write: func(ctx context.Context, w io.Writer) (err error) {
			if report, err = f.CollectStatus(ctx, config, client); err != nil {
				return err
			}
			return printStatus(w, report)
		}},
		{Name: "status.json", Write: func(_ context.Context, w io.Writer) error {
			if report == nil {
				return nil // status.txt is missing, too
			}
			return render.Data(w, render.FormatJSON, render.Status, report)
		}},
		{Name: "preflight.txt", Write: func(ctx context.Context, w io.Writer) error {
			return f.writePreflight(ctx, client, w, stderr)
		}},
	}
}

// writePreflight writes what zarf-registry install --dry-run prints for the values of the release.
func (f *bundleFlags) writePreflight(ctx context.Context, client kubernetes.Interface, w, stderr io.Writer) error {
	global := *f.Global
	global.Log.Level = slog.LevelError
	flags := &chartFlags{Global: &global}
	cmd := &cobra.Command{}
	flags.register(cmd) // sets the defaults
	cmd.SetErr(stderr)
	deployment, err := client.AppsV1().Deployments(f.Namespace).Get(ctx, f.Name, metav1.GetOptions{})
	if err == nil { // with namespaceOverride, the release is elsewhere
		flags.Namespace = cmp.Or(deployment.Annotations[names.AnnotationReleaseNamespace], flags.Namespace)
	}
	i, err := flags.installer(cmd)
	if err == nil {
		err = flags.plan(ctx, w, i)
	}
	if _, blockers := errors.AsType[*render.SilentError](err); blockers {
		return nil // they are in the output
	}
	return err
}
