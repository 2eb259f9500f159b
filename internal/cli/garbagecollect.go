package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/internal/cluster"
	"github.com/zarf-dev/zarf-registry/internal/gc"
	"github.com/zarf-dev/zarf-registry/internal/hook"
	"github.com/zarf-dev/zarf-registry/internal/logging"
)

const (
	// collectionSilence is after what time without a word the registry is taken for
	// gone: it says something every 5 seconds.
	collectionSilence = time.Minute
	// rolloutTimeout is how long a rollout in progress may delay a collection.
	rolloutTimeout = 2 * time.Minute
)

// collectFlags are the flags of garbage-collect.
type collectFlags struct {
	cluster clusterFlags
	request gc.Request
	output  string
	log     logging.Options
}

func newGarbageCollect() *cobra.Command {
	f := &collectFlags{}
	cmd := &cobra.Command{
		Use:   "garbage-collect",
		Short: "Remove from the registry of the cluster what no image needs",
		Long: `garbage-collect asks the registry of the cluster, through a port-forward with mutual TLS
and with the push credential, to remove the layers of images that were deleted:
deleting an image, or pushing another under its tag, frees nothing by itself. The chart's
CronJob runs it with registry.garbageCollection.enabled.

Pulls go on meanwhile. Pushes go on, too, but for the last step of an image, which waits
until the end, and for at least 20 seconds. Whatever ends early, this command, the registry
or its node, images are taken again at once or after a minute, and nothing is damaged: the
next collection removes the rest.

What was pushed within --grace-period stays, as do uploads under way.

It prints a line for each thing that is removed, and how much that was; with --output json
an object of both.

Exit codes: 0 when it is done, 1 when it failed or --timeout was over first, 3 when another
try would fail in the same way.`,
		Example: `  init-hook garbage-collect --dry-run
  init-hook garbage-collect
  init-hook garbage-collect --delete-untagged --grace-period 720h`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	flags := cmd.Flags()
	f.cluster.register(flags)
	flags.BoolVar(&f.request.DryRun, "dry-run", false, "remove nothing, and print what would be removed; pushes do not wait")
	flags.BoolVar(&f.request.DeleteUntagged, "delete-untagged", false, "also remove images that neither a tag nor an index leads to, such as those whose tag was given to another; pods that name them by digest cannot be pulled any more")
	flags.DurationVar(&f.request.Grace, "grace-period", gc.DefaultGrace, "how long what was pushed stays in any case")
	flags.DurationVar(&f.request.Timeout, "timeout", gc.DefaultTimeout, "how long it may take in all")
	flags.StringVarP(&f.output, "output", "o", "text", "text or json")
	complete(cmd, "output", "text", "json")
	progressFlags(flags, &f.log)
	return cmd
}

// collected is what garbage-collect prints as JSON.
type collected struct {
	DryRun  bool         `json:"dryRun"`
	Removed []gc.Removed `json:"removed"`
	gc.Result
}

func (f *collectFlags) run(cmd *cobra.Command) error {
	if err := errors.Join(f.cluster.validate(), f.request.Validate(), validOutput(f.output)); err != nil {
		return &hook.Refused{Err: err}
	}
	log, err := newProgress(cmd.ErrOrStderr(), &f.log)
	if err != nil {
		return &hook.Refused{Err: err}
	}
	config, client, err := cluster.Connect(f.cluster.access)
	if err != nil {
		return err
	}
	access, _, err := f.cluster.readAccess(cmd.Context(), client)
	if err != nil {
		return err
	}
	registry := cluster.NewRegistry(config, client, f.cluster.namespace, f.cluster.release)
	transport, err := registry.Transport(access)
	if err != nil {
		return err
	}
	defer transport.CloseIdleConnections()
	ctx := cmd.Context()
	if !f.request.DryRun {
		if err := registry.AwaitRollout(ctx, rolloutTimeout); err != nil {
			return fmt.Errorf("collecting garbage: %w", err)
		}
		var stop context.CancelFunc
		ctx, stop = registry.WatchRollout(ctx)
		defer stop()
	}
	return f.collect(ctx, transport, access, cmd.OutOrStdout(), log)
}

// collect asks for a collection and prints what it does.
func (f *collectFlags) collect(ctx context.Context, transport http.RoundTripper, access hook.Access, stdout io.Writer, log *slog.Logger) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(collectionSilence, func() {
		cancel(fmt.Errorf("the registry has said nothing for %s: look at its pod's log, and run it again", collectionSilence))
	})
	defer silence.Stop()
	what := collected{DryRun: f.request.DryRun, Removed: []gc.Removed{}}
	err := cluster.Collect(ctx, transport, access, f.request, func(e gc.Event) error {
		silence.Reset(collectionSilence)
		switch {
		case e.Phase == gc.Settling:
			log.Debug("waiting until no image is being written", "phase", e.Phase)
		case e.Phase != "":
			log.Debug("collecting", "phase", e.Phase)
		case e.Removed != nil && f.output == "text":
			_, err := fmt.Fprintln(stdout, e.Removed)
			return err
		case e.Removed != nil:
			what.Removed = append(what.Removed, *e.Removed)
		case e.Result != nil:
			what.Result = *e.Result
		}
		return nil
	})
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return fmt.Errorf("collecting garbage: %w", err)
	}
	return tell(stdout, f.output, what, printCollected, nil)
}

func printCollected(w io.Writer, c collected) error {
	verb := "removed"
	if c.DryRun {
		verb = "would remove"
	}
	_, err := fmt.Fprintf(w, "%s %s, manifests among them: %d; within the grace period, so kept: %d blobs\n",
		verb, countedBytes(c.Blobs, c.Bytes), c.Manifests, c.Kept)
	return err
}
