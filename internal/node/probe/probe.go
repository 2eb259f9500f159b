// Package probe checks a registry as its clients use it. Run sends the requests that a container runtime
// sends before a pull, and explains failures; helm test runs CheckTLS and CheckPush. It needs no access to
// the Kubernetes API. It does not test a runtime's configuration: only a pod that starts does.
package probe

import (
	"bufio"
	"cmp"
	"context"
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

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/oci"
)

// Config selects what to probe. Address and Timeout are required.
type Config struct {
	// Address is the registry's host:port, as in image references.
	Address string
	// Image is a repository with a tag or digest whose manifest is requested, or empty. A leading Address is ignored.
	Image string
	// TLS selects HTTPS instead of HTTP.
	TLS bool
	// RootCAs verify the server's certificate; nil means the system's.
	RootCAs *x509.CertPool
	// Timeout bounds the whole probe. It must be positive.
	Timeout time.Duration
}

// Result is the outcome of a probe, also as JSON.
type Result struct {
	OK    bool   `json:"ok"`
	Steps []Step `json:"steps"`
	// Reason is one of the Reason constants; empty if OK.
	Reason Reason `json:"reason,omitempty"`
	// Problem says what is wrong and Advice what to do about it; empty if OK.
	Problem string `json:"problem,omitempty"`
	Advice  string `json:"advice,omitempty"`
}

// Step is one request and its response.
type Step struct {
	Method string `json:"method"`
	URL    string `json:"url"`
	// Status is the HTTP status, 0 without a response.
	Status       int    `json:"status,omitempty"`
	Digest       string `json:"digest,omitempty"`
	Milliseconds int64  `json:"milliseconds"`
}

// Reason names a problem for machines.
type Reason string

// The reasons, ordered by how far a request got.
const (
	ReasonRefused        Reason = "refused"           // nothing listens
	ReasonTimeout        Reason = "timeout"           // no response in time
	ReasonUnreachable    Reason = "unreachable"       // no such address
	ReasonWantsTLS       Reason = "wants-tls"         // HTTP to a TLS port
	ReasonNoTLS          Reason = "no-tls"            // TLS to an HTTP port
	ReasonCertificate    Reason = "certificate"       // the certificate cannot be verified
	ReasonBroken         Reason = "broken"            // the connection broke, or the response was not HTTP
	ReasonNotARegistry   Reason = "not-a-registry"    // another server listens
	ReasonUnauthorized   Reason = "unauthorized"      // a login is required
	ReasonDenied         Reason = "denied"            // the client lacks permission
	ReasonUnavailable    Reason = "unavailable"       // the proxy responds, the registry does not
	ReasonUnknownImage   Reason = "unknown-image"     // the registry has no such repository, tag or digest
	ReasonUnexpectedHTTP Reason = "unexpected-status" // any other response
)

// manifestTypes are the media types that runtimes accept.
const manifestTypes = ocispec.MediaTypeImageIndex + ", " + ocispec.MediaTypeImageManifest + ", " +
	oci.MediaTypeDockerManifestList + ", " + oci.MediaTypeDockerManifest

// maxErrorBody limits how much of an error's body is read, in bytes.
const maxErrorBody = 64 << 10

// Run probes. An error means an invalid config; failures of the registry are in the Result.
func Run(ctx context.Context, config Config) (Result, error) {
	if _, port, err := net.SplitHostPort(config.Address); err != nil || port == "" ||
		strings.ContainsAny(config.Address, "/@ ") {
		return Result{}, fmt.Errorf("address %q: want host:port, as in 127.0.0.1:31999 or [::1]:31999", config.Address)
	}
	if config.Timeout <= 0 {
		return Result{}, fmt.Errorf("timeout %s is not positive", config.Timeout)
	}
	repository, reference, err := splitImage(strings.TrimPrefix(config.Image, config.Address+"/"))
	if err != nil {
		return Result{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, config.Timeout)
	defer cancel()
	p := &prober{config: config}
	if p.api(ctx) && repository != "" {
		p.manifest(ctx, repository, reference)
	}
	p.result.OK = p.result.Reason == ""
	return p.result, nil
}

// splitImage splits repository:tag or repository@digest. It only rejects characters that a URL's path would have to
// escape; the registry validates names.
func splitImage(image string) (repository, reference string, err error) {
	if image == "" {
		return "", "", nil
	}
	repository, reference, ok := strings.Cut(image, "@")
	if !ok {
		repository, reference = image, "latest"
		if i := strings.LastIndexByte(image, ':'); i > strings.LastIndexByte(image, '/') {
			repository, reference = image[:i], image[i+1:]
		}
	}
	for _, r := range repository + reference {
		if r >= 0x80 || !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/:", r) {
			return "", "", fmt.Errorf("image %q: %q cannot be part of a reference", image, r)
		}
	}
	if repository == "" || reference == "" || strings.ContainsAny(repository, ":") || strings.Contains(reference, "/") {
		return "", "", fmt.Errorf("image %q: want repository:tag or repository@digest", image)
	}
	return repository, reference, nil
}

