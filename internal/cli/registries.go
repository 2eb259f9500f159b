package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/zarf-dev/zarf-registry/internal/images"
	"github.com/zarf-dev/zarf-registry/internal/remote"
)

// registryFlags say how registries other than the cluster's are reached.
type registryFlags struct {
	username      string
	passwordStdin bool
	plainHTTP     bool
	caFile        string
}

// register adds the flags; which says in words which registry they are about.
func (f *registryFlags) register(cmd *cobra.Command, which string) {
	flags := cmd.Flags()
	flags.StringVar(&f.username, "username", "", "user name for "+which+", instead of what docker login, podman login or a credential helper keeps")
	flags.BoolVar(&f.passwordStdin, "password-stdin", false, "read the password for --username from stdin")
	flags.BoolVar(&f.plainHTTP, "plain-http", false, "reach "+which+" without TLS")
	flags.StringVar(&f.caFile, "ca-file", "", "trust the certificate authorities in `FILE` (PEM) besides the system's, for all registries but the cluster's")
	_ = cmd.MarkFlagFilename("ca-file", "pem", "crt", "cer") // it fails for a flag that does not exist only
}

func (f *registryFlags) validate() error {
	switch {
	case f.username != "" && !f.passwordStdin:
		return errors.New("--username needs --password-stdin: echo \"$PASSWORD\" | init-hook … --username NAME --password-stdin")
	case f.username == "" && f.passwordStdin:
		return errors.New("--password-stdin needs --username: whose password is it?")
	}
	return nil
}

// given names the first flag that is about one registry, "" for none.
func (f *registryFlags) given() string {
	switch {
	case f.username != "":
		return "--username"
	case f.plainHTTP:
		return "--plain-http"
	}
	return ""
}

// dialledHost is where the registry answers that a flag names, or an error that
// says what the flag takes.
func dialledHost(flag, registry string) (string, error) {
	const want = "want HOST[:PORT], as in registry.example.com, 10.0.0.1:5000 or localhost"
	if _, path, ok := strings.Cut(registry, "/"); ok {
		if strings.Contains(registry, "://") {
			return "", fmt.Errorf("--%s is %q: %s, without a scheme (--plain-http does without TLS)", flag, registry, want)
		}
		if flag == "to" {
			return "", fmt.Errorf("--%s is %q: %s; the path is for --prefix %s", flag, registry, want, path)
		}
		return "", fmt.Errorf("--%s is %q: %s, without a path", flag, registry, want)
	}
	// As the beginning of a reference it must be read as a registry, not as the
	// beginning of a path on Docker Hub.
	host, err := images.Host(registry + "/x")
	hub := dockerHubHosts[registry]
	if err != nil || !hub && host != registry {
		return "", fmt.Errorf("--%s is %q: %s", flag, registry, want)
	}
	return host, nil
}

// registries makes the clients of registries, each once. It is safe for concurrent
// use.
type registries struct {
	options func(host string) (remote.Options, error)
	mu      sync.Mutex
	clients map[string]*remote.Registry
}

// registries prepares the clients of a run. The credential is for the registry at
// host, and those that plain tells are reached without TLS. The password is read
// now.
func (f *registryFlags) registries(stdin io.Reader, host string, plain func(host string) bool, patience remote.Options) (*registries, error) {
	var given auth.CredentialFunc
	if f.passwordStdin {
		password, err := readPassword(stdin)
		if err != nil {
			return nil, err
		}
		given = func(context.Context, string) (auth.Credential, error) {
			return auth.Credential{Username: f.username, Password: password}, nil
		}
	}
	trust, err := f.trust()
	if err != nil {
		return nil, err
	}
	kept := &logins{}
	return &registries{clients: map[string]*remote.Registry{}, options: func(to string) (remote.Options, error) {
		options := patience
		options.Host, options.TLS, options.AllowRedirects = to, trust, true
		options.PlainHTTP = plain(to)
		if to == host && given != nil {
			options.Credential = given
			return options, nil
		}
		var err error
		options.Credential, err = kept.credential()
		return options, err
	}}, nil
}

// trust is the system's authorities and those of --ca-file, nil for the system's
// alone.
func (f *registryFlags) trust() (*tls.Config, error) {
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
		return nil, fmt.Errorf("--ca-file: %s holds no certificate in PEM", f.caFile)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}, nil
}

// get returns the client for a registry.
func (r *registries) get(_ context.Context, host string) (*remote.Registry, error) {
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

func (r *registries) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, client := range r.clients {
		client.Close()
	}
}

// soleHost is the registry of the references if it is the same for all, "" if they
// have several or none.
func soleHost(refs []string) string {
	sole := ""
	for _, ref := range refs {
		if strings.HasPrefix(ref, images.DaemonPrefix) {
			continue
		}
		host, err := images.Host(ref)
		if err != nil || sole != "" && sole != host {
			return ""
		}
		sole = host
	}
	return sole
}
