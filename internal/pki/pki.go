// Package pki makes and judges the certificates between the proxies, the
// registry and whoever pushes: one certificate authority and the leaves that it
// signs, ECDSA P-256 throughout. Those of others' making, with ECDSA, Ed25519 or RSA
// keys, it checks (Check). And it says in which steps leaves and authorities change
// while all are in use (Next).
//
// It decides and computes only. It reads no clock (every function that depends
// on time takes now), does no I/O, knows no Kubernetes, and imports the
// standard library alone; where the certificates are kept is its callers'
// business.
package pki

import (
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"slices"
	"time"
)

// The roles of a leaf, carried in its subject's organization. The registry
// authorises by them: a node reads, a pusher may write as well if it also has
// the push credential.
const (
	OrganizationServer = "zarf-registry:server"
	OrganizationNode   = "zarf-registry:node"
	OrganizationPush   = "zarf-registry:push"
)

const (
	// DefaultCALifetime is how long a new authority is valid.
	DefaultCALifetime = 5 * 365 * 24 * time.Hour
	// DefaultLeafLifetime is how long a new leaf is valid. Renewal happens when
	// less than half is left, so a cluster may go without an upgrade for half
	// of this before a pull fails.
	DefaultLeafLifetime = 365 * 24 * time.Hour
	// Backdate is how far before now a certificate begins to be valid, so that
	// nodes whose clocks are behind accept it at once. Lifetimes do not count it.
	Backdate = time.Hour
)

// PrivateKey is a PEM-encoded private key: of PKCS #8 where this package made it,
// of PKCS #1 or SEC 1 where others did. It does not print itself.
type PrivateKey []byte

// String hides the key from fmt.
func (PrivateKey) String() string { return "<private key>" }

// GoString hides the key from %#v.
func (PrivateKey) GoString() string { return "<private key>" }

// LogValue hides the key from log/slog.
func (PrivateKey) LogValue() slog.Value { return slog.StringValue("<private key>") }

// KeyPair is a certificate and its private key, both PEM-encoded, as they stand
// in the tls.crt and tls.key of a Kubernetes TLS Secret. The zero value is an
// absent pair.
type KeyPair struct {
	Certificate []byte
	Key         PrivateKey
}

// Authority is a parsed certificate authority that can sign. It is immutable
// and safe for concurrent use.
type CA struct {
	pair KeyPair
	cert *x509.Certificate
	key  crypto.Signer
}

// Leaf describes a certificate to be issued.
type Leaf struct {
	// CommonName names the holder for people; nothing is decided by it.
	CommonName string
	// Organization is the holder's role, one of the Organization constants.
	Organization string
	// DNSNames and IPAddresses are the subject alternative names. A client-only
	// leaf needs none.
	DNSNames    []string
	IPAddresses []net.IP
	// Usages are the extended key usages; at least one is required.
	Usages []x509.ExtKeyUsage
	// Lifetime counts from now; zero means DefaultLeafLifetime. A leaf never
	// outlives its authority: its end is cut to the authority's.
	Lifetime time.Duration
}

// NewCA makes a self-signed certificate authority that may sign leaves
// and no further authorities. A lifetime of zero means DefaultCALifetime.
//
// Its subject is commonName with the certificate's serial number as serialNumber
// attribute, because two authorities of one name are trusted during a rotation:
// people, and the list of authorities in a TLS handshake, tell them apart by it.
func NewCA(commonName string, now time.Time, lifetime time.Duration) (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generating the authority's key: %w", err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: commonName, SerialNumber: fmt.Sprintf("%x", serial)},
		NotBefore:             now.Add(-Backdate),
		NotAfter:              now.Add(cmp.Or(lifetime, DefaultCALifetime)),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	pair, err := sign(template, template, key, key)
	if err != nil {
		return nil, fmt.Errorf("signing the authority: %w", err)
	}
	return ParseCA(pair)
}

// ParseCA reads an authority back from its PEM form. It refuses a
// certificate that may not sign others and a key that is not the certificate's.
func ParseCA(pair KeyPair) (*CA, error) {
	cert, key, err := pair.parse()
	if err != nil {
		return nil, err
	}
	if err := checkAuthority(cert); err != nil {
		return nil, err
	}
	return &CA{pair: pair, cert: cert, key: key}, nil
}

// KeyPair returns the authority's PEM form. The caller must not modify it.
func (a *CA) KeyPair() KeyPair { return a.pair }

// Certificate returns the authority's parsed certificate. The caller must not
// modify it.
func (a *CA) Certificate() *x509.Certificate { return a.cert }

// Issue signs a new leaf with a new key.
func (a *CA) Issue(leaf Leaf, now time.Time) (KeyPair, error) {
	if len(leaf.Usages) == 0 {
		return KeyPair{}, fmt.Errorf("leaf %q has no extended key usage", leaf.CommonName)
	}
	if !now.Before(a.cert.NotAfter) {
		return KeyPair{}, fmt.Errorf("certificate authority %q expired at %s", a.cert.Subject, a.cert.NotAfter.Format(time.RFC3339))
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return KeyPair{}, fmt.Errorf("generating the key of leaf %q: %w", leaf.CommonName, err)
	}
	serial, err := newSerial()
	if err != nil {
		return KeyPair{}, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: leaf.CommonName, Organization: []string{leaf.Organization}},
		NotBefore:             latest(now.Add(-Backdate), a.cert.NotBefore),
		NotAfter:              earliest(now.Add(leaf.lifetime()), a.cert.NotAfter),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           leaf.Usages,
		DNSNames:              leaf.DNSNames,
		IPAddresses:           leaf.IPAddresses,
		BasicConstraintsValid: true,
	}
	pair, err := sign(template, a.cert, key, a.key)
	if err != nil {
		return KeyPair{}, fmt.Errorf("signing leaf %q: %w", leaf.CommonName, err)
	}
	return pair, nil
}

