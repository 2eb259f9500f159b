package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/zarf-dev/zarf-registry/internal/api/space"
	"github.com/zarf-dev/zarf-registry/internal/cluster"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/internal/status"
)

// statusFlags are the flags of status.
type statusFlags struct {
	clusterFlags
	output string
}

func newStatus(global *globalFlags) *cobra.Command {
	f := &statusFlags{clusterFlags: clusterFlags{globalFlags: global}}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show whether all nodes can pull, and what to do if not",
		Long: `status reports the state of the registry, the nodes, the certificates and the release, and
what to do about each problem. It changes nothing. Objects that this identity may not read
are reported and skipped.

Exit codes: 0 if nothing needs attention, 1 if something does or on failure, 3 if the command
line is invalid.`,
		Example: `  zarf-registry status
  zarf-registry status --output json | jq .next`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.register(cmd.Flags())
	outputFlag(cmd, &f.output)
	return cmd
}

func (f *statusFlags) run(cmd *cobra.Command) error {
	if err := errors.Join(f.validate(), validOutput(f.output)); err != nil {
		return &exitcode.Refusal{Err: err}
	}
	config, client, err := cluster.Connect(f.access)
	if err != nil {
		return err
	}
	report, err := f.collectStatus(cmd.Context(), config, client)
	if err != nil {
		return err
	}
	return render(cmd.OutOrStdout(), f.output, report, printStatus, report.Next)
}

// collectStatus returns the status of the release.
func (f *clusterFlags) collectStatus(ctx context.Context, config *rest.Config, client kubernetes.Interface) (
	*status.Report, error) {
	options, err := f.statusOptions(config, client)
	if err != nil {
		return nil, err
	}
	return status.Collect(ctx, options)
}

func (f *clusterFlags) statusOptions(config *rest.Config, client kubernetes.Interface) (status.Options, error) {
	names, err := metadata.NewForConfig(config)
	if err != nil {
		return status.Options{}, fmt.Errorf("using the kubeconfig: %w", err)
	}
	return status.Options{
		Namespace: f.namespace, Release: f.release, Name: f.name, Client: client, Metadata: names,
		Loaded: cluster.NewRegistry(config, client, f.namespace, f.release).Loaded, Now: time.Now,
	}, nil
}

// printStatus writes the report as text.
func printStatus(w io.Writer, r *status.Report) error {
	verdict := "healthy"
	if !r.Healthy {
		verdict = "needs attention, see below"
	}
	fmt.Fprintf(w, "zarf-registry in namespace %s: %s\n\n", r.Namespace, verdict)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	printMode(table, r)
	printComponents(table, r)
	printValidity(table, r)
	if err := table.Flush(); err != nil {
		return err
	}
	if len(r.Nodes) > 0 {
		fmt.Fprint(w, "\n")
		fmt.Fprint(table, "NODE\tREADY\tVIA\tENDPOINT\tVERIFIED\tMESSAGE\n")
		for _, n := range r.Nodes {
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n",
				n.Name, yesNo(n.Ready), n.Via, yesNo(n.Endpoint), yesNo(n.Verified), n.Message)
		}
		if err := table.Flush(); err != nil {
			return err
		}
	}
	if len(r.NodeConfig) > 0 {
		fmt.Fprint(w, "\n")
		fmt.Fprint(table, "NODE\tFILES\tWRITTEN\tEFFECT\tMESSAGE\n")
		for _, n := range r.NodeConfig {
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", n.Node, filesLine(n), writtenLine(n), n.Effect, configMessage(n))
		}
		if err := table.Flush(); err != nil {
			return err
		}
	}
	printNext(w, r.Next)
	return nil
}

// printMode prints what the state records, and the release.
func printMode(w io.Writer, r *status.Report) {
	if s := r.State; s != nil {
		settings, phase := s.Desired, "verified"
		switch {
		case s.Switching():
			phase = fmt.Sprintf("switching from %s", s.Current.Mode)
		case s.Phase != state.PhaseReady:
			phase = "not verified yet"
		}
		network := ""
		if settings.HostNetwork {
			network = ", host network"
		}
		fmt.Fprintf(w, "mode\t%s, %s\n", settings.Mode, phase)
		fmt.Fprintf(w, "address\t%s (%s%s)\n", settings.Address, settings.IPFamily, network)
		fmt.Fprintf(w, "source\t%s; written %s by zarf-registry %s\n", settings.DecidedBy,
			s.UpdatedAt.Format(time.RFC3339), s.UpdatedBy)
		label := "pause image"
		for _, architecture := range slices.Sorted(maps.Keys(s.PauseImages)) {
			image := s.PauseImages[architecture]
			fmt.Fprintf(w, "%s\t%s: %s (%s)\n", label, architecture, image.Reference, image.Reason)
			label = ""
		}
	} else {
		fmt.Fprint(w, "mode\tunknown\n")
	}
	if h := r.Helm; h != nil {
		fmt.Fprintf(w, "release\t%s, revision %d, %s\n", r.Release, h.Revision, h.Status)
	} else {
		fmt.Fprintf(w, "release\t%s, not managed by Helm\n", r.Release)
	}
}

