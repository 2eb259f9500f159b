package probe

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles"
	"github.com/zarf-dev/zarf-registry/internal/pki"
)

// Repository is the repository that CheckPush writes to. It is empty afterwards.
const Repository = "zarf-registry/check"

// blobSize is larger than a TLS record of 16 KiB, and small, because blobs stay on the volume until the
// next garbage collection.
const blobSize = 20 << 10

// requestTimeout bounds one request. The registry is ready, or Helm would not test it.
const requestTimeout = 20 * time.Second

// retryInterval is the pause after a 429 or 503.
const retryInterval = 2 * time.Second

// reachTimeout bounds the wait for the first connection: NetworkPolicy rules may be applied some
// seconds after a pod starts.
const reachTimeout = 30 * time.Second

// maxResponse is how many bytes of a response are read.
const maxResponse = 1 << 20

// Target is a registry, and the credentials of its clients.
type Target struct {
	// Registry is the HOST:PORT of the listener with mutual TLS. The host name is verified.
	Registry string
	// Plain is the HOST:PORT of the listener behind a node port, if any.
	Plain string
	// PortService is the Service that reserves the node port, if any, and PortReserved whether it exists.
	PortService  string
	PortReserved bool
	// AnonymousPull means that Plain serves images without a credential.
	AnonymousPull bool
	// Push and Node are the certificates of pushers and of proxies.
	Push, Node *tlsfiles.Material
	// Username and Password are the push credential.
	Username, Password string
	// DialContext is an http.Transport's; nil means the default.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
}

// Check is the outcome of one check.
type Check struct {
	// Name is the expectation.
	Name string
	// Err is why it is not met, or nil.
	Err error
}

// CheckTLS checks who may read and write. Every unexpected response is an error; the checks after a
// failed one still run. It uses net/http only, so that it shares no bug with the client that pushes.
func CheckTLS(ctx context.Context, t Target, each func(Check)) error {
	foreign, err := foreignCertificate(t.Push)
	if err != nil {
		return err
	}
	node, push := t.client(t.Node), t.client(t.Push)
	type step struct {
		name string
		do   func() error
	}
	steps := []step{
		{"the registry's certificate is verified, and a node's certificate may read", func() error {
			return node.expect(ctx, http.StatusOK, http.MethodGet, "/v2/")
		}},
		{"a node's certificate may not write", func() error {
			return node.expect(ctx, http.StatusForbidden, http.MethodPost, "/v2/"+Repository+"/blobs/uploads/")
		}},
		{"a node's certificate may not write with the push credential either", func() error {
			return node.with(t.Username, t.Password).expect(ctx, http.StatusForbidden, http.MethodPost,
				"/v2/"+Repository+"/blobs/uploads/")
		}},
		{"a pusher's certificate may not write without the push credential", func() error {
			return push.expect(ctx, http.StatusUnauthorized, http.MethodPost, "/v2/"+Repository+"/blobs/uploads/")
		}},
		{"a pusher's certificate may not write with a wrong password", func() error {
			return push.with(t.Username, t.Password+"-wrong").expect(ctx, http.StatusUnauthorized, http.MethodPost,
				"/v2/"+Repository+"/blobs/uploads/")
		}},
		{"connections without a certificate are rejected", func() error {
			return t.refused(ctx, nil)
		}},
		{"connections with a certificate of another CA are rejected", func() error {
			return t.refused(ctx, foreign)
		}},
		{"the TLS port does not serve plain HTTP", func() error {
			return t.plain(t.Registry).expectNot(ctx, http.StatusOK, http.MethodGet, "/v2/")
		}},
	}
	listeners := []string{t.Registry}
	if t.Plain != "" {
		listeners = append(listeners, t.Plain)
		const catalog = "/v2/_catalog?n=1" // at /v2/, clients are asked for a credential even if reading needs none
		read := step{"the node port serves nothing without a credential", func() error {
			return t.plain(t.Plain).expect(ctx, http.StatusUnauthorized, http.MethodGet, catalog)
		}}
		if t.AnonymousPull {
			read = step{"the node port serves anonymous pulls", func() error {
				return t.plain(t.Plain).expect(ctx, http.StatusOK, http.MethodGet, catalog)
			}}
		}
		steps = append(steps, read, step{"the node port accepts no push without a credential", func() error {
			return t.plain(t.Plain).expect(ctx, http.StatusUnauthorized, http.MethodPost, "/v2/"+Repository+"/blobs/uploads/")
		}})
	}
	if t.PortService != "" {
		steps = append(steps, step{"no other Service can take the node port", func() error {
			if !t.PortReserved {
				return fmt.Errorf("Service %s is missing: run helm upgrade, which creates it, or --set reservePort=false",
					t.PortService)
			}
			return nil
		}})
	}
	if err := t.reach(ctx, each, listeners...); err != nil {
		return err
	}
	var errs []error
	for _, s := range steps {
		errs = append(errs, try(each, s.name, s.do))
	}
	return errors.Join(errs...)
}

