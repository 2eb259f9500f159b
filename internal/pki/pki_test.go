package pki_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/test/require"
)

var now = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func serverLeaf() pki.Leaf {
	return pki.Leaf{
		CommonName:   "registry",
		Organization: pki.OrganizationServer,
		DNSNames:     []string{"registry.zarf.svc", "registry"},
		IPAddresses:  []net.IP{net.ParseIP("127.0.0.1"), net.ParseIP("::1")},
		Usages:       []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
}

func nodeLeaf() pki.Leaf {
	return pki.Leaf{
		CommonName:   "node",
		Organization: pki.OrganizationNode,
		Usages:       []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
}

func authority(t *testing.T, at time.Time, lifetime time.Duration) *pki.CA {
	t.Helper()
	return require.Value(pki.NewCA("test authority", at, lifetime))(t)
}

func issue(t *testing.T, a *pki.CA, leaf pki.Leaf, at time.Time) pki.KeyPair {
	t.Helper()
	return require.Value(a.Issue(leaf, at))(t)
}

func parse(t *testing.T, pair pki.KeyPair) *x509.Certificate {
	t.Helper()
	return require.Value(pki.ParseCertificate(pair.Certificate))(t)
}

// Assertions are on the re-parsed PEM: what was signed, not what was asked for.
func TestIssuedCertificatesSayWhatWasAskedFor(t *testing.T) {
	a := authority(t, now, 0)
	ca := a.Certificate()
	if !ca.IsCA || !ca.MaxPathLenZero || ca.KeyUsage != x509.KeyUsageCertSign|x509.KeyUsageCRLSign ||
		len(ca.ExtKeyUsage) != 0 {
		t.Errorf("authority has the wrong constraints: %+v", ca)
	}
	if got := ca.Subject.CommonName; got != "test authority" {
		t.Errorf("authority is called %q", got)
	}
	cert := parse(t, issue(t, a, serverLeaf(), now))
	if cert.IsCA || cert.KeyUsage != x509.KeyUsageDigitalSignature {
		t.Errorf("leaf has the wrong constraints: CA %v, usage %v", cert.IsCA, cert.KeyUsage)
	}
	if got, want := fmt.Sprint(cert.DNSNames), "[registry.zarf.svc registry]"; got != want {
		t.Errorf("DNS names are %s, want %s", got, want)
	}
	if got, want := fmt.Sprint(cert.IPAddresses), "[127.0.0.1 ::1]"; got != want {
		t.Errorf("IP addresses are %s, want %s", got, want)
	}
	if got, want := cert.Subject.Organization[0], pki.OrganizationServer; got != want {
		t.Errorf("organization is %s, want %s", got, want)
	}
	if got, want := cert.NotAfter, now.Add(pki.DefaultLeafLifetime); !got.Equal(want) {
		t.Errorf("leaf ends %s, want %s", got, want)
	}
}

func TestAuthoritiesOfOneNameCanBeToldApart(t *testing.T) {
	// Both are read back from PEM, as a rotation reads them.
	read := func() *x509.Certificate {
		return require.Value(pki.ParseCA(authority(t, now, 0).KeyPair()))(t).Certificate()
	}
	one, other := read(), read()
	if one.Subject.CommonName != other.Subject.CommonName || bytes.Equal(one.RawSubject, other.RawSubject) {
		t.Errorf("subjects are %q and %q", one.Subject, other.Subject)
	}
	if got, want := one.Subject.SerialNumber, fmt.Sprintf("%x", one.SerialNumber); got != want {
		t.Errorf("the subject's serial number is %s, the certificate's %s", got, want)
	}
	if len(one.SubjectKeyId) == 0 || bytes.Equal(one.SubjectKeyId, other.SubjectKeyId) {
		t.Errorf("subject key identifiers are %x and %x", one.SubjectKeyId, other.SubjectKeyId)
	}
	a := authority(t, now, 0)
	leaf := parse(t, issue(t, a, nodeLeaf(), now))
	if !bytes.Equal(leaf.AuthorityKeyId, a.Certificate().SubjectKeyId) ||
		!bytes.Equal(leaf.RawIssuer, a.Certificate().RawSubject) {
		t.Errorf("leaf names its issuer %q %x, which is %q %x", leaf.Issuer, leaf.AuthorityKeyId, a.Certificate().Subject,
			a.Certificate().SubjectKeyId)
	}
}

func TestClocksMayDiffer(t *testing.T) {
	a := authority(t, now, 0)
	roots := x509.NewCertPool()
	roots.AddCert(a.Certificate())
	serverPair, clientPair := issue(t, a, serverLeaf(), now), issue(t, a, nodeLeaf(), now)
	for name, c := range map[string]struct {
		off      time.Duration
		accepted bool
	}{
		"10 minutes behind":                  {-10 * time.Minute, true},
		"10 minutes ahead":                   {10 * time.Minute, true},
		"as far behind as is taken care of":  {-pki.Backdate, true},
		"farther behind, which must be seen": {-pki.Backdate - time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			if err := handshake(t, roots, serverPair, clientPair, "registry", now.Add(c.off)); (err == nil) != c.accepted {
				t.Errorf("accepted = %v, want %v (%v)", err == nil, c.accepted, err)
			}
		})
	}
}

func TestALeafNeverOutlivesItsAuthority(t *testing.T) {
	a := authority(t, now, 10*time.Hour)
	cert := parse(t, issue(t, a, serverLeaf(), now.Add(4*time.Hour)))
	if !cert.NotAfter.Equal(a.Certificate().NotAfter) {
		t.Errorf("leaf ends %s, its authority %s", cert.NotAfter, a.Certificate().NotAfter)
	}
	if cert.NotBefore.Before(a.Certificate().NotBefore) {
		t.Errorf("leaf begins %s, before its authority %s", cert.NotBefore, a.Certificate().NotBefore)
	}
	if _, err := a.Issue(serverLeaf(), now.Add(11*time.Hour)); err == nil || !strings.Contains(err.Error(), "expired at") {
		t.Errorf("an expired authority signed: %v", err)
	}
}

func TestALeafWithoutUsageIsRefused(t *testing.T) {
	leaf := serverLeaf()
	leaf.Usages = nil
	if _, err := authority(t, now, 0).Issue(leaf, now); err == nil {
		t.Error("a leaf without extended key usage was issued")
	}
}

func TestMutualHandshake(t *testing.T) {
	a, foreign := authority(t, now, 0), authority(t, now, 0)
	roots := x509.NewCertPool()
	roots.AddCert(a.Certificate())
	cases := map[string]struct {
		server, client pki.KeyPair
		name           string
		accepted       bool
	}{
		"a node reaches the registry": {issue(t, a, serverLeaf(), now), issue(t, a, nodeLeaf(), now),
			"registry.zarf.svc", true},
		"by its loopback address as well": {issue(t, a, serverLeaf(), now), issue(t, a, nodeLeaf(), now),
			"127.0.0.1", true},
		"not under another name": {issue(t, a, serverLeaf(), now), issue(t, a, nodeLeaf(), now), "other.zarf.svc", false},
		"not with a server certificate": {issue(t, a, serverLeaf(), now), issue(t, a, serverLeaf(), now),
			"registry.zarf.svc", false},
		"not with a foreign authority's certificate": {issue(t, a, serverLeaf(), now), issue(t, foreign, nodeLeaf(), now),
			"registry.zarf.svc", false},
		"a foreign registry is not believed": {issue(t, foreign, serverLeaf(), now), issue(t, a, nodeLeaf(), now),
			"registry.zarf.svc", false},
		"a node cannot pass itself off as a registry": {issue(t, a, nodeLeaf(), now), issue(t, a, nodeLeaf(), now),
			"registry.zarf.svc", false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			err := handshake(t, roots, c.server, c.client, c.name, now)
			if (err == nil) != c.accepted {
				t.Errorf("accepted = %v, want %v (%v)", err == nil, c.accepted, err)
			}
		})
	}
}

