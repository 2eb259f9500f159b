package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/zarf-dev/zarf-registry/internal/certs"
	"github.com/zarf-dev/zarf-registry/internal/hook"
	"github.com/zarf-dev/zarf-registry/internal/names"
	"github.com/zarf-dev/zarf-registry/internal/pki"
)

func newCerts() *cobra.Command {
	return group("certs", "Look after the certificates of registry, proxies and pushers",
		(&certsShowFlags{}).command(), (&hookFlags{}).certsCA(), (&hookFlags{}).certsRenew(), (&hookFlags{}).certsRotate())
}

func newCredentials() *cobra.Command {
	return group("credentials", "Look after the user names and passwords of the registry", (&hookFlags{}).credentialsRotate())
}

func (f *hookFlags) certsCA() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ca",
		Short: "Print the certificate authorities that registry and proxies trust",
		Long: `ca prints the certificate authorities that the proxies' and the registry's certificates
lead to, as PEM, for clients that verify them: container runtimes that use HTTPS on the
loopback address (/etc/containers/certs.d/127.0.0.1:31999/ca.crt), skopeo, crane, curl.

While the authority is being changed, the former and the new one are printed.`,
		Example: `  init-hook certs ca
  init-hook certs ca > /etc/containers/certs.d/127.0.0.1:31999/ca.crt`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, c, stop, err := f.connect(cmd)
			if err != nil {
				return err
			}
			defer stop()
			return f.printAuthorities(ctx, cmd.OutOrStdout(), c.client)
		},
	}
	f.target(cmd.Flags())
	return cmd
}

// printAuthorities reads a Secret whose ca.crt is the same in every mode.
func (f *hookFlags) printAuthorities(ctx context.Context, w io.Writer, client kubernetes.Interface) error {
	namespace, name := f.settings.Namespace, f.settings.Name+names.SuffixNodeTLS
	secret, err := client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("there is no Secret %s/%s: either zarf-registry is not installed in namespace %s (choose another with --namespace and --name), or it uses an external registry, which has no certificates of ours", namespace, name, namespace)
	case err != nil:
		return fmt.Errorf("reading Secret %s/%s: %w", namespace, name, err)
	}
	bundle, err := pki.ParseBundle(secret.Data[names.KeyCA])
	if err != nil {
		return fmt.Errorf("Secret %s/%s, key %s: %w: init-hook certs renew%s puts it right", namespace, name, names.KeyCA, err, releaseArguments(namespace, f.settings.Release, f.settings.Name))
	}
	_, err = w.Write(bundle.PEM())
	return err
}

func (f *hookFlags) certsRenew() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "renew",
		Short: "Renew the certificates that are due, and go on with a change of authorities",
		Long: `renew replaces what less than half of its lifetime is left of, or what is broken; copies
what was renewed in Secrets of the user or by cert-manager; and goes on with a change of
authorities that is under way, until every pod has loaded it. It restarts nothing. The
chart's CronJob runs it; so does every helm upgrade. Where nothing is due it changes
nothing.

Exit codes: 0 when everything is done, 1 when it failed or --timeout was over first (the
next run goes on), 3 when another try would fail in the same way.`,
		Example: `  init-hook certs renew
  init-hook certs renew --namespace zarf --timeout 15m`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd, func(h *hook.Hook, ctx context.Context) error { return h.Certs().Renew(ctx) })
		},
	}
	f.common(cmd.Flags())
	return cmd
}

func (f *hookFlags) certsRotate() *cobra.Command {
	var authority bool
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Replace all certificates now, with --ca their authority too",
		Long: `rotate replaces the certificates of registry, proxies and pushers, due or not, and returns
when every pod has loaded them. It restarts nothing, and no pull fails meanwhile.

With --ca the certificate authority is replaced as well: first all pods trust the former
and the new one, then the certificates are replaced, then the former is dropped, each
once every pod has loaded the step before. Where such a change is under way already,
that one is brought to its end. Clients that were given the output of certs ca need the
new one.

Certificates that the user brings (pki.mode=existingSecret) are the user's to replace.

Exit codes: 0 when everything is done, 1 when it failed or --timeout was over first (certs
renew goes on), 3 when another try would fail in the same way.`,
		Example: `  init-hook certs rotate
  init-hook certs rotate --ca --timeout 15m`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd, func(h *hook.Hook, ctx context.Context) error { return h.Certs().Rotate(ctx, authority) })
		},
	}
	f.common(cmd.Flags())
	cmd.Flags().BoolVar(&authority, "ca", false, "replace the certificate authority as well")
	return cmd
}

func (f *hookFlags) credentialsRotate() *cobra.Command {
	var pull bool
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Replace the password for pushing, or with --pull the one for pulling",
		Long: `rotate makes a new password and returns when the registry takes it, and the former one no
longer. It restarts nothing. Whoever pushes by init-hook images push notices nothing.

With --pull it is the password for pulling through a node port. Copies of its Secret in
other namespaces must be renewed then.

A credential that the user brings (auth.existingSecret) is the user's to replace:
certs renew copies it.

Exit codes: 0 when it is done, 1 when it failed, 3 when another try would fail in the same
way.`,
		Example: `  init-hook credentials rotate
  init-hook credentials rotate --pull`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			credential := certs.PushCredential
			if pull {
				credential = certs.PullCredential
			}
			return f.run(cmd, func(h *hook.Hook, ctx context.Context) error { return h.Certs().RotateCredential(ctx, credential) })
		},
	}
	f.common(cmd.Flags())
	cmd.Flags().BoolVar(&pull, "pull", false, "replace the password for pulling instead")
	return cmd
}

// connect is the beginning of a command that looks at a release: the context ends
// with --timeout.
func (f *hookFlags) connect(cmd *cobra.Command) (context.Context, connection, func(), error) {
	if err := f.validate(cmd.Flags()); err != nil {
		return nil, connection{}, nil, &hook.Refused{Err: err}
	}
	c, err := connect(f.access)
	if err != nil {
		return nil, connection{}, nil, err
	}
	ctx, stop := context.WithTimeoutCause(cmd.Context(), f.timeout, fmt.Errorf("not done within %s (--timeout)", f.timeout))
	return ctx, c, stop, nil
}
