package remote

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/zarf-dev/zarf-registry/test/distributiontest"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// testRegistry is distribution's registry. Reading is free; writing needs the credential.
type testRegistry struct{ *distributiontest.Registry }

// newTestRegistry starts one, without TLS if plain.
func newTestRegistry(t testing.TB, plain bool) testRegistry {
	t.Helper()
	return testRegistry{distributiontest.New(t, !plain, distributiontest.NewApp(t))}
}

// newTestServer has something else in the registry's place.
func newTestServer(t testing.TB, plain bool, app http.HandlerFunc) testRegistry {
	t.Helper()
	return testRegistry{distributiontest.New(t, !plain, app)}
}

// pauses are those that a client made, or would have.
type pauses struct {
	mu   sync.Mutex
	made []time.Duration
}

// sleep does not.
func (p *pauses) sleep(ctx context.Context, pause time.Duration) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.made = append(p.made, pause)
	return ctx.Err()
}

func (p *pauses) longest() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	longest := time.Duration(0)
	for _, pause := range p.made {
		longest = max(longest, pause)
	}
	return longest
}

// client is the way to the registry, without pauses, and with changes if wanted.
func (r testRegistry) client(t testing.TB, change func(*Options)) *Registry {
	t.Helper()
	opts := Options{
		Host:       r.Host(),
		PlainHTTP:  strings.HasPrefix(r.URL, "http:"),
		Credential: auth.StaticCredential(r.Host(), auth.Credential{Username: distributiontest.Username, Password: distributiontest.Password}),
		sleep:      (&pauses{}).sleep,

		cancelTimeout: 5 * time.Minute,
	}
	if transport, ok := r.Client().Transport.(*http.Transport); ok && transport.TLSClientConfig != nil {
		opts.TLS = transport.TLSClientConfig.Clone()
	}
	if change != nil {
		change(&opts)
	}
	reg := require.Value(New(opts))(t)
	t.Cleanup(reg.Close)
	return reg
}

// requireToken has the registry accept only tokens that begin with t, and name the token server at realm. expired,
// unless nil, selects requests whose token is not accepted any more.
func (r testRegistry) requireToken(realm string, expired func(r *http.Request) bool) {
	accept := r.Config.Handler
	r.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.Header.Get("Authorization"), "Bearer t") || expired != nil && expired(r) {
			w.Header().Set("WWW-Authenticate", `Bearer service="test",realm="`+realm+`"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		r.SetBasicAuth(distributiontest.Username, distributiontest.Password)
		accept.ServeHTTP(w, r)
	})
}

// serveTokens has the registry be its own token server, at /token. Call it after requireToken.
func (r testRegistry) serveTokens(t testing.TB, token func(r *http.Request) string) {
	others := r.Config.Handler
	r.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/token" {
			others.ServeHTTP(w, r)
			return
		}
		if user, password, _ := r.BasicAuth(); user != distributiontest.Username || password != distributiontest.Password {
			t.Errorf("the token server was given %q", user)
		}
		io.WriteString(w, `{"token":"`+token(r)+`"}`)
	})
}

func repository(t testing.TB, reg *Registry, name string) *Repository {
	t.Helper()
	return require.Value(reg.Repository(name))(t)
}

// noise is bytes that do not compress, the same for the same seed.
func noise(seed uint64, size int) []byte {
	b := make([]byte, size)
	source := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), 1})
	source.Read(b)
	return b
}

func describe(b []byte) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: digest.FromBytes(b), Size: int64(len(b))}
}

// opener opens b, as something of which nothing is known but that it can be read.
func opener(b []byte) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil }
}

// fileOpener opens b as a file.
func fileOpener(t testing.TB, b []byte) func() (io.ReadCloser, error) {
	t.Helper()
	path := writeFile(t, b)
	return func() (io.ReadCloser, error) { return os.Open(path) }
}

// put has the registry have a blob.
func (r testRegistry) put(t testing.TB, name string, b []byte) ocispec.Descriptor {
	t.Helper()
	desc := describe(b)
	require.Value(repository(t, r.client(t, nil), name).PushBlob(t.Context(), desc, "", opener(b), nil))(t)
	return desc
}

// has checks that the registry has a blob, byte for byte.
func (r testRegistry) has(t testing.TB, name string, b []byte) {
	t.Helper()
	got, code := r.get(t, name+"/blobs/"+digest.FromBytes(b).String())
	if code != http.StatusOK || !bytes.Equal(got, b) {
		t.Errorf("the registry responded %d with %d bytes, want the %d of the blob", code, len(got), len(b))
	}
}

// hasNot checks that the registry does not have a blob.
func (r testRegistry) hasNot(t testing.TB, name string, d digest.Digest) {
	t.Helper()
	if got, code := r.get(t, name+"/blobs/"+d.String()); code != http.StatusNotFound {
		t.Errorf("the registry responded %d with %d bytes, want no such blob", code, len(got))
	}
}

// get reads with a client of its own.
func (r testRegistry) get(t testing.TB, path string) ([]byte, int) {
	t.Helper()
	resp := require.Value(r.Client().Get(r.URL + "/v2/" + path))(t)
	defer resp.Body.Close()
	return require.Value(io.ReadAll(resp.Body))(t), resp.StatusCode
}

// pull reads a blob through the client.
func pull(ctx context.Context, repo *Repository, desc ocispec.Descriptor, offset int64) ([]byte, error) {
	rc := repo.Blob(ctx, desc, nil)
	defer rc.Close()
	if _, err := rc.Seek(offset, io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(rc)
}

// wantError checks that an error says all that it should, and no secret.
func wantError(t testing.TB, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", parts)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not say %q", err, part)
		}
	}
	noSecret(t, err.Error())
}

// noSecret checks that a text has no credential in it, nor the state of an upload.
func noSecret(t testing.TB, text string) {
	t.Helper()
	for _, secret := range []string{distributiontest.Password, "cHVzaDphLWxvbmctc2VjcmV0", "_state=", "Signature"} {
		if strings.Contains(text, secret) {
			t.Errorf("%q contains the secret %q", text, secret)
		}
	}
}

// logged is a log that tests look at.
func logged() (*slog.Logger, *lockedBuffer) {
	var b lockedBuffer
	return slog.New(slog.NewTextHandler(&b, nil)), &b
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// say answers with a status and an error as registries have them.
func say(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	io.WriteString(w, `{"errors":[{"code":"`+code+`","message":"test message"}]}`)
}

func writeFile(t testing.TB, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, b, 0o600))
	return path
}
