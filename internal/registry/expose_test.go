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

	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/tlsfiles/tlsfilestest"
)

const (
	exposedName     = "registry.example.com"
	outsideUser     = "outside"
	outsidePassword = "looks in from outside"
)

// exposed is a registry that is served to the outside with a certificate of another
// authority, and what clients trust.
type exposed struct {
	*instance
	outside  authority
	tlsDir   string
	htpasswd string
}

func startExposed(t *testing.T, changes ...func(*Options)) exposed {
	t.Helper()
	dir := t.TempDir()
	e := exposed{outside: newAuthority(t), tlsDir: filepath.Join(dir, "tls"), htpasswd: filepath.Join(dir, "users")}
	if err := os.Mkdir(e.tlsDir, 0o700); err != nil {
		t.Fatal(err)
	}
	e.certify()(t)
	writeFile(t, e.htpasswd, htpasswd(t, outsideUser, outsidePassword))
	e.instance = start(t, newAuthority(t), t.TempDir(), append([]func(*Options){func(o *Options) {
		o.ExposeListen, o.ExposeTLSDir, o.ExposeHtpasswd = "127.0.0.1:0", e.tlsDir, e.htpasswd
	}}, changes...)...)
	return e
}

// certify writes a certificate as people have them: without its authority.
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

// somebody is a client outside of the cluster.
func (e exposed) somebody() client {
	return e.from(&tls.Config{RootCAs: e.outside.pool(), ServerName: exposedName})
}

func TestAuthorizationAtTheExposedListener(t *testing.T) {
	e := startExposed(t)
	d := e.pusher().pushBlob("a", "content").String()
	pusherCertificate := e.ca.client(t, pki.OrganizationPush)
	for sentence, tt := range map[string]struct {
		user, password string
		certificate    *tls.Certificate
		may            int
	}{
		"nobody":                            {"", "", nil, mayNothingYet},
		"a pusher":                          {pushUser, pushPassword, nil, mayAll},
		"a pusher with another password":    {pushUser, "guess", nil, mayNothingYet},
		"the user of the node port":         {pullUser, pullPassword, nil, mayRead},
		"a user of the outside":             {outsideUser, outsidePassword, nil, mayRead},
		"a user of the outside who guesses": {outsideUser, pullPassword, nil, mayNothingYet},
		"who shows a pusher's certificate":  {"", "", pusherCertificate, mayNothingYet},
	} {
		t.Run(sentence, func(t *testing.T) {
			config := &tls.Config{RootCAs: e.outside.pool(), ServerName: exposedName}
			if tt.certificate != nil {
				config.Certificates = []tls.Certificate{*tt.certificate}
			}
			c := e.from(config).as(tt.user, tt.password)
			c.t = t
			c.try(d, tt.may)
		})
	}
	t.Run("a user of the exposed listener is unknown at the node port", func(t *testing.T) {
		c := e.plain().as(outsideUser, outsidePassword)
		c.t = t
		c.try(d, mayNothingYet)
	})
}

func TestExposedAnonymousPullAffectsOnlyItsListener(t *testing.T) {
	e := startExposed(t, func(o *Options) { o.ExposeAnonymousPull = true })
	d := e.pusher().pushBlob("a", "content").String()
	e.somebody().must(http.StatusOK, "GET", "/v2/a/blobs/"+d, nil)
	e.somebody().must(http.StatusUnauthorized, "POST", "/v2/a/blobs/uploads/", nil)
	e.plain().must(http.StatusUnauthorized, "GET", "/v2/a/blobs/"+d, nil)
}

func TestProbesAreRefusedAtTheExposedListener(t *testing.T) {
	e := startExposed(t, func(o *Options) { o.ExposeAnonymousPull = true })
	for _, repository := range []string{probeProxy, probeNodePort} {
		a := e.somebody().as(pushUser, pushPassword).must(http.StatusForbidden, "GET", "/v2/"+repository+"/tags/list", nil)
		if !strings.Contains(a.body, "came from outside") {
			t.Error(a.body)
		}
	}
}

func TestPushAndPullAtTheExposedListener(t *testing.T) {
	e := startExposed(t)
	const mediaType = "application/vnd.oci.image.manifest.v1+json"
	layer := random(1 << 20)
	d, manifest := e.somebody().as(pushUser, pushPassword).pushImage("team/app", "1", layer)
	a := e.somebody().as(outsideUser, outsidePassword).must(http.StatusOK, "GET", "/v2/team/app/manifests/1", nil,
		"Accept", mediaType)
	if a.body != manifest || a.Header.Get("Docker-Content-Digest") != d.String() {
		t.Errorf("%s: %s", a.Header.Get("Docker-Content-Digest"), a.body)
	}
	if got := e.node().must(http.StatusOK, "GET", "/v2/team/app/manifests/1", nil, "Accept",
		mediaType); got.body != manifest {
		t.Errorf("a node gets %s", got.body)
	}
}

