package registry

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles/tlsfilestest"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/test/require"
)

const (
	exposedName     = "registry.example.com"
	outsideUser     = "outside"
	outsidePassword = "looks in from outside"
)

// exposed is a registry with an exposed listener whose certificate is from another CA.
type exposed struct {
	*instance
	outside  testCA
	tlsDir   string
	htpasswd string
}

func startExposed(t *testing.T, changes ...func(*Options)) exposed {
	t.Helper()
	e := openExposed(t, changes...)
	e.run()
	return e
}

func openExposed(t *testing.T, changes ...func(*Options)) exposed {
	t.Helper()
	dir := t.TempDir()
	e := exposed{outside: newTestCA(t), tlsDir: filepath.Join(dir, "tls"), htpasswd: filepath.Join(dir, "users")}
	require.NoError(t, os.Mkdir(e.tlsDir, 0o700))
	e.certify()(t)
	writeFile(t, e.htpasswd, htpasswd(t, outsideUser, outsidePassword))
	e.instance = open(t, newTestCA(t), t.TempDir(), append([]func(*Options){func(o *Options) {
		o.ExposeListen, o.ExposeTLSDir, o.ExposeHtpasswd = "127.0.0.1:0", e.tlsDir, e.htpasswd
	}}, changes...)...)
	return e
}

