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

	"github.com/zarf-dev/zarf-registry/internal/cli/cmdflags"
	"github.com/zarf-dev/zarf-registry/internal/cluster"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles"
	"github.com/zarf-dev/zarf-registry/internal/node/probe"
)

func newCheck() *cobra.Command {
	return cmdflags.Group("check", "Test the registry from a pod, as its clients use it (run by helm test)",
		(&checkFlags{}).tls(), (&checkFlags{}).push())
}

// checkCodes ends the help of the check commands.
const checkCodes = `

Exit codes: 0 if all steps pass, 1 if one fails, 3 if flags or files are invalid.`

// checkFlags are the flags of the check commands: the registry's address, and where the
// Secrets of its clients are mounted.
type checkFlags struct {
	registry, plain, portService     string
	pushDir, nodeDir, credentialsDir string
	anonymousPull                    bool
	timeout                          time.Duration
}

func (f *checkFlags) tls() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tls",
		Short: "Check which clients the registry accepts and rejects",
		Long: `tls connects to the registry with the node and push certificates, without a certificate and
with one from another CA. It fails if any of them may do more or less than it should. It
needs no permissions in the cluster, only the mounted Secrets.` + checkCodes,
		Example: `  zarf-registry check tls --registry zarf-registry.zarf.svc:5000 --push-dir /etc/zarf-registry/push \
    --node-dir /etc/zarf-registry/node --credentials-dir /etc/zarf-registry/credentials`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd, probe.CheckTLS) },
	}
	f.common(cmd.Flags())
	cmd.Flags().StringVar(&f.plain, "plain", "", "HOST:PORT of the listener behind the node port (default: none)")
	cmd.Flags().StringVar(&f.portService, "port-service", "",
		"name of the Service that reserves the node port (default: none)")
	cmd.Flags().BoolVar(&f.anonymousPull, "anonymous-pull", false,
		"expect that listener to serve images without authentication")
	return cmd
}

func (f *checkFlags) push() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "push",
		Short: "Push a small image, pull it as a node does, and delete it",
		Long: `push writes a small image with random content to the repository ` + probe.Repository + `, pulls it
with a node's certificate, and deletes it. It needs no permissions in the cluster, only the
mounted Secrets. Its blobs (20 KiB) stay on the volume until the next garbage collection.` + checkCodes,
		Example: `  zarf-registry check push --registry zarf-registry.zarf.svc:5000 --push-dir /etc/zarf-registry/push \
    --node-dir /etc/zarf-registry/node --credentials-dir /etc/zarf-registry/credentials`,
		Args: cobra.NoArgs,
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
	flags.StringVar(&f.registry, "registry", "",
		"HOST:PORT of the registry's mutual TLS listener; the host name is verified")
	flags.StringVar(&f.pushDir, "push-dir", "/etc/zarf-registry/push",
		"directory with tls.crt, tls.key and ca.crt for pushing")
	flags.StringVar(&f.nodeDir, "node-dir", "/etc/zarf-registry/node",
		"directory with tls.crt, tls.key and ca.crt of a node")
	flags.StringVar(&f.credentialsDir, "credentials-dir", "/etc/zarf-registry/credentials",
		"directory with the push credential: the files username and password")
	cmdflags.AddTimeout(flags, &f.timeout, time.Minute)
	_ = cobra.MarkFlagRequired(flags, "registry") // fails only for an unknown flag
}

// target reads certificates and credentials. A mounted Secret is replaced atomically, so the
// files of one read match.
func (f *checkFlags) target() (probe.Target, error) {
	t := probe.Target{Registry: f.registry, Plain: f.plain, AnonymousPull: f.anonymousPull,
		PortService: f.portService, PortReserved: cluster.ServiceIP(f.portService) != "", DialContext: cluster.DialService}
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

// run prints a line for each step. The error repeats the failed steps, because it becomes the
// pod's termination message.
func (f *checkFlags) run(cmd *cobra.Command, do func(context.Context, probe.Target, func(probe.Check)) error) error {
	t, err := f.target()
	if err != nil {
		return &exitcode.Refusal{Err: err}
	}
	ctx, cancel := cmdflags.WithTimeout(cmd.Context(), f.timeout)
	defer cancel()
	err = do(ctx, t, func(s probe.Check) { printStep(cmd.OutOrStdout(), s) })
	if err != nil && ctx.Err() != nil {
		err = errors.Join(err, context.Cause(ctx))
	}
	if err != nil {
		return fmt.Errorf("%w\ncheck zarf-registry status and the log of the registry pod", err)
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
