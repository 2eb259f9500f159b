package tlsfiles

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles/tlsfilestest"
	"github.com/zarf-dev/zarf-registry/test/require"
)

const serverName = "zarf-registry.zarf.svc"

// verify checks that the leaf was issued by a CA of this generation.
func (m *Material) verify() error {
	_, err := m.Leaf.Verify(x509.VerifyOptions{Roots: m.CAPool})
	return err
}

func open(t *testing.T, files tlsfilestest.Files) (*Source, string) {
	t.Helper()
	dir := t.TempDir()
	tlsfilestest.WriteSecret(t, dir, files)
	return require.Value(Open(dir, WithLogger(slog.New(slog.DiscardHandler))))(t), dir
}

func replace(t *testing.T, source *Source, dir string, files tlsfilestest.Files) {
	t.Helper()
	tlsfilestest.WriteSecret(t, dir, files)
	if changed, err := source.Reload(); !changed || err != nil {
		t.Fatalf("Reload() = %v, %v", changed, err)
	}
}

// serve responds to each connection with one byte. A client that has read it has also seen the
// server's verdict on its certificate and received its session ticket.
func serve(t *testing.T, config *tls.Config) string {
	t.Helper()
	listener := require.Value(tls.Listen("tcp", "127.0.0.1:0", config))(t)
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(time.Minute))
				if conn.(*tls.Conn).Handshake() == nil {
					_, _ = conn.Write([]byte{'.'})
				}
			}()
		}
	}()
	return listener.Addr().String()
}

func dial(address string, config *tls.Config) (tls.ConnectionState, error) {
	dialer := &net.Dialer{Timeout: time.Minute}
	conn, err := tls.DialWithDialer(dialer, "tcp", address, config)
	if err != nil {
		return tls.ConnectionState{}, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	_, err = io.ReadFull(conn, make([]byte, 1))
	return conn.ConnectionState(), err
}

func TestMutualTLS(t *testing.T) {
	ca, foreign := tlsfilestest.NewCA(t, "ca"), tlsfilestest.NewCA(t, "ca")
	server, _ := open(t, ca.Files(t, "server", []string{serverName}))
	address := serve(t, ServerConfig(server, tls.RequireAndVerifyClientCert))
	client, _ := open(t, ca.Files(t, "node", nil))
	stranger, _ := open(t, foreign.Files(t, "node", nil, ca))

	with := func(m *Material, change func(*tls.Config)) *tls.Config {
		config := ClientConfig(m, serverName)
		change(config)
		return config
	}
	for description, tt := range map[string]struct {
		config *tls.Config
		ok     bool
	}{
		"accepts a client of the same CA":                   {ClientConfig(client.Current(), serverName), true},
		"rejects a client of another CA with the same name": {ClientConfig(stranger.Current(), serverName), false},
		"rejects a server under another name":               {ClientConfig(client.Current(), "zarf-registry.other.svc"), false},
		"rejects a client without a certificate": {
			with(client.Current(), func(c *tls.Config) { c.Certificates = nil }), false,
		},
		"accepts a client limited to TLS 1.2": {
			with(client.Current(), func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 }), true,
		},
		"rejects a client limited to TLS 1.1": {
			with(client.Current(), func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS11 }),
			false,
		},
	} {
		t.Run(description, func(t *testing.T) {
			if _, err := dial(address, tt.config); (err == nil) != tt.ok {
				t.Errorf("dial error = %v", err)
			}
		})
	}
	t.Run("a server that requests no certificate accepts any client", func(t *testing.T) {
		open := serve(t, ServerConfig(server, tls.NoClientCert))
		if _, err := dial(open, ClientConfig(stranger.Current(), serverName)); err != nil {
			t.Error(err)
		}
	})
	t.Run("negotiates an offered protocol", func(t *testing.T) {
		address := serve(t, ServerConfig(server, tls.NoClientCert, "http/1.1"))
		config := ClientConfig(client.Current(), serverName)
		config.NextProtos = []string{"h2", "http/1.1"}
		state, err := dial(address, config)
		if err != nil || state.NegotiatedProtocol != "http/1.1" {
			t.Errorf("negotiated %q, %v", state.NegotiatedProtocol, err)
		}
	})
}

func TestServerFollowsTheFiles(t *testing.T) {
	before, after := tlsfilestest.NewCA(t, "before"), tlsfilestest.NewCA(t, "after")
	server, dir := open(t, before.Files(t, "server", []string{serverName}))
	address := serve(t, ServerConfig(server, tls.RequireAndVerifyClientCert))
	oldClient, _ := open(t, before.Files(t, "node", nil, after))
	newClient, _ := open(t, after.Files(t, "node", nil, before))
	expect := func(who string, source *Source, ok bool) {
		t.Helper()
		if _, err := dial(address, ClientConfig(source.Current(), serverName)); (err == nil) != ok {
			t.Errorf("%s: dial error = %v", who, err)
		}
	}

	expect("old client, old CA", oldClient, true)
	expect("new client, old CA", newClient, false)
	replace(t, server, dir, before.Files(t, "server", []string{serverName}, after))
	expect("old client, both CAs", oldClient, true)
	expect("new client, both CAs", newClient, true)
	replace(t, server, dir, after.Files(t, "server", []string{serverName}))
	expect("old client, new CA", oldClient, false)
	expect("new client, new CA", newClient, true)
}

func TestResumption(t *testing.T) {
	for version, max := range map[string]uint16{"TLS 1.2": tls.VersionTLS12, "TLS 1.3": tls.VersionTLS13} {
		t.Run(version, func(t *testing.T) {
			ca := tlsfilestest.NewCA(t, "ca")
			files := ca.Files(t, "server", []string{serverName})
			source, dir := open(t, files)
			now := time.Now()
			s := &server{source: source, clientAuth: tls.RequireAndVerifyClientCert, now: func() time.Time { return now }}
			address := serve(t, &tls.Config{
				GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.config(), nil },
			})
			client, _ := open(t, ca.Files(t, "node", nil))
			config := ClientConfig(client.Current(), serverName)
			config.MaxVersion = max
			resumed := func() bool {
				t.Helper()
				return require.Value(dial(address, config))(t).DidResume
			}

			if resumed() {
				t.Error("the first connection resumed a session")
			}
			if !resumed() {
				t.Error("no session was resumed within a generation")
			}
			// The CA stays in the bundle, so only the ticket key can prevent resumption.
			files = bundleWith(files, tlsfilestest.NewCA(t, "new"))
			replace(t, source, dir, files)
			if resumed() {
				t.Error("a session of the previous generation was resumed")
			}
			if !resumed() {
				t.Error("no session was resumed within the second generation")
			}
			now = now.Add(ticketKeyLifetime)
			if resumed() {
				t.Error("a ticket outlived its key")
			}
			// A client's new generation has its own cache.
			config = ClientConfig(client.Current(), serverName)
			if resumed() {
				t.Error("a new client configuration resumed a session of the previous one")
			}
		})
	}
}

func bundleWith(files tlsfilestest.Files, ca *tlsfilestest.CA) tlsfilestest.Files {
	return tlsfilestest.Files{
		CertificateFile: files[CertificateFile],
		KeyFile:         files[KeyFile],
		CAFile:          bytes.Join([][]byte{files[CAFile], ca.PEM}, nil),
	}
}
