package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/internal/cli/cmdflags"
	"github.com/zarf-dev/zarf-registry/internal/cli/render"
	"github.com/zarf-dev/zarf-registry/internal/cluster"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/status"
	"github.com/zarf-dev/zarf-registry/internal/status/show"
)

type statusFlags struct {
	cmdflags.Cluster
	wait    bool
	timeout time.Duration
	output  string
}

func newStatus(global *cmdflags.Global) *cobra.Command {
	f := &statusFlags{Cluster: cmdflags.Cluster{Global: global}}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show whether all nodes can pull, and what to do if not",
		Long: `status reports the state of the registry, the nodes, the certificates and the release, and
what to do about each problem. It changes nothing. Objects that this identity may not read
are reported and skipped. With --wait, it reports once nothing needs attention, or after
--timeout.

Columns:` + show.ColumnHelp(show.NodeColumns) + show.ColumnHelp(show.NodeConfigColumns) + `

Exit codes: 0 if nothing needs attention, 1 on failure, 3 if the command line is invalid, 4 if
something needs attention.`,
		Example: `  zarf-registry status
  zarf-registry status --wait --timeout 10m
  zarf-registry status --output json | jq .next`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.Register(cmd.Flags())
	cmd.Flags().BoolVar(&f.wait, "wait", false, "wait until nothing needs attention")
	cmdflags.AddTimeout(cmd.Flags(), &f.timeout, 5*time.Minute)
	cmdflags.AddOutput(cmd, &f.output)
	return cmd
}

func (f *statusFlags) run(cmd *cobra.Command) error {
	if err := f.Validate(); err != nil {
		return exitcode.Usage(err)
	}
	config, client, err := cluster.Connect(f.Access)
	if err != nil {
		return err
	}
	ctx, cancel := cmdflags.WithTimeout(cmd.Context(), f.timeout)
	defer cancel()
	_, progress := f.Observe(cmd.ErrOrStderr())
	report, err := awaitHealth(ctx, f.wait, progress, func() (*status.Report, error) {
		return f.CollectStatus(ctx, config, client)
	})
	if err != nil {
		return err
	}
	return render.Report(cmd.OutOrStdout(), f.output, render.Status, report, printStatus, report.Next)
}

// statusInterval is the pause between two reports of status --wait.
const statusInterval = 2 * time.Second

// awaitHealth returns the first report or, to wait, the first healthy one. When the time is over, it returns the last.
func awaitHealth(ctx context.Context, wait bool, progress release.Progress, collect func() (*status.Report, error),
) (last *status.Report, err error) {
	said := ""
	var problem error // of the last attempt that the end of the time did not interrupt
	for {
		report, err := collect()
		if problem == nil || ctx.Err() == nil {
			problem = err
		}
		missing := ""
		if err != nil {
			missing = err.Error()
		} else if last = report; !report.Healthy {
			missing = report.Next[0]
		}
		switch {
		case err == nil && (!wait || report.Healthy):
			return report, nil
		case last != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
			return last, nil
		case ctx.Err() != nil:
			return nil, errors.Join(problem, context.Cause(ctx))
		case err != nil && (!wait || exitcode.IsRefusal(err)):
			return nil, err
		}
		if missing != said {
			said = missing
			progress.Waiting("a healthy release", missing)
		}
		select {
		case <-ctx.Done():
		case <-time.After(statusInterval):
		}
	}
}

func printStatus(w io.Writer, r *status.Report) error {
	verdict := "healthy"
	if !r.Healthy {
		verdict = "needs attention, see below"
	}
	fmt.Fprintf(w, "zarf-registry in namespace %s: %s\n\n", r.Namespace, verdict)
	facts := render.NewTable(w)
	for _, fact := range show.Facts(r) {
		facts.Row(fact.Label, fact.Text)
	}
	if err := facts.Flush(); err != nil {
		return err
	}
	for _, t := range []show.Table{show.Nodes(r), show.NodeConfig(r)} {
		if len(t.Rows) == 0 {
			continue
		}
		fmt.Fprint(w, "\n")
		names := make([]string, len(t.Columns))
		for i, name := range t.Columns {
			names[i] = strings.ToUpper(name)
		}
		text := render.NewTable(w, names...)
		for _, cells := range t.Rows {
			text.Row(cells...)
		}
		if err := text.Flush(); err != nil {
			return err
		}
	}
	render.Next(w, r.Next)
	return nil
}
