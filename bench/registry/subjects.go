package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	"github.com/distribution/distribution/v3/configuration"
	theirs "github.com/distribution/distribution/v3/registry"
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

const (
	// Names of the subjects. The targets in bench/report refer to them.
	nameOurs   = "ours"
	nameTheirs = "distribution"

	// serveMode is the first argument of the child process that is distribution's server. The others are the address,
	// the directory of the certificates, and the storage directory.
	serveMode = "serve-distribution"
)

func subjects(program string) []subject {
	version := moduleVersion("github.com/distribution/distribution/v3")
	return []subject{
		{results.Subject{Name: nameOurs, About: "as in the chart; writing needs a password"},
			func(ctx context.Context, dir string, c *registries.Certificates) (*registries.Process, error) {
				return registries.StartOurs(ctx, program, dir, "", c)
			}},
		{results.Subject{Name: nameTheirs, Version: version, About: "its own server, no access log, no traces"},
			func(ctx context.Context, dir string, c *registries.Certificates) (*registries.Process, error) {
				self, err := os.Executable()
				if err != nil {
					return nil, err
				}
				address, err := freeport.Find()
				if err != nil {
					return nil, err
				}
				return registries.Start(ctx, address, c, self, serveMode, address, c.Dir, filepath.Join(dir, "storage"))
			}},
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

// serveDistribution runs distribution's own server, which permits everything to clients with a certificate.
func serveDistribution(ctx context.Context, args []string) error {
	address, certificates, storage := args[0], args[1], args[2]
	config, err := configuration.Parse(strings.NewReader(fmt.Sprintf(`version: 0.1
log: {level: error, accesslog: {disabled: true}}
storage: {filesystem: {rootdirectory: %q}, delete: {enabled: true}}
http:
  addr: %q
  secret: bench
  relativeurls: true
  tls: {certificate: %q, key: %q, clientcas: [%q], minimumtls: tls1.2}
`, storage, address, filepath.Join(certificates, "tls.crt"), filepath.Join(certificates, "tls.key"),
		filepath.Join(certificates, "ca.crt"))))
	if err != nil {
		return err
	}
	registry, err := theirs.NewRegistry(ctx, config)
	if err != nil {
		return err
	}
	return registry.ListenAndServe()
}
