package pki_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/test/golden"
	"github.com/zarf-dev/zarf-registry/test/require"
)

const week = 7 * 24 * time.Hour

// ca is an authority as others have them: with intermediates, any key and any flaw.
type ca struct {
	cert  *x509.Certificate
	key   crypto.Signer
	chain []*x509.Certificate // itself and what is above it, but for the root
}

// template is a change to what is signed.
type template func(*x509.Certificate)

var serials int64

// sign makes a certificate; by is nil for one that signs itself.
func sign(t testing.TB, by *ca, name string, public crypto.Signer, changes ...template) *x509.Certificate {
	t.Helper()
	serials++
	c := &x509.Certificate{
		SerialNumber: big.NewInt(serials), Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-week), NotAfter: now.Add(week), BasicConstraintsValid: true,
	}
	for _, change := range changes {
		change(c)
	}
	parent, signer := c, public
	if by != nil {
		parent, signer = by.cert, by.key
	}
	der := require.Value(x509.CreateCertificate(rand.Reader, c, parent, public.Public(), signer))(t)
	return require.Value(x509.ParseCertificate(der))(t)
}

func asCA(c *x509.Certificate) {
	c.IsCA, c.KeyUsage = true, x509.KeyUsageCertSign
}

func newCA(t testing.TB, by *ca, name string, changes ...template) *ca {
	t.Helper()
	key := ecKey(t, elliptic.P256())
	c := &ca{key: key, cert: sign(t, by, name, key, append([]template{asCA}, changes...)...)}
	if by != nil {
		c.chain = append([]*x509.Certificate{c.cert}, by.chain...)
	}
	return c
}

func ecKey(t testing.TB, curve elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	return require.Value(ecdsa.GenerateKey(curve, rand.Reader))(t)
}

func rsaKey(t testing.TB, bits int) *rsa.PrivateKey {
	t.Helper()
	return require.Value(rsa.GenerateKey(rand.Reader, bits))(t)
}

// parseFirst is the leaf alone.
func parseFirst(t testing.TB, pair pki.KeyPair) *x509.Certificate {
	t.Helper()
	return require.Value(pki.ParseChain(pair.Certificate))(t)[0]
}

