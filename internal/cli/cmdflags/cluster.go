package cmdflags

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
	"github.com/zarf-dev/zarf-registry/internal/cluster"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/images/remote"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/settings"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/internal/status"
)

// Cluster select the release whose registry is used.
type Cluster struct {
	*Global
	Name string
}

func (f *Cluster) Register(flags *pflag.FlagSet) { AddName(flags, &f.Name) }

// Validate rejects flags that are wrong in any cluster.
func (f *Cluster) Validate() error {
	named := settings.Settings{Namespace: f.Namespace, Release: f.Release, Name: f.Name}
	return named.ValidateRelease()
}

// OpenRegistry returns a client of the cluster's registry, through a port-forward with mutual TLS. Of the options, only
// retries, connections and the log are used.
func (f *Cluster) OpenRegistry(c *Access, options remote.Options) (*remote.Registry, error) {
	options.Credential = f.presentCredential(c.Client, c.Access)
	options.LoginHint = fmt.Sprintf(
		"if Secret %s/%s%s has just changed, retry in a minute; otherwise run zarf-registry credentials rotate%s",
		f.Namespace, f.Name, names.SuffixCredentials, ReleaseArguments(f.Namespace, f.Release, f.Name))
	return c.registry.Open(c.Access, options)
}

// Access is how to reach the cluster's registry.
type Access struct {
	Config    *rest.Config
	Client    kubernetes.Interface
	registry  *cluster.Registry
	Transport *http.Transport // for requests to the registry
	Access    release.PushAccess
	Address   string // that image references in pods begin with
}

func (c *Access) Close() { c.Transport.CloseIdleConnections() }

// ConnectToCatalog connects to the cluster's registry and reads its catalog. The caller closes the access.
func (f *Cluster) ConnectToCatalog(ctx context.Context) (*Access, *catalog.Catalog, error) {
	c, err := f.Connect(ctx)
	if err != nil {
		return nil, nil, err
	}
	content, err := cluster.Catalog(ctx, c.Transport, c.Access)
	if err != nil {
		c.Close()
		return nil, nil, err
	}
	return c, content, nil
}

// WarnAbout logs what is damaged in a registry.
func WarnAbout(log *slog.Logger, content *catalog.Catalog) {
	for _, problem := range content.Problems {
		log.Warn("the registry's storage is damaged", "problem", problem)
	}
}

// Connect reads what is needed to reach the cluster's registry. The caller closes the access.
func (f *Cluster) Connect(ctx context.Context) (*Access, error) {
	config, client, err := cluster.Connect(f.Access)
	if err != nil {
		return nil, err
	}
	access, address, err := f.readAccess(ctx, client)
	if err != nil {
		return nil, err
	}
	registry := cluster.NewRegistry(config, client, f.Namespace, f.Release)
	transport, err := registry.Transport(access)
	if err != nil {
		return nil, err
	}
	return &Access{config, client, registry, transport, access, address}, nil
}

// Begin refuses invalid flags, of which the command has found the others, and connects to the cluster's registry. The
// caller closes the access.
func (f *Cluster) Begin(cmd *cobra.Command, invalid error) (*Access, *slog.Logger, error) {
	if err := errors.Join(f.Validate(), invalid); err != nil {
		return nil, nil, exitcode.Usage(err)
	}
	c, err := f.Connect(cmd.Context())
	return c, f.Progress(cmd.ErrOrStderr()), err
}

// CollectStatus returns the status of the release.
func (f *Cluster) CollectStatus(ctx context.Context, config *rest.Config, client kubernetes.Interface) (
	*status.Report, error) {
	options, err := f.StatusOptions(config, client)
	if err != nil {
		return nil, err
	}
	return status.Collect(ctx, options)
}

// StatusOptions are those of reports about the release.
func (f *Cluster) StatusOptions(config *rest.Config, client kubernetes.Interface) (status.Options, error) {
	names, err := metadata.NewForConfig(config)
	if err != nil {
		return status.Options{}, fmt.Errorf("using the kubeconfig: %w", err)
	}
	return status.Options{
		Namespace: f.Namespace, Release: f.Release, Name: f.Name, Client: client, Metadata: names,
		Loaded: cluster.NewRegistry(config, client, f.Namespace, f.Release).Loaded, Now: time.Now,
	}, nil
}

// presentCredential reads the push credential each time the registry requests one, so that
// long transfers survive a rotation. If it cannot be read, the credential of access is used.
func (f *Cluster) presentCredential(client kubernetes.Interface, access release.PushAccess) auth.CredentialFunc {
	return func(ctx context.Context, host string) (auth.Credential, error) {
		if host != cluster.Host(access) {
			return auth.EmptyCredential, nil
		}
		present := access
		if secret, err := client.CoreV1().Secrets(f.Namespace).Get(ctx, f.Name+names.SuffixCredentials,
			metav1.GetOptions{}); err == nil {
			present = release.NewPushAccess(f.Name, f.Namespace, &corev1.Secret{}, secret)
		}
		return auth.Credential{Username: present.Username, Password: present.Password}, nil
	}
}

// Secret reads a Secret of the release.
func (f *Cluster) Secret(ctx context.Context, client kubernetes.Interface, suffix string) (*corev1.Secret, error) {
	name := f.Name + suffix
	secret, err := client.CoreV1().Secrets(f.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("Secret %s/%s not found: is zarf-registry installed in namespace %s? "+
			"select another with --namespace and --name", f.Namespace, name, f.Namespace)
	}
	if err != nil {
		return nil, fmt.Errorf("reading Secret %s/%s: %w", f.Namespace, name, err)
	}
	return secret, nil
}

// readAccess reads certificate and credential for pushing, and the address that image references in pods begin with.
func (f *Cluster) readAccess(ctx context.Context, client kubernetes.Interface) (
	access release.PushAccess, address string, err error) {
	saved, err := f.Secret(ctx, client, names.SuffixState)
	if err != nil {
		return release.PushAccess{}, "", err
	}
	s, err := state.Decode(saved.Data[state.Key])
	if err != nil {
		return release.PushAccess{}, "", fmt.Errorf("Secret %s/%s: %w", f.Namespace, saved.Name, err)
	}
	if s.Desired.Mode == state.ModeExternal {
		return release.PushAccess{}, "", exitcode.Refuse("the cluster uses the external registry %s "+
			"and has none of its own: use that registry's tools; images push and copy reach it with --to, images list with "+
			"--from", s.Desired.Address)
	}
	certificate, err := f.Secret(ctx, client, names.SuffixPushTLS)
	if err != nil {
		return release.PushAccess{}, "", err
	}
	credentials, err := f.Secret(ctx, client, names.SuffixCredentials)
	if err != nil {
		return release.PushAccess{}, "", err
	}
	return release.NewPushAccess(f.Name, f.Namespace, certificate, credentials), s.Desired.Address, nil
}
