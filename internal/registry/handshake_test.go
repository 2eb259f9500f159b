package registry

import (
	"bufio"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles/tlsfilestest"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// rawConn is a single connection, so requests are not retried on another.
type rawConn struct {
	*tls.Conn
	t      testing.TB
	reader *bufio.Reader
}

// dial opens a connection, and returns it even if the handshake fails. In TLS 1.3 the server may
// reject the client after the handshake.
func (i *instance) dial(t testing.TB, config *tls.Config) (*rawConn, error) {
	t.Helper()
	raw := require.Value(net.Dial("tcp", i.addresses["tls"]))(t)
	t.Cleanup(func() { _ = raw.Close() })
	_ = raw.SetDeadline(time.Now().Add(time.Minute))
	conn := tls.Client(raw, config)
	return &rawConn{conn, t, bufio.NewReader(conn)}, conn.Handshake()
}

func (i *instance) mustDial(t testing.TB, config *tls.Config) *rawConn {
	t.Helper()
	return require.Value(i.dial(t, config))(t)
}

// showing returns a client configuration that always sends the certificate: without
// GetClientCertificate, crypto/tls sends none if the server does not list its CA.
func showing(roots *x509.CertPool, certificate *tls.Certificate) *tls.Config {
	config := &tls.Config{RootCAs: roots, ServerName: serverName}
	if certificate != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return certificate, nil }
	}
	return config
}

func (i *instance) rawNode(t testing.TB) *rawConn {
	t.Helper()
	return i.mustDial(t, showing(i.ca.pool(), i.ca.client(t, pki.OrganizationNode)))
}

func (i *instance) rawPusher(t testing.TB) *rawConn {
	t.Helper()
	return i.mustDial(t, showing(i.ca.pool(), i.ca.client(t, pki.OrganizationPush)))
}

func (c *rawConn) authorization() string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(pushUser+":"+pushPassword))
}

func (c *rawConn) write(format string, args ...any) {
	c.t.Helper()
	if _, err := fmt.Fprintf(c, format, args...); err != nil {
		c.t.Fatal(err)
	}
}

func (c *rawConn) read() (*http.Response, error) {
	response, err := http.ReadResponse(c.reader, nil)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return response, err
}

// ask sends a request without a body.
func (c *rawConn) ask(method, path, authorization string) (*http.Response, error) {
	header := ""
	if authorization != "" {
		header = "Authorization: " + authorization + "\r\n"
	}
	if method == http.MethodPut {
		header += "Content-Length: 0\r\n"
	}
	if _, err := fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: registry\r\n%s\r\n", method, path, header); err != nil {
		return nil, err
	}
	return c.read()
}

func (c *rawConn) must(status int, method, path string) *http.Response {
	c.t.Helper()
	response, err := c.ask(method, path, "")
	if err != nil || response.StatusCode != status {
		c.t.Fatalf("%s %s: %+v, %v", method, path, response, err)
	}
	return response
}

// waitClosed waits until the server has closed the connection.
func (c *rawConn) waitClosed() {
	c.t.Helper()
	if _, err := c.reader.ReadByte(); !errors.Is(err, io.EOF) {
		c.t.Errorf("the connection was not closed: %v", err)
	}
}

// phases are the states of the server's trust bundle during a rotation.
var phases = [...]string{"before the rotation", "during the overlap", "after the rotation"}

// Error messages of crypto/tls, as the server logs them.
const (
	withoutCertificate = "client didn't provide a certificate"
	unknownCA          = "certificate signed by unknown authority"
	outOfTime          = "certificate has expired or is not yet valid"
	wrongUsage         = "certificate specifies an incompatible key usage"
	oldVersion         = "client offered only unsupported versions"
)

