package tlsfiles

import (
	"crypto/rand"
	"crypto/tls"
	"sync"
	"time"
)

// ticketKeyLifetime is how long a server encrypts tickets under one key: what crypto/tls does with the keys that it
// makes itself.
const ticketKeyLifetime = 24 * time.Hour

// ServerConfig returns a server's configuration that follows source: a handshake that begins after a reload uses the new
// certificate, client CAs and ticket keys. TLS 1.2 is the oldest version. Client certificates are handled according to
// clientAuth and verified against Material.CAs; no default is offered, because forgetting it would open a server. The
// protocols are what ALPN offers, in order of preference; none means HTTP/1.1 without ALPN.
//
// The server must use the returned value as it is: a copy with other fields would lose them at the handshake.
func ServerConfig(source *Source, clientAuth tls.ClientAuthType, protocols ...string) *tls.Config {
	s := &server{source: source, clientAuth: clientAuth, protocols: protocols, now: time.Now}
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return s.config(), nil
		},
	}
}

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
	m, now := s.source.Current(), s.now() // under the lock, so that no handshake goes back to a former generation
	if s.material == m && now.Sub(s.made) < ticketKeyLifetime {
		return s.cached
	}
	config := &tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: []tls.Certificate{m.Certificate},
		ClientAuth:   s.clientAuth,
		ClientCAs:    m.CAs,
		NextProtos:   s.protocols,
	}
	// Set by hand: the keys that crypto/tls makes itself belong to the outer configuration, whatever GetConfigForClient
	// returns, and would so be shared by all generations.
	var key [32]byte
	_, _ = rand.Read(key[:]) // never fails
	config.SetSessionTicketKeys([][32]byte{key})
	s.material, s.made, s.cached = m, now, config
	return config
}

// clientSessions bounds a client's session cache. It is keyed by server name, and these clients know one or two.
const clientSessions = 4

// ClientConfig returns a client's configuration for exactly this generation: m's certificate, the servers of m's CAs
// under the name serverName, and a session cache of its own. A new generation needs a new configuration and new
// connections.
func ClientConfig(m *Material, serverName string) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		Certificates:       []tls.Certificate{m.Certificate},
		RootCAs:            m.CAs,
		ServerName:         serverName,
		ClientSessionCache: tls.NewLRUClientSessionCache(clientSessions),
	}
}
