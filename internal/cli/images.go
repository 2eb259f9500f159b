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
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/zarf-dev/zarf-registry/internal/hook"
	"github.com/zarf-dev/zarf-registry/internal/images"
	"github.com/zarf-dev/zarf-registry/internal/kube"
	"github.com/zarf-dev/zarf-registry/internal/state"
)

// registryPort is the registry's port for mutual TLS, the same in every mode.
const registryPort = 5000

func newImages() *cobra.Command {
	return group("images", "Work with the images of the registry", newImagesPush())
}

// pushFlags are the flags of images push.
type pushFlags struct {
	namespace, release, name string
	access                   kube.Access
	reference, output        string
}

func newImagesPush() *cobra.Command {
	f := &pushFlags{}
	cmd := &cobra.Command{
		Use:   "push ARCHIVE...",
		Short: "Push images from archives into the registry of the cluster",
		Long: `push sends images from OCI archives, OCI layout directories and docker archives (as
"docker save" writes them) into the registry, through a port-forward with mutual TLS and
with the push credential. What the registry already has is not sent again, so an
interrupted push is simply run again.

An image goes to its own path without its registry's name: ghcr.io/a/b:1 becomes
127.0.0.1:31999/a/b:1, and nginx becomes 127.0.0.1:31999/library/nginx:latest.`,
		Example: `  init-hook images push app.tar
  init-hook images push --reference example.com/team/app:1 ./layout-directory
  docker save nginx:1.27 -o nginx.tar && init-hook images push nginx.tar`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	releaseFlags(cmd.Flags(), &f.namespace, &f.release, &f.name)
	accessFlags(cmd.Flags(), &f.access)
	cmd.Flags().StringVar(&f.reference, "reference", "", "name of the image, for a source that holds one image without a name or with another")
	outputFlag(cmd, &f.output)
	return cmd
}

func (f *pushFlags) run(cmd *cobra.Command, paths []string) error {
	ctx := cmd.Context()
	if err := validOutput(f.output); err != nil {
		return err
	}
	if f.reference != "" && len(paths) > 1 {
		return errors.New("--reference names one image: give one archive with it")
	}
	// Every source is looked at before anything is sent.
	type job struct {
		source *images.Source
		list   []images.Image
	}
	var jobs []job
	for _, path := range paths {
		source, err := images.Open(ctx, path)
		if err != nil {
			return err
		}
		defer func() { _ = source.Close() }()
		list, err := source.Select(f.reference)
		if err != nil {
			return err
		}
		jobs = append(jobs, job{source, list})
	}

	config, client, err := kube.Connect(f.access)
	if err != nil {
		return err
	}
	access, address, err := f.readAccess(ctx, client)
	if err != nil {
		return err
	}
	tunnel := &registryTunnel{podTunnels: podTunnels{config, client}, namespace: f.namespace, release: f.release}
	registry, err := openRegistry(access, tunnel.DialContext)
	if err != nil {
		return err
	}
	defer registry.Close()
	if err := registry.Ping(ctx); err != nil {
		return err
	}

	meter := images.NewMeter(os.Stderr)
	results := []images.Result{}
	for _, j := range jobs {
		for _, image := range j.list {
			result, err := images.Push(ctx, j.source, image, registry, images.PushOptions{Progress: meter.Update})
			if err != nil {
				meter.Interrupt()
				return err
			}
			// What a pod must name, rather than how the push got there.
			result.Reference = address + strings.TrimPrefix(result.Reference, registry.Host())
			meter.Done(result)
			results = append(results, result)
		}
	}
	if f.output == "json" {
		return printJSON(cmd.OutOrStdout(), results)
	}
	for _, r := range results {
		if _, err := fmt.Fprintln(cmd.OutOrStdout(), r.Reference); err != nil {
			return err
		}
	}
	return nil
}

// readAccess reads what it takes to push, and the address that references begin
// with.
func (f *pushFlags) readAccess(ctx context.Context, client kubernetes.Interface) (hook.Access, string, error) {
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
	saved, err := read(hook.SuffixState)
	if err != nil {
		return hook.Access{}, "", err
	}
	s, err := state.Decode(saved.Data[state.Key])
	if err != nil {
		return hook.Access{}, "", fmt.Errorf("Secret %s/%s: %w", f.namespace, saved.Name, err)
	}
	if s.Desired.Mode == state.ModeExternal {
		return hook.Access{}, "", fmt.Errorf("the cluster uses the external registry %s: there is no registry of ours to push to; push there with a tool of your own (skopeo copy, oras cp, docker push)", s.Desired.Address)
	}
	certificate, err := read(hook.SuffixPushTLS)
	if err != nil {
		return hook.Access{}, "", err
	}
	credentials, err := read(hook.SuffixCredentials)
	if err != nil {
		return hook.Access{}, "", err
	}
	return hook.NewAccess(f.name, f.namespace, certificate, credentials), s.Desired.Address, nil
}

// openRegistry prepares a client for the registry that dial reaches.
func openRegistry(access hook.Access, dial func(context.Context, string, string) (net.Conn, error)) (*images.Registry, error) {
	certificate, err := tls.X509KeyPair(access.Certificate, access.Key)
	if err != nil {
		return nil, fmt.Errorf("using the push certificate: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(access.Authority) {
		return nil, errors.New("using the registry's certificate authority: it holds no certificate")
	}
	return images.NewRegistry(images.RegistryOptions{
		Host:        fmt.Sprintf("%s:%d", access.ServerName, registryPort),
		DialContext: dial,
		TLS: &tls.Config{
			MinVersion:   tls.VersionTLS12,
			Certificates: []tls.Certificate{certificate},
			RootCAs:      roots,
			ServerName:   access.ServerName,
		},
		Username: access.Username,
		Password: access.Password,
	})
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

// registryTunnel dials the registry's pod, whichever is ready at the time.
type registryTunnel struct {
	podTunnels
	namespace, release string
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
	pod, err := t.readyPod(ctx)
	if err != nil {
		return nil, err
	}
	return t.dialPod(ctx, pod, registryPort)
}

func (t *registryTunnel) readyPod(ctx context.Context) (*corev1.Pod, error) {
	pods, err := t.client.CoreV1().Pods(t.namespace).List(ctx, hook.RegistryPods(t.release))
	if err != nil {
		return nil, fmt.Errorf("looking for the registry's pod in namespace %s: %w", t.namespace, err)
	}
	i := slices.IndexFunc(pods.Items, func(p corev1.Pod) bool {
		return p.DeletionTimestamp == nil && hook.PodReady(p)
	})
	if i < 0 {
		return nil, fmt.Errorf("release %s has no ready registry pod in namespace %s: look at kubectl -n %s get pods", t.release, t.namespace, t.namespace)
	}
	return &pods.Items[i], nil
}