// certify writes a certificate of the user, without its CA.
func (e exposed) certify() func(*testing.T) {
	return func(t *testing.T) {
		t.Helper()
		pair := e.outside.issue(t, pki.Leaf{CommonName: exposedName, DNSNames: []string{exposedName},
			Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, time.Now())
		tlsfilestest.WriteSecret(t, e.tlsDir, tlsfilestest.Files{"tls.crt": pair.Certificate, "tls.key": pair.Key})
	}
}

func (e exposed) from(config *tls.Config) client {
	transport := &http.Transport{TLSClientConfig: config}
	e.t.Cleanup(transport.CloseIdleConnections)
	return client{Client: &http.Client{Transport: transport}, t: e.t, base: "https://" + e.addresses["exposed"]}
}

// outsider returns a client outside the cluster.
func (e exposed) outsider() client {
	return e.from(&tls.Config{RootCAs: e.outside.pool(), ServerName: exposedName})
}

func TestAuthorizationAtTheExposedListener(t *testing.T) {
	t.Parallel()
	e := startExposed(t)
	d := e.pusher().pushBlob("a", "content").String()
	pusherCertificate := e.ca.client(t, pki.OrganizationPush)
	for name, tt := range map[string]struct {
		user, password string
		certificate    *tls.Certificate
		access         int
	}{
		"no credential":                  {"", "", nil, accessLogin},
		"a pusher":                       {pushUser, pushPassword, nil, accessFull},
		"a pusher with another password": {pushUser, "guess", nil, accessLogin},
		"the user of the node port":      {pullUser, pullPassword, nil, accessRead},
		"a user of the exposed listener": {outsideUser, outsidePassword, nil, accessRead},
		"a user of the exposed listener with another password": {outsideUser, pullPassword, nil, accessLogin},
		"a client with a pusher's certificate":                 {"", "", pusherCertificate, accessLogin},
	} {
		t.Run(name, func(t *testing.T) {
			config := &tls.Config{RootCAs: e.outside.pool(), ServerName: exposedName}
			if tt.certificate != nil {
				config.Certificates = []tls.Certificate{*tt.certificate}
			}
			c := e.from(config).as(tt.user, tt.password)
			c.t = t
			c.try(d, tt.access)
		})
	}
	t.Run("a user of the exposed listener is unknown at the node port", func(t *testing.T) {
		c := e.plain().as(outsideUser, outsidePassword)
		c.t = t
		c.try(d, accessLogin)
	})
}

// cert-manager may write it later, and nodes must pull meanwhile.
func TestTheExposedCertificateMayComeLater(t *testing.T) {
	t.Parallel()
	e := openExposed(t, func(o *Options) {
		require.NoError(t, os.RemoveAll(o.ExposeTLSDir))
	})
	e.run()
	d := e.pusher().pushBlob("a", "content").String()
	c := e.outsider().as(outsideUser, outsidePassword)
	if _, err := c.Get(c.base + "/v2/"); err == nil || !strings.Contains(err.Error(), "tls: ") {
		t.Errorf("without a certificate: %v", err)
	}
	require.NoError(t, os.MkdirAll(e.tlsDir, 0o700))
	e.certify()(t)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		response, err := c.Get(c.base + "/v2/")
		if err == nil {
			response.Body.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	c.try(d, accessRead)
}

func TestExposedAnonymousPullAffectsOnlyItsListener(t *testing.T) {
	t.Parallel()
	e := startExposed(t, func(o *Options) { o.ExposeAnonymousPull = true })
	d := e.pusher().pushBlob("a", "content").String()
	e.outsider().must(http.StatusOK, "GET", "/v2/a/blobs/"+d, nil)
	e.outsider().must(http.StatusUnauthorized, "POST", "/v2/a/blobs/uploads/", nil)
	e.plain().must(http.StatusUnauthorized, "GET", "/v2/a/blobs/"+d, nil)
}

func TestExposedListenerServesItsOwnCertificate(t *testing.T) {
	t.Parallel()
	e := startExposed(t)
	for name, config := range map[string]*tls.Config{
		"a client that trusts only the cluster's CA": {RootCAs: e.ca.pool(), ServerName: serverName},
		"a client that expects another name":         {RootCAs: e.outside.pool(), ServerName: "other.example.com"},
		"with TLS 1.1": {RootCAs: e.outside.pool(), ServerName: exposedName,
			MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11},
	} {
		if a, err := e.from(config).send("GET", "/v2/", nil); err == nil {
			t.Errorf("%s gets %d", name, a.StatusCode)
		}
	}
	inPlain := e.plain()
	inPlain.base = "http://" + e.addresses["exposed"]
	if a, err := inPlain.as(pushUser, pushPassword).send("GET", "/v2/", nil); err == nil &&
		a.StatusCode != http.StatusBadRequest {
		t.Errorf("plain HTTP gets %d", a.StatusCode)
	}
	// The nodes' listener requires a client certificate.
	if a, err := e.client(nil).send("GET", "/v2/", nil); err == nil {
		t.Errorf("the listener with mutual TLS responds with %d without a certificate", a.StatusCode)
	}
}

func TestExposedListenerFallsBackToTheRegistryCertificate(t *testing.T) {
	t.Parallel()
	e := startExposed(t, func(o *Options) { o.ExposeTLSDir = "" })
	c := e.from(&tls.Config{RootCAs: e.ca.pool(), ServerName: serverName}).as(outsideUser, outsidePassword)
	c.must(http.StatusOK, "GET", "/v2/", nil)
}

func TestExposedListenerReloadsItsFiles(t *testing.T) {
	t.Parallel()
	e := startExposed(t)
	before := e.server.exposed.Current().Leaf.SerialNumber
	c := e.outsider().as("second", "another password")
	c.must(http.StatusUnauthorized, "GET", "/v2/", nil)
	e.certify()(t)
	writeFile(t, e.htpasswd, htpasswd(t, "second", "another password"))
	eventually(t, "the user is accepted and the certificate is served", func() bool {
		fresh := e.outsider().as("second", "another password")
		a, err := fresh.send("GET", "/v2/", nil)
		return err == nil && a.StatusCode == http.StatusOK && a.TLS.PeerCertificates[0].SerialNumber.Cmp(before) != 0
	})
	e.outsider().as(outsideUser, outsidePassword).must(http.StatusUnauthorized, "GET", "/v2/", nil)
	require.NoError(t, os.Remove(e.htpasswd))
	eventually(t, "removing the file removes its users", func() bool {
		a, err := e.outsider().as("second", "another password").send("GET", "/v2/", nil)
		return err == nil && a.StatusCode == http.StatusUnauthorized
	})
	// The plain listener has its own file and stays open.
	e.plain().as(pullUser, pullPassword).must(http.StatusOK, "GET", "/v2/", nil)
	leaf := e.server.exposed.Current().Leaf
	for name, want := range map[string]float64{
		"zarf_registry_exposed_tls_certificate_expiry_timestamp_seconds": float64(leaf.NotAfter.Unix()),
		"zarf_registry_exposed_tls_certificate_lifetime_seconds":         leaf.NotAfter.Sub(leaf.NotBefore).Seconds(),
		"zarf_registry_exposed_tls_reload_errors_total":                  0,
	} {
		e.wantMetric(name, want)
	}
}

func TestExposedUserMustNotCollideWithOtherUsers(t *testing.T) {
	t.Parallel()
	e := startExposed(t)
	for _, name := range []string{pushUser, pullUser} {
		writeFile(t, e.htpasswd, bytes.Join([][]byte{htpasswd(t, name, "mine now"),
			htpasswd(t, outsideUser, outsidePassword)}, nil))
		eventually(t, "the file is refused", func() bool { return strings.Contains(e.logs.String(), `user \"`+name+`\"`) })
		e.outsider().as(name, "mine now").must(http.StatusUnauthorized, "GET", "/v2/", nil)
		e.outsider().as(outsideUser, outsidePassword).must(http.StatusOK, "GET", "/v2/", nil)
	}
}