type prober struct {
	config Config
	result Result
}

func (p *prober) fail(reason Reason, advice, format string, args ...any) bool {
	p.result.Reason, p.result.Advice, p.result.Problem = reason, advice, fmt.Sprintf(format, args...)
	return false
}

// request sends and records one request. ok is false if there was no response.
func (p *prober) request(ctx context.Context, method, path string) (*http.Response, []byte, bool) {
	scheme := "http"
	if p.config.TLS {
		scheme = "https"
	}
	target := url.URL{Scheme: scheme, Host: p.config.Address, Path: path}
	step := Step{Method: method, URL: target.String()}
	start := time.Now()
	defer func() {
		step.Milliseconds = time.Since(start).Milliseconds()
		p.result.Steps = append(p.result.Steps, step)
	}()
	response, body, err := p.exchange(ctx, method, &target)
	if err != nil {
		return nil, nil, p.explainError(err)
	}
	step.Status = response.StatusCode
	step.Digest = response.Header.Get(oci.HeaderDigest)
	return response, body, true
}

// exchange sends one request on a new connection. Unlike http.Client it neither retries nor follows redirects.
func (p *prober) exchange(ctx context.Context, method string, target *url.URL) (*http.Response, []byte, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", p.config.Address)
	if err != nil {
		return nil, nil, err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return nil, nil, err
		}
	}
	if p.config.TLS {
		host, _, _ := net.SplitHostPort(p.config.Address)
		conn = tls.Client(conn, &tls.Config{ServerName: host, RootCAs: p.config.RootCAs, MinVersion: tls.VersionTLS12})
	}
	request := &http.Request{Method: method, URL: target, Header: http.Header{
		"Accept":     {manifestTypes + ", */*"},
		"Connection": {"close"},
		"User-Agent": {"registry-node"},
		// An empty user name and password, which CRI-O sends if it has none: without, the registry asks for some.
		"Authorization": {"Basic Og=="},
	}}
	if err := request.Write(conn); err != nil {
		return nil, nil, err
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), request)
	if err != nil {
		return nil, nil, err
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxErrorBody))
	return response, body, err
}

func (p *prober) explainError(err error) bool {
	var (
		timeout     net.Error
		untrusted   x509.UnknownAuthorityError
		hostname    x509.HostnameError
		certificate *tls.CertificateVerificationError
		record      tls.RecordHeaderError
		operation   *net.OpError
	)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return p.fail(ReasonRefused,
			"with registryProxy=true, check that this node's proxy pod is Ready and that the CNI serves hostPort "+
				"(portmap); with registryProxy=false, kube-proxy does not serve node ports on loopback here "+
				"(nftables, IPVS, IPv6): use registryProxy=true",
			"connection refused: nothing listens on %s on this node", p.config.Address)
	case errors.As(err, &record) && string(record.RecordHeader[:]) == "HTTP/":
		return p.fail(ReasonNoTLS, "probe without --tls, or set proxy.tls=always",
			"%s speaks plain HTTP, not TLS", p.config.Address)
	case errors.As(err, &untrusted):
		return p.fail(ReasonCertificate, "pass the CA with --ca-file (ca.crt of the node's certificate Secret)",
			"the certificate of %s was issued by an untrusted CA: %v", p.config.Address, untrusted)
	case errors.As(err, &hostname):
		return p.fail(ReasonCertificate, "use an address that the certificate contains",
			"the certificate of %s is for another address: %v", p.config.Address, hostname)
	case errors.As(err, &certificate):
		return p.fail(ReasonCertificate,
			"check this node's clock, and renew the certificates with helm upgrade",
			"the certificate of %s cannot be verified: %v", p.config.Address, certificate.Err)
	case errors.As(err, &timeout) && timeout.Timeout():
		return p.fail(ReasonTimeout,
			"check /readyz?verbose on the proxy's metrics port, that the registry is ready, and that neither a firewall nor "+
				"the CNI drops packets to the port",
			"no response from %s within %s", p.config.Address, p.config.Timeout)
	case errors.As(err, &operation) && operation.Op == "dial":
		return p.fail(ReasonUnreachable, "use the node's loopback address: 127.0.0.1, or [::1] on an IPv6-only cluster",
			"%s cannot be reached: %v", p.config.Address, err)
	case strings.Contains(err.Error(), `malformed HTTP response "\x15`): // a TLS alert
		return p.wantsTLS()
	default:
		return p.fail(ReasonBroken, "check what listens there (ss -ltnp) and its log",
			"%s did not respond in HTTP: %v", p.config.Address, err)
	}
}

