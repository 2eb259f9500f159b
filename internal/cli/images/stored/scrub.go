package stored

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/internal/api/scrub"
	"github.com/zarf-dev/zarf-registry/internal/api/space"
	"github.com/zarf-dev/zarf-registry/internal/cli/cmdflags"
	"github.com/zarf-dev/zarf-registry/internal/cli/render"
	"github.com/zarf-dev/zarf-registry/internal/cluster"
	"github.com/zarf-dev/zarf-registry/internal/logging"
	"github.com/zarf-dev/zarf-registry/internal/release"
)

// scrubProgress is how often the log says how far the registry has come.
const scrubProgress = time.Minute

type scrubFlags struct {
	cluster cmdflags.Cluster
	request scrub.Request
	output  string
}

func NewScrub(global *cmdflags.Global) *cobra.Command {
	f := &scrubFlags{cluster: cmdflags.Cluster{Global: global}}
	cmd := &cobra.Command{
		Use:   "scrub",
		Short: "Let the cluster's registry read all that it stores, and report damage",
		Long: `scrub asks the cluster's registry to read all of its content and to compare it with its
digests. It prints what is missing or damaged, and which images need that: push these again,
with images push or any other client, from their archives or another registry.

The registry reads at a limited rate. Pulls, pushes and garbage collection continue
meanwhile. It removes nothing, but pulls of damaged content fail with status 404 from then
on, and pushes replace it. If this command, the registry or its node is interrupted, the next
run continues where it ended.

zarf-registry status shows the problems of the last complete run that were not repaired since.

Exit codes: 0 if all content is intact, 1 on failure, 3 if the command line is invalid, 4 if
content is damaged.`,
		Example: `  zarf-registry images scrub
  zarf-registry images scrub --rate 200M
  zarf-registry images scrub --output json | jq -r '.problems[].images[] | .repository + ":" + .tag'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	flags := cmd.Flags()
	f.cluster.Register(flags)
	cmdflags.AddSize(flags, &f.request.Rate, "rate", "50MiB", "read at most `BYTES` per second")
	cmdflags.AddOutput(cmd, &f.output)
	return cmd
}

// scrubbed is what images scrub prints as JSON.
type scrubbed struct {
	scrub.Result
	Problems []scrub.Problem `json:"problems"`
}

// images returns the names of the images that need what is missing or damaged.
func (s scrubbed) images() (names []string) {
	for _, p := range s.Problems {
		for _, image := range p.Images {
			names = append(names, image.String())
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (f *scrubFlags) run(cmd *cobra.Command) error {
	c, log, err := f.cluster.Begin(cmd, f.request.Validate())
	if err != nil {
		return err
	}
	defer c.Close()
	return f.scrub(cmd.Context(), c.Transport, c.Access, cmd.OutOrStdout(), log)
}

// scrub lets the registry read its content and prints what it finds.
func (f *scrubFlags) scrub(
	ctx context.Context, transport http.RoundTripper, access release.PushAccess, stdout io.Writer, log *slog.Logger,
) error {
	stdout = logging.PrintableWriter(stdout)
	what := scrubbed{Problems: []scrub.Problem{}}
	logged := time.Now()
	err := withEventTimeout(ctx, func(ctx context.Context, heard func()) error {
		return cluster.Scrub(ctx, transport, access, f.request, func(e scrub.Event) error {
			heard()
			switch {
			case e.Progress != nil:
				if time.Since(logged) >= scrubProgress {
					logged = time.Now()
					log.Info("reading", "read", space.FormatBytes(e.Progress.Bytes), "of", space.FormatBytes(e.Progress.Total))
				}
			case e.Problem != nil:
				what.Problems = append(what.Problems, *e.Problem)
				if f.output == render.FormatTable {
					_, err := fmt.Fprintln(stdout, *e.Problem)
					return err
				}
			case e.Result != nil:
				what.Result = *e.Result
			}
			return nil
		})
	})
	if err != nil {
		return fmt.Errorf("scrubbing: %w", err)
	}
	var next []string
	if images := what.images(); len(images) > 0 {
		next = append(next, "Push these images again: "+strings.Join(images, " "))
	}
	if len(what.Problems) > 0 && len(next) == 0 {
		next = append(next, "No image needs the damaged content: zarf-registry images garbage-collect removes it.")
	}
	return render.Report(stdout, f.output, render.Scrub, what, func(w io.Writer, s scrubbed) error {
		fmt.Fprintln(w, s.Result)
		render.Next(w, next)
		return nil
	}, next)
}
