package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	"github.com/distribution/distribution/v3/configuration"
	theirs "github.com/distribution/distribution/v3/registry"
	"github.com/distribution/distribution/v3/registry/handlers"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem" // named in the configuration

	"github.com/zarf-dev/zarf-registry/bench/internal/registries"
	"github.com/zarf-dev/zarf-registry/bench/internal/results"
	"github.com/zarf-dev/zarf-registry/internal/net/freeport"
)

// subject is a registry to measure.
type subject struct {
	results.Subject
	start func(ctx context.Context, dir string, c *registries.Certificates) (*registries.Process, error)
}

// Names of the subjects. The targets in bench/report refer to them.
const (
	nameOurs     = "ours"
	nameTheirs   = "distribution"
	nameHandlers = "distribution's handlers"
	nameFloor    = "floor"
)

// children are the child processes by their first argument. The others are the address, the directory of
// the certificates, and the storage directory.
var children = map[string]func(args []string) error{
	"serve-distribution": serveDistribution,
	"serve-handlers":     serveHandlers,
	"serve-floor":        serveFloor,
}

func subjects(program string) []subject {
	version := moduleVersion("github.com/distribution/distribution/v3")
	child := func(mode string) func(context.Context, string, *registries.Certificates) (*registries.Process, error) {
		return func(ctx context.Context, dir string, c *registries.Certificates) (*registries.Process, error) {
			self, err := os.Executable()
			if err != nil {
				return nil, err
			}
			address, err := freeport.Find()
			if err != nil {
				return nil, err
			}
			return registries.Start(ctx, address, c, self, mode, address, c.Dir, filepath.Join(dir, "storage"))
		}
	}
	return []subject{
		{results.Subject{Name: nameOurs, Version: "distribution " + version,
			About: "`registry serve` as in the chart: client certificates for reading, and a password for writing; metrics, " +
				"no log of reads"},
			func(ctx context.Context, dir string, c *registries.Certificates) (*registries.Process, error) {
				return registries.StartOurs(ctx, program, dir, "", c)
			}},
		{results.Subject{Name: nameTheirs, Version: version,
			About: "distribution's own server: requires a client certificate, which permits everything; no access log, " +
				"no traces"}, child("serve-distribution")},
		{results.Subject{Name: nameHandlers, Version: version,
			About: "the same handlers in a plain Go HTTP server"}, child("serve-handlers")},
		{results.Subject{Name: nameFloor,
			About: "a Go HTTP server that writes uploads to files with their SHA-256 and serves the files"},
			child("serve-floor")},
	}
}

// moduleVersion returns the version of a module that is linked into this program.
func moduleVersion(path string) string {
	info, _ := debug.ReadBuildInfo()
	if info != nil {
		for _, m := range info.Deps {
			if m.Path == path {
				return m.Version
			}
		}
	}
	return ""
}

// serveDistribution runs distribution's own server.
func serveDistribution(args []string) error {
	config, err := plainConfig(args)
	if err != nil {
		return err
	}
	registry, err := theirs.NewRegistry(context.Background(), config)
	if err != nil {
		return err
	}
	return registry.ListenAndServe()
}

func plainConfig(args []string) (*configuration.Configuration, error) {
	address, certificates, storage := args[0], args[1], args[2]
	return configuration.Parse(strings.NewReader(fmt.Sprintf(`version: 0.1
log: {level: error, accesslog: {disabled: true}}
storage: {filesystem: {rootdirectory: %q}, delete: {enabled: true}}
http:
  addr: %q
  secret: bench
  relativeurls: true
  tls: {certificate: %q, key: %q, clientcas: [%q], minimumtls: tls1.2}
`, storage, address, filepath.Join(certificates, "tls.crt"), filepath.Join(certificates, "tls.key"),
		filepath.Join(certificates, "ca.crt"))))
}

func serveHandlers(args []string) error {
	config, err := plainConfig(args)
	if err != nil {
		return err
	}
	return serve(args, handlers.NewApp(context.Background(), config))
}

// serve serves with mutual TLS.
func serve(args []string, handler http.Handler) error {
	ca, err := os.ReadFile(filepath.Join(args[1], "ca.crt"))
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	server := &http.Server{Addr: args[0], Handler: handler, Protocols: protocols, ErrorLog: log.New(io.Discard, "", 0),
		TLSConfig: &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, MinVersion: tls.VersionTLS12}}
	return server.ListenAndServeTLS(filepath.Join(args[1], "tls.crt"), filepath.Join(args[1], "tls.key"))
}

// serveFloor serves files. Uploads are stored under their digests, manifests also under their tags.
func serveFloor(args []string) error {
	storage := args[2]
	if err := os.MkdirAll(storage, 0o755); err != nil {
		return err
	}
	file := func(name string) string { return filepath.Join(storage, strings.ReplaceAll(name, "/", "_")) }
	return serve(args, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		parts := strings.Split(r.URL.Path, "/")
		name := parts[len(parts)-1] // a digest, a tag, or empty for an upload
		switch r.Method {
		case http.MethodPost:
			w.Header().Set("Location", r.URL.Path)
			w.WriteHeader(http.StatusAccepted)
		case http.MethodPut:
			digest, err := receive(file(fmt.Sprintf("upload-%p", r)), r.Body, file)
			if err == nil && name != "" {
				err = os.Symlink(file(digest), file(name))
			}
			if want := r.URL.Query().Get("digest"); err == nil && want != "" && want != digest {
				err = fmt.Errorf("got %s, want %s", digest, want)
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			w.WriteHeader(http.StatusCreated)
		default:
			if name == "" { // /v2/
				return
			}
			http.ServeFile(w, r, file(name))
		}
	}))
}

// receive writes a body to path and renames the file to the name that called returns for its digest.
func receive(path string, from io.Reader, called func(string) string) (digest string, err error) {
	into, err := os.Create(path)
	if err != nil {
		return "", err
	}
	defer into.Close()
	hash := sha256.New()
	if _, err := io.CopyBuffer(io.MultiWriter(into, hash), from, make([]byte, 32<<10)); err != nil {
		return "", err
	}
	digest = "sha256:" + hex.EncodeToString(hash.Sum(nil))
	return digest, os.Rename(path, called(digest))
}
