package registries

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/pki"
)

// Certificates are a server's certificate in a directory and clients' certificates in memory, all from
// one CA.
type Certificates struct {
	// Dir holds the server's tls.crt, tls.key and ca.crt.
	Dir string

	ca         *pki.CA
	node, push tls.Certificate
	roots      *x509.CertPool
}

// NewCertificates creates a CA and certificates, and writes those of the server to dir.
func NewCertificates(dir string) (*Certificates, error) {
	now := time.Now()
	ca, err := pki.NewCA("bench", now, 0)
	if err != nil {
		return nil, err
	}
	c := &Certificates{Dir: dir, ca: ca, roots: x509.NewCertPool()}
	c.roots.AddCert(ca.Certificate())
	for role, into := range map[string]*tls.Certificate{pki.OrganizationNode: &c.node, pki.OrganizationPush: &c.push} {
		pair, err := ca.Issue(pki.Leaf{CommonName: "client", Organization: role,
			Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, now)
		if err != nil {
			return nil, err
		}
		if *into, err = tls.X509KeyPair(pair.Certificate, pair.Key); err != nil {
			return nil, err
		}
	}
	return c, c.Write(dir, pki.Leaf{CommonName: "server", Organization: pki.OrganizationServer,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		Usages:      []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
}

// Write issues another certificate, and writes its tls.crt, tls.key and ca.crt to dir, and both.pem, which has the
// first two.
func (c *Certificates) Write(dir string, leaf pki.Leaf) error {
	pair, err := c.ca.Issue(leaf, time.Now())
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for name, content := range map[string][]byte{"tls.crt": pair.Certificate, "tls.key": pair.Key,
		"ca.crt": c.ca.KeyPair().Certificate, "both.pem": slices.Concat(pair.Certificate, pair.Key)} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// Node returns the TLS configuration of a client that may read. Each has its own session cache.
func (c *Certificates) Node() *tls.Config { return c.client(c.node) }

// Push returns the TLS configuration of a client that may write, with the credential that the function
// Push sends.
func (c *Certificates) Push() *tls.Config { return c.client(c.push) }

func (c *Certificates) client(certificate tls.Certificate) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{certificate}, RootCAs: c.roots,
		ClientSessionCache: tls.NewLRUClientSessionCache(4), // as in the proxies
	}
}

const (
	// idleConnections and idleTimeout are those of the proxies on nodes.
	idleConnections = 32
	idleTimeout     = 10 * time.Second
	// bufferSize avoids thousands of small reads and writes a second.
	bufferSize = 32 << 10
)

// NewClient returns an HTTP/1.1 client with its own connection pool.
func NewClient(config *tls.Config) *http.Client {
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig: config, MaxIdleConnsPerHost: idleConnections, IdleConnTimeout: idleTimeout, DisableCompression: true,
		ReadBufferSize: bufferSize, WriteBufferSize: bufferSize,
	}}
}

// Push uploads a blob with one POST and one PUT.
func Push(ctx context.Context, client *http.Client, p *Process, repository string, content io.Reader, size int64,
	d digest.Digest) error {
	upload, err := begin(ctx, client, p, repository)
	if err != nil {
		return err
	}
	return finish(ctx, client, upload, content, size, d)
}

// PushChunks uploads a blob with POST, PATCH and PUT.
func PushChunks(ctx context.Context, client *http.Client, p *Process, repository string, content io.Reader, size int64,
	d digest.Digest) error {
	upload, err := begin(ctx, client, p, repository)
	if err != nil {
		return err
	}
	if upload, err = send(ctx, client, http.MethodPatch, upload, content, size, octetStream,
		http.StatusAccepted); err != nil {
		return err
	}
	return finish(ctx, client, upload, nil, 0, d)
}

const octetStream = "application/octet-stream"

func begin(ctx context.Context, client *http.Client, p *Process, repository string) (upload string, err error) {
	return send(ctx, client, http.MethodPost, p.URL("/v2/"+repository+"/blobs/uploads/"), nil, 0, "", http.StatusAccepted)
}

func finish(ctx context.Context, client *http.Client, upload string, content io.Reader, size int64,
	d digest.Digest) error {
	separator := "?"
	if strings.Contains(upload, "?") {
		separator = "&"
	}
	_, err := send(ctx, client, http.MethodPut, upload+separator+"digest="+d.String(), content, size, octetStream,
		http.StatusCreated)
	return err
}

// PushManifest uploads a manifest under a tag.
func PushManifest(ctx context.Context, client *http.Client, p *Process, repository, tag, mediaType,
	manifest string) error {
	_, err := send(ctx, client, http.MethodPut, p.URL("/v2/"+repository+"/manifests/"+tag), strings.NewReader(manifest),
		int64(len(manifest)), mediaType, http.StatusCreated)
	return err
}

// Do sends a request with the credential that may write.
func Do(client *http.Client, request *http.Request) (*http.Response, error) {
	request.SetBasicAuth(user, password)
	return client.Do(request)
}

// send sends a request and returns the Location of the response, or "".
func send(ctx context.Context, client *http.Client, method, to string, body io.Reader, size int64, mediaType string,
	want int) (string, error) {
	request, err := http.NewRequestWithContext(ctx, method, to, body)
	if err != nil {
		return "", err
	}
	request.ContentLength = size
	if mediaType != "" {
		request.Header.Set("Content-Type", mediaType)
	}
	response, err := Do(client, request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return "", err
	}
	if response.StatusCode != want {
		return "", fmt.Errorf("%s %s: %s: %s", method, to, response.Status, strings.TrimSpace(string(text)))
	}
	location, err := response.Location()
	if errors.Is(err, http.ErrNoLocation) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return location.String(), nil
}

var buffers = sync.Pool{New: func() any { return new([256 << 10]byte) }}

// Get writes a response's body to w and returns its length. The Content-Length and the length of a GET's
// body must be size.
func Get(ctx context.Context, client *http.Client, method, url, accept string, size int64, w io.Writer) (int64, error) {
	request, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return 0, err
	}
	if accept != "" {
		request.Header.Set("Accept", accept)
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	buffer := buffers.Get().(*[256 << 10]byte)
	defer buffers.Put(buffer)
	// Hides ReadFrom and WriteTo, so that CopyBuffer uses the buffer.
	n, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{response.Body}, buffer[:])
	switch {
	case err != nil:
		return n, fmt.Errorf("%s %s: after %d bytes: %w", method, url, n, err)
	case response.StatusCode != http.StatusOK:
		return n, fmt.Errorf("%s %s: %s", method, url, response.Status)
	case method == http.MethodGet && n != size || response.ContentLength != size:
		return n, fmt.Errorf("%s %s: %d bytes of %d, want %d", method, url, n, response.ContentLength, size)
	}
	return n, nil
}