// Claim: The registry refuses clients that have no certificate, or one that is expired, not yet valid, for servers
// only, of another or a dropped CA, or without a role.
//
// Claim (a node's certificate): The registry speaks TLS 1.2 and 1.3 only.
func TestHandshakes(t *testing.T) {
	t.Parallel()
	// One CA stays trusted throughout; the others are removed and added.
	lasting, leaving, coming := tlsfilestest.NewCA(t, "zarf-registry"), tlsfilestest.NewCA(t, "zarf-registry"),
		tlsfilestest.NewCA(t, "zarf-registry")
	foreign, namesake := tlsfilestest.NewCA(t, "foreign"), tlsfilestest.NewCA(t, "zarf-registry")
	intermediate := lasting.Intermediate(t, "intermediate")
	issue := func(ca *tlsfilestest.CA, role string, change func(*x509.Certificate),
		chain ...*tlsfilestest.CA) *tls.Certificate {
		t.Helper()
		pair, key := ca.IssueWith(t, func(c *x509.Certificate) {
			c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
			if change != nil {
				change(c)
			}
		}, role)
		for _, ca := range chain {
			pair = append(pair, ca.PEM...)
		}
		return certificate(t, pki.KeyPair{Certificate: pair, Key: key})
	}
	node := func(ca *tlsfilestest.CA) *tls.Certificate { return issue(ca, pki.OrganizationNode, nil) }
	push := func(change func(*x509.Certificate)) *tls.Certificate {
		return issue(lasting, pki.OrganizationPush, change)
	}

	serverPair, serverKey := lasting.Issue(t, pki.OrganizationServer, serverName)
	trusting := func(cas ...*tlsfilestest.CA) tlsfilestest.Files {
		files := tlsfilestest.Files{"tls.crt": serverPair, "tls.key": serverKey}
		for _, ca := range cas {
			files["ca.crt"] = append(files["ca.crt"], ca.PEM...)
		}
		return files
	}
	roots := x509.NewCertPool()
	roots.AddCert(lasting.Certificate)
	i := start(t, newTestCA(t), t.TempDir())

	type statuses struct{ get, put, putWithCredential int }
	var (
		reads   = statuses{http.StatusOK, http.StatusForbidden, http.StatusForbidden}
		writes  = statuses{http.StatusOK, http.StatusUnauthorized, http.StatusBadRequest} // an empty manifest
		nothing = statuses{http.StatusForbidden, http.StatusForbidden, http.StatusForbidden}
	)
	always := func(words string) [len(phases)]string { return [...]string{words, words, words} }
	clients := map[string]struct {
		certificate *tls.Certificate
		refused     [len(phases)]string // expected error; empty: the handshake succeeds
		want        statuses
	}{
		"no certificate":                {nil, always(withoutCertificate), statuses{}},
		"a certificate of a foreign CA": {issue(foreign, pki.OrganizationPush, nil), always(unknownCA), statuses{}},
		"a certificate of a foreign CA with the same name as ours": {issue(namesake, pki.OrganizationPush, nil),
			always(unknownCA), statuses{}},
		"a certificate of a foreign CA, sent with its CA": {issue(foreign, pki.OrganizationPush, nil, foreign),
			always(unknownCA), statuses{}},
		"a certificate signed by a node's certificate": {signedBy(t, node(lasting)), always(unknownCA),
			statuses{}},
		"an expired certificate": {push(
			func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }), always(outOfTime), statuses{}},
		"a certificate that is not valid yet": {push(
			func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Hour) }), always(outOfTime), statuses{}},
		"a certificate for servers only": {push(
			func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }), always(wrongUsage),
			statuses{}},
		"a node's certificate":         {node(lasting), always(""), reads},
		"a pusher's certificate":       {push(nil), always(""), writes},
		"a certificate without a role": {issue(lasting, "acme", nil), always(""), nothing},
		"a client certificate of the server's role": {issue(lasting, pki.OrganizationServer, nil),
			always(""), nothing},
		"a node's certificate through an intermediate": {issue(intermediate, pki.OrganizationNode, nil,
			intermediate), always(""), reads},
		"a node's certificate whose intermediate is not sent": {issue(intermediate, pki.OrganizationNode, nil),
			always(unknownCA), statuses{}},
		"a node's certificate of the outgoing CA": {node(leaving), [...]string{"", "", unknownCA},
			reads},
		"a pusher's certificate of the outgoing CA": {issue(leaving, pki.OrganizationPush, nil),
			[...]string{"", "", unknownCA}, writes},
		"a node's certificate of the incoming CA": {node(coming), [...]string{unknownCA, "", ""},
			reads},
		"a node's certificate of the incoming CA, sent with its CA": {issue(coming, pki.OrganizationNode, nil, coming),
			[...]string{unknownCA, "", ""}, reads},
	}
	versions := map[uint16]string{tls.VersionTLS10: oldVersion, tls.VersionTLS11: oldVersion, tls.VersionTLS12: "",
		tls.VersionTLS13: ""}

	for phase, files := range []tlsfilestest.Files{trusting(lasting, leaving), trusting(lasting, leaving, coming),
		trusting(lasting, coming)} {
		i.replaceCertificates(files)
		for name, client := range clients {
			for version, words := range versions {
				if words == "" {
					words = client.refused[phase]
				}
				t.Run(fmt.Sprintf("%s, %s, %s", name, phases[phase], tls.VersionName(version)), func(t *testing.T) {
					config := showing(roots, client.certificate)
					config.MinVersion, config.MaxVersion = tls.VersionTLS10, version
					for authorization, want := range map[string]struct{ get, put int }{
						"": {client.want.get, client.want.put}, "push": {client.want.get, client.want.putWithCredential},
					} {
						c, err := i.dial(t, config)
						address := c.LocalAddr().String()
						if err == nil {
							if authorization != "" {
								authorization = c.authorization()
							}
							var got *http.Response
							if got, err = c.ask(http.MethodGet, "/v2/_catalog", authorization); err == nil && got.StatusCode != want.get {
								t.Errorf("GET: %s, want %d", got.Status, want.get)
							}
						}
						if words != "" {
							if err == nil {
								t.Fatal("the connection was accepted")
							}
							eventually(t, "the reason is logged: "+words, func() bool {
								return i.logged("connection failed", address,
									words)
							})
							continue
						}
						require.NoError(t, err)
						if got := c.ConnectionState().Version; got != version {
							t.Errorf("negotiated %s", tls.VersionName(got))
						}
						if got, err := c.ask(http.MethodPut, "/v2/a/manifests/tag", authorization); err != nil ||
							got.StatusCode != want.put {
							t.Errorf("PUT: %+v, %v, want %d", got, err, want.put)
						}
					}
				})
			}
		}
	}
}

