package dockerdaemon

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
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
	c, err := Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
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
	file, err := os.Create(filepath.Join(t.TempDir(), "docker.tar"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	saveErr := c.Save(ctx, refs, file)
	raw, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(raw), saveErr
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
		"several in one stream": {refs: []string{"nginx:1", "ghcr.io/a/alpine:3"},
			want: "nginx:1 ghcr.io/a/alpine:3"},
		"one that is named twice is asked for once": {refs: []string{"nginx", "nginx:latest"}, want: "nginx:latest"},
		"an ID":                  {refs: []string{nginxID}, want: nginxID},
		"the beginning of an ID": {refs: []string{"fedcba987654"}, want: alpineID},
		"the beginning of an ID with its algorithm": {refs: []string{"sha256:fedcba987654"},
			want: "sha256:fedcba987654"},
		"an unknown image beside another": {refs: []string{"nginx", "nope:1"}, want: "nginx:latest",
			err: "image nope:1 not found: run docker pull nope:1, or pull it from its registry without the Docker engine"},
		"all unknown images in one error": {refs: []string{"nope", "ghcr.io/no/no:2"},
			err: "images nope, ghcr.io/no/no:2 not found: run docker pull for each, or pull them from their registries " +
				"without the Docker engine"},
		"a name that is not the prefix of an ID": {refs: []string{"abc"},
			err: "image abc not found: run docker pull abc, or pull it from its registry without the Docker engine"},
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
		"an error of the engine after a byte": {func(w io.Writer) error { w.Write([]byte{0}); return failed },
			"the engine failed: layer does not exist"},
		"an error of the engine after much": {func(w io.Writer) error { w.Write(much); return failed },
			"the engine failed: layer does not exist"},
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
	t.Run("images that are larger than the free space are not saved", func(t *testing.T) {
		engine := twoImages()
		engine.Size = 1 << 60
		engine.ListenUnix(t)
		_, err := save(t.Context(), t, mustOpen(t), "nginx:1")
		if err == nil || !strings.Contains(err.Error(), "the images need up to ") ||
			!strings.HasSuffix(err.Error(), " of free space: make room there, or set TMPDIR") {
			t.Errorf("error %v", err)
		}
		if requests := strings.Join(engine.Requests(), "\n"); strings.Contains(requests, "/images/get") {
			t.Errorf("images were saved: %s", requests)
		}
	})
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
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			if _, err := save(t.Context(), t, client, "nginx"); err != nil {
				t.Fatal(err)
			}
			requests := strings.Join(engine.Requests(), "\n")
			if !strings.Contains(requests, "GET "+c.want) {
				t.Errorf("requests:\n%s", requests)
			}
		})
	}
}

// writeContext writes a docker context, and TLS material for it if there is any.
func writeContext(t *testing.T, dir, name, meta string, material map[string][]byte) {
	t.Helper()
	sum := sha256.Sum256([]byte(name))
	id := hex.EncodeToString(sum[:])
	write(t, filepath.Join(dir, "contexts", "meta", id, "meta.json"), []byte(meta))
	for file, content := range material {
		write(t, filepath.Join(dir, "contexts", "tls", id, "docker", file), content)
	}
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestWhichEngineIsFound(t *testing.T) {
	const away = `{"Name":"away","Metadata":{},"Endpoints":{"docker":{"Host":"unix:///run/away.sock","SkipTLSVerify":false}}}`
	for name, c := range map[string]struct {
		env     map[string]string
		config  string
		context string // away's metadata
		host    string
		origin  string
		err     string
	}{
		"docker's socket by default": {host: "unix:///var/run/docker.sock", origin: "docker's default"},
		"DOCKER_HOST": {env: map[string]string{"DOCKER_HOST": "unix:///run/x.sock"},
			host: "unix:///run/x.sock", origin: "DOCKER_HOST"},
		"DOCKER_HOST without a scheme": {env: map[string]string{"DOCKER_HOST": "127.0.0.1:9"}, host: "tcp://127.0.0.1:9",
			origin: "DOCKER_HOST"},
		"DOCKER_HOST without a port": {env: map[string]string{"DOCKER_HOST": "tcp://engine"}, host: "tcp://engine:2375",
			origin: "DOCKER_HOST"},
		"DOCKER_HOST with TLS and no port, as docker": {
			env: map[string]string{"DOCKER_HOST": "tcp://engine", "DOCKER_TLS_VERIFY": "1"}, host: "tcp://engine:2375",
			origin: "DOCKER_HOST"},
		"the current context": {config: `{"auths":{},"currentContext":"away"}`, context: away,
			host: "unix:///run/away.sock", origin: `context "away"`},
		"DOCKER_CONTEXT": {env: map[string]string{"DOCKER_CONTEXT": "away"}, context: away,
			host: "unix:///run/away.sock", origin: `context "away"`},
		"DOCKER_CONTEXT before the current one": {
			env: map[string]string{"DOCKER_CONTEXT": "default"}, config: `{"currentContext":"away"}`, context: away,
			host: "unix:///var/run/docker.sock", origin: "docker's default",
		},
		"DOCKER_HOST before any context": {
			env: map[string]string{"DOCKER_HOST": "unix:///run/x.sock", "DOCKER_CONTEXT": "away"}, context: away,
			host: "unix:///run/x.sock", origin: "DOCKER_HOST",
		},
		"a configuration without a context": {config: `{"auths":{}}`, host: "unix:///var/run/docker.sock",
			origin: "docker's default"},
		"an unknown context": {config: `{"currentContext":"gone"}`,
			err: `docker context "gone" (current in DIR/config.json): context "gone": context not found: `},
		"a context of something else": {env: map[string]string{"DOCKER_CONTEXT": "away"},
			context: `{"Endpoints":{"kubernetes":{"Host":"https://x"}}}`, err: "cannot find docker endpoint in context"},
		"a context with invalid JSON": {env: map[string]string{"DOCKER_CONTEXT": "away"}, context: `{`,
			err: "unexpected end of JSON input"},
		"a configuration with invalid JSON": {config: `{`, err: "docker's configuration: "},
		"an engine behind ssh": {env: map[string]string{"DOCKER_HOST": "ssh://me@far"}, host: "ssh://me@far",
			origin: "DOCKER_HOST"},
		"a context behind ssh": {env: map[string]string{"DOCKER_CONTEXT": "away"},
			context: `{"Endpoints":{"docker":{"Host":"ssh://me@far"}}}`, host: "ssh://me@far", origin: `context "away"`},
		"another scheme": {env: map[string]string{"DOCKER_HOST": "ftp://x"},
			err: "DOCKER_HOST=ftp://x: invalid bind address format: ftp://x"},
		"a directory of certificates that is not there": {
			env: map[string]string{"DOCKER_HOST": "tcp://engine",
				"DOCKER_CERT_PATH": "/does/not/exist"}, err: "certificates: stat /does/not/exist",
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := dockerdaemontest.ClearEnvironment(t)
			for key, value := range c.env {
				t.Setenv(key, value)
			}
			if c.config != "" {
				write(t, filepath.Join(dir, "config.json"), []byte(c.config))
			}
			if c.context != "" {
				writeContext(t, dir, "away", c.context, nil)
			}
			got, origin, err := findEndpoint()
			if want := strings.ReplaceAll(c.err, "DIR", dir); c.err != "" {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v\nwant  %s", err, want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.Host != c.host || !strings.Contains(origin, c.origin) {
				t.Errorf("found %s (%s), want %s (%s)", got.Host, origin, c.host, c.origin)
			}
		})
	}
}

