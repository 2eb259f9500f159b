// Package distribution serves distribution's own registry, the peer of benchmarks.
package distribution

import (
	"context"
	"os"
	"strings"

	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry"
	_ "github.com/distribution/distribution/v3/registry/auth/htpasswd"             // named in configurations
	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem" // named in configurations
	"github.com/distribution/distribution/v3/version"
)

// Mode is the first argument of a child process that serves distribution.
const Mode = "serve-distribution"

// Version returns the version, such as v3.1.2.
func Version() string {
	v, _, _ := strings.Cut(version.Version(), "+")
	return v
}

// Serve serves with a configuration. The program exits when ctx is done.
func Serve(ctx context.Context, config string) error {
	parsed, err := configuration.Parse(strings.NewReader(config))
	if err != nil {
		return err
	}
	server, err := registry.NewRegistry(ctx, parsed)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { os.Exit(0) }) // else it ignores SIGTERM
	return server.ListenAndServe()
}
