package remote

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/errdef"

	"github.com/zarf-dev/zarf-registry/internal/images/blob"
	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/test/distributiontest"
	"github.com/zarf-dev/zarf-registry/test/require"
)

func TestBrokenDownload(t *testing.T) {
	b := noise(11, 700_000)
	desc := describe(b)
	for name, ranges := range map[string]bool{"is continued": true, "restarts without support for ranges": false} {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int64
			registry := newTestServer(t, true, func(w http.ResponseWriter, r *http.Request) {
				start, status := 0, http.StatusOK
				if span := r.Header.Get("Range"); span != "" && ranges {
					start, _ = strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(span, "bytes="), "-"))
					status = http.StatusPartialContent
					w.Header().Set("Content-Range", "bytes "+strconv.Itoa(start)+"-"+strconv.Itoa(len(b)-1)+"/"+strconv.Itoa(len(b)))
				}
				w.Header().Set("Content-Length", strconv.Itoa(len(b)-start))
				w.WriteHeader(status)
				// Each answer gets a little further than the one before.
				n := asked.Add(1) * 250_000
				if ranges {
					n = int64(start) + 250_000
				}
				w.Write(b[start:min(n, int64(len(b)))])
			})
			got, err := pull(t.Context(), repository(t, registry.client(t, nil), "some/where"), desc, 10)
			if err != nil || !bytes.Equal(got, b[10:]) {
				t.Fatalf("got %d bytes, error %v", len(got), err)
			}
			if asked.Load() != 3 {
				t.Errorf("asked %d times, want 3", asked.Load())
			}
		})
	}
	t.Run("without progress fails", func(t *testing.T) {
		var asked atomic.Int64
		registry := newTestServer(t, true, func(w http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			w.Header().Set("Content-Length", strconv.Itoa(len(b)))
			w.Write(b[:1000])
		})
		_, err := pull(t.Context(), repository(t, registry.client(t, nil), "some/where"), desc, 0)
		wantError(t, err, registry.Host(), "EOF")
		if asked.Load() != 1+DefaultRetries {
			t.Errorf("asked %d times, want %d", asked.Load(), 1+DefaultRetries)
		}
	})
	t.Run("that stalls is resumed", func(t *testing.T) {
		var asked atomic.Int64
		release := make(chan struct{})
		defer close(release)
		registry := newTestServer(t, true, func(w http.ResponseWriter, r *http.Request) {
			if asked.Add(1) == 1 {
				w.Header().Set("Content-Length", strconv.Itoa(len(b)))
				w.Write(b[:5000])
				w.(http.Flusher).Flush()
				<-release
				return
			}
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
		})
		reg := registry.client(t, func(opts *Options) { opts.idleTimeout = 2 * time.Second })
		got, err := pull(t.Context(), repository(t, reg, "some/where"), desc, 0)
		if err != nil || !bytes.Equal(got, b) {
			t.Errorf("got %d bytes, error %v", len(got), err)
		}
		release <- struct{}{}
	})
}