func handshake(t *testing.T, roots *x509.CertPool, server, client pki.KeyPair, name string, at time.Time) error {
	t.Helper()
	load := func(p pki.KeyPair) []tls.Certificate {
		return []tls.Certificate{require.Value(tls.X509KeyPair(p.Certificate, p.Key))(t)}
	}
	clock := func() time.Time { return at }
	listener, err := tls.Listen("tcp", "127.0.0.1:0",
		&tls.Config{Certificates: load(server), ClientCAs: roots, ClientAuth: tls.RequireAndVerifyClientCert, Time: clock})
	require.NoError(t, err)
	defer listener.Close()
	served := make(chan error, 1)
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			_, err = conn.Write([]byte("x"))
			conn.Close()
		}
		served <- err
	}()
	conn, err := tls.Dial("tcp", listener.Addr().String(),
		&tls.Config{Certificates: load(client), RootCAs: roots, ServerName: name, Time: clock})
	if err == nil {
		_, err = conn.Read(make([]byte, 1)) // in TLS 1.3 the server's refusal arrives only here
		conn.Close()
	}
	if serverErr := <-served; err == nil {
		err = serverErr
	}
	return err
}

func TestLeafRenewal(t *testing.T) {
	a, other := authority(t, now, 0), authority(t, now, 0)
	good := issue(t, a, serverLeaf(), now)
	with := func(change func(*pki.Leaf)) pki.Leaf {
		l := serverLeaf()
		change(&l)
		return l
	}
	lifetime := func(d time.Duration) pki.Leaf { return with(func(l *pki.Leaf) { l.Lifetime = d }) }
	// Certificates know whole seconds: what is cut off of now must not make one due early.
	short := issue(t, a, lifetime(10*time.Minute), now.Add(700*time.Millisecond))
	cases := map[string]struct {
		pair   pki.KeyPair
		want   pki.Leaf
		by     *pki.CA
		at     time.Time
		reason string
	}{
		"a fresh one stays": {good, serverLeaf(), a, now, ""},
		"the order of names does not matter": {good,
			with(func(l *pki.Leaf) { l.DNSNames = []string{"registry", "registry.zarf.svc"} }), a, now, ""},
		"half its life is enough": {good, serverLeaf(), a, now.Add(pki.DefaultLeafLifetime / 2), ""},
		"less than half is not": {good, serverLeaf(), a,
			now.Add(pki.DefaultLeafLifetime/2 + time.Second), "4379h59m59s of its 8760h0m0s are left, less than half"},
		"ten minutes live five": {short, lifetime(10 * time.Minute), a, now.Add(5 * time.Minute), ""},
		"and no second more": {short, lifetime(10 * time.Minute), a,
			now.Add(5*time.Minute + time.Second), "4m59s of its 10m0s are left, less than half"},
		"a much shorter lifetime is wanted": {good, lifetime(10 * time.Minute), a, now,
			"8760h0m0s of its 8760h0m0s are left, more than the wanted lifetime of 10m0s"},
		"a longer one is": {short, serverLeaf(), a, now, ""},
		"a little shorter, and some has passed": {good, lifetime(pki.DefaultLeafLifetime - time.Hour), a,
			now.Add(2 * time.Hour), ""},
		"a clock 10 minutes back": {short, lifetime(10 * time.Minute), a, now.Add(-10 * time.Minute), ""},
		"issued by a clock far behind the authority's": {issue(t, a, lifetime(10*time.Minute), now.Add(-30*time.Minute)),
			lifetime(10 * time.Minute), a, now.Add(-26 * time.Minute), ""},
		"it comes with its authority": {pki.KeyPair{Certificate: slices.Concat(good.Certificate,
			a.KeyPair().Certificate), Key: good.Key}, serverLeaf(), a, now, "there are 2 certificates where one is expected"},
		"expired":                              {good, serverLeaf(), a, now.Add(2 * pki.DefaultLeafLifetime), "expired at"},
		"the clock went back before its birth": {good, serverLeaf(), a, now.Add(-2 * pki.Backdate), "not valid before"},
		"missing":                              {pki.KeyPair{}, serverLeaf(), a, now, "does not exist yet"},
		"key missing":                          {pki.KeyPair{Certificate: good.Certificate}, serverLeaf(), a, now, "the private key is missing"},
		"rubbish":                              {pki.KeyPair{Certificate: []byte("rubbish"), Key: good.Key}, serverLeaf(), a, now, "no PEM block"},
		"rubbish behind": {pki.KeyPair{Certificate: append(bytes.Clone(good.Certificate),
			"rubbish"...), Key: good.Key}, serverLeaf(), a, now, "something after PEM block 1"},
		"ten megabytes": {pki.KeyPair{Certificate: make([]byte, 10<<20), Key: good.Key}, serverLeaf(), a, now, "too many"},
		"another's key": {pki.KeyPair{Certificate: good.Certificate,
			Key: issue(t, a, serverLeaf(), now).Key}, serverLeaf(), a, now, "does not belong"},
		"another authority": {good, serverLeaf(), other, now, "not signed by the current CA"},
		"another DNS name": {good, with(func(l *pki.Leaf) { l.DNSNames = []string{"elsewhere"} }),
			a, now, "DNS names"},
		"another IP address": {good, with(func(l *pki.Leaf) { l.IPAddresses = nil }), a, now,
			"IP addresses"},
		"another role": {good,
			with(func(l *pki.Leaf) { l.Organization = pki.OrganizationPush }), a, now, "subject"},
		"another usage": {good,
			with(func(l *pki.Leaf) { l.Usages = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }), a, now, "usages"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := pki.LeafRenewal(c.pair, c.want, c.by, c.at)
			if (c.reason == "") != (got == "") || !strings.Contains(got, c.reason) {
				t.Errorf("reason is %q, want one with %q", got, c.reason)
			}
		})
	}
}

