package certs

import (
	"cmp"
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/zarf-dev/zarf-registry/internal/cli/cmdflags"
	"github.com/zarf-dev/zarf-registry/internal/cli/hook"
	"github.com/zarf-dev/zarf-registry/internal/cli/render"
	jobs "github.com/zarf-dev/zarf-registry/internal/hook"
	"github.com/zarf-dev/zarf-registry/internal/hook/credentials"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// NewCredentials returns the commands about passwords.
func NewCredentials(global *cmdflags.Global) *cobra.Command {
	return cmdflags.Group("credentials", "List and rotate the passwords for pushing and pulling",
		newCredentialsList(hook.NewFlags(global)), newCredentialsRotate(hook.NewFlags(global)))
}

func newCredentialsList(f *hook.Flags) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the credentials: users and Secrets, without passwords",
		Long: `list shows the credential for pushing and, in nodeport mode, that for pulling. The password is
in the key password of the Secret. It changes nothing.

Exit codes: 0 on success, 1 on failure or timeout, 3 if the command line is invalid.`,
		Example: `  zarf-registry credentials list
  zarf-registry credentials list --output json | jq -r '.items[].secret'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, c, stop, err := f.Connect(cmd)
			if err != nil {
				return err
			}
			defer stop()
			of := &cmdflags.Cluster{Global: f.Global, Name: f.Settings.Name}
			list, err := listCredentials(ctx, c.Client, of)
			if err != nil {
				return err
			}
			write := printCredentials
			if output == render.FormatName {
				write = printCredentialNames
			}
			return render.Report(cmd.OutOrStdout(), output, render.CredentialList, list, write, nil)
		},
	}
	f.Target(cmd.Flags())
	cmdflags.AddOutput(cmd, &output, render.FormatName)
	return cmd
}

// credential is what credentials list prints of one.
type credential struct {
	Name credentials.Credential `json:"name"`
	User string                 `json:"user"`
	// Secret holds it. CopyOf is the user's Secret that it is copied from, empty if there is none.
	Secret string `json:"secret"`
	CopyOf string `json:"copyOf,omitempty"`
}

type credentialList = render.List[credential]

// listCredentials returns those that exist: external mode has none.
func listCredentials(ctx context.Context, client kubernetes.Interface, of *cmdflags.Cluster) (credentialList, error) {
	list := credentialList{Items: []credential{}}
	saved, err := of.Secret(ctx, client, names.SuffixState)
	if err != nil {
		return list, err
	}
	s, err := state.Decode(saved.Data[state.Key])
	if err != nil {
		return list, fmt.Errorf("Secret %s/%s: %w", of.Namespace, saved.Name, err)
	}
	for _, c := range []credential{
		{Name: credentials.Push, Secret: of.Name + names.SuffixCredentials, CopyOf: s.PushSecret},
		{Name: credentials.Pull, Secret: of.Name + names.SuffixPull},
	} {
		secret, err := client.CoreV1().Secrets(of.Namespace).Get(ctx, c.Secret, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return list, fmt.Errorf("reading Secret %s/%s: %w", of.Namespace, c.Secret, err)
		}
		c.User = string(secret.Data[names.KeyUsername])
		list.Items = append(list.Items, c)
	}
	return list, nil
}

func printCredentials(w io.Writer, list credentialList) error {
	t := render.NewTable(w, "NAME", "USER", "SECRET", "COPY OF")
	for _, c := range list.Items {
		t.Row(string(c.Name), c.User, c.Secret, cmp.Or(c.CopyOf, "-"))
	}
	return t.Flush()
}

func printCredentialNames(w io.Writer, list credentialList) error {
	var found []string
	for _, c := range list.Items {
		found = append(found, string(c.Name))
	}
	return render.Names(w, found)
}

func newCredentialsRotate(f *hook.Flags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rotate [push|pull]",
		Short: "Replace the password for pushing, or that for pulling",
		Long: `rotate generates a new password and returns when the registry accepts it and rejects the
previous one. It restarts nothing. zarf-registry images push uses the new password automatically.

With pull, it replaces the password for pulls through a node port: update copies of its Secret in
other namespaces afterwards.

It does not replace a push credential from the user's Secret (auth.existingSecret); certs renew
copies that one.

Exit codes: 0 on success, 1 on failure, 3 if a retry would fail in the same way.`,
		Example: `  zarf-registry credentials rotate
  zarf-registry credentials rotate pull`,
		Args:      cobra.MatchAll(cobra.MaximumNArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []cobra.Completion{string(credentials.Push), string(credentials.Pull)},
		RunE: func(cmd *cobra.Command, args []string) error {
			credential := credentials.Push
			if len(args) > 0 {
				credential = credentials.Credential(args[0])
			}
			return f.Run(cmd, func(h *jobs.Hook, ctx context.Context) error {
				return h.RotateCredential(ctx, credential)
			})
		},
	}
	f.Target(cmd.Flags())
	return cmd
}