// CARenewal says why the stored authority cannot go on being used, or ""
// where it can: it is missing or broken, less than half of its life is left, or
// more than the wanted lifetime. A lifetime of zero means DefaultCALifetime.
func CARenewal(pair KeyPair, lifetime time.Duration, now time.Time) string {
	if pair.empty() {
		return "there is none yet"
	}
	a, err := ParseCA(pair)
	if err != nil {
		return err.Error()
	}
	return lifetimeReason(a.cert, cmp.Or(lifetime, DefaultCALifetime), now)
}

// LeafRenewal says why the stored leaf must be issued again, or "" where it can
// stay: it is missing or broken, was signed by another authority or comes with more
// certificates than an authority's own leaf has, has other names, usages or another
// role than wanted, less than half of its life is left, or more than the wanted
// lifetime.
func LeafRenewal(pair KeyPair, want Leaf, a *CA, now time.Time) string {
	if pair.empty() {
		return "there is none yet"
	}
	cert, _, err := pair.parse()
	if err != nil {
		return err.Error()
	}
	switch {
	case cert.CheckSignatureFrom(a.cert) != nil:
		return fmt.Sprintf("it was not signed by the present authority %s", Fingerprint(a.cert))
	case cert.NotAfter.After(a.cert.NotAfter):
		return "it outlives its authority"
	case cert.Subject.CommonName != want.CommonName || !slices.Equal(cert.Subject.Organization, []string{want.Organization}):
		return fmt.Sprintf("its subject is %q", cert.Subject)
	case !sameSet(cert.DNSNames, want.DNSNames):
		return fmt.Sprintf("its DNS names are %q, wanted %q", cert.DNSNames, want.DNSNames)
	case !sameSet(ipStrings(cert.IPAddresses), ipStrings(want.IPAddresses)):
		return fmt.Sprintf("its IP addresses are %q, wanted %q", ipStrings(cert.IPAddresses), ipStrings(want.IPAddresses))
	case !slices.Equal(cert.ExtKeyUsage, want.Usages):
		return "its extended key usages are not the wanted ones"
	}
	return lifetimeReason(cert, want.lifetime(), now)
}

// ParseCertificate reads the one certificate of a PEM file. It refuses anything
// else in the file, and files over 64 KiB.
func ParseCertificate(data []byte) (*x509.Certificate, error) {
	chain, err := ParseChain(data)
	if err != nil {
		return nil, err
	}
	if len(chain) != 1 {
		return nil, fmt.Errorf("there are %d certificates where one is expected", len(chain))
	}
	return chain[0], nil
}

// Fingerprint is the certificate's SHA-256 in hexadecimal, as people compare it.
func Fingerprint(cert *x509.Certificate) string {
	return fmt.Sprintf("%x", sha256.Sum256(cert.Raw))
}

func (l Leaf) lifetime() time.Duration {
	return cmp.Or(l.Lifetime, DefaultLeafLifetime)
}

// lifetimeReason judges a certificate that Issue or NewCA made, perhaps with
// another lifetime than the one that is wanted now.
func lifetimeReason(cert *x509.Certificate, want time.Duration, now time.Time) string {
	left, life := cert.NotAfter.Sub(now), cert.NotAfter.Sub(cert.NotBefore)-Backdate
	if life <= 0 { // It was issued by a clock so far behind that its authority's begin was nearer than Backdate.
		life = want
	}
	switch {
	case now.Before(cert.NotBefore):
		return notYet(cert, now)
	case left <= 0:
		return expired(cert, now)
	case left < life/2:
		return fmt.Sprintf("%s of its %s are left, less than half", left.Round(time.Second), life)
	case life > want && left > want:
		// Both, because left alone also grows where a clock goes back.
		return fmt.Sprintf("%s of its %s are left, more than the wanted lifetime of %s", left.Round(time.Second), life, want)
	}
	return ""
}

func expired(cert *x509.Certificate, now time.Time) string {
	return fmt.Sprintf("it expired at %s (%s ago)", cert.NotAfter.Format(time.RFC3339), now.Sub(cert.NotAfter).Round(time.Second))
}

func notYet(cert *x509.Certificate, now time.Time) string {
	return fmt.Sprintf("it is not valid before %s (%s from now): is the clock right?",
		cert.NotBefore.Format(time.RFC3339), cert.NotBefore.Sub(now).Round(time.Second))
}

func sign(template, parent *x509.Certificate, key *ecdsa.PrivateKey, signer crypto.Signer) (KeyPair, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		return KeyPair{}, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return KeyPair{}, err
	}
	return KeyPair{
		Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:         pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}),
	}, nil
}

// newSerial draws 128 random bits; RFC 5280 section 4.1.2.2 wants a positive
// number of at most 20 octets.
func newSerial() (*big.Int, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 128))
	if err != nil {
		return nil, fmt.Errorf("drawing a serial number: %w", err)
	}
	return serial.Add(serial, big.NewInt(1)), nil
}

func sameSet(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

func ipStrings(ips []net.IP) []string {
	out := make([]string, len(ips))
	for i, ip := range ips {
		out[i] = ip.String()
	}
	return out
}

func earliest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