func (p *prober) wantsTLS() bool {
	return p.fail(ReasonWantsTLS, "probe with --tls", "%s speaks TLS, not plain HTTP", p.config.Address)
}

// api requests the root of the API, as runtimes do to detect a registry.
func (p *prober) api(ctx context.Context) bool {
	response, body, ok := p.request(ctx, http.MethodGet, "/v2/") //nolint:bodyclose // exchange has read and closed it
	if !ok {
		return false
	}
	switch {
	case response.StatusCode == http.StatusBadRequest && strings.Contains(string(body), "HTTP request to an HTTPS server"):
		return p.wantsTLS()
	case response.StatusCode != http.StatusOK:
		return p.explainResponse(response, body, "")
	case response.Header.Get(oci.HeaderAPIVersion) == "" &&
		!strings.HasPrefix(response.Header.Get("Content-Type"), "application/json"):
		return p.fail(ReasonNotARegistry, "check what listens there (ss -ltnp): another process may use the port",
			"%s responds, but is not a registry", p.config.Address)
	}
	return true
}

// manifest requests an image's manifest. It repeats a failed HEAD as GET, which has an error message.
func (p *prober) manifest(ctx context.Context, repository, reference string) bool {
	path := "/v2/" + repository + "/manifests/" + reference
	response, body, ok := p.request(ctx, http.MethodHead, path) //nolint:bodyclose // exchange has read and closed it
	if ok && response.StatusCode != http.StatusOK {
		response, body, ok = p.request(ctx, http.MethodGet, path) //nolint:bodyclose // exchange has read and closed it
	}
	if !ok || response.StatusCode == http.StatusOK {
		return ok
	}
	return p.explainResponse(response, body, repository+":"+reference)
}

func (p *prober) explainResponse(response *http.Response, body []byte, image string) bool {
	code, message := ociError(body)
	message = cmp.Or(message, response.Status)
	switch response.StatusCode {
	case http.StatusUnauthorized:
		return p.fail(ReasonUnauthorized,
			"with registryProxy=false pulls need imagePullSecrets; with registryProxy=true, another process "+
				"listens on the proxy's port",
			"the registry requires a login (%s): %s", response.Header.Get("Www-Authenticate"), message)
	case http.StatusForbidden:
		return p.fail(ReasonDenied, "check that the proxy's certificate is from this release (helm upgrade renews it)",
			"the registry denies this node: %s", message)
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return p.fail(ReasonUnavailable, "the node works: check the registry's pod and its Service",
			"%s responds, but the registry behind it does not: %s", p.config.Address, message)
	case http.StatusNotFound:
		if image != "" && code != "" {
			return p.fail(ReasonUnknownImage, "push it with zarf-registry images push",
				"the registry has no %s: %s", image, message)
		}
		return p.fail(ReasonNotARegistry, "check what listens there (ss -ltnp): another process may use the port",
			"%s responds, but is not a registry: %s", p.config.Address, response.Status)
	}
	return p.fail(ReasonUnexpectedHTTP, "check the registry's log", "%s responded %s: %s", p.config.Address,
		response.Status, message)
}

// ociError returns the first error of an OCI error body, or empty strings.
func ociError(body []byte) (code, message string) {
	var response struct {
		Errors []struct{ Code, Message string }
	}
	if json.Unmarshal(body, &response) != nil || len(response.Errors) == 0 || response.Errors[0].Code == "" {
		return "", ""
	}
	code = response.Errors[0].Code
	return code, strings.TrimSuffix(code+": "+response.Errors[0].Message, ": ")
}