func try(each func(Check), name string, do func() error) error {
	err := do()
	each(Check{name, err})
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// CheckPush pushes an image with random content under a tag, reads it back with a node's certificate
// and deletes it. It stops at the first failure but always tries to delete.
func CheckPush(ctx context.Context, t Target, tag string, each func(Check)) error {
	push, node := t.client(t.Push).with(t.Username, t.Password), t.client(t.Node)
	layer := make([]byte, blobSize)
	if _, err := rand.Read(layer); err != nil {
		return err
	}
	// Unique too: concurrent checks must not delete each other's blobs.
	config := fmt.Appendf(nil,
		`{"architecture":"amd64","os":"linux","author":%q,"rootfs":{"type":"layers","diff_ids":[%q]}}`, tag, digestOf(layer))
	manifest, err := json.Marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageManifest,
		Config:    descriptor(ocispec.MediaTypeImageConfig, config),
		Layers:    []ocispec.Descriptor{descriptor(ocispec.MediaTypeImageLayer, layer)},
	})
	if err != nil {
		return err
	}
	if err := t.reach(ctx, each, t.Registry); err != nil {
		return err
	}
	below := "/v2/" + Repository
	blobs := [][]byte{layer, config}
	err = try(each, "an image can be pushed", func() error {
		for _, blob := range blobs {
			if err := push.upload(ctx, below, blob); err != nil {
				return err
			}
		}
		_, err := push.send(ctx, http.StatusCreated, http.MethodPut, below+"/manifests/"+tag,
			ocispec.MediaTypeImageManifest, manifest)
		return err
	})
	if err == nil {
		err = try(each, "a node reads what was pushed", func() error {
			got, err := node.send(ctx, http.StatusOK, http.MethodGet, below+"/manifests/"+tag, "", nil)
			if err != nil {
				return err
			}
			if !bytes.Equal(got.body, manifest) {
				return fmt.Errorf("GET %s/manifests/%s: got %d bytes of other content", below, tag, len(got.body))
			}
			for _, blob := range blobs {
				path := below + "/blobs/" + digestOf(blob)
				got, err := node.send(ctx, http.StatusOK, http.MethodGet, path, "", nil)
				if err != nil {
					return err
				}
				if !bytes.Equal(got.body, blob) {
					return fmt.Errorf("GET %s: got %d bytes with another digest", path, len(got.body))
				}
			}
			return nil
		})
	}
	return errors.Join(err, try(each, "the image can be deleted", func() error {
		var errs []error
		// Blobs first: a retry finds them through the manifest's tag.
		for _, path := range []string{"/blobs/" + digestOf(layer), "/blobs/" + digestOf(config),
			"/manifests/" + digestOf(manifest)} {
			_, err := push.send(ctx, http.StatusAccepted, http.MethodDelete, below+path, "", nil)
			if err == nil {
				err = node.expect(ctx, http.StatusNotFound, http.MethodGet, below+path)
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}))
}

// reach waits until the listeners accept connections.
func (t Target) reach(ctx context.Context, each func(Check), addresses ...string) error {
	const name = "the registry is reachable"
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	dial := t.DialContext
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	for _, address := range addresses {
		var last error
		for {
			conn, err := dial(ctx, "tcp", address)
			if err == nil {
				_ = conn.Close()
				break
			}
			if ctx.Err() == nil {
				last = err
			}
			select {
			case <-ctx.Done():
				err := fmt.Errorf("%w; check that its pod is ready and that no NetworkPolicy blocks this pod",
					errors.Join(last, ctx.Err()))
				each(Check{name, err})
				return fmt.Errorf("%s: %w", name, err)
			case <-time.After(reachTimeout / 60):
			}
		}
	}
	each(Check{name, nil})
	return nil
}

func descriptor(mediaType string, content []byte) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(content), Size: int64(len(content))}
}

func digestOf(content []byte) string { return digest.FromBytes(content).String() }

// foreignCertificate returns a copy of a pusher's certificate, signed by another CA.
func foreignCertificate(like *tlsfiles.Material) (*tls.Certificate, error) {
	now := time.Now()
	ca, err := pki.NewCA(like.Leaf.Issuer.CommonName, now, time.Hour)
	if err != nil {
		return nil, err
	}
	pair, err := ca.Issue(pki.Leaf{CommonName: like.Leaf.Subject.CommonName, Organization: pki.OrganizationPush,
		Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, now)
	if err != nil {
		return nil, err
	}
	certificate, err := tls.X509KeyPair(pair.Certificate, pair.Key)
	return &certificate, err
}

// refused returns nil if the registry closes a connection with that certificate, or without one, before
// it answers a request. With TLS 1.3 the client notices at its first read.
func (t Target) refused(ctx context.Context, certificate *tls.Certificate) error {
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: t.Push.CAPool}
	if certificate != nil {
		// Sent even if the server requests certificates of other CAs.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return certificate, nil }
	}
	got, err := t.over(config).do(ctx, http.MethodGet, "/v2/", "", nil)
	if err == nil {
		return fmt.Errorf("GET https://%s/v2/: unexpected response %s", t.Registry, got.status)
	}
	if alert, ok := errors.AsType[*net.OpError](err); ok && alert.Op == "remote error" {
		return nil
	}
	// The connection may close before the alert arrives.
	if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, io.EOF) {
		return nil
	}
	return fmt.Errorf("connection failed without being rejected: %w", err)
}

