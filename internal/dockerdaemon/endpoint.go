package dockerdaemon

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/moby/client"
)

// endpoint is the address of an engine.
type endpoint struct {
	host   string // a URL
	origin string // where host comes from, for messages
	tls    *tls.Config
}

const (
	envContext = "DOCKER_CONTEXT"
	envConfig  = "DOCKER_CONFIG" // the directory of docker's configuration

	// noContext is the name that selects no context.
	noContext = "default"

	// The engine's ports without and with TLS.
	// https://docs.docker.com/reference/cli/dockerd/#daemon-socket-option
	plainPort, tlsPort = "2375", "2376"
)

// findEndpoint finds the engine that the docker command would use.
// https://docs.docker.com/engine/manage-resources/contexts/
func findEndpoint() (endpoint, error) {
	if host := os.Getenv(client.EnvOverrideHost); host != "" {
		return environmentEndpoint(host)
	}
	name, origin := os.Getenv(envContext), "from "+envContext
	if name == "" {
		var err error
		if name, origin, err = currentContext(); err != nil {
			return endpoint{}, err
		}
	}
	if name == "" || name == noContext {
		return endpoint{
			host:   client.DefaultDockerHost,
			origin: "docker's default: neither DOCKER_HOST nor a docker context is set",
		}, nil
	}
	at, err := contextEndpoint(name)
	if err != nil {
		return endpoint{}, fmt.Errorf("docker context %q (%s): %w", name, origin, err)
	}
	return at, nil
}

// environmentEndpoint returns the engine of DOCKER_HOST.
func environmentEndpoint(host string) (endpoint, error) {
	at := endpoint{origin: "from DOCKER_HOST"}
	dir := os.Getenv(client.EnvOverrideCertPath)
	secure := dir != "" || os.Getenv(client.EnvTLSVerify) != ""
	if !strings.Contains(host, "://") {
		host = "tcp://" + host
	}
	var err error
	if at.host, err = checkHost(host, secure); err != nil {
		return endpoint{}, fmt.Errorf("DOCKER_HOST=%s: %w", host, err)
	}
	if !secure || !strings.HasPrefix(host, "tcp:") {
		return at, nil
	}
	if dir == "" {
		if dir, err = configDir(); err != nil {
			return endpoint{}, err
		}
	} else if _, err := os.Stat(dir); err != nil {
		return endpoint{}, fmt.Errorf("DOCKER_CERT_PATH: %w", err)
	}
	if at.tls, err = loadTLS(dir); err != nil {
		return endpoint{}, fmt.Errorf("DOCKER_HOST=%s: certificates in %s: %w", host, dir, err)
	}
	return at, nil
}

// checkHost rejects unsupported addresses and adds the default port.
func checkHost(host string, secure bool) (string, error) {
	scheme, address, _ := strings.Cut(host, "://")
	switch scheme {
	case "unix", "npipe":
		return host, nil
	case "tcp":
		address, path, _ := strings.Cut(address, "/")
		if _, _, err := net.SplitHostPort(address); err == nil {
			return host, nil
		}
		port := plainPort
		if secure {
			port = tlsPort
		}
		host = "tcp://" + net.JoinHostPort(strings.Trim(address, "[]"), port)
		if path != "" {
			host += "/" + path
		}
		return host, nil
	case "ssh":
		return "", fmt.Errorf("ssh is not supported: either save the images (docker save -o images.tar IMAGE…) and push "+
			"that file "+
			"(zarf-registry images push images.tar), or forward the engine's socket (ssh -nNT -L "+
			"\"$HOME/docker.sock\":/var/run/docker.sock %s) and set DOCKER_HOST=unix://$HOME/docker.sock", address)
	}
	return "", fmt.Errorf("scheme %s is not supported: use unix:///PATH or tcp://HOST:PORT", scheme)
}

func configDir() (string, error) {
	if dir := os.Getenv(envConfig); dir != "" {
		return dir, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("docker's configuration: %w: set %s or %s", err, client.EnvOverrideHost, envConfig)
	}
	return filepath.Join(home, ".docker"), nil
}

// currentContext returns the current context in docker's configuration and where it is set. Without
// the file, both are empty.
func currentContext() (name, origin string, err error) {
	dir, err := configDir()
	if err != nil {
		// Without a home directory there is no configuration, and docker's default applies.
		return "", "", nil //nolint:nilerr // see above
	}
	file := filepath.Join(dir, "config.json")
	var config struct {
		CurrentContext string `json:"currentContext"`
	}
	if err := readJSON(file, &config); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", "", fmt.Errorf("docker's configuration: %w: fix the file, or set DOCKER_HOST", err)
	}
	return config.CurrentContext, "current in " + file, nil
}

// contextEndpoint returns the engine of a context. Contexts are in directories named by the SHA-256 of
// their names.
func contextEndpoint(name string) (endpoint, error) {
	dir, err := configDir()
	if err != nil {
		return endpoint{}, err
	}
	sum := sha256.Sum256([]byte(name))
	id := hex.EncodeToString(sum[:])
	var meta struct {
		Endpoints map[string]struct {
			Host          string
			SkipTLSVerify bool
		}
	}
	err = readJSON(filepath.Join(dir, "contexts", "meta", id, "meta.json"), &meta)
	if errors.Is(err, fs.ErrNotExist) {
		return endpoint{}, fmt.Errorf(
			"not found in %s: list contexts with docker context ls, or reset with docker context use default", dir)
	}
	if err != nil {
		return endpoint{}, err
	}
	engine, ok := meta.Endpoints["docker"]
	if !ok || engine.Host == "" {
		return endpoint{}, errors.New("has no engine address: check docker context inspect")
	}
	at := endpoint{origin: fmt.Sprintf("from docker context %q", name)}
	certificates := filepath.Join(dir, "contexts", "tls", id, "docker")
	secure := exists(certificates) || engine.SkipTLSVerify
	if at.host, err = checkHost(engine.Host, secure); err != nil {
		return endpoint{}, fmt.Errorf("address %s: %w", engine.Host, err)
	}
	if !secure || !strings.HasPrefix(at.host, "tcp:") {
		return at, nil
	}
	if at.tls, err = loadTLS(certificates); err != nil {
		return endpoint{}, fmt.Errorf("certificates in %s: %w", certificates, err)
	}
	at.tls.InsecureSkipVerify = engine.SkipTLSVerify
	return at, nil
}

// loadTLS reads the certificates in a directory by docker's names: ca.pem with the engine's CA
// (optional; the system's by default), and optionally cert.pem and key.pem of the client.
func loadTLS(dir string) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	switch {
	case err == nil:
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(ca) {
			return nil, errors.New("ca.pem: contains no certificate")
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	if !exists(certFile) && !exists(keyFile) {
		return config, nil
	}
	cert, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, err
	}
	config.Certificates = []tls.Certificate{cert}
	return config, nil
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

func readJSON(file string, into any) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("%s: is not valid JSON: %w", file, err)
	}
	return nil
}
