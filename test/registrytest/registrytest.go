// Package registrytest runs the registry for tests of other packages.
package registrytest

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/zarf-dev/zarf-registry/internal/images/remote"
	"github.com/zarf-dev/zarf-registry/internal/net/freeport"
	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles"
	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles/tlsfilestest"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/registry"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// Name is the DNS name in the registry's certificate.
const Name = "zarf-registry.zarf.svc"

// Username and Password are a credential that may read and write.
const Username, Password = "push", "a long secret"

// Registry is a running registry.
type Registry struct {
	// Address is the host and port of the listener with mutual TLS.
	Address string
	// Loopback is the host and port where the credential suffices, without TLS.
	Loopback string

	// Root is the directory of the storage.
	Root string
	// Options are those of the registry.
	Options registry.Options

	ca *tlsfilestest.CA
}

var silence = sync.OnceFunc(func() { registry.RouteLogs(slog.New(slog.DiscardHandler)) })

// Start runs an empty registry until the test ends. ca signs its certificate and those of its clients.
func Start(t testing.TB, ca *tlsfilestest.CA, changes ...func(*registry.Options)) *Registry {
	t.Helper()
	silence()
	dir := t.TempDir()
	tlsDir := filepath.Join(dir, "tls")
	require.NoError(t, os.Mkdir(tlsDir, 0o700))
	tlsfilestest.WriteSecret(t, tlsDir, ca.Files(t, pki.OrganizationServer, []string{Name}))
	write := func(name, text string) string {
		name = filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		return name
	}
	root := filepath.Join(dir, "storage")
	config, err := registry.LoadConfig(write("config.yml",
		"version: 0.1\nstorage: {filesystem: {rootdirectory: "+root+"}}\n"))
	require.NoError(t, err)
	hash := require.Value(bcrypt.GenerateFromPassword([]byte(Password), bcrypt.MinCost))(t)
	o := registry.Options{
		Config: config, TLSDir: tlsDir, Listen: freeport.Loopback(t), LoopbackListen: freeport.Loopback(t),
		Htpasswd: write("htpasswd", Username+":"+string(hash)+"\n"), Log: slog.New(slog.DiscardHandler),
	}
	for _, change := range changes {
		change(&o)
	}
	r := &Registry{Address: o.Listen, Loopback: o.LoopbackListen, Root: root, Options: o, ca: ca}
	server := require.Value(registry.Open(o))(t)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	for _, address := range []string{o.Listen, o.LoopbackListen, o.PlainListen} {
		if address != "" {
			awaitListener(t, address)
		}
	}
	return r
}

func awaitListener(t testing.TB, address string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// Pusher returns a client that may read and write.
func (r *Registry) Pusher(t testing.TB) *remote.Registry {
	t.Helper()
	client, err := remote.New(remote.Options{
		Host: r.Address, TLS: r.TLS(t, pki.OrganizationPush),
		Credential: auth.StaticCredential(r.Address, auth.Credential{Username: Username, Password: Password}),
	})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client
}

// TLS returns the configuration of a client with a role.
func (r *Registry) TLS(t testing.TB, organization string) *tls.Config {
	t.Helper()
	dir := t.TempDir()
	tlsfilestest.WriteSecret(t, dir, r.ca.Files(t, organization, nil))
	source := require.Value(tlsfiles.Open(dir, tlsfiles.WithLogger(slog.New(slog.DiscardHandler))))(t)
	return tlsfiles.ClientConfig(source.Current(), Name)
}