// client talks to one listener with one certificate.
type client struct {
	base               string
	http               *http.Client
	username, password string
}

func (t Target) client(m *tlsfiles.Material) client {
	host, _, _ := net.SplitHostPort(t.Registry)
	return t.over(tlsfiles.ClientConfig(m, host))
}

func (t Target) over(config *tls.Config) client {
	return client{base: "https://" + t.Registry, http: t.http(config)}
}

func (t Target) plain(address string) client {
	return client{base: "http://" + address, http: t.http(nil)}
}

func (t Target) http(config *tls.Config) *http.Client {
	return &http.Client{
		Timeout: requestTimeout,
		// One connection per request, to check a handshake each time.
		Transport:     &http.Transport{TLSClientConfig: config, DialContext: t.DialContext, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func (c client) with(username, password string) client {
	c.username, c.password = username, password
	return c
}

type reply struct {
	code     int
	status   string
	location string
	body     []byte
}

// do sends one request; path may be a URL. It retries while the registry is busy, for example collecting
// garbage, until the context ends.
func (c client) do(ctx context.Context, method, path, mediaType string, body []byte) (reply, error) {
	for {
		got, err := c.once(ctx, method, path, mediaType, body)
		if err != nil || got.code != http.StatusServiceUnavailable && got.code != http.StatusTooManyRequests {
			return got, err
		}
		select {
		case <-ctx.Done():
			return got, nil
		case <-time.After(retryInterval):
		}
	}
}

func (c client) once(ctx context.Context, method, path, mediaType string, body []byte) (reply, error) {
	base, err := url.Parse(c.base)
	if err != nil {
		return reply{}, err
	}
	target, err := base.Parse(path)
	if err != nil {
		return reply{}, err
	}
	if target.Host != base.Host || target.Scheme != base.Scheme {
		return reply{}, fmt.Errorf("the registry at %s redirects to %s://%s", c.base, target.Scheme, target.Host)
	}
	req, err := http.NewRequestWithContext(ctx, method, target.String(), bytes.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	if mediaType != "" {
		req.Header.Set("Content-Type", mediaType)
	}
	req.Header.Set("Accept", ocispec.MediaTypeImageManifest)
	if c.username != "" {
		req.SetBasicAuth(c.username, c.password)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(io.LimitReader(resp.Body, maxResponse))
	if err != nil {
		return reply{}, fmt.Errorf("%s %s: %w", method, target, err)
	}
	return reply{resp.StatusCode, resp.Status, resp.Header.Get("Location"), content}, nil
}

// send is do with an expected status.
func (c client) send(ctx context.Context, want int, method, path, mediaType string, body []byte) (reply, error) {
	got, err := c.do(ctx, method, path, mediaType, body)
	if err == nil && got.code != want {
		err = fmt.Errorf("%s %s%s: got %s, want %d: %s", method, c.base, path, got.status, want, excerpt(got.body))
	}
	return got, err
}

func (c client) expect(ctx context.Context, want int, method, path string) error {
	_, err := c.send(ctx, want, method, path, "", nil)
	return err
}

func (c client) expectNot(ctx context.Context, code int, method, path string) error {
	got, err := c.do(ctx, method, path, "", nil)
	if err == nil && got.code == code {
		err = fmt.Errorf("%s %s%s: unexpected response %s", method, c.base, path, got.status)
	}
	return err
}

// upload sends a blob with POST and PUT.
func (c client) upload(ctx context.Context, below string, blob []byte) error {
	begun, err := c.send(ctx, http.StatusAccepted, http.MethodPost, below+"/blobs/uploads/", "", nil)
	if err != nil {
		return err
	}
	separator := "?"
	if strings.Contains(begun.location, "?") {
		separator = "&"
	}
	_, err = c.send(ctx, http.StatusCreated, http.MethodPut, begun.location+separator+"digest="+
		url.QueryEscape(digestOf(blob)), "application/octet-stream", blob)
	return err
}

// excerpt returns the beginning of a response on one line.
func excerpt(body []byte) string {
	const most = 300
	text := strings.Join(strings.Fields(string(body)), " ")
	if len(text) > most {
		text = text[:most] + "…"
	}
	if text == "" {
		return "(empty)"
	}
	return text
}
