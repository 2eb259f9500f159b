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
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/gc"
	"github.com/zarf-dev/zarf-registry/internal/logging"
	"github.com/zarf-dev/zarf-registry/internal/release"
)

const (
	// collectionSilence is how long the registry may send no event before it counts as
	// gone. It sends one every 5 seconds.
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
		Short: "Remove unreferenced blobs and manifests from the cluster's registry",
		Long: `garbage-collect asks the cluster's registry to delete blobs that no image uses. Deleting an
image, or pushing another one under its tag, does not free space by itself. The connection is
a port-forward with mutual TLS and the push credential. With
registry.garbageCollection.enabled the chart's CronJob runs this command.

Pulls and pushes continue meanwhile. With several replicas, pushes of what is about to be
removed may wait at the replicas that do not collect, and fail with status 503 after 40 seconds.
If this command, the registry or its node is interrupted, nothing is damaged, and the next
collection removes the rest.

Content pushed within --grace-period and uploads in progress are kept.

It prints a line for each removed object and a summary, or an object with both with
--output json.

Exit codes: 0 on success, 1 on failure or timeout, 3 if a retry would fail in the same way.`,
		Example: `  init-hook garbage-collect --dry-run
  init-hook garbage-collect
  init-hook garbage-collect --delete-untagged --grace-period 720h`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	flags := cmd.Flags()
	f.cluster.register(flags)
	flags.BoolVar(&f.request.DryRun, "dry-run", false, "only print what would be removed; pushes do not wait")
	flags.BoolVar(&f.request.DeleteUntagged, "delete-untagged", false,
		"also remove images that no tag or index references; pods can then no longer pull them by digest")
	flags.DurationVar(&f.request.Grace, "grace-period", gc.DefaultGrace, "minimum age before content is removed")
	flags.DurationVar(&f.request.Timeout, "timeout", gc.DefaultTimeout, "time limit for the whole run")
	outputFlag(cmd, &f.output)
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
		return &exitcode.Refusal{Err: err}
	}
	log, err := newProgress(cmd.ErrOrStderr(), &f.log)
	if err != nil {
		return &exitcode.Refusal{Err: err}
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

// collect runs a collection and prints its events.
func (f *collectFlags) collect(
	ctx context.Context, transport http.RoundTripper, access release.PushAccess, stdout io.Writer, log *slog.Logger,
) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(collectionSilence, func() {
		cancel(fmt.Errorf("the registry sent no event for %s: check the log of its pod, then run it again",
			collectionSilence))
	})
	defer silence.Stop()
	what := collected{DryRun: f.request.DryRun, Removed: []gc.Removed{}}
	err := cluster.Collect(ctx, transport, access, f.request, func(e gc.Event) error {
		silence.Reset(collectionSilence)
		switch {
		case e.Phase == gc.Settling:
			log.Debug("waiting for pushes that began earlier", "phase", e.Phase)
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
	return render(stdout, f.output, what, printCollected, nil)
}

func printCollected(w io.Writer, c collected) error {
	verb := "removed"
	if c.DryRun {
		verb = "would remove"
	}
	_, err := fmt.Fprintf(w, "%s %s, %d of them manifests; kept %d blobs within the grace period\n",
		verb, countedBytes(c.Blobs, c.Bytes), c.Manifests, c.Kept)
	return err
}
