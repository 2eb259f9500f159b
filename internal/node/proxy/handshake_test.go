package proxy

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/api/loaded"
	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles/tlsfilestest"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// Error messages of crypto/tls as they appear in the proxy's responses and logs.
const (
	unknownCA  = "x509: certificate signed by unknown authority"
	outOfTime  = "x509: certificate has expired or is not yet valid"
	wrongUsage = "x509: certificate specifies an incompatible key usage"
	oldVersion = "tls: protocol version not supported"
)

// phases are the states of the verifier's trust bundle during a rotation.
var phases = [...]string{"before the rotation", "during the overlap", "after the rotation"}

var versions = map[uint16]string{
	tls.VersionTLS10: oldVersion, tls.VersionTLS11: oldVersion, tls.VersionTLS12: "", tls.VersionTLS13: "",
}

func bundle(cas ...*tlsfilestest.CA) (out []byte) {
	for _, ca := range cas {
		out = append(out, ca.PEM...)
	}
	return out
}

func pool(cas ...*tlsfilestest.CA) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, ca := range cas {
		pool.AddCert(ca.Certificate)
	}
	return pool
}

// identity is a certificate and its key in PEM form.
type identity struct{ certificate, key []byte }

func issue(
	t *testing.T, ca *tlsfilestest.CA, usage x509.ExtKeyUsage, change func(*x509.Certificate), names ...string,
) identity {
	t.Helper()
	certificate, key := ca.IssueWith(t, func(c *x509.Certificate) {
		c.ExtKeyUsage = []x509.ExtKeyUsage{usage}
		if change != nil {
			change(c)
		}
	}, organization, names...)
	return identity{certificate, key}
}

func (i identity) with(chain ...*tlsfilestest.CA) identity {
	return identity{append(bytes.Clone(i.certificate), bundle(chain...)...), i.key}
}

func (i identity) pair(t *testing.T) tls.Certificate {
	t.Helper()
	return require.Value(tls.X509KeyPair(i.certificate, i.key))(t)
}

func (i identity) files(cas ...*tlsfilestest.CA) tlsfilestest.Files {
	return tlsfilestest.Files{"tls.crt": i.certificate, "tls.key": i.key, "ca.crt": bundle(cas...)}
}

// registryWith starts a registry with its own TLS configuration, without files.
func registryWith(t *testing.T, config *tls.Config, handler http.Handler) *registry {
	t.Helper()
	r := &registry{t: t, address: "127.0.0.1:0", config: config}
	r.handle(handler)
	r.start()
	t.Cleanup(r.kill)
	return r
}

// expect pulls through the proxy. If words is empty the pull must succeed; otherwise it must fail
// with a response and a log entry that contain them.
func (f *fixture) expect(t *testing.T, content blob, words string) {
	t.Helper()
	response, body, err := f.get(content.path())
	if words == "" {
		if err := content.check(response, body, err); err != nil {
			t.Error(err)
		}
		return
	}
	require.NoError(t, err)
	if response.StatusCode != http.StatusServiceUnavailable || response.Header.Get("Retry-After") == "" {
		t.Fatalf("%s, Retry-After %q: %s", response.Status, response.Header.Get("Retry-After"), body)
	}
	checkOCIError(t, response, body, "UNAVAILABLE", registryName, words)
	if err := f.stop(); err != nil {
		t.Error(err)
	}
	if got := f.log.String(); !strings.Contains(got, "registry unavailable, giving up") || !strings.Contains(got, words) {
		t.Errorf("the log lacks %q:\n%s", words, got)
	}
}

