package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/images/remote"
	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles"
	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles/tlsfilestest"
	"github.com/zarf-dev/zarf-registry/internal/node/cache"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/test/registrytest"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// Tests of what the OCI distribution specification says about reads: the registry responds through the proxy as it does
// directly. internal/registry tests what it responds.

// cluster is the registry and a node's proxy.
type cluster struct {
	t      *testing.T
	push   *remote.Repository // repository "read/me"
	proxy  *Proxy
	direct *http.Client // bypasses the proxy, with the node's certificate
	base   string       // of the registry, for direct
}

const repository = "/v2/read/me/"

// startCluster starts both, and if wanted a cache between them. between, unless nil, replaces the addresses at which these
// reach each other.
func startCluster(t *testing.T, cached bool, between func(address string) string) *cluster {
	t.Helper()
	ca := tlsfilestest.NewCA(t, "ca")
	behind := registrytest.Start(t, ca)
	port := func(address string) string {
		if between != nil {
			address = between(address)
		}
		_, port, err := net.SplitHostPort(address)
		require.NoError(t, err)
		return port
	}
	getenv := environment{"ZARF_REGISTRY_SERVICE_HOST": "127.0.0.1", "CACHE_SERVICE_HOST": "127.0.0.1"}.get
	files := func(role string, names []string) *tlsfiles.Source {
		dir := t.TempDir()
		tlsfilestest.WriteSecret(t, dir, ca.Files(t, role, names))
		return openSource(t, dir)
	}
	config := Config{
		Listen: []string{"127.0.0.1:0"}, Registry: net.JoinHostPort(registrytest.Name, port(behind.Address)),
		Source: files(pki.OrganizationNode, loopback), RetryTimeout: longest, DrainTimeout: longest, Logger: quiet,
		Getenv: getenv,
	}
	if cached {
		c, err := cache.New(cache.Config{
			Listen: "127.0.0.1:0", Registry: net.JoinHostPort(registrytest.Name, port(behind.Address)), Dir: t.TempDir(), Size: 1 << 30,
			Source: files(pki.OrganizationCache, []string{"cache.zarf.svc"}), Logger: quiet, Getenv: getenv,
		})
		require.NoError(t, err)
		require.NoError(t, c.Listen(t.Context()))
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		t.Cleanup(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
		config.Cache = net.JoinHostPort("cache.zarf.svc", port(c.Addr().String()))
	}
	proxy := require.Value(New(config))(t)
	run(t, proxy)
	push := require.Value(behind.Pusher(t).Repository("read/me"))(t)
	transport := &http.Transport{TLSClientConfig: behind.TLS(t, pki.OrganizationNode), DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &cluster{t, push, proxy, &http.Client{Transport: transport}, "https://" + behind.Address}
}

// in returns c for a subtest.
func (c *cluster) in(t *testing.T) *cluster {
	copied := *c
	copied.t = t
	return &copied
}

func (c *cluster) pushBlob(algorithm digest.Algorithm, mediaType string, content []byte) v1.Descriptor {
	c.t.Helper()
	desc := v1.Descriptor{MediaType: mediaType, Digest: algorithm.FromBytes(content), Size: int64(len(content))}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil }
	require.Value(c.push.PushBlob(c.t.Context(), desc, "", open, nil))(c.t)
	return desc
}

func (c *cluster) pushManifest(algorithm digest.Algorithm, tag, mediaType string, manifest any) (
	v1.Descriptor, []byte) {
	c.t.Helper()
	raw := require.Value(json.Marshal(manifest))(c.t)
	desc := v1.Descriptor{MediaType: mediaType, Digest: algorithm.FromBytes(raw), Size: int64(len(raw))}
	require.NoError(c.t, c.push.PushManifest(c.t.Context(), desc, raw, tag))
	return desc, raw
}

// pushImage pushes an image with one layer.
func (c *cluster) pushImage(algorithm digest.Algorithm, tag string, layer []byte, change func(*v1.Manifest)) (
	v1.Descriptor, []byte) {
	c.t.Helper()
	manifest := v1.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest,
		Config: c.pushBlob(algorithm, v1.MediaTypeImageConfig, []byte(`{"os":"linux","architecture":"amd64"}`)),
		Layers: []v1.Descriptor{c.pushBlob(algorithm, v1.MediaTypeImageLayerGzip, layer)},
	}
	if change != nil {
		change(&manifest)
	}
	return c.pushManifest(algorithm, tag, manifest.MediaType, manifest)
}