func TestInvalidResponses(t *testing.T) {
	b := []byte(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[]}`)
	d := digest.FromBytes(b)
	other := digest.FromString("other")
	manifest := func(header string, body []byte) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", ocispec.MediaTypeImageIndex)
			if header != "" {
				w.Header().Set(oci.HeaderDigest, header)
			}
			w.Header().Set("Content-Length", strconv.Itoa(len(body)))
			w.Write(body)
		}
	}
	get := func(ref string) func(ctx context.Context, repo *Repository) error {
		return func(ctx context.Context, repo *Repository) error {
			_, _, err := repo.Manifest(ctx, ref)
			return err
		}
	}
	resolve := func(ref string) func(ctx context.Context, repo *Repository) error {
		return func(ctx context.Context, repo *Repository) error {
			_, err := repo.Resolve(ctx, ref)
			return err
		}
	}
	download := func(desc ocispec.Descriptor, offset int64) func(ctx context.Context, repo *Repository) error {
		return func(ctx context.Context, repo *Repository) error {
			_, err := pull(ctx, repo, desc, offset)
			return err
		}
	}
	for name, test := range map[string]struct {
		answer http.HandlerFunc
		do     func(ctx context.Context, repo *Repository) error
		want   string
	}{
		"another manifest": {manifest("", []byte("{}")), get(d.String()),
			"returned a manifest with digest " + string(digest.FromString("{}"))},
		"a manifest with the digest of another": {manifest(other.String(), b), get(d.String()), "returned digest " +
			other.String()},
		"a tagged manifest unlike its digest": {manifest(other.String(), b), get("v1"), ": want " + other.String()},
		"an invalid digest":                   {manifest("sha256:abc", b), get("v1"), `returned digest "sha256:abc"`},
		"resolved to another one":             {manifest(other.String(), b), resolve(d.String()), "returned digest"},
		"a manifest without end":              {manifest("", make([]byte, oci.MaxManifestSize+1)), get("v1"), "more than 4194304 bytes"},
		"a manifest that ends early": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "1000")
			w.Write(b)
		}, get("v1"), "EOF"},
		"a blob that is longer": {manifest("", b), download(ocispec.Descriptor{Digest: d, Size: int64(len(b) - 1)}, 0),
			"bytes where its descriptor says"},
		"a blob that is shorter": {manifest("", b), download(ocispec.Descriptor{Digest: d, Size: int64(len(b) + 1)}, 0),
			"bytes where its descriptor says"},
		"another part": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Range", "bytes 3-9/"+strconv.Itoa(len(b)))
			w.WriteHeader(http.StatusPartialContent)
		}, download(ocispec.Descriptor{Digest: d, Size: int64(len(b))}, 5), "from byte 3 where byte 5"},
		"a part of something longer": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Range", "bytes 5-9/1000")
			w.WriteHeader(http.StatusPartialContent)
		}, download(ocispec.Descriptor{Digest: d, Size: int64(len(b))}, 5), "has 1000 bytes"},
		"a part without Content-Range": {func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusPartialContent)
		}, download(ocispec.Descriptor{Digest: d, Size: int64(len(b))}, 5), "invalid Content-Range"},
		"an unsatisfiable range": {func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
		}, download(ocispec.Descriptor{Digest: d, Size: int64(len(b))}, 5), "ends before byte 5"},
		"a blob of another size exists": {manifest("", b), func(ctx context.Context, repo *Repository) error {
			_, err := repo.Exists(ctx, ocispec.Descriptor{Digest: d, Size: 1})
			return err
		}, "bytes where its descriptor says 1"},
		"a manifest taken as another one": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set(oci.HeaderDigest, other.String())
			w.WriteHeader(http.StatusCreated)
		}, func(ctx context.Context, repo *Repository) error {
			return repo.PushManifest(ctx, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: d,
				Size: int64(len(b))}, b, "v1")
		}, other.String()},
	} {
		t.Run(name, func(t *testing.T) {
			registry := newTestServer(t, false, test.answer)
			err := test.do(t.Context(), repository(t, registry.client(t, nil), "some/where"))
			wantError(t, err, registry.Host(), test.want)
		})
	}
}

func TestRedirects(t *testing.T) {
	b := noise(12, 400_000)
	desc := describe(b)
	var seen http.Header
	var certificates int
	cdn := newTestServer(t, false, nil)
	cdn.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen, certificates = r.Header.Clone(), len(r.TLS.PeerCertificates)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
	})
	cdn.TLS.ClientAuth = tls.RequestClientCert
	plainCDN := httptest.NewServer(http.NotFoundHandler())
	defer plainCDN.Close()

	run := func(t *testing.T, to string, do func(repo *Repository) error) (testRegistry, error) {
		registry := newTestServer(t, false, nil)
		var shown atomic.Int64
		registry.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if user, _, _ := r.BasicAuth(); user != distributiontest.Username {
				w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			shown.Store(int64(len(r.TLS.PeerCertificates)))
			http.Redirect(w, r, to+"/there?Signature=abc", http.StatusTemporaryRedirect)
		})
		registry.TLS.ClientAuth = tls.RequestClientCert
		err := do(repository(t, registry.client(t, func(opts *Options) {
			opts.TLS.Certificates = []tls.Certificate{registry.TLS.Certificates[0]}
		}), "some/where"))
		if shown.Load() == 0 {
			t.Error("the registry was not shown the client's certificate")
		}
		return registry, err
	}
	blobs := func(repo *Repository) error {
		got, err := pull(t.Context(), repo, desc, 5)
		if err == nil && !bytes.Equal(got, b[5:]) {
			return errors.New("other bytes")
		}
		return err
	}

	t.Run("of blobs are followed, without credentials", func(t *testing.T) {
		require.Value(run(t, cdn.URL, blobs))(t)
		if seen.Get("Authorization") != "" || certificates > 0 {
			t.Errorf("the other host got %q and %d certificates", seen, certificates)
		}
		if seen.Get("Range") != "bytes=5-" {
			t.Errorf("the other host was asked for %q", seen.Get("Range"))
		}
	})
	t.Run("to HTTP are rejected", func(t *testing.T) {
		registry, err := run(t, plainCDN.URL, blobs)
		wantError(t, err, registry.Host(), "redirected from HTTPS to "+plainCDN.URL)
	})
	t.Run("to hosts with an untrusted CA are rejected", func(t *testing.T) {
		registry := newTestServer(t, true, http.RedirectHandler(cdn.URL, http.StatusTemporaryRedirect).ServeHTTP)
		_, err := pull(t.Context(), repository(t, registry.client(t, func(opts *Options) {
			opts.TLS = nil
		}), "some/where"), desc, 0)
		wantError(t, err, registry.Host(), "request to "+cdn.Host(), "untrusted CA")
	})
	t.Run("to hosts with a certificate of another name are rejected", func(t *testing.T) {
		to := strings.Replace(cdn.URL, "127.0.0.1", "localhost", 1)
		registry, err := run(t, to, blobs)
		wantError(t, err, registry.Host(), "request to localhost", "invalid certificate")
	})
	t.Run("of manifests are followed", func(t *testing.T) {
		_, err := run(t, cdn.URL, func(repo *Repository) error {
			got, err := repo.Resolve(t.Context(), desc.Digest.String())
			if err == nil && got.Digest != desc.Digest {
				err = errors.New("resolved something else")
			}
			return err
		})
		if err != nil || seen.Get("Authorization") != "" {
			t.Errorf("%v, the other host got %q", err, seen)
		}
	})
}

func TestErrorsNameTheRemedy(t *testing.T) {
	ok := func(w http.ResponseWriter, r *http.Request) {}
	for name, test := range map[string]struct {
		plain  bool
		answer http.HandlerFunc
		change func(*Options)
		want   []string
	}{
		"HTTPS to an HTTP server": {true, ok, func(opts *Options) { opts.PlainHTTP = false },
			[]string{"serves HTTP, not HTTPS", "--plain-http"}},
		"HTTP to an HTTPS server": {false, ok, func(opts *Options) { opts.PlainHTTP = true },
			[]string{"omit --plain-http"}},
		"an unknown CA": {false, ok, func(opts *Options) { opts.TLS = nil },
			[]string{"untrusted CA", "--ca-file"}},
		"a certificate of another name": {false, ok, func(opts *Options) { opts.TLS.ServerName = "elsewhere.example" },
			[]string{"invalid certificate", "elsewhere.example"}},
		"no credential": {true, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("WWW-Authenticate", "Basic")
			w.WriteHeader(401)
		}, func(opts *Options) { opts.Credential = nil }, []string{"requires a credential", "docker login",
			"--password-stdin"}},
		"a wrong credential": {true, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("WWW-Authenticate", "Basic")
			say(w, 401, "UNAUTHORIZED")
		}, nil, []string{"rejected the credential", "docker login", "test message"}},
		"forbidden": {true, func(w http.ResponseWriter, r *http.Request) { say(w, 403, "DENIED") }, nil,
			[]string{"denied access", "docker login"}},
		"too many requests": {true, func(w http.ResponseWriter, r *http.Request) { say(w, 429, "TOOMANYREQUESTS") }, nil,
			[]string{"limits the request rate", "later"}},
		"down": {true, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(503) }, nil,
			[]string{"503"}},
		"no registry": {true, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(404) }, nil,
			[]string{"not found"}},
		"an unreachable registry": {true, ok, func(opts *Options) { opts.Host = "127.0.0.1:1" }, []string{"refused"}},
	} {
		t.Run(name, func(t *testing.T) {
			registry := newTestServer(t, test.plain, test.answer)
			log, lines := logged()
			host := ""
			reg := registry.client(t, func(opts *Options) {
				opts.Log = log
				if test.change != nil {
					test.change(opts)
				}
				host = opts.Host
			})
			wantError(t, reg.Ping(t.Context()), append(test.want, host)...)
			noSecret(t, lines.String())
		})
	}
}

func TestManifests(t *testing.T) {
	registry := newTestRegistry(t, false)
	reg := registry.client(t, nil)
	repo := repository(t, reg, "some/where")
	ctx := t.Context()

	raw := []byte(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[]}`)
	desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: digest.FromBytes(raw),
		Size: int64(len(raw))}
	for _, tag := range []string{"v1", "v2", ""} {
		require.NoError(t, repo.PushManifest(ctx, desc, raw, tag))
	}
	for _, ref := range []string{"v1", desc.Digest.String()} {
		if got, err := repo.Resolve(ctx, ref); err != nil || !sameContent(got, desc) {
			t.Errorf("%s is %v, error %v", ref, got, err)
		}
		if got, b, err := repo.Manifest(ctx, ref); err != nil || !sameContent(got, desc) || !bytes.Equal(b, raw) {
			t.Errorf("%s is %v, error %v", ref, got, err)
		}
	}
	if ok, err := repo.Exists(ctx, desc); err != nil || !ok {
		t.Errorf("exists %v, error %v", ok, err)
	}
	for _, absent := range []ocispec.Descriptor{
		{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString("absent"), Size: 6},
		{MediaType: ocispec.MediaTypeImageLayer, Digest: digest.FromString("absent"), Size: 6},
	} {
		if ok, err := repo.Exists(ctx, absent); err != nil || ok {
			t.Errorf("exists %v, error %v", ok, err)
		}
		if _, err := pull(ctx, repo, absent, 0); !errors.Is(err, errdef.ErrNotFound) {
			t.Errorf("error %v, want that it is not found", err)
		}
		if _, err := repo.Resolve(ctx, absent.Digest.String()); !errors.Is(err, errdef.ErrNotFound) {
			t.Errorf("error %v, want that it is not found", err)
		}
		if _, _, err := repo.Manifest(ctx, "absent"); !errors.Is(err, errdef.ErrNotFound) {
			t.Errorf("error %v, want that it is not found", err)
		}
	}
	var content *blob.Error
	if err := repo.PushManifest(ctx, desc, append(raw, ' '), ""); !errors.As(err, &content) {
		t.Errorf("error %v, want one about content", err)
	}

	signature := []byte(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","artifactType":"example/signature","manifests":[],"subject":{"mediaType":"application/vnd.oci.image.index.v1+json","digest":"` + desc.Digest.String() + `","size":` + strconv.Itoa(len(raw)) + `}}`)
	signed := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: digest.FromBytes(signature),
		Size: int64(len(signature))}
	require.NoError(t, repo.PushManifest(ctx, signed, signature, ""))
	var referrers []ocispec.Descriptor
	collect := func(page []ocispec.Descriptor) error { referrers = append(referrers, page...); return nil }
	if err := repo.Referrers(ctx, desc.Digest, collect); err != nil || len(referrers) != 1 ||
		referrers[0].Digest != signed.Digest {
		t.Errorf("referrers %v, error %v", referrers, err)
	}

	var tags, names []string
	if err := repo.Tags(ctx, func(page []string) error { tags = append(tags, page...); return nil }); err != nil ||
		!slices.Contains(tags, "v1") || !slices.Contains(tags, "v2") {
		t.Errorf("tags %q, error %v", tags, err)
	}
	if err := reg.Repositories(ctx, func(page []string) error {
		names = append(names, page...)
		return nil
	}); err != nil || !slices.Equal(names, []string{"some/where"}) {
		t.Errorf("repositories %q, error %v", names, err)
	}
	own := errors.New("enough")
	if err := repo.Tags(ctx, func([]string) error { return own }); err != own {
		t.Errorf("error %v, want the caller's own", err)
	}
	absent := repository(t, reg, "no/where")
	if err := absent.Tags(ctx, func([]string) error { return nil }); !errors.Is(err, errdef.ErrNotFound) {
		t.Errorf("error %v, want that it is not found", err)
	}
	if err := absent.Referrers(ctx, desc.Digest, collect); err != nil {
		t.Errorf("error %v where nothing refers to anything", err)
	}
}

func sameContent(a, b ocispec.Descriptor) bool {
	return a.MediaType == b.MediaType && a.Digest == b.Digest && a.Size == b.Size
}

// TestResolveWithoutDigestHeader has registries that do not say what HEAD should.
func TestResolveWithoutDigestHeader(t *testing.T) {
	raw := []byte("{}")
	for name, status := range map[string]int{"no digest": http.StatusOK, "no HEAD": http.StatusMethodNotAllowed} {
		t.Run(name, func(t *testing.T) {
			registry := newTestServer(t, true, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", ocispec.MediaTypeImageIndex+"; charset=utf-8")
				if r.Method == http.MethodHead {
					w.WriteHeader(status)
					return
				}
				w.Write(raw)
			})
			got, err := repository(t, registry.client(t, nil), "some/where").Resolve(t.Context(), "v1")
			want := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: digest.FromBytes(raw), Size: 2}
			if err != nil || !sameContent(got, want) {
				t.Errorf("got %v, error %v", got, err)
			}
		})
	}
}