// The proxy verifies the registry's certificate in every phase of a CA rotation.
//
// Claim (a certificate of a foreign CA; a certificate for another name; a certificate for clients only, such
// as a node's): A proxy refuses a registry whose certificate is of another CA, for another name, or a node's.
func TestHandshakesWithTheRegistry(t *testing.T) {
	t.Parallel()
	// One CA stays trusted throughout; the others are removed and added.
	lasting, leaving, coming := tlsfilestest.NewCA(t, "zarf-registry"), tlsfilestest.NewCA(t, "zarf-registry"),
		tlsfilestest.NewCA(t, "zarf-registry")
	foreign, namesake := tlsfilestest.NewCA(t, "foreign"), tlsfilestest.NewCA(t, "zarf-registry")
	intermediate := lasting.Intermediate(t, "intermediate")
	server := func(ca *tlsfilestest.CA, change func(*x509.Certificate)) identity {
		return issue(t, ca, x509.ExtKeyUsageServerAuth, change, registryName)
	}
	node := issue(t, lasting, x509.ExtKeyUsageClientAuth, nil)
	content := newBlob(1000)
	always := func(words string) [len(phases)]string { return [...]string{words, words, words} }

	for name, tt := range map[string]struct {
		identity identity
		refused  [len(phases)]string // expected error; empty: the request is forwarded
	}{
		"the right certificate":                                    {server(lasting, nil), always("")},
		"a certificate of a foreign CA":                            {server(foreign, nil), always(unknownCA)},
		"a certificate of a foreign CA with the same name as ours": {server(namesake, nil), always(unknownCA)},
		"a certificate of a foreign CA, sent with its CA":          {server(foreign, nil).with(foreign), always(unknownCA)},
		"an expired certificate": {
			server(lasting, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }), always(outOfTime),
		},
		"a certificate that is not valid yet": {
			server(lasting, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Hour) }), always(outOfTime),
		},
		"a certificate for clients only, such as a node's": {
			issue(t, lasting, x509.ExtKeyUsageClientAuth, nil, registryName), always(wrongUsage),
		},
		"a certificate for another name": {
			issue(
				t, lasting, x509.ExtKeyUsageServerAuth, nil, "zarf-registry.other.svc", "127.0.0.1",
			), always("x509: certificate is valid for zarf-registry.other.svc, not " + registryName)},
		"a certificate without a name": {issue(
			t, lasting, x509.ExtKeyUsageServerAuth, func(c *x509.Certificate) { c.Subject.CommonName = registryName },
		),
			always("x509: certificate relies on legacy Common Name field, use SANs instead")},
		"a certificate with an intermediate":           {server(intermediate, nil).with(intermediate), always("")},
		"a certificate whose intermediate is not sent": {server(intermediate, nil), always(unknownCA)},
		"a certificate of the outgoing CA":             {server(leaving, nil), [...]string{"", "", unknownCA}},
		"a certificate of the incoming CA":             {server(coming, nil), [...]string{unknownCA, "", ""}},
		"a certificate of the incoming CA, sent with its CA": {
			server(coming, nil).with(coming), [...]string{unknownCA, "", ""},
		},
	} {
		for phase, trusted := range [][]*tlsfilestest.CA{{lasting, leaving}, {lasting, leaving, coming}, {lasting, coming}} {
			for version, words := range versions {
				if words == "" {
					words = tt.refused[phase]
				}
				t.Run(fmt.Sprintf("%s, %s, %s", name, phases[phase], tls.VersionName(version)), func(t *testing.T) {
					registry := registryWith(t, &tls.Config{
						MinVersion: tls.VersionTLS10, MaxVersion: version, Certificates: []tls.Certificate{tt.identity.pair(t)},
						ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool(lasting),
					}, store{content})
					if version < tls.VersionTLS12 { // crypto/tls supports it; the proxy refuses it
						offer := &tls.Config{
							MinVersion: tls.VersionTLS10, InsecureSkipVerify: true, Certificates: []tls.Certificate{node.pair(t)},
						}
						c := require.Value(tls.Dial("tcp", registry.address, offer))(t)
						_ = c.Close()
					}
					startBefore(t, registry, lasting, node.files(trusted...), retryFor(0)).expect(t, content, words)
				})
			}
		}
	}
}

// The registry rejects the proxy's certificate, and the proxy reports why. The registry's own tests
// cover the same client certificates.
func TestRegistryRefusesTheProxy(t *testing.T) {
	ca, foreign := tlsfilestest.NewCA(t, "ca"), tlsfilestest.NewCA(t, "foreign")
	node := func(ca *tlsfilestest.CA, change func(*x509.Certificate)) identity {
		return issue(t, ca, x509.ExtKeyUsageClientAuth, change)
	}
	content := newBlob(1000)
	for name, tt := range map[string]struct {
		identity identity
		words    map[uint16]string
	}{
		"a node's certificate": {node(ca, nil), map[uint16]string{tls.VersionTLS12: "", tls.VersionTLS13: ""}},
		"an expired certificate": {node(ca, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }),
			map[uint16]string{
				tls.VersionTLS12: "remote error: tls: expired certificate",
				tls.VersionTLS13: "remote error: tls: expired certificate",
			}},
		"a server-only certificate": {issue(t, ca, x509.ExtKeyUsageServerAuth, nil),
			map[uint16]string{
				tls.VersionTLS12: "remote error: tls: bad certificate", tls.VersionTLS13: "remote error: tls: bad certificate",
			}},
		// A client sends no certificate whose CA the server does not list.
		"a certificate of a CA that the registry does not trust": {node(foreign, nil),
			map[uint16]string{
				tls.VersionTLS12: "remote error: tls: ", tls.VersionTLS13: "remote error: tls: certificate required",
			}},
	} {
		for version, words := range tt.words {
			t.Run(name+", "+tls.VersionName(version), func(t *testing.T) {
				registry := registryWith(t, &tls.Config{
					MaxVersion: version, Certificates: []tls.Certificate{
						issue(t, ca, x509.ExtKeyUsageServerAuth, nil, registryName).pair(t),
					},
					ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool(ca),
				}, store{content})
				startBefore(t, registry, ca, tt.identity.files(ca), retryFor(0)).expect(t, content, words)
			})
		}
	}
}

