package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/zarf-dev/zarf-registry/bench/internal/distribution"
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
)

func subjects(program string) []subject {
	return []subject{
		{results.Subject{Name: nameOurs, About: "as in the chart; writing needs a password"},
			func(ctx context.Context, dir string, c *registries.Certificates) (*registries.Process, error) {
				return registries.StartOurs(ctx, program, dir, "", c)
			}},
		{results.Subject{Name: nameTheirs, Version: distribution.Version(),
			About: "its own server, no access log, no traces"},
			func(ctx context.Context, dir string, c *registries.Certificates) (*registries.Process, error) {
				self, err := os.Executable()
				if err != nil {
					return nil, err
				}
				address, err := freeport.Find()
				if err != nil {
					return nil, err
				}
				return registries.Start(ctx, address, c, self, distribution.Mode, address, c.Dir, filepath.Join(dir, "storage"))
			}},
	}
}

// serveDistribution runs distribution's own server, which permits everything to clients with a certificate. The
// arguments are the address, the directory of the certificates, and the storage directory.
func serveDistribution(ctx context.Context, args []string) error {
	address, certificates, storage := args[0], args[1], args[2]
	return distribution.Serve(ctx, fmt.Sprintf(`version: 0.1
log: {level: error, accesslog: {disabled: true}}
storage: {filesystem: {rootdirectory: %q}, delete: {enabled: true}}
http:
  addr: %q
  secret: bench
  relativeurls: true
  tls: {certificate: %q, key: %q, clientcas: [%q], minimumtls: tls1.2}
`, storage, address, filepath.Join(certificates, "tls.crt"), filepath.Join(certificates, "tls.key"),
		filepath.Join(certificates, "ca.crt")))
}