func TestOpenWithoutAnEngine(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
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
			for _, want := range []string{"Docker engine at " + host + " (from DOCKER_HOST): ", "docker save -o images.tar"} {
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
	if err != nil {
		t.Fatal(err)
	}
	trusted := x509.NewCertPool()
	trusted.AddCert(ca.Certificate)
	listener := httptest.NewUnstartedServer(twoImages())
	listener.TLS = &tls.Config{Certificates: []tls.Certificate{server}, ClientCAs: trusted,
		ClientAuth: tls.RequireAndVerifyClientCert}
	listener.Config.ErrorLog = log.New(io.Discard, "", 0)
	listener.StartTLS()
	t.Cleanup(listener.Close)
	host := "tcp://" + listener.Listener.Addr().String()
	meta := func(skip string) string {
		return `{"Name":"away","Endpoints":{"docker":{"Host":"` + host + `","SkipTLSVerify":` + skip + `}}}`
	}
	otherCA, withoutKey := maps.Clone(client), maps.Clone(client)
	otherCA["ca.pem"] = stranger["ca.pem"]
	delete(withoutKey, "key.pem")

	for name, c := range map[string]struct {
		files   map[string][]byte // in DOCKER_CERT_PATH
		inHome  map[string][]byte // in docker's configuration
		verify  string
		context string
		tls     map[string][]byte // the context's
		err     string
	}{
		"DOCKER_CERT_PATH and DOCKER_TLS_VERIFY":        {files: client, verify: "1"},
		"docker's own directory with DOCKER_TLS_VERIFY": {inHome: client, verify: "1"},
		"DOCKER_CERT_PATH alone verifies, too":          {files: otherCA, err: "certificate signed by unknown authority"},
		"an engine whose CA is not trusted is refused": {files: otherCA, verify: "1",
			err: "certificate signed by unknown authority"},
		"an engine that wants a certificate": {files: map[string][]byte{"ca.pem": client["ca.pem"]}, verify: "1",
			err: "certificate"},
		"an engine that trusts another client": {files: map[string][]byte{"ca.pem": client["ca.pem"],
			"cert.pem": stranger["cert.pem"], "key.pem": stranger["key.pem"]}, verify: "1", err: "certificate"},
		"a certificate without its key": {files: withoutKey, verify: "1",
			err: "key.pem: no such file"},
		"an invalid CA": {files: map[string][]byte{"ca.pem": []byte("x")}, verify: "1",
			err: "ca.pem seems invalid"},
		"no TLS where the engine has it":  {err: "Docker engine at " + host},
		"a context with its certificates": {context: meta("false"), tls: client},
		"a context with the wrong CA": {context: meta("false"), tls: otherCA,
			err: "certificate signed by unknown authority"},
		"a context that says that nothing is verified": {context: meta("true"), tls: otherCA},
	} {
		t.Run(name, func(t *testing.T) {
			dir := dockerdaemontest.ClearEnvironment(t)
			if c.context != "" {
				writeContext(t, dir, "away", c.context, c.tls)
				t.Setenv("DOCKER_CONTEXT", "away")
			} else {
				t.Setenv("DOCKER_HOST", host)
			}
			t.Setenv("DOCKER_TLS_VERIFY", c.verify)
			if c.files != nil {
				certs := t.TempDir()
				t.Setenv("DOCKER_CERT_PATH", certs)
				for file, content := range c.files {
					write(t, filepath.Join(certs, file), content)
				}
			}
			for file, content := range c.inHome {
				write(t, filepath.Join(dir, file), content)
			}
			engine, err := Open(t.Context())
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("error %v\nwant  %s", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer engine.Close()
			if got, err := save(t.Context(), t, engine, "nginx"); err != nil || got != "nginx:latest" {
				t.Errorf("saved %q, %v", got, err)
			}
		})
	}
}
