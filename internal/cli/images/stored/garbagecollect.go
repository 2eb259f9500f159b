package stored

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/internal/api/gc"
	"github.com/zarf-dev/zarf-registry/internal/cli/cmdflags"
	"github.com/zarf-dev/zarf-registry/internal/cli/render"
	"github.com/zarf-dev/zarf-registry/internal/cluster"
	"github.com/zarf-dev/zarf-registry/internal/logging"
	"github.com/zarf-dev/zarf-registry/internal/release"
)

// eventTimeout is how long the registry may send no event before it counts as gone. It sends one every 5 seconds.
const eventTimeout = time.Minute

type collectFlags struct {
	cluster cmdflags.Cluster
	request gc.Request
	output  string
}

func NewGarbageCollect(global *cmdflags.Global) *cobra.Command {
	f := &collectFlags{cluster: cmdflags.Cluster{Global: global}}
	cmd := &cobra.Command{
		Use:   "garbage-collect",
		Short: "Free the space of what was deleted",
		Long: `garbage-collect asks the cluster's registry to delete blobs that no image uses. Deleting an
image, or pushing another one under its tag, does not free space by itself. The connection is
a port-forward with mutual TLS and the push credential. With
registry.garbageCollection.enabled the chart's CronJob runs this command, or
images prune if registry.garbageCollection.prune has rules.

Pulls and pushes continue meanwhile. With several replicas, pushes of what is about to be
removed may wait at the replicas that do not collect, and fail with status 503 after 40 seconds.
If this command, the registry or its node is interrupted, nothing is damaged, and the next
collection removes the rest.

Content pushed within --grace-period and uploads in progress are kept.

It prints a line for each removed object and a summary, or an object with both with
--output json.

Exit codes: 0 on success, 1 on failure or timeout, 3 if a retry would fail in the same way.`,
		Example: `  zarf-registry images garbage-collect --dry-run
  zarf-registry images garbage-collect
  zarf-registry images garbage-collect --delete-untagged --grace-period 30d`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	flags := cmd.Flags()
	f.cluster.Register(flags)
	flags.BoolVar(&f.request.DryRun, "dry-run", false, "only print what would be removed; pushes do not wait")
	flags.BoolVar(&f.request.DeleteUntagged, "delete-untagged", false,
		"also remove images that no tag or index references; pods can then no longer pull them by digest")
	cmdflags.AddDuration(flags, &f.request.Grace, "grace-period", 0, gc.DefaultGrace,
		"minimum age before content is removed")
	cmdflags.AddTimeout(flags, &f.request.Timeout, gc.DefaultTimeout)
	cmdflags.AddOutput(cmd, &f.output)
	return cmd
}

// collected is what garbage-collect prints as JSON.
type collected struct {
	DryRun  bool         `json:"dryRun"`
	Removed []gc.Removed `json:"removed"`
	gc.Result
}

func (f *collectFlags) run(cmd *cobra.Command) error {
	c, log, err := f.cluster.Begin(cmd, f.request.Validate())
	if err != nil {
		return err
	}
	defer c.Close()
	return f.collect(cmd.Context(), c.Transport, c.Access, cmd.OutOrStdout(), log)
}

// collect runs a collection and prints what it removes.
func (f *collectFlags) collect(
	ctx context.Context, transport http.RoundTripper, access release.PushAccess, stdout io.Writer, log *slog.Logger,
) error {
	stdout = logging.PrintableWriter(stdout)
	what := collected{DryRun: f.request.DryRun, Removed: []gc.Removed{}}
	var err error
	what.Result, err = collectGarbage(ctx, transport, access, f.request, log, func(removed gc.Removed) error {
		if f.output == render.FormatTable {
			_, err := fmt.Fprintln(stdout, removed)
			return err
		}
		what.Removed = append(what.Removed, removed)
		return nil
	})
	if err != nil {
		return err
	}
	return render.Report(stdout, f.output, render.GarbageCollection, what, printCollected, nil)
}

// collectGarbage runs a collection and reports each removed object.
func collectGarbage(
	ctx context.Context, transport http.RoundTripper, access release.PushAccess, request gc.Request, log *slog.Logger,
	report func(gc.Removed) error,
) (result gc.Result, err error) {
	err = withEventTimeout(ctx, func(ctx context.Context, heard func()) error {
		return cluster.Collect(ctx, transport, access, request, func(e gc.Event) error {
			heard()
			switch {
			case e.Phase == gc.Settling:
				log.Debug("waiting for pushes that began earlier", "phase", e.Phase)
			case e.Phase != "":
				log.Debug("collecting", "phase", e.Phase)
			case e.Problem != "":
				log.Warn("stored content is damaged", "problem", e.Problem)
			case e.Removed != nil:
				return report(*e.Removed)
			case e.Result != nil:
				result = *e.Result
			}
			return nil
		})
	})
	if err != nil {
		return gc.Result{}, fmt.Errorf("collecting garbage: %w", err)
	}
	return result, nil
}

// withEventTimeout runs a request, and ends it if heard is not called for eventTimeout. The error is then the reason.
func withEventTimeout(ctx context.Context, request func(ctx context.Context, heard func()) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(eventTimeout, func() {
		cancel(fmt.Errorf("the registry sent no event for %s: check the log of its pod, then run it again",
			eventTimeout))
	})
	defer silence.Stop()
	err := request(ctx, func() { silence.Reset(eventTimeout) })
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause
	}
	return err
}

func printCollected(w io.Writer, c collected) error {
	verb := "removed"
	if c.DryRun {
		verb = "would remove"
	}
	_, err := fmt.Fprintf(w, "%s %s, %d of them manifests; kept %d blobs within the grace period\n",
		verb, render.CountedBytes(c.Blobs, c.Bytes), c.Manifests, c.Kept)
	return err
}