// read is a response and its body.
type read struct {
	*http.Response
	body []byte
}

// get reads through the proxy.
func (c *cluster) get(status int, path string, headers ...string) read {
	c.t.Helper()
	return c.request(status, http.MethodGet, path, headers...)
}

// request sends a request through the proxy, and another one to the registry. Their responses must be equal.
func (c *cluster) request(status int, method, path string, headers ...string) read {
	c.t.Helper()
	send := func(client *http.Client, base string) read {
		c.t.Helper()
		request := require.Value(http.NewRequestWithContext(c.t.Context(), method, base+path, nil))(c.t)
		for n := 0; n < len(headers); n += 2 {
			request.Header.Set(headers[n], headers[n+1])
		}
		response := require.Value(client.Do(request))(c.t)
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		require.NoError(c.t, err, method, path)
		return read{response, body}
	}
	transport := &http.Transport{DisableCompression: true}
	defer transport.CloseIdleConnections()
	got, want := send(&http.Client{Transport: transport}, "http://"+c.proxy.Addrs()[0].String()), send(c.direct, c.base)
	if got.StatusCode != status {
		c.t.Fatalf("%s %s: %s, want %d: %s", method, path, got.Status, status, got.body)
	}
	for _, r := range []read{got, want} {
		r.Header.Del("Date")
	}
	if diff := cmp.Diff(want.Header, got.Header); diff != "" || want.StatusCode != status ||
		want.ContentLength != got.ContentLength || !bytes.Equal(want.body, got.body) {
		c.t.Errorf("%s %s: the registry responds with %s, %d bytes; headers:\n%s", method, path, want.Status,
			want.ContentLength, diff)
	}
	return got
}

// algorithms are those of the specification.
var algorithms = []digest.Algorithm{digest.SHA256, digest.SHA512}

func TestConformancePull(t *testing.T) {
	t.Parallel()
	for name, cached := range map[string]bool{"from the registry": false, "from a cache": true} {
		t.Run(name, func(t *testing.T) {
			c := startCluster(t, cached, nil)
			testConformancePull(t, c)
			if cached && (c.proxy.metrics.cacheServed.Get() == 0 || c.proxy.metrics.cacheFailed.Get() > 0) {
				t.Errorf("caches served %d requests and failed %d", c.proxy.metrics.cacheServed.Get(),
					c.proxy.metrics.cacheFailed.Get())
			}
		})
	}
}

