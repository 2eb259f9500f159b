// Package check tries a registry as its clients do, from inside the cluster: what
// `helm test` runs. It needs no rights in the cluster, only the Secrets that pods mount,
// and speaks plain net/http, so that it shares no mistake with the client that pushes.
// It changes nothing but a repository of its own, which it empties again.
package check

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
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

	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/tlsfiles"
)

// Repository is what Push writes to.
const Repository = "zarf-registry/check"

// blobSize is small, since what a check leaves stays on the volume until the next garbage
// collection, and more than one TLS record of 16 KiB.
const blobSize = 20 << 10

// requestTime bounds one request: the registry is ready, or Helm would not test it.
const requestTime = 20 * time.Second

// pause is how long a registry is left alone that asks for it.
const pause = 2 * time.Second

// reachTime is how long it may take until connections get through: the rules that let a new
// pod through a NetworkPolicy may come some seconds after the pod.
const reachTime = 30 * time.Second

// maxAnswer bounds what is read of an answer.
const maxAnswer = 1 << 20

// Target is the registry, and what its clients have.
type Target struct {
	// Registry is the listener with mutual TLS, as HOST:PORT; the name is verified.
	Registry string
	// Plain is the listener that a node port leads to, as HOST:PORT; empty where there is none.
	Plain string
	// AnonymousPull tells that Plain serves images to anybody.
	AnonymousPull bool
	// Push and Node are the certificates of pushers and of proxies.
	Push, Node *tlsfiles.Material
	// Username and Password are the push credential.
	Username, Password string
	// DialContext serves as an http.Transport's; nil means the usual one.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
}

// Step is one thing that was tried.
type Step struct {
	// Name says what must hold.
	Name string
	// Err is why it does not, or nil.
	Err error
}