// printComponents prints the pods of the release and what they use.
func printComponents(w io.Writer, r *status.Report) {
	if g := r.Registry; g != nil {
		fmt.Fprintf(w, "registry\t%s\n", registryLine(g))
		if g.Claim != nil {
			fmt.Fprintf(w, "\tclaim %s\n", claimLine(g.Claim))
		}
		if g.Space != nil {
			fmt.Fprintf(w, "\tstorage: %s\n", g.Space)
		}
		if g.Scrub != nil {
			fmt.Fprintf(w, "\tcontent: verified %s, %s\n", g.Scrub.FinishedAt.Format(time.DateOnly),
				plural(g.Scrub.Problems, "problem"))
		}
	}
	if r.Caches != nil {
		fmt.Fprintf(w, "caches\t%s\n", readyLine(r.Caches.Ready, r.Caches.Desired, r.Caches.Message))
		for _, p := range r.Caches.Pods {
			fmt.Fprintf(w, "\t%s\n", cacheLine(p))
		}
	}
	fmt.Fprintf(w, "healer\t%s\n", healerLine(r.Healer))
	if r.Rewriting != nil {
		fmt.Fprintf(w, "rewriting\t%s\n", rewritingLine(r.Rewriting))
	}
	label := "payload"
	for _, p := range r.Payloads {
		fmt.Fprintf(w, "%s\t%s: %s\n", label, p.Name, payloadLine(p))
		label = ""
	}
}

// printValidity prints how long the certificates are valid.
func printValidity(w io.Writer, r *status.Report) {
	if len(r.Certificates) > 0 {
		fmt.Fprintf(w, "certificates\t%s\n", pkiLine(r.State))
	}
	for _, c := range r.Certificates {
		line := status.Remaining(c.Left) + " left"
		if !c.Valid {
			line = "not usable: " + c.Message
		}
		fmt.Fprintf(w, "\t%s: %s\n", c.Secret, line)
	}
}

// filesLine counts the configuration files on a node, and those restored or removed.
func filesLine(n status.NodeConfig) string {
	line := strconv.Itoa(n.Written + n.Unchanged)
	if n.Restored > 0 {
		line += fmt.Sprintf(", %d restored", n.Restored)
	}
	if n.Removed > 0 {
		line += fmt.Sprintf(", %d removed", n.Removed)
	}
	return line
}

func writtenLine(n status.NodeConfig) string {
	if n.WrittenAt.IsZero() {
		return "-"
	}
	return n.WrittenAt.UTC().Format(time.RFC3339)
}

// configMessage is the message about a node's configuration: errors first, and one of
// several warnings.
func configMessage(n status.NodeConfig) string {
	var messages []string
	for _, message := range []string{n.Error, n.Restart, n.Message} {
		if message != "" {
			messages = append(messages, message)
		}
	}
	switch w := n.Warnings; len(w) {
	case 0:
	case 1:
		messages = append(messages, "warning: "+w[0])
	default:
		messages = append(messages, fmt.Sprintf("%d warnings, first: %s", len(w), w[0]))
	}
	return strings.Join(messages, "; ")
}

// pkiLine describes the source of certificates and the progress of a CA rotation.
func pkiLine(s *status.State) string {
	switch {
	case s == nil || s.PKI == nil:
		return "unknown"
	case s.Rotation == nil:
		return string(s.PKI.Mode) + ", no CA rotation in progress"
	}
	return fmt.Sprintf("%s, CA rotation since %s, phase %s", s.PKI.Mode, s.Rotation.Since.Format(time.RFC3339),
		s.Rotation.Phase)
}

func registryLine(g *status.Registry) string {
	ready := g.ReadyPods()
	if !g.Ready && ready == 0 {
		return "not ready: " + g.Message
	}
	var nodes []string
	for _, p := range g.Pods {
		if p.Ready && !slices.Contains(nodes, p.Node) {
			nodes = append(nodes, p.Node)
		}
	}
	notes := ""
	if g.GarbageCollection != nil && g.GarbageCollection.Running {
		notes = "; collecting garbage"
	}
	switch on := strings.Join(nodes, ", "); {
	case !g.Ready:
		return fmt.Sprintf("%d of %d pods ready, on node %s: %s", ready, g.Desired, on, g.Message) + notes
	case ready > 1:
		return fmt.Sprintf("%d pods ready, on node %s", ready, on) + notes
	default:
		return "ready on node " + on + notes
	}
}

func claimLine(c *status.Claim) string {
	line := c.Name + ": " + cmp.Or(c.Phase, "missing")
	if c.Volume != "" {
		line += " to volume " + c.Volume
	}
	if c.StorageClass != "" {
		line += ", StorageClass " + c.StorageClass
	}
	return line
}

func readyLine(ready, wanted int, why string) string {
	line := fmt.Sprintf("%d of %d pods ready", ready, wanted)
	if why != "" {
		line += ": " + why
	}
	return line
}

func cacheLine(c status.Cache) string {
	line := c.Name
	if c.Node != "" {
		line += " on node " + c.Node
	}
	if !c.Ready {
		return line + ": not ready: " + cmp.Or(c.Message, "no reason reported")
	}
	u := c.Use
	if u == nil {
		return line + ": ready"
	}
	line += fmt.Sprintf(": %s of %s used; %d hits, %d misses", space.FormatBytes(u.Used), space.FormatBytes(u.Size),
		u.Hits, u.Misses)
	if u.Stale > 0 {
		line += fmt.Sprintf(", %d stale answers", u.Stale)
	}
	return line
}

func healerLine(h *status.Healer) string {
	if h == nil {
		return "off"
	}
	line := readyLine(h.Ready, h.Desired, h.Message)
	if len(h.Waiting) > 0 {
		line += "; without an image: " + strings.Join(h.Waiting, ", ")
	}
	return line
}

func rewritingLine(r *status.Rewriting) string {
	switch {
	case r.Effective == nil:
		return fmt.Sprintf("%s, not tried: %s", r.Policy, r.Message)
	case *r.Effective:
		return r.Policy + ", takes effect"
	}
	return fmt.Sprintf("%s, does not take effect: %s", r.Policy, r.Message)
}

func payloadLine(p status.Payload) string {
	if !p.Complete {
		return "incomplete: " + p.Message
	}
	return fmt.Sprintf("complete, %d ConfigMaps", p.Desired)
}