func block(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func pkcs8(t testing.TB, key crypto.Signer) pki.PrivateKey {
	t.Helper()
	return block("PRIVATE KEY", require.Value(x509.MarshalPKCS8PrivateKey(key))(t))
}

func sec1(t testing.TB, key *ecdsa.PrivateKey) pki.PrivateKey {
	t.Helper()
	return block("EC PRIVATE KEY", require.Value(x509.MarshalECPrivateKey(key))(t))
}

func chainPEM(certs ...*x509.Certificate) []byte {
	var out []byte
	for _, cert := range certs {
		out = append(out, block("CERTIFICATE", cert.Raw)...)
	}
	return out
}

// asServer is what a user's server certificate has to be.
func asServer(c *x509.Certificate) {
	c.Subject.Organization = []string{server}
	c.DNSNames, c.IPAddresses = []string{"zarf-registry.zarf.svc", "zarf-registry"}, []net.IP{net.IPv4(127, 0, 0, 1)}
	c.ExtKeyUsage, c.KeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, x509.KeyUsageDigitalSignature
}

var serverRequirement = pki.Requirement{
	DNSNames: []string{"zarf-registry.zarf.svc"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, Role: server,
}

// The golden file says what each certificate is refused for.
func TestCheck(t *testing.T) {
	root := newCA(t, nil, "root")
	middle := newCA(t, root, "middle")
	key := ecKey(t, elliptic.P256())
	trusting := func(certs ...*x509.Certificate) *pki.Bundle {
		b := pki.NewBundle(certs...)
		return &b
	}
	// leaf is a good server certificate of by, but for the changes.
	leaf := func(by *ca, changes ...template) pki.KeyPair {
		cert := sign(t, by, "registry", key, append([]template{asServer}, changes...)...)
		return pki.KeyPair{Certificate: chainPEM(append([]*x509.Certificate{cert}, by.chain...)...), Key: pkcs8(t, key)}
	}
	withKey := func(key pki.PrivateKey) pki.KeyPair {
		return pki.KeyPair{Certificate: leaf(root).Certificate, Key: key}
	}
	of := func(key crypto.Signer, pemKey pki.PrivateKey) pki.KeyPair {
		return pki.KeyPair{Certificate: chainPEM(sign(t, root, "registry", key, asServer)), Key: pemKey}
	}
	names := func(names ...string) template {
		return func(c *x509.Certificate) { c.DNSNames, c.IPAddresses = names, nil }
	}
	uri := require.Value(url.Parse(server))(t)
	rsa2048, rsa1024 := rsaKey(t, 2048), rsaKey(t, 1024)
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	p224 := ecKey(t, elliptic.P224())
	good := leaf(root)
	parameters := block("EC PARAMETERS", []byte{0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07})
	many := make([]string, 12)
	for i := range many {
		many[i] = fmt.Sprintf("host-%d", i)
	}
	tooMany := pki.NewBundle(root.cert)
	for i := range 20 {
		tooMany = tooMany.Union(pki.NewBundle(newCA(t, nil, fmt.Sprint("root ", i)).cert))
	}
	rootOnly := func(change template) *ca { return newCA(t, nil, "flawed root", change) }
	below := func(change template) *ca { return newCA(t, root, "flawed middle", change) }
	expired := func(c *x509.Certificate) { c.NotAfter = now.Add(-time.Hour) }
	notCA := func(c *x509.Certificate) { c.IsCA, c.KeyUsage = false, 0 }
	deep := middle
	for i := range 9 {
		deep = newCA(t, deep, fmt.Sprint("middle ", i+2))
	}
	noPathBelow := newCA(t, nil, "narrow root", func(c *x509.Certificate) { c.MaxPathLenZero = true })
	weakRoot := &ca{key: rsa1024, cert: sign(t, nil, "weak root", rsa1024, asCA)}
	expiredRoot, futureRoot := rootOnly(expired), rootOnly(func(c *x509.Certificate) { c.NotBefore = now.Add(time.Hour) })
	noRoot, mute := rootOnly(notCA), rootOnly(func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageDigitalSignature })
	ours := authority(t, now, 0)
	ourLeaf := serverLeaf()
	ourLeaf.DNSNames = append(ourLeaf.DNSNames, "zarf-registry.zarf.svc")
	sameName := newCA(t, nil, "root")

	cases := map[string]struct {
		pair  pki.KeyPair
		trust *pki.Bundle      // nil: root
		want  *pki.Requirement // nil: what a server must be good for
		at    time.Time        // zero: now
	}{
		"a good one":           {pair: good},
		"with an intermediate": {pair: leaf(middle)},
		"with the root in the chain as well": {pair: pki.KeyPair{Certificate: slices.Concat(leaf(middle).Certificate,
			chainPEM(root.cert)), Key: good.Key}},
		"a wildcard": {pair: leaf(root, func(c *x509.Certificate) { c.DNSNames = []string{"*.zarf.svc"} })},
		"without any usages everything is allowed": {pair: leaf(root,
			func(c *x509.Certificate) { c.ExtKeyUsage, c.KeyUsage = nil, 0 })},
		"the usage that allows all": {pair: leaf(root,
			func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageAny} })},
		"the role as organizational unit": {pair: leaf(root,
			func(c *x509.Certificate) { c.Subject = pkix.Name{OrganizationalUnit: []string{"IT", server}} })},
		"the role as URI":                        {pair: leaf(root, func(c *x509.Certificate) { c.Subject, c.URIs = pkix.Name{}, []*url.URL{uri} })},
		"a peer's clock 10 minutes behind":       {pair: leaf(root), at: now.Add(-10 * time.Minute)},
		"ours, as another would check it":        {pair: issue(t, ours, ourLeaf, now), trust: trusting(ours.Certificate())},
		"an RSA key in PKCS #1":                  {pair: of(rsa2048, block("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(rsa2048)))},
		"an RSA key in PKCS #8":                  {pair: of(rsa2048, pkcs8(t, rsa2048))},
		"an ECDSA key in SEC 1":                  {pair: withKey(sec1(t, key))},
		"an ECDSA key behind its parameters":     {pair: withKey(slices.Concat(parameters, []byte(sec1(t, key))))},
		"an Ed25519 key":                         {pair: of(edKey, pkcs8(t, edKey))},
		"the previous CA is expired, not needed": {pair: good, trust: trusting(expiredRoot.cert, root.cert)},
		"one of two authorities with one name and one key is expired": {pair: good, trust: trusting(
			sign(t, nil, "root", root.key, asCA, expired), root.cert)},

		"nothing at all":        {},
		"no key":                {pair: withKey(nil)},
		"a blank key":           {pair: withKey([]byte(" \n"))},
		"no certificate":        {pair: pki.KeyPair{Key: good.Key}},
		"no authority":          {pair: good, trust: trusting()},
		"another's key":         {pair: withKey(pkcs8(t, ecKey(t, elliptic.P256())))},
		"a key of another kind": {pair: withKey(pkcs8(t, edKey))},
		"the chain upside down": {pair: pki.KeyPair{Certificate: chainPEM(middle.cert, parseFirst(t, leaf(middle))),
			Key: good.Key}, want: &pki.Requirement{Role: ""}},
		"an RSA key of 1024 bits": {pair: of(rsa1024, pkcs8(t, rsa1024))},
		"an ECDSA key on P-224":   {pair: of(p224, pkcs8(t, p224))},
		"an encrypted key":        {pair: withKey(block("ENCRYPTED PRIVATE KEY", []byte("secret")))},
		"an encrypted key from old versions": {pair: withKey([]byte("-----BEGIN EC PRIVATE KEY-----\nProc-Type: " +
			"4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\nc2VjcmV0\n-----END EC PRIVATE KEY-----\n"))},
		"two keys":                   {pair: withKey(slices.Concat(good.Key, good.Key))},
		"rubbish in the key":         {pair: withKey(block("PRIVATE KEY", []byte("hunter2")))},
		"rubbish as key":             {pair: withKey([]byte("hunter2"))},
		"a block of any name as key": {pair: withKey(block("HUNTER2", nil))},
		"the certificate as key":     {pair: withKey(good.Certificate)},
		"a key of 10 MB":             {pair: withKey(bytes.Repeat([]byte("x"), 10<<20))},
		"the key as certificate":     {pair: pki.KeyPair{Certificate: good.Key, Key: good.Key}},
		"a certificate of 10 MB":     {pair: pki.KeyPair{Certificate: bytes.Repeat([]byte("x"), 10<<20), Key: good.Key}},
		"rubbish before": {pair: pki.KeyPair{Certificate: slices.Concat([]byte("hunter2\n"), good.Certificate),
			Key: good.Key}},
		"rubbish behind": {pair: pki.KeyPair{Certificate: slices.Concat(good.Certificate, []byte("hunter2")), Key: good.Key}},
		"rubbish in between": {pair: pki.KeyPair{Certificate: slices.Concat(good.Certificate, []byte("hunter2\n"),
			good.Certificate), Key: good.Key}},
		"a damaged block before a good one": {pair: pki.KeyPair{Certificate: slices.Concat(
			[]byte("-----BEGIN CERTIFICATE-----\nhunter2!\n-----END CERTIFICATE-----\n"), good.Certificate), Key: good.Key}},
		"half a block": {pair: pki.KeyPair{Certificate: good.Certificate[:len(good.Certificate)/2], Key: good.Key}},
		"a block with headers": {pair: pki.KeyPair{Certificate: bytes.Replace(good.Certificate, []byte("-----\n"),
			[]byte("-----\nFor: hunter2\n\n"), 1), Key: good.Key}},
		"no certificate in the block": {pair: pki.KeyPair{Certificate: block("CERTIFICATE", []byte("hunter2")),
			Key: good.Key}},
		"the chain too long": {pair: leaf(deep)},

		"expired": {pair: leaf(root, func(c *x509.Certificate) { c.NotAfter = now.Add(-3 * time.Hour) })},
		"not yet valid, by 10 minutes": {pair: leaf(root,
			func(c *x509.Certificate) { c.NotBefore = now.Add(10 * time.Minute) })},
		"another name": {pair: leaf(root, names("registry.example.com", "registry"))},
		"an address as name": {pair: leaf(root,
			func(c *x509.Certificate) { c.IPAddresses, c.DNSNames = nil, append(c.DNSNames, "127.0.0.1") })},
		"a name with line breaks": {pair: leaf(root, names("a\nit is fine"))},
		"many other names":        {pair: leaf(root, names(many...))},
		"no names":                {pair: leaf(root, names())},
		"for servers, where a client is wanted": {pair: good,
			want: &pki.Requirement{Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}}},
		"for clients, where a server is wanted": {pair: leaf(root,
			func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} })},
		"not for signatures":           {pair: leaf(root, func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageKeyEncipherment })},
		"another role":                 {pair: good, want: &pki.Requirement{Role: node}},
		"the role as common name":      {pair: leaf(root, func(c *x509.Certificate) { c.Subject = pkix.Name{CommonName: server} })},
		"a role that it must not have": {pair: good, want: &pki.Requirement{NotRoles: []string{server}}},
		"a name that it must not serve": {pair: leaf(root, names("*.zarf.svc")),
			want: &pki.Requirement{NotServers: []string{"zarf-registry.zarf.svc"}}},
		"that name without server authentication": {pair: leaf(root,
			func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }),
			want: &pki.Requirement{NotServers: []string{"zarf-registry.zarf.svc"}, NotRoles: []string{node}}},
		"an authority as leaf": {pair: leaf(root, func(c *x509.Certificate) { c.IsCA = true })},
		"everything at once": {pair: leaf(root, func(c *x509.Certificate) {
			c.Subject.Organization, c.NotAfter, c.DNSNames = nil, now.Add(-time.Hour), []string{"x"}
		})},

		"a foreign authority":                  {pair: good, trust: trusting(noPathBelow.cert)},
		"without its intermediate":             {pair: pki.KeyPair{Certificate: chainPEM(parseFirst(t, leaf(middle))), Key: good.Key}},
		"with another's intermediate":          {pair: leaf(newCA(t, noPathBelow, "middle"))},
		"a new authority of the same name":     {pair: good, trust: trusting(sameName.cert)},
		"signed by itself":                     {pair: pki.KeyPair{Certificate: chainPEM(sign(t, nil, "alone", key, asServer)), Key: good.Key}},
		"an expired authority":                 {pair: leaf(expiredRoot), trust: trusting(expiredRoot.cert)},
		"an authority of tomorrow":             {pair: leaf(futureRoot), trust: trusting(futureRoot.cert)},
		"a root that is not a CA":              {pair: leaf(noRoot), trust: trusting(noRoot.cert)},
		"an authority that may not sign":       {pair: leaf(mute), trust: trusting(mute.cert)},
		"an expired intermediate":              {pair: leaf(below(expired))},
		"an intermediate that is no authority": {pair: leaf(below(notCA))},
		"an authority that allows none below it": {pair: leaf(newCA(t, noPathBelow, "middle")),
			trust: trusting(noPathBelow.cert)},
		"an authority for clients only": {pair: leaf(
			below(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }))},
		"an authority for other names": {pair: leaf(below(func(c *x509.Certificate) {
			c.PermittedDNSDomainsCritical, c.PermittedDNSDomains = true, []string{"example.com"}
		}))},
		"an authority with a short key": {pair: leaf(weakRoot), trust: trusting(weakRoot.cert)},
		"all the world's authorities":   {pair: good, trust: &tooMany},
	}
	golden := golden.Open(t, "check")
	for name, c := range cases {
		if c.trust == nil {
			c.trust = trusting(root.cert)
		}
		if c.want == nil {
			c.want = &serverRequirement
		}
		if c.at.IsZero() {
			c.at = now
		}
		err := pki.Check(c.pair, *c.trust, *c.want, c.at)
		if err == nil {
			golden.Check(t, name, "it is good")
			if _, err := tls.X509KeyPair(c.pair.Certificate, c.pair.Key); err != nil {
				t.Errorf("%s: TLS does not take what is good: %v", name, err)
			}
			continue
		}
		golden.Check(t, name, err.Error())
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the file is quoted: %v", name, err)
		}
	}
}

