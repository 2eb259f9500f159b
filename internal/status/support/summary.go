package support

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"k8s.io/client-go/discovery"

	"github.com/zarf-dev/zarf-registry/internal/mask"
	"github.com/zarf-dev/zarf-registry/internal/version"
)

// summary adds summary.txt, the last file: what the bundle contains, and what it lacks.
func (c *collector) summary(ctx context.Context) error {
	ctx, cancel := request(ctx)
	defer cancel()
	kubernetes := "unknown"
	api := discovery.ToDiscoveryInterfaceWithContext(c.Client.Discovery())
	if v, err := api.ServerVersionWithContext(ctx); err != nil {
		c.failed(ctx, "the version of Kubernetes", err)
	} else {
		kubernetes = v.GitVersion
	}
	return c.file("summary.txt", func(w io.Writer) error {
		fmt.Fprintf(w, "Support bundle of release %s, namespace %s, written at %s\n\n", c.Release, c.Namespace,
			c.Now().UTC().Format(time.RFC3339))
		table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		chart := cmp.Or(c.chart, "unknown: Helm's release does not exist or could not be read")
		fmt.Fprintf(table, "program\t%s\nKubernetes\t%s\nchart\t%s\n", version.Version, kubernetes, chart)
		if err := table.Flush(); err != nil {
			return err
		}
		if len(c.nodes) > 0 {
			fmt.Fprint(table, "\nNODE\tKUBELET\tRUNTIME\tOS\tKERNEL\tARCHITECTURE\n")
			for _, n := range c.nodes {
				i := n.Status.NodeInfo
				fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", n.Name, i.KubeletVersion, i.ContainerRuntimeVersion, i.OSImage,
					i.KernelVersion, i.Architecture)
			}
			if err := table.Flush(); err != nil {
				return err
			}
		}
		fmt.Fprintf(w, "\nMissing: %d\n", len(c.result.Missing))
		for _, what := range c.result.Missing {
			fmt.Fprintf(w, "  - %s\n", what)
		}
		fmt.Fprintf(w, "\nSecrets are not collected. In values and in other objects, %s replaces them.\n", mask.Redacted)
		fmt.Fprint(w, "\nFiles, with sizes in bytes\n")
		byName := func(a, b File) int { return cmp.Compare(a.Name, b.Name) }
		for _, f := range slices.SortedFunc(slices.Values(c.result.Files), byName) {
			fmt.Fprintf(table, "  %s\t%d\n", f.Name, f.Size)
		}
		return table.Flush()
	})
}
