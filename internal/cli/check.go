package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/zarf-dev/zarf-registry/internal/cluster"
	"github.com/zarf-dev/zarf-registry/internal/probe"
	"github.com/zarf-dev/zarf-registry/internal/tlsfiles"
)

func newCheck() *cobra.Command {
	return group("check", "Try the registry from a pod, as its clients do: what helm test runs",
		(&checkFlags{}).tls(), (&checkFlags{}).push())
}

// checkFlags say where the registry is, and where the Secrets of its clients are mounted.
type checkFlags struct {
	registry, plain                  string
	pushDir, nodeDir, credentialsDir string
	anonymousPull                    bool
	timeout                          time.Duration
}

func (f *checkFlags) tls() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tls",
		Short: "Check who is let in by the registry, and who is not",
		Long: `tls talks to the registry with the certificates of nodes and pushers, without one, and with
one of another authority, and fails where one of them may do more, or less, than it should.
It needs no rights in the cluster, only the Secrets, mounted.`,
		Example: `  init-hook check tls --registry zarf-registry.zarf.svc:5000 --push-dir /etc/zarf-registry/push --node-dir /etc/zarf-registry/node --credentials-dir /etc/zarf-registry/credentials`,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd, probe.CheckTLS) },
	}
	f.common(cmd.Flags())
	cmd.Flags().StringVar(&f.plain, "plain", "", "the listener that a node port leads to, HOST:PORT (default: none)")
	cmd.Flags().BoolVar(&f.anonymousPull, "anonymous-pull", false, "that listener serves images to anybody")
	return cmd
}

func (f *checkFlags) push() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "push",
		Short: "Push a small image, read it back as a node does, and delete it",
		Long: `push fills the repository ` + probe.Repository + ` with a small image of random content, reads it back
with a node's certificate, and deletes it. It needs no rights in the cluster, only the Secrets,
mounted. What it sent stays on the volume until the next garbage collection: 20 KiB.`,
		Example: `  init-hook check push --registry zarf-registry.zarf.svc:5000 --push-dir /etc/zarf-registry/push --node-dir /etc/zarf-registry/node --credentials-dir /etc/zarf-registry/credentials`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			tag := fmt.Sprintf("check-%d", time.Now().UnixNano())
			return f.run(cmd, func(ctx context.Context, t probe.Target, each func(probe.Check)) error {
				return probe.CheckPush(ctx, t, tag, each)
			})
		},
	}
	f.common(cmd.Flags())
	return cmd
}

func (f *checkFlags) common(flags *pflag.FlagSet) {
	flags.StringVar(&f.registry, "registry", "", "the registry's listener with mutual TLS, HOST:PORT; the name is verified")
	flags.StringVar(&f.pushDir, "push-dir", "/etc/zarf-registry/push", "folder with tls.crt, tls.key and ca.crt of a pusher")
	flags.StringVar(&f.nodeDir, "node-dir", "/etc/zarf-registry/node", "folder with tls.crt, tls.key and ca.crt of a node")
	flags.StringVar(&f.credentialsDir, "credentials-dir", "/etc/zarf-registry/credentials", "folder with the push credential: the files username and password")
	flags.DurationVar(&f.timeout, "timeout", time.Minute, "how long it may take in all")
	if err := cobra.MarkFlagRequired(flags, "registry"); err != nil {
		panic(err) // the flag is registered above
	}
}

// target reads what the clients have. A mounted Secret changes as a whole, so what is read
// once belongs together.
func (f *checkFlags) target() (probe.Target, error) {
	t := probe.Target{Registry: f.registry, Plain: f.plain, AnonymousPull: f.anonymousPull, DialContext: cluster.DialService}
	for _, certificate := range []struct {
		dir string
		to  **tlsfiles.Material
	}{{f.pushDir, &t.Push}, {f.nodeDir, &t.Node}} {
		source, err := tlsfiles.Open(certificate.dir, tlsfiles.WithLogger(slog.New(slog.DiscardHandler)))
		if err != nil {
			return t, err
		}
		*certificate.to = source.Current()
	}
	for name, to := range map[string]*string{"username": &t.Username, "password": &t.Password} {
		content, err := os.ReadFile(filepath.Join(f.credentialsDir, name))
		if err != nil {
			return t, fmt.Errorf("reading the push credential: %w", err)
		}
		*to = string(content)
	}
	return t, nil
}

// run prints a line for each step; what failed is in the error once more, which ends up in
// the pod's termination message.
func (f *checkFlags) run(cmd *cobra.Command, do func(context.Context, probe.Target, func(probe.Check)) error) error {
	t, err := f.target()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(cmd.Context(), f.timeout, fmt.Errorf("not done within %s (--timeout)", f.timeout))
	defer cancel()
	err = do(ctx, t, func(s probe.Check) { printStep(cmd.OutOrStdout(), s) })
	if err != nil && ctx.Err() != nil {
		err = errors.Join(err, context.Cause(ctx))
	}
	if err != nil {
		return fmt.Errorf("%w\nlook at init-hook status, and at the log of the registry's pod", err)
	}
	return nil
}

func printStep(w io.Writer, s probe.Check) {
	if s.Err != nil {
		fmt.Fprintf(w, "FAIL  %s: %v\n", s.Name, s.Err)
		return
	}
	fmt.Fprintf(w, "ok    %s\n", s.Name)
}
