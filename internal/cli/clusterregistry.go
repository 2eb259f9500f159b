package cli

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/zarf-dev/zarf-registry/internal/hook"
	"github.com/zarf-dev/zarf-registry/internal/kube"
	"github.com/zarf-dev/zarf-registry/internal/names"
	"github.com/zarf-dev/zarf-registry/internal/remote"
	"github.com/zarf-dev/zarf-registry/internal/settings"
	"github.com/zarf-dev/zarf-registry/internal/state"
)

// registryPort is the registry's port for mutual TLS, the same in every mode.
const registryPort = 5000

// clusterFlags name the release whose registry is meant.
type clusterFlags struct {
	namespace, release, name string
	access                   kube.Access
}

func (f *clusterFlags) register(flags *pflag.FlagSet) {
	releaseFlags(flags, &f.namespace, &f.release, &f.name)
	accessFlags(flags, &f.access)
}

// validate rejects what no cluster needs to be asked about.
func (f *clusterFlags) validate() error {
	named := settings.Settings{Namespace: f.namespace, Release: f.release, Name: f.name}
	return named.ValidateRelease()
}

// open prepares a client for the cluster's registry, through a port-forward with
// mutual TLS, and returns the address that references in pods begin with. Of the
// options those count that say how patient the client is.
func (f *clusterFlags) open(ctx context.Context, options remote.Options) (*remote.Registry, string, error) {
	config, client, err := kube.Connect(f.access)
	if err != nil {
		return nil, "", err
	}
	access, address, err := f.readAccess(ctx, client)
	if err != nil {
		return nil, "", err
	}
	tunnel := newRegistryTunnel(podTunnels{config, client}, f.namespace, f.release)
	options.DialContext = tunnel.DialContext
	options.Credential = f.presentCredential(client, access)
	options.LoginHint = fmt.Sprintf("if the Secret %s/%s%s has just been changed, try again in a minute; else init-hook credentials rotate puts it right", f.namespace, f.name, names.SuffixCredentials)
	registry, err := openRegistry(access, options)
	return registry, address, err
}

// presentCredential reads the push credential whenever the registry wants one, so that
// what takes long goes on when the credential is rotated meanwhile. Where it cannot be
// read any more, it is the one of access.
func (f *clusterFlags) presentCredential(client kubernetes.Interface, access hook.Access) auth.CredentialFunc {
	return func(ctx context.Context, host string) (auth.Credential, error) {
		if host != accessHost(access) {
			return auth.EmptyCredential, nil
		}
		present := access
		if secret, err := client.CoreV1().Secrets(f.namespace).Get(ctx, f.name+names.SuffixCredentials, metav1.GetOptions{}); err == nil {
			present = hook.NewAccess(f.name, f.namespace, &corev1.Secret{}, secret)
		}
		return auth.Credential{Username: present.Username, Password: present.Password}, nil
	}
}

// readAccess reads what it takes to push, and the address that references begin
// with.
func (f *clusterFlags) readAccess(ctx context.Context, client kubernetes.Interface) (hook.Access, string, error) {
	read := func(suffix string) (*corev1.Secret, error) {
		name := f.name + suffix
		secret, err := client.CoreV1().Secrets(f.namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("there is no Secret %s/%s: is zarf-registry installed in namespace %s? choose another with --namespace and --name", f.namespace, name, f.namespace)
		}
		if err != nil {
			return nil, fmt.Errorf("reading Secret %s/%s: %w", f.namespace, name, err)
		}
		return secret, nil
	}
	saved, err := read(names.SuffixState)
	if err != nil {
		return hook.Access{}, "", err
	}
	s, err := state.Decode(saved.Data[state.Key])
	if err != nil {
		return hook.Access{}, "", fmt.Errorf("Secret %s/%s: %w", f.namespace, saved.Name, err)
	}
	if s.Desired.Mode == state.ModeExternal {
		return hook.Access{}, "", fmt.Errorf("the cluster uses the external registry %s: there is no registry of ours; name that one with --to (and --prefix, for a path in it) or --from", s.Desired.Address)
	}
	certificate, err := read(names.SuffixPushTLS)
	if err != nil {
		return hook.Access{}, "", err
	}
	credentials, err := read(names.SuffixCredentials)
	if err != nil {
		return hook.Access{}, "", err
	}
	return hook.NewAccess(f.name, f.namespace, certificate, credentials), s.Desired.Address, nil
}