func TestRoles(t *testing.T) {
	uri := func(s string) *url.URL { return require.Value(url.Parse(s))(t) }
	key := ecKey(t, elliptic.P256())
	for name, c := range map[string]struct {
		change template
		want   []string
	}{
		"none": {func(*x509.Certificate) {}, nil},
		"by organization": {func(c *x509.Certificate) { c.Subject.Organization = []string{node} },
			[]string{node}},
		"by organizational unit": {func(c *x509.Certificate) { c.Subject.OrganizationalUnit = []string{push} },
			[]string{push}},
		"by URI": {func(c *x509.Certificate) {
			c.URIs = []*url.URL{uri("https://example.com"), uri(server)}
		}, []string{server}},
		"others are nobody's business": {func(c *x509.Certificate) {
			c.Subject.Organization = []string{"ACME", node, "zarf-registry:admin"}
		}, []string{node}},
		"a part or more of it is not it": {func(c *x509.Certificate) {
			c.Subject.Organization = []string{node + " ", "x" + node, "node", strings.ToUpper(node)}
		}, nil},
		"not by common name or DNS name": {func(c *x509.Certificate) {
			c.Subject.CommonName, c.DNSNames = node, []string{node}
		}, nil},
		"each once, in one order": {func(c *x509.Certificate) {
			c.Subject.Organization, c.Subject.OrganizationalUnit, c.URIs = []string{push, node}, []string{push,
				server, cache}, []*url.URL{uri(node)}
		}, []string{server, node, push, cache}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := pki.Roles(sign(t, nil, node, key, c.change)); !slices.Equal(got, c.want) {
				t.Errorf("roles are %q, want %q", got, c.want)
			}
		})
	}
}

