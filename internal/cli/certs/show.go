package certs

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/internal/cli/cmdflags"
	"github.com/zarf-dev/zarf-registry/internal/cli/hook"
	"github.com/zarf-dev/zarf-registry/internal/cli/render"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/internal/status"
	"github.com/zarf-dev/zarf-registry/internal/status/show"
)

func newShow(f *hook.Flags) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show the certificates and what each pod has loaded",
		Long: `show prints the certificates of registry, proxies and push clients, what every pod has loaded,
the progress of a CA rotation, and what to do about each problem. It changes nothing. Objects
that this identity may not read are reported and skipped. Querying pods requires permission
to get and create pods/portforward.

Fingerprints are SHA-256, in text shortened to 16 digits.

Exit codes: 0 if nothing needs attention, 1 on failure, 3 if the command line is invalid, 4 if
something needs attention.`,
		Example: `  zarf-registry certs show
  watch zarf-registry certs show
  zarf-registry certs show --output json | jq '.pods[] | select(.current | not)'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, c, stop, err := f.Connect(cmd)
			if err != nil {
				return err
			}
			defer stop()
			release := cmdflags.Cluster{Global: f.Global, Name: f.Settings.Name}
			options, err := release.StatusOptions(c.Config, c.Client)
			if err != nil {
				return err
			}
			report, err := status.CollectCertificates(ctx, options)
			if err != nil {
				return err
			}
			return render.Report(cmd.OutOrStdout(), output, render.Certificates, report, printCertificates, report.Next)
		},
	}
	f.Target(cmd.Flags())
	cmdflags.AddOutput(cmd, &output)
	return cmd
}

func printCertificates(w io.Writer, r *status.CertificateReport) error {
	if r.External != "" {
		fmt.Fprintf(w, "zarf-registry in namespace %s uses the external registry %s and has no certificates\n",
			r.Namespace, r.External)
		render.Next(w, r.Next)
		return nil
	}
	verdict := "nothing needs attention"
	if !r.Healthy {
		verdict = "needs attention, see below"
	}
	fmt.Fprintf(w, "certificates of zarf-registry in namespace %s: %s\n\n", r.Namespace, verdict)

	t := render.NewTable(w)
	for _, line := range pkiLines(r.PKI, r.Rotation) {
		t.Row(line[0], line[1])
	}
	for _, s := range r.Secrets {
		fmt.Fprintf(t, "\nSecret %s\n", s.Secret) // not a cell: ends the columns above
		for _, line := range certificateLines(s) {
			if line[1] != "" {
				t.Row("  "+line[0], line[1])
			}
		}
	}
	if len(r.Pods) > 0 {
		fmt.Fprintln(t)
		t.Row("POD", "NODE", "LEAF", "CURRENT", "TRUST CURRENT", "GENERATION", "LOADED", "ERRORS", "MESSAGE")
		for _, p := range r.Pods {
			t.Row(podCells(p)...)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	render.Next(w, r.Next)
	return nil
}

// pkiLines describe how certificates are issued, and the progress of a CA rotation.
func pkiLines(p *state.PKI, r *state.Rotation) [][2]string {
	lines := [][2]string{{"mode", "not recorded yet"}}
	if p != nil {
		text, lifetimes := string(p.Mode), "certificates "+lifetime(p.LeafLifetime)
		if p.Issuer != nil {
			text += fmt.Sprintf(", issuer %s %s of %s", p.Issuer.Kind, p.Issuer.Name, p.Issuer.Group)
		}
		lines = [][2]string{{"mode", text}}
		if p.OwnCA() {
			lifetimes += ", CA " + lifetime(p.CALifetime)
		}
		if p.OwnCA() || p.Mode == state.PKICertManager {
			lines = append(lines, [2]string{"lifetimes", lifetimes})
		}
	}
	if r == nil {
		return append(lines, [2]string{"rotation", "none in progress"})
	}
	lines = append(lines, [2]string{"rotation", fmt.Sprintf("phase %s, since %s: %s", r.Phase,
		r.Since.Format(time.RFC3339), r.Reason)})
	if r.Waiting != "" {
		lines = append(lines, [2]string{"waiting", strings.Join(strings.Fields(r.Waiting), " ")})
	}
	return lines
}

func lifetime(d state.Duration) string { return status.Remaining(time.Duration(d)) }

func certificateLines(s *status.SecretCertificate) [][2]string {
	if s.SHA256 == "" {
		return [][2]string{{"problem", s.Message}, {"source", sourceLine(s.Source)}}
	}
	subject := s.Subject
	if len(s.Roles) > 0 {
		subject += " (" + strings.Join(s.Roles, ", ") + ")"
	}
	names := slices.Concat(s.DNSNames, s.IPAddresses, s.URIs)
	trusts := make([]string, len(s.TrustedCAs))
	for i, a := range s.TrustedCAs {
		trusts[i] = pki.Short(a)
	}
	renewal := ""
	if !s.RenewAt.IsZero() {
		renewal = "due from " + s.RenewAt.UTC().Format(time.RFC3339)
	}
	left := "expired"
	if s.Left > 0 {
		left = status.Remaining(s.Left) + " left"
	}
	return [][2]string{
		{"subject", subject},
		{"names", strings.Join(names, ", ")},
		{"issuer", s.Issuer},
		{"serial", s.Serial},
		{"sha256", pki.Short(s.SHA256)},
		{"trusts", strings.Join(trusts, ", ")},
		{"valid", fmt.Sprintf("%s to %s, %s",
			s.NotBefore.UTC().Format(time.RFC3339), s.NotAfter.UTC().Format(time.RFC3339), left)},
		{"renewal", renewal},
		{"source", sourceLine(s.Source)},
		{"problem", s.Message},
	}
}

func sourceLine(s *status.Source) string {
	switch {
	case s == nil:
		return ""
	case s.Copied:
		return "Secret " + s.Secret + ", in use"
	case s.SHA256 == "":
		return "Secret " + s.Secret + ": " + s.Message
	}
	return fmt.Sprintf("Secret %s: %s (%s)", s.Secret, s.Message, pki.Short(s.SHA256))
}

func podCells(p status.PodCertificates) []string {
	cells := []string{p.Pod, cmp.Or(p.Node, "-"), "-", "-", "-", "-", "-", "-", p.Message}
	if p.Loaded != nil {
		c := p.Loaded.Certificates
		copy(cells[2:], []string{
			pki.Short(c.Leaf.SHA256), show.YesNo(p.Current), show.YesNo(p.TrustCurrent),
			fmt.Sprint(c.Generation), c.LoadedAt.UTC().Format(time.RFC3339), fmt.Sprint(c.ReloadErrors),
		})
	}
	return cells
}
