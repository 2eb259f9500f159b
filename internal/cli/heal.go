package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/zarf-dev/zarf-registry/internal/cli/cmdflags"
	"github.com/zarf-dev/zarf-registry/internal/cli/render"
	"github.com/zarf-dev/zarf-registry/internal/cluster"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/node/heal"
)

type healFlags struct {
	cluster cmdflags.Cluster
	dryRun  bool
	output  string
}

func newHeal(global *cmdflags.Global) *cobra.Command {
	f := &healFlags{cluster: cmdflags.Cluster{Global: global}}
	cmd := &cobra.Command{
		Use:   "heal",
		Short: "Correct pods whose node lacks their image",
		Long: `heal does once what the chart's healer does all the time: pods of the release that wait for an
image which their node does not have get a trusted pause image that the node reports. Run it where the healer
is off, or cannot start because the nodes of all healers were replaced at once.

It changes only containers that run an injected program, and needs permission to list and patch
pods, get ConfigMaps and create events in the namespace, and to get nodes.

Exit codes: 0 if no pod is left that needs another image, 1 on failure, 3 if the command line is
invalid, 4 if a pod is left.`,
		Example: `  zarf-registry heal
  zarf-registry heal --dry-run --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.cluster.Register(cmd.Flags())
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "only print what would be changed")
	cmdflags.AddOutput(cmd, &f.output)
	return cmd
}

// healed is what heal prints as JSON.
type healed struct {
	DryRun bool          `json:"dryRun"`
	Pods   []heal.Result `json:"pods"`
}

func (f *healFlags) run(cmd *cobra.Command) error {
	if err := f.cluster.Validate(); err != nil {
		return exitcode.Usage(err)
	}
	config, _, err := cluster.Connect(f.cluster.Access)
	if err != nil {
		return err
	}
	client, err := healClient(config)
	if err != nil {
		return fmt.Errorf("using the kubeconfig: %w", err)
	}
	client.Namespace, client.Release = f.cluster.Namespace, f.cluster.Release
	return f.heal(cmd.Context(), client, cmd.OutOrStdout())
}

// healClient returns a client with the identity of a kubeconfig.
func healClient(config *rest.Config) (*heal.Client, error) {
	http, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	server, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, err
	}
	return &heal.Client{HTTP: http, URL: strings.TrimSuffix(server.String(), "/")}, nil
}

// heal prints what was done, also if it fails half-way.
func (f *healFlags) heal(ctx context.Context, client *heal.Client, stdout io.Writer) error {
	rules, err := client.Rules(ctx, f.cluster.Name)
	if err != nil {
		return err
	}
	pods, failed := heal.Once(ctx, client, rules, f.dryRun)
	var left []string
	for _, p := range pods {
		if p.Action != heal.Replace {
			left = append(left, p.Reason)
		}
	}
	if failed != nil && len(pods) == 0 {
		return failed
	}
	err = render.Report(stdout, f.output, render.HealedPods, healed{DryRun: f.dryRun, Pods: pods}, printHealed, left)
	if failed != nil {
		return failed
	}
	return err
}

func printHealed(w io.Writer, h healed) error {
	if len(h.Pods) == 0 {
		if _, err := fmt.Fprintln(w, "no pod of the release needs another image"); err != nil {
			return err
		}
	}
	for _, p := range h.Pods {
		did := "cannot be healed"
		switch {
		case p.Action == heal.Replace && h.DryRun:
			did = "would be healed"
		case p.Action == heal.Replace:
			did = "healed"
		}
		if _, err := fmt.Fprintf(w, "%s %s: %s\n", p.Pod, did, p.Reason); err != nil {
			return err
		}
	}
	return nil
}