func TestAuthorityRenewal(t *testing.T) {
	good, short := authority(t, now, 0).KeyPair(), authority(t, now, 20*time.Minute).KeyPair()
	leaf := issue(t, authority(t, now, 0), serverLeaf(), now)
	cases := map[string]struct {
		pair   pki.KeyPair
		want   time.Duration
		at     time.Time
		reason string
	}{
		"a fresh one stays":     {good, 0, now, ""},
		"half of its life":      {short, 20 * time.Minute, now.Add(10 * time.Minute), ""},
		"missing":               {pki.KeyPair{}, 0, now, "does not exist yet"},
		"past half of its life": {short, 20 * time.Minute, now.Add(10*time.Minute + time.Second), "less than half"},
		"expired": {short, 20 * time.Minute, now.Add(3*time.Hour + 20*time.Minute),
			"it expired at 2026-11-20T12:20:00Z (3h0m0s ago)"},
		"from the future": {good, 0, now.Add(-pki.Backdate - 10*time.Minute),
			"it is not valid before 2026-11-20T11:00:00Z (10m0s from now): is the clock right?"},
		"a shorter life is wanted": {good, time.Hour, now, "more than the wanted lifetime of 1h0m0s"},
		"not an authority":         {leaf, 0, now, "not a CA"},
		"no key":                   {pki.KeyPair{Certificate: good.Certificate}, 0, now, "the private key is missing"},
		"no certificate":           {pki.KeyPair{Key: good.Key}, 0, now, "the certificate is missing"},
		"another authority's key": {pki.KeyPair{Certificate: good.Certificate, Key: authority(t, now, 0).KeyPair().Key}, 0,
			now, "does not belong"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := pki.CARenewal(c.pair, c.want, c.at)
			if (c.reason == "") != (got == "") || !strings.Contains(got, c.reason) {
				t.Errorf("reason is %q, want one with %q", got, c.reason)
			}
		})
	}
}

// Claim: Private keys never reach logs.
func TestPrivateKeysDoNotPrintThemselves(t *testing.T) {
	pair := authority(t, now, 0).KeyPair()
	var logged bytes.Buffer
	slog.New(slog.NewJSONHandler(&logged, nil)).Info("pair", "key", pair.Key, "pair", pair)
	slog.New(slog.NewTextHandler(&logged, nil)).Info("pair", "key", pair.Key, "pair", pair)
	// As text, as bytes and in base64.
	forms := []string{"PRIVATE", "80 82 73 86 65 84 69", "0x50, 0x52, 0x49, 0x56, 0x41, 0x54, 0x45",
		base64.StdEncoding.EncodeToString(pair.Key[:21])}
	for _, printed := range []string{fmt.Sprint(pair.Key), fmt.Sprintf("%v %+v %#v %s", pair, pair, pair.Key, pair.Key),
		logged.String()} {
		if slices.ContainsFunc(forms, func(form string) bool { return strings.Contains(printed, form) }) {
			t.Errorf("a private key was printed: %s", printed)
		}
	}
}
