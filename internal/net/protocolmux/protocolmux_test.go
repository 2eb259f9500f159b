package protocolmux

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"reflect"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles"
	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles/tlsfilestest"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// given is a connection whose client has sent all its data, which arrives in pieces.
type given struct {
	net.Conn // nil: the front must not call other methods
	data     []byte
	piece    int
	sent     bytes.Buffer // to the client
}

func (c *given) Read(p []byte) (int, error) {
	if len(c.data) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), c.piece)], c.data)
	c.data = c.data[n:]
	return n, nil
}

func (c *given) Write(p []byte) (int, error)      { return c.sent.Write(p) }
func (c *given) Close() error                     { return nil }
func (c *given) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (c *given) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (c *given) SetDeadline(time.Time) error      { return nil }
func (c *given) SetReadDeadline(time.Time) error  { return nil }
func (c *given) SetWriteDeadline(time.Time) error { return nil }

// handshake is the outcome of reading a connection as TLS.
type handshake struct {
	hello, err string
	sent       []byte // a complete alert, or the header of the first record, because the rest is random
}

// FuzzSniff passes the first bytes of a connection to a Mux, in pieces and into buffers of any
// size. The model has three rules. TLS starts with 0x16, and nothing else does. Other data is read
// as it was sent, and responses are sent as they are written. TLS is handled as crypto/tls handles
// the same bytes, or gets only the refusal if TLS is not served.
func FuzzSniff(f *testing.F) {
	ca := tlsfilestest.NewCA(f, "ca")
	dir := f.TempDir()
	tlsfilestest.WriteSecret(f, dir, ca.Files(f, pki.OrganizationNode, []string{"localhost", "127.0.0.1"}))
	source := require.Value(tlsfiles.Open(dir, tlsfiles.WithLogger(slog.New(slog.DiscardHandler))))(f)
	for _, versions := range [][2]uint16{{tls.VersionTLS13, tls.VersionTLS13}, {tls.VersionTLS12, tls.VersionTLS12},
		{tls.VersionTLS10, tls.VersionTLS11}} {
		for _, name := range []string{"localhost", ""} {
			hello := &given{piece: 1}
			_ = tls.Client(hello, &tls.Config{
				ServerName: name, InsecureSkipVerify: true, MinVersion: versions[0], MaxVersion: versions[1],
				NextProtos: []string{"h2", "http/1.1"},
			}).Handshake()
			f.Add(hello.sent.Bytes(), uint8(200), uint8(200))
			f.Add(hello.sent.Bytes(), uint8(0), uint8(0))
		}
	}
	f.Add([]byte("GET /v2/ HTTP/1.1\r\nHost: localhost\r\n\r\n"), uint8(2), uint8(6))
	f.Add([]byte("\x16"), uint8(0), uint8(0))
	f.Add([]byte("\x15\x03\x01\x00\x02\x02\x28"), uint8(0), uint8(0))
	f.Add([]byte("\x80\x2e\x01\x03\x01"), uint8(0), uint8(0)) // SSL 2.0
	f.Add([]byte{}, uint8(0), uint8(0))

	served := tlsfiles.ServerConfig(source, tls.NoClientCert)
	read := func(c net.Conn, under *given, hello *string, buffer []byte) (h handshake) {
		n, err := c.Read(buffer)
		h = handshake{hello: *hello, err: fmt.Sprint(n, err), sent: bytes.Clone(under.sent.Bytes())}
		if len(h.sent) > 0 && h.sent[0] != 0x15 {
			h.sent = h.sent[:5]
		}
		return h
	}
	var hello string // of the last handshake
	noting := served.Clone()
	noting.GetConfigForClient = func(info *tls.ClientHelloInfo) (*tls.Config, error) {
		hello = fmt.Sprintf("%q %v %v %v %v %v %v %v", info.ServerName, info.CipherSuites, info.SupportedCurves,
			info.SupportedPoints, info.SignatureSchemes,
			info.SupportedProtos, info.SupportedVersions, info.Extensions)
		if served.GetConfigForClient != nil {
			return served.GetConfigForClient(info)
		}
		return nil, nil
	}
	f.Fuzz(func(t *testing.T, data []byte, piece, size uint8) {
		under := func() *given { return &given{data: data, piece: 1 + int(piece)} }
		buffer := make([]byte, 1+int(size))
		const reply = "a response in plain text"
		for _, config := range []*tls.Config{nil, noting} {
			tcp := under()
			refused := 0
			c := &Conn{Conn: tcp, mux: &Mux{TLS: config, Refused: func() { refused++ }, WriteTimeout: time.Minute}}
			switch {
			case len(data) == 0 || data[0] != 0x16:
				got, err := io.ReadAll(onlyReader{c, buffer})
				if err != nil || !bytes.Equal(got, data) {
					t.Errorf("plain text %q is read as %q, %v", data, got, err)
				}
				if _, err := io.WriteString(c, reply); err != nil || tcp.sent.String() != reply || c.IsTLS() {
					t.Errorf("a response in plain text is sent as %q, %v", tcp.sent.String(), err)
				}
			case config == nil:
				n, err := c.Read(buffer)
				if n != 0 || !errors.Is(err, io.EOF) || tcp.sent.String() != plainRefusal || refused != 1 {
					t.Errorf("a ClientHello is read as %d bytes, %v, response %q", n, err, tcp.sent.String())
				}
			default:
				hello = ""
				got := read(c, tcp, &hello, buffer)
				direct := under()
				hello = ""
				want := read(tls.Server(direct, noting), direct, &hello, buffer)
				if !reflect.DeepEqual(got, want) {
					t.Errorf("TLS is read as\n%+v, want\n%+v", got, want)
				}
				if _, err := io.WriteString(c, reply); err == nil || bytes.Contains(tcp.sent.Bytes(), []byte(reply)) {
					t.Errorf("a response without a handshake is sent as %q, %v", tcp.sent.Bytes(), err)
				}
			}
		}
	})
}

// onlyReader reads with its own buffer.
type onlyReader struct {
	io.Reader
	buffer []byte
}

func (r onlyReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(r.buffer[:min(len(r.buffer), len(p))])
	return copy(p, r.buffer[:n]), err
}
