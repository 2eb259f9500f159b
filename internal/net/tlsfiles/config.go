package tlsfiles

import (
	"crypto/rand"
	"crypto/tls"
	"errors"
	"sync"
	"time"
)

// ticketKeyLifetime is how long a server encrypts tickets with one key, the same as for the keys
// that crypto/tls generates.
const ticketKeyLifetime = 24 * time.Hour

// ServerConfig returns a server configuration that follows source: each handshake uses the current
// certificate, client CAs and ticket keys. The minimum version is TLS 1.2. clientAuth has no
// default, because omitting it would leave a server open; client certificates are verified against
// Material.CAPool. The protocols are offered by ALPN in order of preference; none means HTTP/1.1
// without ALPN.
//
// The server must use the returned value unmodified: the fields of a modified copy would be lost at
// the handshake.
func ServerConfig(source *Source, clientAuth tls.ClientAuthType, protocols ...string) *tls.Config {
	s := &server{source: source, clientAuth: clientAuth, protocols: protocols, now: time.Now}
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			if source.Current() == nil {
				return nil, errNoCertificate
			}
			return s.config(), nil
		},
	}
}

var errNoCertificate = errors.New("there is no certificate yet")

type server struct {
	source     *Source
	clientAuth tls.ClientAuthType
	protocols  []string
	now        func() time.Time

	mu       sync.Mutex
	material *Material
	made     time.Time
	cached   *tls.Config
}

func (s *server) config() *tls.Config {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, now := s.source.Current(), s.now() // under the lock, so that no handshake returns to a previous generation
	if s.material == m && now.Sub(s.made) < ticketKeyLifetime {
		return s.cached
	}
	config := &tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: []tls.Certificate{m.Certificate},
		ClientAuth:   s.clientAuth,
		ClientCAs:    m.CAPool,
		NextProtos:   s.protocols,
	}
	// Set explicitly: keys that crypto/tls generates belong to the outer configuration, whatever
	// GetConfigForClient returns, so all generations would share them.
	var key [32]byte
	_, _ = rand.Read(key[:]) // never fails
	config.SetSessionTicketKeys([][32]byte{key})
	s.material, s.made, s.cached = m, now, config
	return config
}

// clientSessions bounds a client's session cache, which is keyed by server name. These clients know
// one or two.
const clientSessions = 4

// ClientConfig returns a client configuration for exactly this generation: it presents m's
// certificate, verifies servers against m's CAs and serverName, and has its own session cache. A
// new generation needs a new configuration and new connections.
func ClientConfig(m *Material, serverName string) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		Certificates:       []tls.Certificate{m.Certificate},
		RootCAs:            m.CAPool,
		ServerName:         serverName,
		ClientSessionCache: tls.NewLRUClientSessionCache(clientSessions),
	}
}
