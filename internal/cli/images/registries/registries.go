// Package registries opens the registries that a command names, with the flags and the logins of docker and podman.
package registries

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/zarf-dev/zarf-registry/internal/images/name"
	"github.com/zarf-dev/zarf-registry/internal/images/remote"
)

// Flags configure access to registries other than the cluster's.
type Flags struct {
	Username      string
	PasswordStdin bool
	PlainHTTP     bool
	caFile        string

	// Prefix returns what the names of the flags for a registry begin with, where a command has them for two sides.
	Prefix func(host string) string
}

// Register adds the flags. which names the registry that they apply to, for the help.
func (f *Flags) Register(cmd *cobra.Command, which string) {
	flags := cmd.Flags()
	flags.StringVar(&f.Username, "username", "",
		"user name for "+which+" (default: the login of docker or podman, also in REGISTRY_AUTH_FILE or DOCKER_CONFIG, or a "+
			"credential helper)")
	flags.BoolVar(&f.PlainHTTP, "plain-http", false, "use HTTP without TLS for "+which)
	f.RegisterShared(cmd, "--username")
}

// RegisterShared adds the flags that a command has once, even if others are for one side.
func (f *Flags) RegisterShared(cmd *cobra.Command, username string) {
	flags := cmd.Flags()
	flags.BoolVar(&f.PasswordStdin, "password-stdin", false, "read the password for "+username+" from stdin")
	flags.StringVar(&f.caFile, "ca-file", "",
		"`FILE` with CA certificates (PEM) to trust in addition to the system's, for all registries but the cluster's")
	_ = cmd.MarkFlagFilename("ca-file", "pem", "crt", "cer") // fails only for an unknown flag
}

func (f *Flags) Validate() error {
	switch {
	case f.Username != "" && !f.PasswordStdin:
		return errors.New("a user name requires --password-stdin: echo \"$PASSWORD\" | zarf-registry … --password-stdin")
	case f.Username == "" && f.PasswordStdin:
		return errors.New("--password-stdin requires a user name")
	}
	return nil
}

// Given returns the first given flag that applies to a single registry, or "".
func (f *Flags) Given() string {
	switch {
	case f.Username != "":
		return "--username"
	case f.PlainHTTP:
		return "--plain-http"
	}
	return ""
}

// DialledHost returns the host of the registry that a flag names. The error says what the
// flag accepts.
func (f *Flags) DialledHost(flag, registry string) (string, error) {
	const want = "want HOST[:PORT], such as registry.example.com, 10.0.0.1:5000 or localhost"
	if _, path, ok := strings.Cut(registry, "/"); ok {
		if strings.Contains(registry, "://") {
			return "", fmt.Errorf("invalid --%s %q: %s, without a scheme (for HTTP, use --%splain-http)", flag, registry, want,
				f.prefix(registry))
		}
		if flag == "to" {
			return "", fmt.Errorf("invalid --%s %q: %s; give the path with --prefix %s", flag, registry, want, path)
		}
		return "", fmt.Errorf("invalid --%s %q: %s, without a path", flag, registry, want)
	}
	// At the start of a reference it must parse as a registry, not as a path on Docker Hub.
	host, err := name.Host(registry + "/x")
	hub := slices.Contains(dockerHubKeys, registry)
	if err != nil || !hub && host != registry {
		return "", fmt.Errorf("invalid --%s %q: %s", flag, registry, want)
	}
	return host, nil
}

func (f *Flags) prefix(host string) string {
	if f.Prefix == nil {
		return ""
	}
	return f.Prefix(host)
}

// Set creates one client per registry. It is safe for concurrent use.
type Set struct {
	options func(host string) (remote.Options, error)
	mu      sync.Mutex
	clients map[string]*remote.Registry
}

// Open prepares the clients of a run and reads the password. The given credential
// applies to the registry at host. Registries for which plain returns true are reached
// without TLS.
func (f *Flags) Open(
	stdin io.Reader, host string, plain func(host string) bool, retry remote.Options,
) (*Set, error) {
	var given auth.CredentialFunc
	if f.PasswordStdin {
		password, err := readPassword(stdin)
		if err != nil {
			return nil, err
		}
		given = func(context.Context, string) (auth.Credential, error) {
			return auth.Credential{Username: f.Username, Password: password}, nil
		}
	}
	trust, err := f.trust()
	if err != nil {
		return nil, err
	}
	logins := sync.OnceValues(readLogins) // for the first registry that needs them
	return &Set{clients: map[string]*remote.Registry{}, options: func(to string) (remote.Options, error) {
		options := retry
		options.Host, options.TLS = to, trust
		options.PlainHTTP, options.FlagPrefix = plain(to), f.prefix(to)
		if to == host && given != nil {
			options.Credential = given
			return options, nil
		}
		var err error
		options.Credential, err = logins()
		return options, err
	}}, nil
}

// trust returns a TLS configuration with the CAs of the system and of --ca-file, or nil
// without --ca-file.
func (f *Flags) trust() (*tls.Config, error) {
	if f.caFile == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(f.caFile)
	if err != nil {
		return nil, fmt.Errorf("--ca-file: %w", err)
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool()
	}
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("--ca-file: %s contains no PEM certificate", f.caFile)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}, nil
}

// Get returns the client for a registry.
func (r *Set) Get(_ context.Context, host string) (*remote.Registry, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if client := r.clients[host]; client != nil {
		return client, nil
	}
	options, err := r.options(host)
	if err != nil {
		return nil, err
	}
	client, err := remote.New(options)
	if err != nil {
		return nil, err
	}
	r.clients[host] = client
	return client, nil
}

// Use makes get return a client for a host.
func (r *Set) Use(host string, client *remote.Registry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clients[host] = client
}

func (r *Set) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, client := range r.clients {
		client.Close()
	}
}

// Host returns the registry of the references if it is the same for all, otherwise "", which a user name forbids.
func (f *Flags) Host(refs []string) (string, error) {
	var hosts []string
	for _, ref := range refs {
		if host, err := name.Host(ref); err == nil && !strings.HasPrefix(ref, name.DaemonPrefix) {
			hosts = append(hosts, host)
		}
	}
	slices.Sort(hosts)
	switch hosts = slices.Compact(hosts); {
	case len(hosts) == 1:
		return hosts[0], nil
	case f.Username != "":
		return "", errors.New("a user name applies to one registry, but the images are from several: transfer them one " +
			"registry at a time, or use docker login")
	}
	return "", nil
}
