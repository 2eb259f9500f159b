// Package conformance runs the conformance suite of the OCI distribution specification: all of it against the
// registry, and its reads through the node proxy.
package conformance

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.yaml.in/yaml/v2"

	"github.com/zarf-dev/zarf-registry/internal/net/freeport"
	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles"
	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles/tlsfilestest"
	"github.com/zarf-dev/zarf-registry/internal/node/proxy"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/registry"
	"github.com/zarf-dev/zarf-registry/test/registrytest"
	"github.com/zarf-dev/zarf-registry/test/require"
	"github.com/zarf-dev/zarf-registry/test/s3test"
)

// suite is the path of the program, which make sets.
func suite(t *testing.T) string {
	t.Helper()
	path := os.Getenv("OCI_CONFORMANCE")
	if path == "" {
		t.Skip("needs the suite: set OCI_CONFORMANCE to the output of bin/testcluster tool conformance")
	}
	return path
}

func TestRegistry(t *testing.T) {
	program := suite(t)
	address, _ := startRegistry(t)
	run(t, program, address)
}

func TestRegistryOnS3(t *testing.T) {
	program, versitygw := suite(t), os.Getenv(s3test.ProgramVariable)
	if versitygw == "" {
		t.Skipf("needs versitygw: set %s to the output of bin/testcluster tool versitygw", s3test.ProgramVariable)
	}
	bucket := filepath.Join(t.TempDir(), "bucket")
	require.NoError(t, os.Mkdir(bucket, 0o700))
	server := require.Value(s3test.Start(versitygw, freeport.Loopback(t), bucket))(t)
	t.Cleanup(server.Stop)
	config := filepath.Join(t.TempDir(), "config.yml")
	require.NoError(t, os.WriteFile(config, []byte("version: 0.1\nstorage: {"+server.Driver(bucket)+"}\n"), 0o600))
	parsed := require.Value(registry.LoadConfig(config))(t)
	r := registrytest.Start(t, tlsfilestest.NewCA(t, "test"), func(o *registry.Options) { o.Config = parsed })
	run(t, program, r.Loopback)
}

// Nodes read through the proxy, and nothing else.
func TestReadsThroughTheProxy(t *testing.T) {
	program := suite(t)
	address, proxied := startRegistry(t)
	var reads atomic.Int64
	server := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host = "http", address
		if read := r.In.Method == http.MethodGet || r.In.Method == http.MethodHead; read && !strings.Contains(
			r.In.URL.Path, "/blobs/uploads/") {
			r.Out.URL.Host, r.Out.Host = proxied, proxied
			r.Out.Header.Del("Authorization")
			reads.Add(1)
		}
	}})
	t.Cleanup(server.Close)
	run(t, program, server.Listener.Addr().String())
	if reads.Load() < 200 {
		t.Errorf("only %d reads went through the proxy", reads.Load())
	}
}

// run runs the suite with everything that it can test, apart from sparse manifests: nothing that a manifest refers to,
// apart from its subject, may be missing.
func run(t *testing.T, program, address string) {
	t.Helper()
	dir := t.TempDir()
	command := exec.CommandContext(t.Context(), program)
	command.Dir = dir
	command.Env = append(os.Environ(), "OCI_VERSION=dev", "OCI_TLS=disabled", "OCI_RESULTS_DIR="+dir,
		"OCI_REGISTRY="+address, "OCI_USERNAME="+registrytest.Username, "OCI_PASSWORD="+registrytest.Password,
		"OCI_API_BLOBS_DIGEST_HEADER=true", "OCI_API_BLOBS_UPLOAD_CANCEL=true",
		"OCI_API_MANIFESTS_DIGEST_HEADER=true", "OCI_API_MANIFESTS_TAG_PARAM=true", "OCI_DATA_SPARSE=false")
	output, err := command.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, output)
	}
	content := require.Value(os.ReadFile(filepath.Join(dir, "results.yaml")))(t)
	var results struct {
		APIs map[string]string `yaml:"apis"`
		Data map[string]string `yaml:"data"`
	}
	require.NoError(t, yaml.Unmarshal(content, &results))
	for section, subjects := range map[string]map[string]string{"APIs": results.APIs, "data": results.Data} {
		if len(subjects) < 20 {
			t.Errorf("%s: only %d subjects", section, len(subjects))
		}
		for name, result := range subjects {
			if result != "Pass" && name != "Sparse Manifests" {
				t.Errorf("%s: %s", name, result)
			}
		}
	}
	_, summary, _ := strings.Cut(string(output), "OCI Conformance Result")
	t.Log(summary)
}

// startRegistry runs a registry and a node proxy in front of it, and returns their addresses: the registry's is one
// where a password authorizes reads and writes.
func startRegistry(t *testing.T) (address, proxied string) {
	t.Helper()
	ca := tlsfilestest.NewCA(t, "test")
	behind := registrytest.Start(t, ca)
	dir := t.TempDir()
	tlsfilestest.WriteSecret(t, dir, ca.Files(t, pki.OrganizationNode, nil))
	log := slog.New(slog.DiscardHandler)
	source := require.Value(tlsfiles.Open(dir, tlsfiles.WithLogger(log)))(t)
	_, port, err := net.SplitHostPort(behind.Address)
	require.NoError(t, err)
	front, err := proxy.New(proxy.Config{
		Listen: []string{"127.0.0.1:0"}, Registry: net.JoinHostPort(registrytest.Name, port), Source: source, Logger: log,
		RetryTimeout: time.Minute,
		Getenv:       func(string) string { return "127.0.0.1" }, // the Service's address
	})
	require.NoError(t, err)
	require.NoError(t, front.Listen(t.Context()))
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- front.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return behind.Loopback, front.Addrs()[0].String()
}
