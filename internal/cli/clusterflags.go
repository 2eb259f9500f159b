package cli

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

// clusterFlags select the release whose registry is used.
type clusterFlags struct {
	*globalFlags
	release, name string
}

func (f *clusterFlags) register(flags *pflag.FlagSet) { releaseFlags(flags, &f.release, &f.name) }

// validate rejects flags that are wrong in any cluster.
func (f *clusterFlags) validate() error {
	named := settings.Settings{Namespace: f.namespace, Release: f.release, Name: f.name}
	return named.ValidateRelease()
}

// openRegistry returns a client of the cluster's registry, through a port-forward with mutual TLS. Of the options, only
// retries, connections and the log are used.
func (f *clusterFlags) openRegistry(c *registryAccess, options remote.Options) (*remote.Registry, error) {
	options.Credential = f.presentCredential(c.client, c.access)
	options.LoginHint = fmt.Sprintf(
		"if Secret %s/%s%s has just changed, retry in a minute; otherwise run zarf-registry credentials rotate%s",
		f.namespace, f.name, names.SuffixCredentials, releaseArguments(f.namespace, f.release, f.name))
	return c.registry.Open(c.access, options)
}

// registryAccess is how to reach the cluster's registry.
type registryAccess struct {
	config    *rest.Config
	client    kubernetes.Interface
	registry  *cluster.Registry
	transport *http.Transport // for requests to the registry
	access    release.PushAccess
	address   string // that image references in pods begin with
}

func (c *registryAccess) close() { c.transport.CloseIdleConnections() }

// connectToCatalog connects to the cluster's registry and reads its catalog. The caller closes the access.
func (f *clusterFlags) connectToCatalog(ctx context.Context) (*registryAccess, *catalog.Catalog, error) {
	c, err := f.connect(ctx)
	if err != nil {
		return nil, nil, err
	}
	content, err := cluster.Catalog(ctx, c.transport, c.access)
	if err != nil {
		c.close()
		return nil, nil, err
	}
	return c, content, nil
}

// warnAbout logs what is damaged in a registry.
func warnAbout(log *slog.Logger, content *catalog.Catalog) {
	for _, problem := range content.Problems {
		log.Warn("the registry's storage is damaged", "problem", problem)
	}
}

// connect reads what is needed to reach the cluster's registry. The caller closes the access.
func (f *clusterFlags) connect(ctx context.Context) (*registryAccess, error) {
	config, client, err := cluster.Connect(f.access)
	if err != nil {
		return nil, err
	}
	access, address, err := f.readAccess(ctx, client)
	if err != nil {
		return nil, err
	}
	registry := cluster.NewRegistry(config, client, f.namespace, f.release)
	transport, err := registry.Transport(access)
	if err != nil {
		return nil, err
	}
	return &registryAccess{config, client, registry, transport, access, address}, nil
}

// begin refuses invalid flags, of which the command has found the others, and connects to the cluster's registry. The
// caller closes the access.
func (f *clusterFlags) begin(cmd *cobra.Command, invalid error) (*registryAccess, *slog.Logger, error) {
	if err := errors.Join(f.validate(), invalid); err != nil {
		return nil, nil, &exitcode.Refusal{Err: err}
	}
	c, err := f.connect(cmd.Context())
	return c, f.progress(cmd.ErrOrStderr()), err
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

// statusOptions are those of reports about the release.
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

// presentCredential reads the push credential each time the registry requests one, so that
// long transfers survive a rotation. If it cannot be read, the credential of access is used.
func (f *clusterFlags) presentCredential(client kubernetes.Interface, access release.PushAccess) auth.CredentialFunc {
	return func(ctx context.Context, host string) (auth.Credential, error) {
		if host != cluster.Host(access) {
			return auth.EmptyCredential, nil
		}
		present := access
		if secret, err := client.CoreV1().Secrets(f.namespace).Get(ctx, f.name+names.SuffixCredentials,
			metav1.GetOptions{}); err == nil {
			present = release.NewPushAccess(f.name, f.namespace, &corev1.Secret{}, secret)
		}
		return auth.Credential{Username: present.Username, Password: present.Password}, nil
	}
}

// readAccess reads certificate and credential for pushing, and the address that image references in pods begin with.
func (f *clusterFlags) readAccess(ctx context.Context, client kubernetes.Interface) (
	access release.PushAccess, address string, err error) {
	read := func(suffix string) (*corev1.Secret, error) {
		name := f.name + suffix
		secret, err := client.CoreV1().Secrets(f.namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("Secret %s/%s not found: is zarf-registry installed in namespace %s? "+
				"select another with --namespace and --name", f.namespace, name, f.namespace)
		}
		if err != nil {
			return nil, fmt.Errorf("reading Secret %s/%s: %w", f.namespace, name, err)
		}
		return secret, nil
	}
	saved, err := read(names.SuffixState)
	if err != nil {
		return release.PushAccess{}, "", err
	}
	s, err := state.Decode(saved.Data[state.Key])
	if err != nil {
		return release.PushAccess{}, "", fmt.Errorf("Secret %s/%s: %w", f.namespace, saved.Name, err)
	}
	if s.Desired.Mode == state.ModeExternal {
		return release.PushAccess{}, "", exitcode.Refuse("the cluster uses the external registry %s "+
			"and has none of its own: use that registry's tools; images push and copy reach it with --to, images list with "+
			"--from", s.Desired.Address)
	}
	certificate, err := read(names.SuffixPushTLS)
	if err != nil {
		return release.PushAccess{}, "", err
	}
	credentials, err := read(names.SuffixCredentials)
	if err != nil {
		return release.PushAccess{}, "", err
	}
	return release.NewPushAccess(f.name, f.namespace, certificate, credentials), s.Desired.Address, nil
}
