// Package certs implements the commands about certificates and credentials between upgrades.
package certs

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/zarf-dev/zarf-registry/internal/cli/cmdflags"
	clihook "github.com/zarf-dev/zarf-registry/internal/cli/hook"
	"github.com/zarf-dev/zarf-registry/internal/hook"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/settings"
)

// New returns the commands about certificates.
func New(global *cmdflags.Global) *cobra.Command {
	return cmdflags.Group("certs", "Show, renew and rotate certificates",
		newShow(clihook.NewFlags(global)), newCA(clihook.NewFlags(global)), newRenew(clihook.NewFlags(global)),
		newRotate(clihook.NewFlags(global)))
}

func newCA(f *clihook.Flags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ca",
		Short: "Print the CA certificates that registry and proxies trust",
		Long: `ca prints the CA certificates of the registry and the proxies as PEM. Clients that verify
them need these: container runtimes that use HTTPS on the loopback address
(/etc/containers/certs.d/127.0.0.1:31999/ca.crt), skopeo, crane, curl.

During a CA rotation it prints the previous and the new CA.

Exit codes: 0 on success, 1 on failure or timeout, 3 if the command line is invalid.`,
		Example: `  zarf-registry certs ca
  zarf-registry certs ca > /etc/containers/certs.d/127.0.0.1:31999/ca.crt`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, c, stop, err := f.Connect(cmd)
			if err != nil {
				return err
			}
			defer stop()
			return printCA(ctx, cmd.OutOrStdout(), c.Client, f.Settings)
		},
	}
	f.Target(cmd.Flags())
	return cmd
}

// printCA prints ca.crt of the node Secret, which is the same in every mode.
func printCA(ctx context.Context, w io.Writer, client kubernetes.Interface, of settings.Settings) error {
	namespace, name := of.Namespace, of.Name+names.SuffixNodeTLS
	secret, err := client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("Secret %s/%s not found: either zarf-registry is not installed in namespace %s "+
			"(select another with --namespace and --name), or it uses an external registry, which needs no certificates",
			namespace, name, namespace)
	case err != nil:
		return fmt.Errorf("reading Secret %s/%s: %w", namespace, name, err)
	}
	bundle, err := pki.ParseBundle(secret.Data[names.KeyCA])
	if err != nil {
		return fmt.Errorf("Secret %s/%s, key %s: %w: run zarf-registry certs renew%s to repair it",
			namespace, name, names.KeyCA, err, cmdflags.ReleaseArguments(namespace, of.Release, of.Name))
	}
	_, err = w.Write(bundle.PEM())
	return err
}

func newRenew(f *clihook.Flags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "renew",
		Short: "Renew certificates that are due, and continue a CA rotation",
		Long: `renew replaces certificates past half of their lifetime and broken ones, copies certificates
that the user or cert-manager has renewed, and continues a CA rotation until every pod has
loaded the result. It restarts nothing, and changes nothing if nothing is due. The chart's
CronJob and every helm upgrade do the same.

Exit codes: 0 on success, 1 on failure or timeout (the next run continues), 3 if a retry
would fail in the same way.`,
		Example: `  zarf-registry certs renew
  zarf-registry certs renew --namespace zarf --timeout 15m`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.Run(cmd, func(h *hook.Hook, ctx context.Context) error {
				h.CronJob = f.InCluster
				return h.Renew(ctx)
			})
		},
	}
	f.Target(cmd.Flags())
	return cmd
}

func newRotate(f *clihook.Flags) *cobra.Command {
	var (
		ca      bool
		exclude []string
	)
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Replace all certificates now, with --ca also the CA",
		Long: `rotate replaces the certificates of registry, proxies and push clients, due or not, and
returns when every pod has loaded them. It restarts nothing, and pulls keep working.

With --ca it replaces the CA too: pods first trust both CAs, then the certificates are
replaced, then the previous CA is removed. Each step waits until every pod has loaded the
previous one. A rotation already in progress is completed instead. Clients that use the
output of certs ca need the new output.

With certificates from your Secrets (pki.mode=existingSecret), it refuses: renew them there, then
run certs renew. With cert-manager, it refuses --ca: replace the CA of the issuer.

Exit codes: 0 on success, 1 on failure or timeout (certs renew continues), 3 if a retry would
fail in the same way.`,
		Example: `  zarf-registry certs rotate
  zarf-registry certs rotate --ca --timeout 15m
  zarf-registry certs rotate --ca --exclude-node worker-7`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.Run(cmd, func(h *hook.Hook, ctx context.Context) error {
				return h.Rotate(ctx, ca, exclude...)
			})
		},
	}
	f.Target(cmd.Flags())
	cmd.Flags().BoolVar(&ca, "ca", false, "also replace the CA")
	cmd.Flags().StringSliceVar(&exclude, "exclude-node", nil, "do not wait for the pods of this `NODE`, such as a "+
		"compromised one (repeatable)")
	return cmd
}