func TestExposedListenerServesItsOwnCertificate(t *testing.T) {
	e := startExposed(t)
	for sentence, config := range map[string]*tls.Config{
		"who trusts the cluster's authority": {RootCAs: e.ca.pool(), ServerName: serverName},
		"who asks for another name":          {RootCAs: e.outside.pool(), ServerName: "other.example.com"},
		"with TLS 1.1": {RootCAs: e.outside.pool(), ServerName: exposedName,
			MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11},
	} {
		if a, err := e.from(config).send("GET", "/v2/", nil); err == nil {
			t.Errorf("%s gets %d", sentence, a.StatusCode)
		}
	}
	inPlain := e.plain()
	inPlain.base = "http://" + e.addresses["exposed"]
	if a, err := inPlain.as(pushUser, pushPassword).send("GET", "/v2/", nil); err == nil &&
		a.StatusCode != http.StatusBadRequest {
		t.Errorf("plain HTTP gets %d", a.StatusCode)
	}
	// The certificate of the outside is none for the nodes' listener, and opens nothing there.
	if a, err := e.client(nil).send("GET", "/v2/", nil); err == nil {
		t.Errorf("the listener with mutual TLS answers %d without a certificate", a.StatusCode)
	}
}

func TestExposedListenerFallsBackToTheRegistryCertificate(t *testing.T) {
	e := startExposed(t, func(o *Options) { o.ExposeTLSDir = "" })
	c := e.from(&tls.Config{RootCAs: e.ca.pool(), ServerName: serverName}).as(outsideUser, outsidePassword)
	c.must(http.StatusOK, "GET", "/v2/", nil)
}

func TestExposedListenerReloadsItsFiles(t *testing.T) {
	e := startExposed(t)
	before := e.server.exposed.Current().Leaf.SerialNumber
	c := e.somebody().as("second", "another password")
	c.must(http.StatusUnauthorized, "GET", "/v2/", nil)
	e.certify()(t)
	writeFile(t, e.htpasswd, htpasswd(t, "second", "another password"))
	eventually(t, "the user is accepted and the certificate shown", func() bool {
		fresh := e.somebody().as("second", "another password")
		a, err := fresh.send("GET", "/v2/", nil)
		return err == nil && a.StatusCode == http.StatusOK && a.TLS.PeerCertificates[0].SerialNumber.Cmp(before) != 0
	})
	e.somebody().as(outsideUser, outsidePassword).must(http.StatusUnauthorized, "GET", "/v2/", nil)
	if err := os.Remove(e.htpasswd); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its users go with the file", func() bool {
		a, err := e.somebody().as("second", "another password").send("GET", "/v2/", nil)
		return err == nil && a.StatusCode == http.StatusUnauthorized
	})
	// The plain listener has a file of its own, and stayed open.
	e.plain().as(pullUser, pullPassword).must(http.StatusOK, "GET", "/v2/", nil)
	metrics := e.metrics()
	for _, name := range []string{"zarf_registry_exposed_tls_certificate_expiry_timestamp_seconds",
		"zarf_registry_exposed_tls_reload_errors_total"} {
		if !strings.Contains(metrics, "\n"+name+" ") {
			t.Errorf("missing metric %s", name)
		}
	}
}

func TestExposedUserMustNotCollideWithOtherUsers(t *testing.T) {
	e := startExposed(t)
	for _, name := range []string{pushUser, pullUser} {
		writeFile(t, e.htpasswd, bytes.Join([][]byte{htpasswd(t, name, "mine now"),
			htpasswd(t, outsideUser, outsidePassword)}, nil))
		eventually(t, "the file is refused", func() bool { return strings.Contains(e.logs.String(), `user \"`+name+`\"`) })
		e.somebody().as(name, "mine now").must(http.StatusUnauthorized, "GET", "/v2/", nil)
		e.somebody().as(outsideUser, outsidePassword).must(http.StatusOK, "GET", "/v2/", nil)
	}
}

func TestExposeOptionsAreValidated(t *testing.T) {
	for sentence, tt := range map[string]struct {
		options Options
		want    string
	}{
		"no certificate": {Options{PlainListen: ":0", ExposeListen: ":0", Htpasswd: "x"},
			"--expose-listen needs --expose-tls-dir"},
		"a directory alone": {Options{PlainListen: ":0", ExposeTLSDir: "x", Htpasswd: "x"}, "need --expose-listen"},
		"users alone":       {Options{PlainListen: ":0", ExposeHtpasswd: "x", Htpasswd: "x"}, "need --expose-listen"},
		"anonymous pull alone": {Options{PlainListen: ":0", ExposeAnonymousPull: true, Htpasswd: "x"},
			"need --expose-listen"},
	} {
		if err := tt.options.validate(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", sentence, err)
		}
	}
	if err := (&Options{ExposeListen: ":0", ExposeTLSDir: "x", Htpasswd: "x"}).validate(); err != nil {
		t.Errorf("the outside alone: %v", err)
	}
}