// TLS tries who is let in: every answer but the expected one is an error, and a step that
// fails does not keep the others from being tried.
func TLS(ctx context.Context, t Target, each func(Step)) error {
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
			return node.with(t.Username, t.Password).expect(ctx, http.StatusForbidden, http.MethodPost, "/v2/"+Repository+"/blobs/uploads/")
		}},
		{"a pusher's certificate may not write without the push credential", func() error {
			return push.expect(ctx, http.StatusUnauthorized, http.MethodPost, "/v2/"+Repository+"/blobs/uploads/")
		}},
		{"a pusher's certificate may not write with a wrong password", func() error {
			return push.with(t.Username, t.Password+"-wrong").expect(ctx, http.StatusUnauthorized, http.MethodPost, "/v2/"+Repository+"/blobs/uploads/")
		}},
		{"nobody is let in without a certificate", func() error {
			return t.refused(ctx, nil)
		}},
		{"nobody is let in with a certificate of another authority", func() error {
			return t.refused(ctx, foreign)
		}},
		{"plain HTTP is not served where TLS is", func() error {
			return t.plain(t.Registry).expectNot(ctx, http.StatusOK, http.MethodGet, "/v2/")
		}},
	}
	if t.Plain != "" {
		read := step{"the node port serves nothing without a credential", func() error {
			return t.plain(t.Plain).expect(ctx, http.StatusUnauthorized, http.MethodGet, "/v2/")
		}}
		if t.AnonymousPull {
			read = step{"the node port serves anybody", func() error {
				return t.plain(t.Plain).expect(ctx, http.StatusOK, http.MethodGet, "/v2/")
			}}
		}
		steps = append(steps, read, step{"the node port takes nothing without a credential", func() error {
			return t.plain(t.Plain).expect(ctx, http.StatusUnauthorized, http.MethodPost, "/v2/"+Repository+"/blobs/uploads/")
		}})
	}
	listeners := []string{t.Registry}
	if t.Plain != "" {
		listeners = append(listeners, t.Plain)
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

// try does one step, tells of it, and returns why it failed, by its name.
func try(each func(Step), name string, do func() error) error {
	err := do()
	each(Step{name, err})
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// Push pushes an image of random content under a tag, reads it back as a node does, and
// deletes it. It ends at the first step that fails, but for deleting, which is always tried.
func Push(ctx context.Context, t Target, tag string, each func(Step)) error {
	push, node := t.client(t.Push).with(t.Username, t.Password), t.client(t.Node)
	layer := make([]byte, blobSize)
	if _, err := rand.Read(layer); err != nil {
		return err
	}
	// Random too: two checks at a time must not delete each other's.
	config := fmt.Appendf(nil, `{"architecture":"amd64","os":"linux","author":%q,"rootfs":{"type":"layers","diff_ids":[%q]}}`, tag, digestOf(layer))
	manifest, err := json.Marshal(map[string]any{
		"schemaVersion": 2,
		"mediaType":     manifestType,
		"config":        descriptor("application/vnd.oci.image.config.v1+json", config),
		"layers":        []any{descriptor("application/vnd.oci.image.layer.v1.tar", layer)},
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
		_, err := push.send(ctx, http.StatusCreated, http.MethodPut, below+"/manifests/"+tag, manifestType, manifest)
		return err
	})
	if err == nil {
		err = try(each, "a node reads what was pushed", func() error {
			got, err := node.send(ctx, http.StatusOK, http.MethodGet, below+"/manifests/"+tag, "", nil)
			if err != nil {
				return err
			}
			if !bytes.Equal(got.body, manifest) {
				return fmt.Errorf("GET %s/manifests/%s: %d bytes that are not those of the manifest", below, tag, len(got.body))
			}
			for _, blob := range blobs {
				path := below + "/blobs/" + digestOf(blob)
				got, err := node.send(ctx, http.StatusOK, http.MethodGet, path, "", nil)
				if err != nil {
					return err
				}
				if !bytes.Equal(got.body, blob) {
					return fmt.Errorf("GET %s: %d bytes that do not have this digest", path, len(got.body))
				}
			}
			return nil
		})
	}
	return errors.Join(err, try(each, "it can be deleted, and is gone", func() error {
		var errs []error
		// Blobs first: the manifest's tag is what a second try would be found by.
		for _, path := range []string{"/blobs/" + digestOf(layer), "/blobs/" + digestOf(config), "/manifests/" + digestOf(manifest)} {
			_, err := push.send(ctx, http.StatusAccepted, http.MethodDelete, below+path, "", nil)
			if err == nil {
				err = node.expect(ctx, http.StatusNotFound, http.MethodGet, below+path)
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}))
}

// reach waits until listeners take connections; everything else would fail without them.
func (t Target) reach(ctx context.Context, each func(Step), addresses ...string) error {
	const name = "the registry can be reached"
	ctx, cancel := context.WithTimeout(ctx, reachTime)
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
				err := fmt.Errorf("%w; look whether its pod is ready, and whether a NetworkPolicy keeps this pod from it", errors.Join(last, ctx.Err()))
				each(Step{name, err})
				return fmt.Errorf("%s: %w", name, err)
			case <-time.After(reachTime / 60):
			}
		}
	}
	each(Step{name, nil})
	return nil
}

const manifestType = "application/vnd.oci.image.manifest.v1+json"

func descriptor(mediaType string, content []byte) map[string]any {
	return map[string]any{"mediaType": mediaType, "digest": digestOf(content), "size": len(content)}
}

func digestOf(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// foreignCertificate is like that of a pusher in everything but who signed it.
func foreignCertificate(like *tlsfiles.Material) (*tls.Certificate, error) {
	now := time.Now()
	authority, err := pki.NewCA(like.Leaf.Issuer.CommonName, now, time.Hour)
	if err != nil {
		return nil, err
	}
	pair, err := authority.Issue(pki.Leaf{CommonName: like.Leaf.Subject.CommonName, Organization: pki.OrganizationPush, Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, now)
	if err != nil {
		return nil, err
	}
	certificate, err := tls.X509KeyPair(pair.Certificate, pair.Key)
	return &certificate, err
}

// refused is content when the registry ends a connection with that certificate, or with
// none, before it answers a request. With TLS 1.3 the client learns that at its first read.
func (t Target) refused(ctx context.Context, certificate *tls.Certificate) error {
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: t.Push.CAPool}
	if certificate != nil {
		// Sent even where the server names other authorities.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return certificate, nil }
	}
	got, err := t.over(config).do(ctx, http.MethodGet, "/v2/", "", nil)
	if err == nil {
		return fmt.Errorf("GET https://%s/v2/ was answered with %s", t.Registry, got.status)
	}
	if alert, ok := errors.AsType[*net.OpError](err); ok && alert.Op == "remote error" {
		return nil
	}
	// The end of the connection may overtake the alert, where the request was under way.
	if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, io.EOF) {
		return nil
	}
	return fmt.Errorf("it was not refused, it failed: %w", err)
}

// client is one way to one listener.
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
		Timeout: requestTime,
		// A connection for each request: every one of them is a handshake that is checked.
		Transport:     &http.Transport{TLSClientConfig: config, DialContext: t.DialContext, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func (c client) with(username, password string) client {
	c.username, c.password = username, password
	return c
}

type answer struct {
	code     int
	status   string
	location string
	body     []byte
}

// do sends one request; a path may be a whole URL. What a registry cannot do for the time
// being, as while it collects garbage, is asked for again until the context ends.
func (c client) do(ctx context.Context, method, path, mediaType string, body []byte) (answer, error) {
	for {
		got, err := c.once(ctx, method, path, mediaType, body)
		if err != nil || got.code != http.StatusServiceUnavailable && got.code != http.StatusTooManyRequests {
			return got, err
		}
		select {
		case <-ctx.Done():
			return got, nil
		case <-time.After(pause):
		}
	}
}

func (c client) once(ctx context.Context, method, path, mediaType string, body []byte) (answer, error) {
	base, err := url.Parse(c.base)
	if err != nil {
		return answer{}, err
	}
	to, err := base.Parse(path)
	if err != nil {
		return answer{}, err
	}
	if to.Host != base.Host || to.Scheme != base.Scheme {
		return answer{}, fmt.Errorf("the registry at %s sends its client to %s://%s", c.base, to.Scheme, to.Host)
	}
	req, err := http.NewRequestWithContext(ctx, method, to.String(), bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	if mediaType != "" {
		req.Header.Set("Content-Type", mediaType)
	}
	req.Header.Set("Accept", manifestType)
	if c.username != "" {
		req.SetBasicAuth(c.username, c.password)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return answer{}, fmt.Errorf("%s %s: %w", method, to, err)
	}
	return answer{resp.StatusCode, resp.Status, resp.Header.Get("Location"), content}, nil
}

// send is do for one expected answer.
func (c client) send(ctx context.Context, want int, method, path, mediaType string, body []byte) (answer, error) {
	got, err := c.do(ctx, method, path, mediaType, body)
	if err == nil && got.code != want {
		err = fmt.Errorf("%s %s%s was answered with %s, not %d: %s", method, c.base, path, got.status, want, excerpt(got.body))
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
		err = fmt.Errorf("%s %s%s was answered with %s", method, c.base, path, got.status)
	}
	return err
}

// upload sends a blob in the two requests that every client uses.
func (c client) upload(ctx context.Context, below string, blob []byte) error {
	begun, err := c.send(ctx, http.StatusAccepted, http.MethodPost, below+"/blobs/uploads/", "", nil)
	if err != nil {
		return err
	}
	separator := "?"
	if strings.Contains(begun.location, "?") {
		separator = "&"
	}
	_, err = c.send(ctx, http.StatusCreated, http.MethodPut, begun.location+separator+"digest="+url.QueryEscape(digestOf(blob)), "application/octet-stream", blob)
	return err
}

// excerpt is the beginning of an answer, in one line.
func excerpt(body []byte) string {
	const most = 300
	text := strings.Join(strings.Fields(string(body)), " ")
	if len(text) > most {
		text = text[:most] + "…"
	}
	if text == "" {
		return "(nothing)"
	}
	return text
}