// dialTLS opens a TLS connection to the proxy.
func (f *fixture) dialTLS(t *testing.T, config *tls.Config) (*tls.Conn, error) {
	t.Helper()
	c, err := tls.DialWithDialer(&net.Dialer{Timeout: longest}, "tcp", f.address(), config)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(longest))
	return c, nil
}

// pull requests a blob on an open connection.
func pull(c net.Conn, content blob) error {
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: 127.0.0.1:31999\r\n\r\n", content.path()); err != nil {
		return err
	}
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return content.check(response, body, err)
}

// The proxy's own listener, as seen by verifying clients.
func TestHandshakesOnLoopback(t *testing.T) {
	ca, foreign, other := tlsfilestest.NewCA(t, "ca"), tlsfilestest.NewCA(t, "ca"), tlsfilestest.NewCA(t, "other")
	content := newBlob(1000)
	f := startBefore(t, newRegistry(t, ca, store{content}), ca, ca.Files(t, organization, loopback), retryFor(0))
	stranger, key := other.Issue(t, "stranger")
	for desc, tt := range map[string]struct {
		name  string
		roots *x509.CertPool
		shown bool // send a client certificate, which the proxy does not request
		words string
	}{
		"127.0.0.1":                   {"127.0.0.1", pool(ca), false, ""},
		"::1":                         {"::1", pool(ca), false, ""},
		"localhost":                   {"localhost", pool(ca), false, ""},
		"a client with a certificate": {"127.0.0.1", pool(ca), true, ""},
		"another loopback address": {
			"127.0.0.2", pool(ca), false, "x509: certificate is valid for 127.0.0.1, ::1, not 127.0.0.2",
		},
		"another name": {
			"registry.example", pool(ca), false, "x509: certificate is valid for localhost, not registry.example",
		},
		"the registry's name": {
			registryName, pool(ca), false, "x509: certificate is valid for localhost, not " + registryName,
		},
		"a client without trusted CAs":                     {"127.0.0.1", x509.NewCertPool(), false, unknownCA},
		"a client that trusts another CA of the same name": {"127.0.0.1", pool(foreign), false, unknownCA},
	} {
		for version, words := range versions {
			if words == "" {
				words = tt.words
			} else {
				words = "remote error: " + words // the proxy rejects it
			}
			t.Run(desc+", "+tls.VersionName(version), func(t *testing.T) {
				config := &tls.Config{RootCAs: tt.roots, ServerName: tt.name, MinVersion: tls.VersionTLS10, MaxVersion: version}
				if tt.shown {
					config.Certificates = []tls.Certificate{identity{stranger, key}.pair(t)}
				}
				c, err := f.dialTLS(t, config)
				if words != "" {
					if err == nil || !strings.Contains(err.Error(), words) {
						t.Errorf("error %v, want %q", err, words)
					}
					return
				}
				require.NoError(t, err)
				if got := c.ConnectionState().Version; got != version {
					t.Errorf("negotiated %s", tls.VersionName(got))
				}
				if err := pull(c, content); err != nil {
					t.Error(err)
				}
			})
		}
	}
	t.Run("plain HTTP on the same port", func(t *testing.T) { f.expect(t, content, "") })
}