// openRegistry prepares a client for the cluster's registry. The options say how it
// is dialled, how patient the client is, and where its credential comes from, which is
// that of access if they do not.
func openRegistry(access hook.Access, options remote.Options) (*remote.Registry, error) {
	config, err := accessTLS(access)
	if err != nil {
		return nil, err
	}
	options.Host = accessHost(access)
	options.TLS = config
	if options.Credential == nil {
		options.Credential = auth.StaticCredential(options.Host, auth.Credential{Username: access.Username, Password: access.Password})
	}
	return remote.New(options)
}

// accessHost is the registry's, as the connection is asked for it.
func accessHost(access hook.Access) string {
	return fmt.Sprintf("%s:%d", access.ServerName, registryPort)
}

func accessTLS(access hook.Access) (*tls.Config, error) {
	certificate, err := tls.X509KeyPair(access.Certificate, access.Key)
	if err != nil {
		return nil, fmt.Errorf("using the push certificate: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(access.Authority) {
		return nil, errors.New("using the registry's certificate authority: it holds no certificate")
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: []tls.Certificate{certificate},
		RootCAs:      roots,
		ServerName:   access.ServerName,
	}, nil
}

// podTunnels opens connections to pods through the API server, wherever this
// process runs.
type podTunnels struct {
	config *rest.Config
	client kubernetes.Interface
}

func (t podTunnels) dialPod(ctx context.Context, pod *corev1.Pod, port int) (net.Conn, error) {
	tunnel, err := kube.NewTunnel(t.config, t.client, pod, port)
	if err != nil {
		return nil, err
	}
	return tunnel.DialContext(ctx, "", "")
}

// registryTunnel dials the registry's pods.
type registryTunnel struct {
	podTunnels
	pods *registryPods
}

func newRegistryTunnel(tunnels podTunnels, namespace, release string) *registryTunnel {
	return &registryTunnel{tunnels, &registryPods{client: tunnels.client, namespace: namespace, release: release}}
}

// plainOpen sends a request: whether anybody listens shows at the first answer
// only, since the API server accepts every connection.
func (t *registryTunnel) plainOpen(ctx context.Context, pod *corev1.Pod) (bool, error) {
	conn, err := t.dialPod(ctx, pod, hook.PlainPort)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	return answersHTTP(ctx, conn)
}

// answersHTTP says whether the other end of a tunnel speaks HTTP (true) or nobody
// is there (false, without an error).
func answersHTTP(ctx context.Context, conn net.Conn) (bool, error) {
	err := get(ctx, conn, "/v2/", func(*http.Response) error { return nil })
	switch {
	case err == nil:
		return true, nil
	case refusedConnection(err):
		return false, nil
	}
	return false, err
}

// get sends one request over a connection that is used for nothing else, and has
// the answer read. The context bounds all of it.
func get(ctx context.Context, conn net.Conn, path string, read func(*http.Response) error) error {
	// A tunnel knows no deadlines.
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	_, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: registry\r\nConnection: close\r\n\r\n", path)
	if err == nil {
		var response *http.Response
		if response, err = http.ReadResponse(bufio.NewReader(conn), nil); err == nil {
			err = read(response)
			_ = conn.Close() // first: to close the body would read what is left of it
			_ = response.Body.Close()
		}
	}
	if err != nil {
		err = errors.Join(err, ctx.Err())
	}
	return err
}

// refusedConnection tells that nobody listens on a port behind a tunnel by the
// container runtime's own words; containerd and CRI-O quote the system's.
func refusedConnection(err error) bool {
	return strings.Contains(strings.ToLower(err.Error()), "connection refused")
}

// DialContext serves as an http.Transport's; the address is ignored.
func (t *registryTunnel) DialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	pods, err := t.pods.ready(ctx)
	if err != nil {
		return nil, err
	}
	return t.pods.dial(ctx, pods, func(pod *corev1.Pod) (net.Conn, error) { return t.dialPod(ctx, pod, registryPort) })
}