// logged reports whether a line of the log contains all parts.
func (i *instance) logged(parts ...string) bool {
lines:
	for line := range strings.Lines(i.logs.String()) {
		for _, part := range parts {
			if !strings.Contains(line, part) {
				continue lines
			}
		}
		return true
	}
	return false
}

// signedBy returns a pusher's certificate that is signed by a leaf certificate, with that leaf in the chain.
func signedBy(t *testing.T, signer *tls.Certificate) *tls.Certificate {
	t.Helper()
	template := *signer.Leaf
	template.SerialNumber = big.NewInt(1)
	template.Subject.Organization = []string{pki.OrganizationPush}
	der, err := x509.CreateCertificate(rand.Reader, &template, signer.Leaf, signer.Leaf.PublicKey, signer.PrivateKey)
	require.NoError(t, err)
	return &tls.Certificate{Certificate: [][]byte{der, signer.Certificate[0]}, PrivateKey: signer.PrivateKey}
}

// Removing a CA ends its connections and TLS sessions.
//
// Claim: A certificate of a dropped CA is refused at once, also on open connections and in resumed sessions.
func TestConnectionsAndSessionsEndWithTheirCA(t *testing.T) {
	t.Parallel()
	before, after := newTestCA(t), newTestCA(t)
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run(tls.VersionName(version), func(t *testing.T) {
			i := open(t, before, t.TempDir())
			i.server.clients.Linger = time.Hour // otherwise the connections may be closed before the next request
			i.run()
			roots := before.pool()
			roots.AddCert(after.Certificate())
			config := showing(roots, before.client(t, pki.OrganizationNode))
			config.MaxVersion = version
			config.ClientSessionCache = tls.NewLRUClientSessionCache(4)
			connect := func(resumes bool) *rawConn {
				t.Helper()
				c := i.mustDial(t, config)
				c.must(http.StatusOK, http.MethodGet, "/v2/") // the session ticket arrives before the response
				if got := c.ConnectionState().DidResume; got != resumes {
					t.Fatalf("resumed = %t, want %t", got, resumes)
				}
				return c
			}

			connect(false)
			connect(true)
			i.replaceCertificates(before.serverFiles(t, after))
			connect(false)
			open := []*rawConn{connect(true), connect(true)}
			i.replaceCertificates(after.serverFiles(t))
			for n, method := range []string{http.MethodGet, http.MethodPut} {
				if response := open[n].must(http.StatusForbidden, method, "/v2/a/manifests/tag"); !response.Close {
					t.Error("the connection stays open")
				}
				open[n].waitClosed()
			}
			c, err := i.dial(t, config)
			if err == nil {
				_, err = c.ask(http.MethodGet, "/v2/", "")
			}
			if err == nil {
				t.Error("a session of the dropped CA was resumed, or its certificate was accepted")
			}
		})
	}
}

func TestClockSkew(t *testing.T) {
	t.Parallel()
	const off = 10 * time.Minute
	for name, tt := range map[string]struct {
		issuer, peer time.Duration
		want         string // of the error; empty: none
	}{
		"all agree":                                 {0, 0, ""},
		"the issuer is ahead of the server":         {off, 0, ""},
		"the issuer is behind the server":           {-off, 0, ""},
		"the client is ahead":                       {0, off, ""},
		"the client is behind":                      {0, -off, ""},
		"the issuer is ahead, the client behind":    {off, -off, ""},
		"the issuer is behind, the client ahead":    {-off, off, ""},
		"the issuer is ahead by more than an hour":  {pki.Backdate + off, 0, outOfTime},
		"the client is behind by more than an hour": {0, -pki.Backdate - off, outOfTime},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Now().Add(tt.issuer)
			made := require.Value(pki.NewCA("ca", now, 0))(t)
			ca := testCA{made}
			server := ca.issue(t, pki.Leaf{
				Organization: pki.OrganizationServer, DNSNames: []string{serverName},
				Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
			}, now)
			client := ca.issue(t, pki.Leaf{
				Organization: pki.OrganizationNode, Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
			}, now)
			i := start(t, newTestCA(t), t.TempDir())
			i.replaceCertificates(tlsfilestest.Files{"tls.crt": server.Certificate, "tls.key": server.Key,
				"ca.crt": ca.KeyPair().Certificate})
			config := showing(ca.pool(), certificate(t, client))
			config.Time = func() time.Time { return time.Now().Add(tt.peer) }
			c, err := i.dial(t, config)
			if err == nil {
				_, err = c.ask(http.MethodGet, "/v2/", "")
			}
			if (err == nil) != (tt.want == "") {
				t.Fatalf("error %v, want %q", err, tt.want)
			}
			if err != nil && !strings.Contains(err.Error(), tt.want) && !i.logged(tt.want) {
				t.Errorf("neither the client's error nor the server's log contains %q: %v", tt.want, err)
			}
		})
	}
}

