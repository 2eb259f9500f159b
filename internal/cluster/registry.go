package cluster

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/zarf-dev/zarf-registry/internal/images/remote"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

// registryPort is the port with mutual TLS of the registry, the same in every mode.
const registryPort = 5000

const (
	// dialTimeout bounds a connection inside the cluster.
	dialTimeout = 10 * time.Second
	// handshakeTimeout bounds the handshake with a registry that accepts connections and does not respond.
	handshakeTimeout = 30 * time.Second
	// listeningTimeout bounds a look at a port: it answers at once, or packets are dropped.
	listeningTimeout = 5 * time.Second
)

// Registry reaches the registry pods of a release. It keeps using one pod while that pod is ready and
// answers: on a shared volume, other pods may see new files late, because their nodes cache
// directories (NFS: up to a minute). It is safe for concurrent use.
type Registry struct {
	Client             kubernetes.Interface
	Namespace, Release string
	// Forward dials ports of pods through the API server.
	Forward PodDialer
	// Direct is true in a pod of the cluster: the registry is dialed by its addresses.
	Direct bool

	mu   sync.Mutex
	last string // the pod that was dialed last
}

// NewRegistry returns a Registry that is reached through the API server.
func NewRegistry(config *rest.Config, client kubernetes.Interface, namespace, release string) *Registry {
	return &Registry{Client: client, Namespace: namespace, Release: release, Forward: PortForward(config, client)}
}

// Open returns a client for the registry, authenticated by access unless options name a credential.
func (r *Registry) Open(access release.PushAccess, options remote.Options) (*remote.Registry, error) {
	config, err := tlsConfig(access)
	if err != nil {
		return nil, err
	}
	options.Host, options.TLS, options.DialContext = Host(access), config, r.DialContext
	if options.Credential == nil {
		credential := auth.Credential{Username: access.Username, Password: access.Password}
		options.Credential = auth.StaticCredential(options.Host, credential)
	}
	return remote.New(options)
}

// Transport returns an HTTP transport for the registry with the certificates of access.
func (r *Registry) Transport(access release.PushAccess) (*http.Transport, error) {
	config, err := tlsConfig(access)
	if err != nil {
		return nil, err
	}
	return &http.Transport{TLSClientConfig: config, TLSHandshakeTimeout: handshakeTimeout, DialContext: r.DialContext}, nil
}

// Host is the HOST:PORT in requests to the registry.
func Host(access release.PushAccess) string {
	return fmt.Sprintf("%s:%d", access.ServerName, registryPort)
}

func tlsConfig(access release.PushAccess) (*tls.Config, error) {
	certificate, err := tls.X509KeyPair(access.Certificate, access.Key)
	if err != nil {
		return nil, fmt.Errorf("using the push certificate: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(access.Authority) {
		return nil, errors.New("using the registry's CA: it contains no certificate")
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: []tls.Certificate{certificate},
		RootCAs:      roots,
		ServerName:   access.ServerName,
	}, nil
}

// DialContext serves as an http.Transport's DialContext. With Direct it dials address, the registry's
// Service, unless there are several pods to choose from; otherwise address is ignored.
func (r *Registry) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	pods, err := r.readyPods(ctx)
	if r.Direct && len(pods) < 2 { // or none that may be listed
		return DialService(ctx, network, address)
	}
	if err != nil {
		return nil, err
	}
	return r.dialFirst(ctx, pods)
}

// listening reports whether a process accepts connections on a port of a pod. An error means that this could not be
// determined.
func listening(ctx context.Context, pod *corev1.Pod, port int) (bool, error) {
	if pod.Status.PodIP == "" {
		return false, errors.New("the pod has no address yet")
	}
	conn, err := dialPodIP(ctx, pod, port)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, conn.Close()
}

// get sends one request to a pod, on a connection of its own, and passes the response to read.
func (r *Registry) get(
	ctx context.Context, pod *corev1.Pod, port int, path string, read func(*http.Response) error,
) error {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return r.Forward(ctx, pod, port)
		},
		DisableKeepAlives:  true,
		DisableCompression: true,
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://registry"+path, nil)
	if err != nil {
		return err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	return read(response)
}

// dialFirst dials pods in order until one answers, and remembers it. The error is that of the first.
func (r *Registry) dialFirst(ctx context.Context, pods []corev1.Pod) (net.Conn, error) {
	dial := r.Forward
	if r.Direct {
		dial = dialPodIP
	}
	var first error
	for i := range pods {
		conn, err := dial(ctx, &pods[i], registryPort)
		if err == nil {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.last = pods[i].Name
			return conn, nil
		}
		first = cmp.Or(first, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, first
}

// readyPods returns at least one pod. The pod that was dialed last comes first.
func (r *Registry) readyPods(ctx context.Context) ([]corev1.Pod, error) {
	pods, err := r.pods(ctx)
	if err != nil {
		return nil, err
	}
	pods = slices.DeleteFunc(pods, func(p corev1.Pod) bool { return !release.PodServes(p) })
	if len(pods) == 0 {
		return nil, fmt.Errorf("release %s has no ready registry pod in namespace %s: check: kubectl -n %s get pods",
			r.Release, r.Namespace, r.Namespace)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.SortFunc(pods, func(a, b corev1.Pod) int {
		switch {
		case a.Name == r.last:
			return -1
		case b.Name == r.last:
			return 1
		}
		return cmp.Compare(a.Name, b.Name)
	})
	return pods, nil
}

func (r *Registry) pods(ctx context.Context) ([]corev1.Pod, error) {
	list, err := r.Client.CoreV1().Pods(r.Namespace).List(ctx,
		metav1.ListOptions{LabelSelector: names.Selector(r.Release, names.ComponentRegistry)})
	if err != nil {
		return nil, fmt.Errorf("listing the registry's pods in namespace %s: %w", r.Namespace, err)
	}
	return list.Items, nil
}

func dialPodIP(ctx context.Context, pod *corev1.Pod, port int) (net.Conn, error) {
	dialer := net.Dialer{Timeout: dialTimeout}
	return dialer.DialContext(ctx, "tcp", net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(port)))
}

// ServiceIP returns the address of a Service of the pod's own namespace that the kubelet put into the
// environment, or "" if that Service did not exist when the pod started.
func ServiceIP(service string) string {
	return os.Getenv(strings.ToUpper(strings.ReplaceAll(service, "-", "_")) + "_SERVICE_HOST")
}

// DialService dials a Service of the pod's own namespace. It uses the address that the kubelet put
// into the environment, and the DNS name only without one: the registry must be reachable without
// cluster DNS.
func DialService(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	service, _, _ := strings.Cut(host, ".")
	if ip := ServiceIP(service); ip != "" {
		host = ip
	}
	dialer := net.Dialer{Timeout: dialTimeout}
	return dialer.DialContext(ctx, network, net.JoinHostPort(host, port))
}