func testConformancePull(t *testing.T, c *cluster) {
	layer := []byte("0123456789")
	for _, algorithm := range algorithms {
		t.Run(algorithm.String(), func(t *testing.T) {
			c, tag := c.in(t), "of-"+algorithm.String()
			image, _ := c.pushImage(algorithm, tag, layer, nil)
			index, _ := c.pushManifest(algorithm, "index-of-"+algorithm.String(), v1.MediaTypeImageIndex, v1.Index{
				Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex,
				Manifests: []v1.Descriptor{image},
			})
			blob, absent := "blobs/"+algorithm.FromBytes(layer).String(), algorithm.FromString("absent").String()
			for path, status := range map[string]int{
				"read/me/manifests/" + tag: 200, "read/me/manifests/" + image.Digest.String(): 200, "read/me/" + blob: 200,
				"read/me/manifests/index-of-" + algorithm.String(): 200, "read/me/manifests/" + index.Digest.String(): 200,
				"read/me/manifests/absent": 404, "read/me/manifests/" + absent: 404, "read/me/blobs/" + absent: 404,
				"other/manifests/" + tag: 404, "other/" + blob: 404,
			} {
				for _, method := range []string{http.MethodGet, http.MethodHead} {
					for _, accept := range []string{v1.MediaTypeImageManifest + ", " + v1.MediaTypeImageIndex, "*/*"} {
						etag := c.request(status, method, "/v2/"+path, "Accept", accept).Header.Get("Etag")
						if (etag != "") != (status == http.StatusOK) {
							t.Fatalf("%s: ETag %q", path, etag)
						}
						if etag != "" {
							c.get(http.StatusNotModified, "/v2/"+path, "Accept", accept, "If-None-Match", etag)
						}
					}
				}
			}
			c.get(http.StatusNotFound, "/v2/other/tags/list")
			for _, part := range []string{"0-0", "2-4", "7-", "-2", "8-100", "0-"} {
				c.get(http.StatusPartialContent, repository+blob, "Range", "bytes="+part)
			}
			c.get(http.StatusRequestedRangeNotSatisfiable, repository+blob, "Range", "bytes=10-")
		})
	}
	t.Run("lists", func(t *testing.T) {
		c := c.in(t)
		subject, _ := c.pushImage(digest.SHA256, "subject", []byte("subject"), nil)
		c.pushImage(digest.SHA256, "", []byte("signature"), func(m *v1.Manifest) { m.Subject = &subject })
		referrers := "referrers/" + subject.Digest.String()
		for _, path := range []string{"tags/list", "tags/list?n=1", "tags/list?n=0", referrers,
			referrers + "?artifactType=x"} {
			c.get(http.StatusOK, repository+path)
		}
	})
	t.Run("the base endpoint", func(t *testing.T) { c.in(t).get(http.StatusOK, "/v2/") })
	t.Run("a manifest under its digest of either algorithm", func(t *testing.T) {
		c := c.in(t)
		image, raw := c.pushImage(digest.SHA512, "", []byte("both"), nil)
		for _, algorithm := range algorithms {
			got := c.get(http.StatusOK, repository+"manifests/"+algorithm.FromBytes(raw).String(), "Accept", image.MediaType)
			if got.Header.Get("Docker-Content-Digest") != algorithm.FromBytes(raw).String() {
				t.Errorf("headers %v", got.Header)
			}
		}
	})
}

// cutConnections relays connections to an address, and breaks each of them off after some bytes of responses.
func cutConnections(t *testing.T, most int64) func(address string) string {
	return func(address string) string {
		l := require.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				client, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer client.Close()
					server, err := net.Dial("tcp", address)
					if err != nil {
						return
					}
					defer server.Close()
					go func() { _, _ = io.Copy(server, client) }()
					_, _ = io.CopyN(client, server, rand.Int64N(most))
				}()
			}
		}()
		return l.Addr().String()
	}
}

// Content of the registry itself arrives complete, however often connections break off.
func TestResumeFromTheRegistry(t *testing.T) {
	t.Parallel()
	for name, cached := range map[string]bool{"from the registry": false, "from a cache": true} {
		t.Run(name, func(t *testing.T) { testResume(t, startCluster(t, cached, cutConnections(t, 2<<20))) })
	}
}

func testResume(t *testing.T, c *cluster) {
	for _, algorithm := range algorithms {
		layer := newBlob(1 << 20).data
		_, raw := c.pushImage(algorithm, "large-"+algorithm.String(), layer, func(m *v1.Manifest) {
			m.Annotations = map[string]string{"large": strings.Repeat("x", 1<<20)}
		})
		for path, want := range map[string][]byte{
			"blobs/" + algorithm.FromBytes(layer).String():   layer,
			"manifests/" + algorithm.FromBytes(raw).String(): raw,
			"manifests/large-" + algorithm.String():          raw,
		} {
			resumed := c.proxy.metrics.resumes.Get()
			for n := 0; c.proxy.metrics.resumes.Get() < resumed+3; n++ {
				if n == 1000 {
					t.Fatalf("%s: no body was resumed: the test checked nothing", path)
				}
				if got := c.get(http.StatusOK, repository+path, "Accept", v1.MediaTypeImageManifest); !bytes.Equal(got.body, want) {
					t.Fatalf("%s: %d bytes, want %d", path, len(got.body), len(want))
				}
			}
		}
	}
}