// New files change the certificate, its names and its CA on loopback without a restart. internal/net/tlsfiles tests
// versions and sessions.
func TestLoopbackFollowsTheFiles(t *testing.T) {
	before, after := tlsfilestest.NewCA(t, "ca"), tlsfilestest.NewCA(t, "ca")
	content := newBlob(1000)
	registry := newRegistry(t, before, store{content})
	tlsfilestest.WriteSecret(t, registry.dir, before.Files(t, organization, []string{registryName}, after))
	require.Value(registry.source.Reload())(t)
	f := startBefore(t, registry, before, before.Files(t, organization, []string{"127.0.0.1"}, after), retryFor(0))
	replace := func(files tlsfilestest.Files) {
		t.Helper()
		tlsfilestest.WriteSecret(t, f.dir, files)
		if changed, err := f.source.Reload(); !changed || err != nil {
			t.Fatalf("Reload() = %t, %v", changed, err)
		}
	}
	expect := func(name string, ca *tlsfilestest.CA, words string) {
		t.Helper()
		c, err := f.dialTLS(t, &tls.Config{RootCAs: pool(ca), ServerName: name})
		if err == nil {
			err = pull(c, content)
		}
		if (err == nil) != (words == "") || err != nil && !strings.Contains(err.Error(), words) {
			t.Errorf("error %v, want %q", err, words)
		}
	}
	expect("127.0.0.1", before, "")
	expect("::1", before, "not ::1")
	expect("127.0.0.1", after, unknownCA)
	open := require.Value(f.dialTLS(t, &tls.Config{RootCAs: pool(before), ServerName: "127.0.0.1"}))(t)
	require.NoError(t, pull(open, content))
	replace(before.Files(t, organization, loopback, after))
	expect("::1", before, "")
	replace(after.Files(t, organization, loopback, before))
	expect("127.0.0.1", before, unknownCA)
	expect("127.0.0.1", after, "")
	if err := pull(open, content); err != nil {
		t.Errorf("a connection from before the reload, verified then: %v", err)
	}
	f.expect(t, content, "")
}

// loaded requests /loaded.
func (f *fixture) loaded(t *testing.T) (report loaded.State) {
	t.Helper()
	code, body := f.getAdmin(t, loaded.Path)
	if err := json.Unmarshal([]byte(body), &report); err != nil || code != http.StatusOK {
		t.Fatalf("%d, %v: %s", code, err, body)
	}
	return report
}

func TestLoaded(t *testing.T) {
	f := start(t, store{})
	report := f.loaded(t)
	if report.Credentials != nil || report.Certificates.Generation != 1 || report.Certificates.Problem != "" ||
		report.Certificates.Leaf.SHA256 != pki.Fingerprint(f.source.Current().Leaf) ||
		len(report.Certificates.TrustedCAs) != 1 ||
		report.Certificates.TrustedCAs[0].SHA256 != pki.Fingerprint(f.ca.Certificate) {
		t.Errorf("%+v", report)
	}
	for method, want := range map[string]int{
		http.MethodGet: http.StatusOK, http.MethodHead: http.StatusOK, http.MethodPost: http.StatusMethodNotAllowed,
		http.MethodDelete: http.StatusMethodNotAllowed,
	} {
		request, _ := http.NewRequest(method, "http://"+f.proxy.MetricsAddr().String()+loaded.Path, nil)
		response, body, err := do(request)
		if err != nil || response.StatusCode != want {
			t.Errorf("%s: %v, %v", method, response, err)
			continue
		}
		if want == http.StatusOK && response.Header.Get("Content-Type") != "application/json" || method == http.MethodHead &&
			len(body) != 0 {
			t.Errorf("%s: Content-Type %q, %d bytes", method, response.Header.Get("Content-Type"), len(body))
		}
	}
	if response, _, err := f.get(loaded.Path); err != nil || response.StatusCode != http.StatusNotFound {
		t.Errorf("on the port of the registry: %v, %v", response, err)
	}
}

// If a mounted Secret becomes invalid, the proxy keeps working on both sides and reports why. internal/net/tlsfiles tests
// in which ways it may be invalid.
func TestBadFilesWhileTheProxyRuns(t *testing.T) {
	content := newBlob(1000)
	f := start(t, store{content}, retryFor(0))
	tlsfilestest.WriteSecret(t, f.dir, tlsfilestest.Files{})
	if changed, err := f.source.Reload(); changed || err == nil {
		t.Fatalf("Reload() = %t, %v", changed, err)
	}
	f.proxy.upstream.closeIdle()
	f.expect(t, content, "")
	c := require.Value(f.dialTLS(t, &tls.Config{RootCAs: pool(f.ca), ServerName: "127.0.0.1"}))(t)
	require.NoError(t, pull(c, content))
	report := f.loaded(t).Certificates
	if report.Generation != 1 || report.ReloadErrors != 1 ||
		!strings.Contains(report.Problem, "tls.crt: no such file or directory") {
		t.Errorf("%+v", report)
	}
	if got := f.metric("certificate_reload_errors_total"); got != 1 {
		t.Errorf("%v failures were counted", got)
	}
	tlsfilestest.WriteSecret(t, f.dir, f.ca.Files(t, organization, loopback))
	require.Value(f.source.Reload())(t)
	if report := f.loaded(t).Certificates; report.Generation != 2 || report.Problem != "" || report.ReloadErrors != 1 {
		t.Errorf("after good files: %+v", report)
	}
	f.expect(t, content, "")
}