// If a mounted Secret becomes invalid, the registry keeps its certificates and reports the error.
//
// Claim: Damaged certificate files change nothing in a running registry.
func TestBadFilesWhileTheRegistryRuns(t *testing.T) {
	t.Parallel()
	i := start(t, newTestCA(t), t.TempDir())
	good := i.ca.serverFiles(t)
	failures := uint64(0) // the registry may look by itself, too
	for _, tt := range []struct {
		name  string
		files tlsfilestest.Files
		want  string
	}{
		{"the Secret was deleted", tlsfilestest.Files{}, "tls.crt: no such file or directory"},
		{"the key of another certificate", tlsfilestest.Files{"tls.crt": good["tls.crt"], "tls.key": i.ca.serverFiles(t)["tls.key"],
			"ca.crt": good["ca.crt"]}, "private key does not match"},
		{"a key that is not PEM", tlsfilestest.Files{"tls.crt": good["tls.crt"], "tls.key": []byte("rubbish"),
			"ca.crt": good["ca.crt"]}, "tls.key"},
		{"the CA is a leaf certificate", tlsfilestest.Files{"tls.crt": good["tls.crt"], "tls.key": good["tls.key"],
			"ca.crt": good["tls.crt"]}, "is not a CA"},
	} {
		tlsfilestest.WriteSecret(t, i.tlsDir, tt.files)
		if changed, err := i.server.certificates.Reload(); changed || err == nil {
			t.Fatalf("%s: Reload() = %t, %v", tt.name, changed, err)
		}
		i.rawNode(t).must(http.StatusOK, http.MethodGet, "/v2/")
		report := i.loaded()
		if report.Certificates.Generation != 1 || report.Certificates.ReloadErrors <= failures ||
			!strings.Contains(report.Certificates.Problem, tt.want) {
			t.Errorf("%s: %+v", tt.name, report.Certificates)
		}
		failures = report.Certificates.ReloadErrors
		if got := i.metric("zarf_registry_tls_reload_errors_total"); got < float64(failures) {
			t.Errorf("%s: %v failures are counted, want %d", tt.name, got, failures)
		}
		if !i.logged(`"level":"ERROR"`, "cannot reload certificates, keeping the previous ones", tt.want) {
			t.Errorf("%s: the failure is not logged", tt.name)
		}
	}
	i.replaceCertificates(i.ca.serverFiles(t))
	if report := i.loaded(); report.Certificates.Generation != 2 || report.Certificates.Problem != "" {
		t.Errorf("after good files: %+v", report.Certificates)
	}
}

// The registry serves an expired certificate and reports it; clients reject it.
func TestExpiredServerCertificateIsServed(t *testing.T) {
	t.Parallel()
	i := start(t, newTestCA(t), t.TempDir())
	end := time.Now().Add(-time.Hour).Truncate(time.Second).UTC()
	expired := i.ca.issue(t, pki.Leaf{
		Organization: pki.OrganizationServer, DNSNames: []string{serverName},
		Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, Lifetime: time.Hour,
	}, end.Add(-time.Hour))
	files := i.ca.serverFiles(t)
	files["tls.crt"], files["tls.key"] = expired.Certificate, expired.Key
	i.replaceCertificates(files)
	if report := i.loaded(); !report.Certificates.Leaf.NotAfter.Equal(end) || report.Certificates.Problem != "" {
		t.Errorf("%+v", report.Certificates)
	}
	if _, err := i.dial(t, showing(i.ca.pool(), i.ca.client(t, pki.OrganizationNode))); err == nil ||
		!strings.Contains(err.Error(), outOfTime) {
		t.Errorf("error %v", err)
	}
	i.replaceCertificates(i.ca.serverFiles(t))
	i.rawNode(t).must(http.StatusOK, http.MethodGet, "/v2/")
}
