package dockerdaemon

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"maps"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles/tlsfilestest"
	"github.com/zarf-dev/zarf-registry/test/dockerdaemontest"
	"github.com/zarf-dev/zarf-registry/test/require"
)

const (
	nginxID  = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	alpineID = "sha256:fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210"
)

// twoImages is an engine that answers with the names that it is asked for.
func twoImages() *dockerdaemontest.Engine {
	return &dockerdaemontest.Engine{
		Images: map[string]string{"nginx:latest": nginxID, "nginx:1": nginxID, "ghcr.io/a/alpine:3": alpineID},
		Stream: func(w io.Writer, names []string) error {
			_, err := io.WriteString(w, strings.Join(names, " "))
			return err
		},
	}
}

func mustOpen(t *testing.T) *Client {
	t.Helper()
	c := require.Value(Open(t.Context()))(t)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// save returns what Save writes.
func save(ctx context.Context, t *testing.T, c *Client, refs ...string) (string, error) {
	t.Helper()
	file := require.Value(os.Create(filepath.Join(t.TempDir(), "docker.tar")))(t)
	defer file.Close()
	missing, saveErr := c.Save(ctx, refs, file)
	return string(require.Value(os.ReadFile(file.Name()))(t)), errors.Join(missing, saveErr)
}

func TestSave(t *testing.T) {
	engine := twoImages()
	engine.ListenUnix(t)
	c := mustOpen(t)
	at := "Docker engine at " + os.Getenv("DOCKER_HOST") + ": "
	for name, tc := range map[string]struct {
		refs []string
		want string
		err  string
	}{
		"an image by its name and tag":                    {refs: []string{"nginx:1"}, want: "nginx:1"},
		"a name without a tag is that of latest":          {refs: []string{"nginx"}, want: "nginx:latest"},
		"a whole name is what the engine calls the image": {refs: []string{"docker.io/library/nginx:1"}, want: "nginx:1"},
		"a name in another registry":                      {refs: []string{"ghcr.io/a/alpine:3"}, want: "ghcr.io/a/alpine:3"},
		"several in one stream":                           {refs: []string{"nginx:1", "ghcr.io/a/alpine:3"}, want: "nginx:1 ghcr.io/a/alpine:3"},
		"one that is named twice is asked for once":       {refs: []string{"nginx", "nginx:latest"}, want: "nginx:latest"},
		"an unknown image beside another": {refs: []string{"nginx", "nope:1"}, want: "nginx:latest",
			err: "not found: nope:1: run docker pull for each, or pull them from their registries without the Docker engine"},
		"all unknown images in one error": {refs: []string{"nope", "ghcr.io/no/no:2"},
			err: "not found: nope, ghcr.io/no/no:2: run docker pull for each, or pull them from their registries " +
				"without the Docker engine"},
		"a short ID, which looks like a name": {refs: []string{"abc"},
			err: "not found: abc: run docker pull for each, or pull them from their registries without the Docker engine"},
		"an invalid reference": {refs: []string{"Not A Name"},
			err: "image Not A Name: invalid reference format: repository name (library/Not A Name) must be lowercase"},
		"nothing": {err: "no image given"},
	} {
		t.Run(name, func(t *testing.T) {
			before := len(engine.Requests())
			got, err := save(t.Context(), t, c, tc.refs...)
			if tc.err != "" {
				if err == nil || err.Error() != at+tc.err {
					t.Errorf("error %v\nwant  %s", err, at+tc.err)
				}
				requests := strings.Join(engine.Requests()[before:], "\n")
				if saved := strings.Contains(requests, "/images/get"); saved != (tc.want != "") {
					t.Errorf("images were saved: %s", requests)
				}
			} else if err != nil {
				t.Fatal(err)
			}
			if got != tc.want {
				t.Errorf("the engine was asked for %q, want %q", got, tc.want)
			}
		})
	}
}

func TestSaveFails(t *testing.T) {
	failed := errors.New("layer does not exist")
	much := make([]byte, 100_000)
	for name, c := range map[string]struct {
		stream func(w io.Writer) error
		want   string
	}{
		"an error of the engine before the stream": {func(io.Writer) error { return failed },
			"Error response from daemon: layer does not exist"},
		"a connection that breaks": {func(w io.Writer) error {
			w.Write(much)
			dockerdaemontest.Reset(w)
			return nil
		}, "unexpected EOF"},
		"a connection that breaks after the last byte": {func(w io.Writer) error {
			w.Write(much)
			w.(interface{ Flush() }).Flush()
			dockerdaemontest.Reset(w)
			return nil
		}, "unexpected EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			engine := twoImages()
			engine.Stream = func(w io.Writer, _ []string) error { return c.stream(w) }
			engine.ListenUnix(t)
			_, err := save(t.Context(), t, mustOpen(t), "nginx:1")
			want := "Docker engine at " + os.Getenv("DOCKER_HOST") + ": save nginx:1: " + c.want
			if err == nil || err.Error() != want {
				t.Errorf("error %v\nwant  %s", err, want)
			}
		})
	}
	t.Run("a stalled stream ends with the context", func(t *testing.T) {
		engine := twoImages()
		stuck := make(chan struct{})
		engine.Stream = func(w io.Writer, _ []string) error {
			w.Write(make([]byte, 100_000))
			w.(interface{ Flush() }).Flush()
			<-stuck
			return nil
		}
		engine.ListenUnix(t)
		t.Cleanup(func() { close(stuck) })
		ctx, cancel := context.WithCancelCause(t.Context())
		enough := errors.New("enough")
		client := mustOpen(t)
		time.AfterFunc(100*time.Millisecond, func() { cancel(enough) })
		_, err := save(ctx, t, client, "nginx:1")
		if !errors.Is(err, enough) {
			t.Errorf("error: %v", err)
		}
	})
}

