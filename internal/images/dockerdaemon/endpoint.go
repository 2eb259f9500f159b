package dockerdaemon

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/docker/cli/cli/config"
	dockercontext "github.com/docker/cli/cli/context"
	"github.com/docker/cli/cli/context/docker"
	"github.com/docker/cli/cli/context/store"
	"github.com/docker/cli/opts"
	"github.com/moby/moby/client"
)

// envContext names a docker context, and noContext is the name that selects none.
const (
	envContext = "DOCKER_CONTEXT"
	noContext  = "default"
)

// findEndpoint finds the engine that the docker command would use. origin is where its address comes from, for
// messages. https://docs.docker.com/engine/manage-resources/contexts/
func findEndpoint() (at docker.Endpoint, origin string, err error) {
	home, _ := os.UserHomeDir() // without one, there is no configuration, and docker's default applies
	dir := cmp.Or(os.Getenv(config.EnvOverrideConfigDir), filepath.Join(home, ".docker"))
	if host := os.Getenv(client.EnvOverrideHost); host != "" {
		if at, err = environmentEndpoint(host, dir); err != nil {
			err = fmt.Errorf("DOCKER_HOST=%s: %w", host, err)
		}
		return at, "from DOCKER_HOST", err
	}
	name, origin := os.Getenv(envContext), "from "+envContext
	if name == "" {
		file, err := config.Load(dir)
		if err != nil {
			return at, "", fmt.Errorf("docker's configuration: %w: fix the file, or set DOCKER_HOST", err)
		}
		name, origin = file.CurrentContext, "current in "+file.Filename
	}
	if name == "" || name == noContext {
		at.Host = client.DefaultDockerHost
		return at, "docker's default: neither DOCKER_HOST nor a docker context is set", nil
	}
	if at, err = contextEndpoint(name, filepath.Join(dir, "contexts")); err != nil {
		return at, "", fmt.Errorf("docker context %q (%s): %w", name, origin, err)
	}
	return at, fmt.Sprintf("from docker context %q", name), nil
}

// environmentEndpoint returns the engine of DOCKER_HOST. Unlike the docker command, it uses TLS if only
// DOCKER_CERT_PATH is set, and then verifies the engine's certificate.
func environmentEndpoint(host, dir string) (at docker.Endpoint, err error) {
	dir = cmp.Or(os.Getenv(client.EnvOverrideCertPath), dir)
	secure := os.Getenv(client.EnvOverrideCertPath) != "" || os.Getenv(client.EnvTLSVerify) != ""
	if at.Host, err = opts.ParseHost(secure, host); err != nil || !secure || !strings.HasPrefix(at.Host, "tcp:") {
		return at, err
	}
	if _, err := os.Stat(dir); err != nil {
		return at, fmt.Errorf("certificates: %w", err)
	}
	ca, cert, key := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	if missing(ca) {
		ca = "" // the system's CAs
	}
	if missing(cert) && missing(key) {
		cert, key = "", ""
	}
	if at.TLSData, err = dockercontext.TLSDataFromFiles(ca, cert, key); at.TLSData == nil {
		at.TLSData = &dockercontext.TLSData{} // nil would mean no TLS
	}
	return at, err
}

func missing(file string) bool {
	_, err := os.Stat(file)
	return errors.Is(err, fs.ErrNotExist)
}

// contextEndpoint returns the engine of a context in a directory of contexts.
func contextEndpoint(name, dir string) (docker.Endpoint, error) {
	contexts := store.New(dir, store.NewConfig(func() any { return &map[string]any{} },
		store.EndpointTypeGetter(docker.DockerEndpoint, func() any { return &docker.EndpointMeta{} })))
	metadata, err := contexts.GetMetadata(name)
	if err != nil {
		return docker.Endpoint{}, fmt.Errorf("%w: list contexts with docker context ls, or reset with docker context use "+
			"default", err)
	}
	endpoint, err := docker.EndpointFromContext(metadata)
	if err != nil {
		return docker.Endpoint{}, err
	}
	return docker.WithTLSData(contexts, name, endpoint)
}
