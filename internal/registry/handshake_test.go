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

	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/tlsfiles/tlsfilestest"
)

// rawConn is one connection, so that nothing is tried again on another.
type rawConn struct {
	*tls.Conn
	t      testing.TB
	reader *bufio.Reader
}

// dial opens a connection, which has an address even where the handshake fails. In TLS 1.3 the server may refuse it only
// after this.
func (i *instance) dial(t testing.TB, config *tls.Config) (*rawConn, error) {
	t.Helper()
	raw, err := net.Dial("tcp", i.addresses["tls"])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = raw.Close() })
	_ = raw.SetDeadline(time.Now().Add(time.Minute))
	conn := tls.Client(raw, config)
	return &rawConn{conn, t, bufio.NewReader(conn)}, conn.Handshake()
}

func (i *instance) mustDial(t testing.TB, config *tls.Config) *rawConn {
	t.Helper()
	c, err := i.dial(t, config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// showing is a client's configuration with a certificate that it shows whatever the server asks for: without
// GetClientCertificate it would rather show none than one of a CA that the server does not name.
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

// phases are the trust of the server in the course of a rotation.
var phases = [...]string{"before the rotation", "during the overlap", "after the rotation"}

// Words of crypto/tls, as the server logs them.
const (
	withoutCertificate = "client didn't provide a certificate"
	unknownAuthority   = "certificate signed by unknown authority"
	outOfTime          = "certificate has expired or is not yet valid"
	wrongUsage         = "certificate specifies an incompatible key usage"
	oldVersion         = "client offered only unsupported versions"
)

func TestHandshakes(t *testing.T) {
	// One CA is trusted throughout, the others come and go.
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
	i := start(t, newAuthority(t), t.TempDir())

	type may struct{ get, put, putWithCredential int }
	var (
		reads   = may{http.StatusOK, http.StatusForbidden, http.StatusForbidden}
		writes  = may{http.StatusOK, http.StatusUnauthorized, http.StatusBadRequest} // an empty manifest
		nothing = may{http.StatusForbidden, http.StatusForbidden, http.StatusForbidden}
	)
	always := func(words string) [len(phases)]string { return [...]string{words, words, words} }
	clients := map[string]struct {
		certificate *tls.Certificate
		refused     [len(phases)]string // with what words, empty where it is accepted
		may         may
	}{
		"no certificate":                {nil, always(withoutCertificate), may{}},
		"a certificate of a foreign CA": {issue(foreign, pki.OrganizationPush, nil), always(unknownAuthority), may{}},
		"a certificate of a foreign CA that is called like ours": {issue(namesake, pki.OrganizationPush, nil),
			always(unknownAuthority), may{}},
		"a certificate of a foreign CA, with that CA": {issue(foreign, pki.OrganizationPush, nil, foreign),
			always(unknownAuthority), may{}},
		"a certificate that was signed with a node's, which is no CA": {signedBy(t, node(lasting)), always(unknownAuthority),
			may{}},
		"an expired certificate": {push(
			func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }), always(outOfTime), may{}},
		"a certificate that is not valid yet": {push(
			func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Hour) }), always(outOfTime), may{}},
		"a certificate for servers only": {push(
			func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }), always(wrongUsage),
			may{}},
		"a node's certificate":         {node(lasting), always(""), reads},
		"a pusher's certificate":       {push(nil), always(""), writes},
		"a certificate without a role": {issue(lasting, "acme", nil), always(""), nothing},
		"the server's role, for clients": {issue(lasting, pki.OrganizationServer, nil),
			always(""), nothing},
		"a node's certificate through an intermediate": {issue(intermediate, pki.OrganizationNode, nil,
			intermediate), always(""), reads},
		"a node's certificate whose intermediate does not come along": {issue(intermediate, pki.OrganizationNode, nil),
			always(unknownAuthority), may{}},
		"a node's certificate of the CA that is replaced": {node(leaving), [...]string{"", "", unknownAuthority},
			reads},
		"a pusher's certificate of the CA that is replaced": {issue(leaving, pki.OrganizationPush, nil),
			[...]string{"", "", unknownAuthority}, writes},
		"a node's certificate of the CA that replaces it": {node(coming), [...]string{unknownAuthority, "", ""},
			reads},
		"a node's certificate of the CA that replaces it, with its CA": {issue(coming, pki.OrganizationNode, nil, coming),
			[...]string{unknownAuthority, "", ""}, reads},
	}
	versions := map[uint16]string{tls.VersionTLS10: oldVersion, tls.VersionTLS11: oldVersion, tls.VersionTLS12: "",
		tls.VersionTLS13: ""}

	for phase, files := range []tlsfilestest.Files{trusting(lasting, leaving), trusting(lasting, leaving, coming),
		trusting(lasting, coming)} {
		i.replaceCertificates(files)
		for sentence, client := range clients {
			for version, words := range versions {
				if words == "" {
					words = client.refused[phase]
				}
				t.Run(fmt.Sprintf("%s, %s, %s", sentence, phases[phase], tls.VersionName(version)), func(t *testing.T) {
					config := showing(roots, client.certificate)
					config.MinVersion, config.MaxVersion = tls.VersionTLS10, version
					for authorization, want := range map[string]struct{ get, put int }{
						"": {client.may.get, client.may.put}, "push": {client.may.get, client.may.putWithCredential},
					} {
						c, err := i.dial(t, config)
						address := c.LocalAddr().String()
						if err == nil {
							if authorization != "" {
								authorization = c.authorization()
							}
							var got *http.Response
							if got, err = c.ask(http.MethodGet, "/v2/", authorization); err == nil && got.StatusCode != want.get {
								t.Errorf("GET: %s, want %d", got.Status, want.get)
							}
						}
						if words != "" {
							if err == nil {
								t.Fatal("the connection is served")
							}
							eventually(t, "the reason is logged: "+words, func() bool {
								return i.logged("connection failed", address,
									words)
							})
							continue
						}
						if err != nil {
							t.Fatal(err)
						}
						if got := c.ConnectionState().Version; got != version {
							t.Errorf("%s was agreed on", tls.VersionName(got))
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

// logged tells whether a line of the log has all of these parts.
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

// signedBy is a pusher's certificate that a leaf certificate has signed, which comes along.
func signedBy(t *testing.T, signer *tls.Certificate) *tls.Certificate {
	t.Helper()
	template := *signer.Leaf
	template.SerialNumber = big.NewInt(1)
	template.Subject.Organization = []string{pki.OrganizationPush}
	der, err := x509.CreateCertificate(rand.Reader, &template, signer.Leaf, signer.Leaf.PublicKey, signer.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der, signer.Certificate[0]}, PrivateKey: signer.PrivateKey}
}

// What was agreed under a CA ends with it, in both versions of TLS.
func TestConnectionsAndSessionsEndWithTheirCA(t *testing.T) {
	before, after := newAuthority(t), newAuthority(t)
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run(tls.VersionName(version), func(t *testing.T) {
			i := open(t, before, t.TempDir())
			i.server.idle.linger = time.Hour // else there might be no connection to send a request on
			i.run()
			roots := before.pool()
			roots.AddCert(after.Certificate())
			config := showing(roots, before.client(t, pki.OrganizationNode))
			config.MaxVersion = version
			config.ClientSessionCache = tls.NewLRUClientSessionCache(4)
			connect := func(resumes bool) *rawConn {
				t.Helper()
				c := i.mustDial(t, config)
				c.must(http.StatusOK, http.MethodGet, "/v2/") // its answer comes after the ticket
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
					t.Error("the connection is kept")
				}
				open[n].waitClosed()
			}
			c, err := i.dial(t, config)
			if err == nil {
				_, err = c.ask(http.MethodGet, "/v2/", "")
			}
			if err == nil {
				t.Error("a session from before was resumed, or the dropped CA's certificate accepted")
			}
		})
	}
}

func TestClockSkew(t *testing.T) {
	const off = 10 * time.Minute
	for sentence, tt := range map[string]struct {
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
		t.Run(sentence, func(t *testing.T) {
			now := time.Now().Add(tt.issuer)
			made, err := pki.NewCA("ca", now, 0)
			if err != nil {
				t.Fatal(err)
			}
			ca := authority{made}
			server := ca.issue(t, pki.Leaf{
				Organization: pki.OrganizationServer, DNSNames: []string{serverName},
				Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
			}, now)
			client := ca.issue(t, pki.Leaf{
				Organization: pki.OrganizationNode, Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
			}, now)
			i := start(t, newAuthority(t), t.TempDir())
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
				t.Errorf("neither the client's error nor the server's log says %q: %v", tt.want, err)
			}
		})
	}
}

// A mounted Secret that goes bad leaves the registry serving as before, and says why.
func TestBadFilesWhileTheRegistryRuns(t *testing.T) {
	i := start(t, newAuthority(t), t.TempDir())
	good := i.ca.serverFiles(t)
	for n, tt := range []struct {
		sentence string
		files    tlsfilestest.Files
		want     string
	}{
		{"the Secret was deleted", tlsfilestest.Files{}, "tls.crt: no such file or directory"},
		{"the key is another's", tlsfilestest.Files{"tls.crt": good["tls.crt"], "tls.key": i.ca.serverFiles(t)["tls.key"],
			"ca.crt": good["ca.crt"]}, "private key does not match"},
		{"the CA is none", tlsfilestest.Files{"tls.crt": good["tls.crt"], "tls.key": good["tls.key"],
			"ca.crt": good["tls.crt"]}, "is not a CA"},
	} {
		tlsfilestest.WriteSecret(t, i.tlsDir, tt.files)
		if changed, err := i.server.certificates.Reload(); changed || err == nil {
			t.Fatalf("%s: Reload() = %t, %v", tt.sentence, changed, err)
		}
		i.rawNode(t).must(http.StatusOK, http.MethodGet, "/v2/")
		report := i.loaded()
		if report.Certificates.Generation != 1 || report.Certificates.ReloadErrors != uint64(n+1) ||
			!strings.Contains(report.Certificates.Problem, tt.want) {
			t.Errorf("%s: %+v", tt.sentence, report.Certificates)
		}
		if !strings.Contains(i.metrics(), fmt.Sprintf("zarf_registry_tls_reload_errors_total %d\n", n+1)) {
			t.Errorf("%s: it is not counted", tt.sentence)
		}
		if !i.logged(`"level":"ERROR"`, "cannot reload certificates, keeping the previous ones", tt.want) {
			t.Errorf("%s: it is not logged", tt.sentence)
		}
	}
	i.replaceCertificates(i.ca.serverFiles(t))
	if report := i.loaded(); report.Certificates.Generation != 2 || report.Certificates.Problem != "" ||
		report.Certificates.ReloadErrors != 3 {
		t.Errorf("after good files: %+v", report.Certificates)
	}
}

// Expiry is judged by the peers: the registry loads such a certificate, tells so, and clients refuse it in clear words.
func TestExpiredServerCertificateIsServed(t *testing.T) {
	i := start(t, newAuthority(t), t.TempDir())
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