func TestOpenAgreesOnAVersion(t *testing.T) {
	for name, c := range map[string]struct {
		engine, asked string
		want, err     string
	}{
		"an engine of today": {engine: "1.47", want: "/v1.47/images/"},
		"the oldest engine":  {engine: "1.40", want: "/v1.40/images/"},
		"an engine that is newer than what is known here": {engine: "1.99", want: "/v1.5"},
		"the version in DOCKER_API_VERSION":               {engine: "1.47", asked: "1.41", want: "/v1.41/images/"},
		"an engine that is too old":                       {engine: "1.24", err: "API version 1.24 is not supported"},
		"a version in DOCKER_API_VERSION that is not one": {engine: "1.47", asked: "new", err: "invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			engine := twoImages()
			engine.Version = c.engine
			engine.ListenUnix(t)
			t.Setenv("DOCKER_API_VERSION", c.asked)
			client, err := Open(t.Context())
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("error: %v", err)
				}
				return
			}
			require.NoError(t, err)
			defer client.Close()
			require.Value(save(t.Context(), t, client, "nginx"))(t)
			requests := strings.Join(engine.Requests(), "\n")
			if !strings.Contains(requests, "GET "+c.want) {
				t.Errorf("requests:\n%s", requests)
			}
		})
	}
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, content, 0o600))
}

func TestOpenWithoutAnEngine(t *testing.T) {
	listener := require.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	closed := listener.Addr().String()
	listener.Close()
	for name, host := range map[string]string{
		"no socket":             "unix:///does/not/exist.sock",
		"a port without anyone": "tcp://" + closed,
	} {
		t.Run(name, func(t *testing.T) {
			dockerdaemontest.ClearEnvironment(t)
			t.Setenv("DOCKER_HOST", host)
			_, err := Open(t.Context())
			if err == nil {
				t.Fatal("opened an engine that does not exist")
			}
			for _, want := range []string{"Docker engine at " + host + ": ", "docker save -o images.tar"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q lacks %q", err, want)
				}
			}
		})
	}
	t.Run("a context that has ended", func(t *testing.T) {
		twoImages().ListenUnix(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := Open(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("error: %v", err)
		}
	})
}

// clientFiles are those of a client in docker's file names.
func clientFiles(t *testing.T, ca *tlsfilestest.CA) map[string][]byte {
	t.Helper()
	certificate, key := ca.Issue(t, "user")
	return map[string][]byte{"ca.pem": ca.PEM, "cert.pem": certificate, "key.pem": key}
}

func TestTLS(t *testing.T) {
	ca := tlsfilestest.NewCA(t, "ca")
	client, stranger := clientFiles(t, ca), clientFiles(t, tlsfilestest.NewCA(t, "ca"))
	server, err := tls.X509KeyPair(ca.Issue(t, "engine", "127.0.0.1"))
	require.NoError(t, err)
	trusted := x509.NewCertPool()
	trusted.AddCert(ca.Certificate)
	listener := httptest.NewUnstartedServer(twoImages())
	listener.TLS = &tls.Config{Certificates: []tls.Certificate{server}, ClientCAs: trusted,
		ClientAuth: tls.RequireAndVerifyClientCert}
	listener.Config.ErrorLog = log.New(io.Discard, "", 0)
	listener.StartTLS()
	t.Cleanup(listener.Close)
	host := "tcp://" + listener.Listener.Addr().String()
	otherCA, withoutKey := maps.Clone(client), maps.Clone(client)
	otherCA["ca.pem"] = stranger["ca.pem"]
	delete(withoutKey, "key.pem")

	for name, c := range map[string]struct {
		files map[string][]byte // in DOCKER_CERT_PATH
		err   string
	}{
		"certificates of the same CA":                  {files: client},
		"an engine whose CA is not trusted is refused": {files: otherCA, err: "certificate signed by unknown authority"},
		"an engine that trusts another client": {files: map[string][]byte{"ca.pem": client["ca.pem"],
			"cert.pem": stranger["cert.pem"], "key.pem": stranger["key.pem"]}, err: "certificate"},
		"a certificate without its key":  {files: withoutKey, err: "key.pem: no such file"},
		"no TLS where the engine has it": {err: "Docker engine at " + host},
	} {
		t.Run(name, func(t *testing.T) {
			dockerdaemontest.ClearEnvironment(t)
			t.Setenv("DOCKER_HOST", host)
			if c.files != nil {
				certs := t.TempDir()
				t.Setenv("DOCKER_CERT_PATH", certs)
				for file, content := range c.files {
					write(t, filepath.Join(certs, file), content)
				}
			}
			engine, err := Open(t.Context())
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("error %v\nwant  %s", err, c.err)
				}
				return
			}
			require.NoError(t, err)
			defer engine.Close()
			if got, err := save(t.Context(), t, engine, "nginx"); err != nil || got != "nginx:latest" {
				t.Errorf("saved %q, %v", got, err)
			}
		})
	}
}