// FuzzFiles: whatever is in the files, what is accepted is what crypto/tls takes, x509 believes and Requirement asks for; what is read
// means the same when it is written again; and no error quotes a key.
func FuzzFiles(f *testing.F) {
	root := newCA(f, nil, "root")
	middle := newCA(f, root, "middle")
	key := ecKey(f, elliptic.P256())
	leaf := chainPEM(sign(f, middle, "registry", key, asServer), middle.cert)
	trust := pki.NewBundle(root.cert).PEM()
	f.Add(leaf, []byte(pkcs8(f, key)), trust)
	f.Add(leaf, []byte(sec1(f, key)), slices.Concat(trust, leaf))
	f.Add(slices.Concat(leaf, []byte("hunter2")),
		[]byte("-----BEGIN EC PRIVATE KEY-----\nDEK-Info: x\n\nAA==\n-----END EC PRIVATE KEY-----"), trust[:len(trust)/2])
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"), []byte{},
		[]byte("-----BEGIN X-----\na: b\n\n-----END X-----\n"))
	f.Fuzz(func(t *testing.T, certificate, key, authorities []byte) {
		pair := pki.KeyPair{Certificate: certificate, Key: key}
		chain, err := pki.ParseChain(certificate)
		if (err == nil) != (len(chain) != 0) {
			t.Errorf("%d certificates and error %v", len(chain), err)
		}
		if err == nil {
			if again, err := pki.ParseChain(chainPEM(chain...)); err != nil ||
				!slices.EqualFunc(again, chain, (*x509.Certificate).Equal) {
				t.Errorf("a chain that was read cannot be read back: %v", err)
			}
		}
		bundle, err := pki.ParseBundle(authorities)
		if (err == nil) == bundle.Empty() {
			t.Errorf("%q and error %v", bundle.Fingerprints(), err)
		}
		if again, err := pki.ParseBundle(bundle.PEM()); !bundle.Empty() && (err != nil || !again.Equal(bundle)) {
			t.Errorf("what was read cannot be read back: %v", err)
		}
		for _, authority := range bundle.Certificates() {
			if !authority.IsCA {
				t.Errorf("%q is taken for an authority", authority.Subject)
			}
		}
		pki.CARenewal(pair, 0, now)
		err = pki.Check(pair, bundle, serverRequirement, now)
		if err != nil {
			for line := range bytes.Lines(key) {
				line = bytes.TrimSpace(line)
				if base64Line.Match(line) && strings.Contains(err.Error(), string(line)) &&
					!strings.Contains(quotable(slices.Concat(chain, bundle.Certificates())), string(line)) {
					t.Errorf("the key is quoted: %v", err)
				}
			}
			return
		}
		if _, err := tls.X509KeyPair(certificate, key); err != nil {
			t.Errorf("TLS does not take what is good: %v", err)
		}
		options := x509.VerifyOptions{Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(), CurrentTime: now,
			KeyUsages: serverRequirement.Usages}
		for _, authority := range bundle.Certificates() {
			options.Roots.AddCert(authority)
		}
		for _, intermediate := range chain[1:] {
			options.Intermediates.AddCert(intermediate)
		}
		if _, err := chain[0].Verify(options); err != nil {
			t.Errorf("x509 does not believe what is good: %v", err)
		}
		for _, name := range serverRequirement.DNSNames {
			if err := chain[0].VerifyHostname(name); err != nil {
				t.Errorf("what is good is not for %s: %v", name, err)
			}
		}
	})
}

// base64Line is a line as keys have them, and longer than any word of an error.
var base64Line = regexp.MustCompile(`^[A-Za-z0-9+/]{18,}={0,2}$`)

// quotable is what errors may quote of certificates.
func quotable(certs []*x509.Certificate) string {
	var b strings.Builder
	for _, c := range certs {
		fmt.Fprintln(&b, c.Subject, c.Issuer, c.DNSNames)
	}
	return b.String()
}
