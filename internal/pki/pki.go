// Package pki issues and verifies the certificates between proxies, registry and push clients: one
// CA and the leaves that it signs, all with ECDSA P-256. Check validates certificates of other
// issuers, with ECDSA, Ed25519 or RSA keys. Next plans the steps of a rotation of leaves and CAs
// that are in use.
//
// The package only decides and computes. It imports the standard library only, does no I/O, reads
// no clock (functions that depend on the time take now) and does not store certificates.
package pki

import (
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"slices"
	"time"
)

// Roles of a leaf, stored as its subject's organization. The registry authorizes by them: a node
// and a cache may read; a pusher may also write if it has the push credential too. So may a client, which
// many hold: it may write images and nothing else. Proxies accept a cache as a server too.
const (
	OrganizationServer = "zarf-registry:server"
	OrganizationNode   = "zarf-registry:node"
	OrganizationPush   = "zarf-registry:push"
	OrganizationClient = "zarf-registry:client"
	OrganizationCache  = "zarf-registry:cache"
)

const (
	// DefaultCALifetime is the validity of a new CA.
	DefaultCALifetime = 5 * 365 * 24 * time.Hour
	// DefaultLeafLifetime is the validity of a new leaf. Leaves are renewed when less than half is
	// left, so a cluster may go half of this time without an upgrade before a pull fails.
	DefaultLeafLifetime = 365 * 24 * time.Hour
	// Backdate is how far in the past a certificate's validity starts, so that nodes whose clocks are
	// behind accept it at once. Lifetimes do not include it.
	Backdate = time.Hour
)

// PrivateKey is a PEM-encoded private key: PKCS #8 if created by this package, or PKCS #1 or SEC 1.
// It does not print itself.
type PrivateKey []byte

// String hides the key from fmt.
func (PrivateKey) String() string { return "<private key>" }

// GoString hides the key from %#v.
func (PrivateKey) GoString() string { return "<private key>" }

// MarshalText hides the key from encoding/json, and so from log/slog, also in a KeyPair.
func (PrivateKey) MarshalText() ([]byte, error) { return []byte("<private key>"), nil }

// KeyPair is a certificate and its private key, both PEM-encoded, as in tls.crt and tls.key of a
// Kubernetes TLS Secret. The zero value is an absent pair.
type KeyPair struct {
	Certificate []byte
	Key         PrivateKey
}

// CA is a parsed certificate authority that can sign. It is immutable and safe for concurrent use.
type CA struct {
	pair KeyPair
	cert *x509.Certificate
	key  crypto.Signer
}

// Leaf describes a certificate to issue.
type Leaf struct {
	// CommonName is informational only.
	CommonName string
	// Organization is the role, one of the Organization constants.
	Organization string
	// DNSNames and IPAddresses are the subject alternative names. A client-only
	// leaf needs none.
	DNSNames    []string
	IPAddresses []net.IP
	// Usages are the extended key usages; at least one is required.
	Usages []x509.ExtKeyUsage
	// Lifetime starts now; zero means DefaultLeafLifetime. It is limited by the CA's expiry.
	Lifetime time.Duration
}

// NewCA creates a self-signed CA that may sign leaves but no other CAs. A lifetime of zero means
// DefaultCALifetime.
//
// The subject is commonName plus the certificate's serial number as serialNumber attribute: two CAs
// of the same name are trusted during a rotation, and users and the list of CAs in a TLS handshake
// distinguish them by it.
func NewCA(commonName string, now time.Time, lifetime time.Duration) (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generating the CA key: %w", err)
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
		return nil, fmt.Errorf("signing the CA certificate: %w", err)
	}
	return ParseCA(pair)
}

// ParseCA parses the PEM form of a CA. It rejects a certificate that may not sign others, and a key
// that does not match the certificate.
func ParseCA(pair KeyPair) (*CA, error) {
	cert, key, err := pair.parse()
	if err != nil {
		return nil, err
	}
	if err := checkIsCA(cert); err != nil {
		return nil, err
	}
	return &CA{pair: pair, cert: cert, key: key}, nil
}

// KeyPair returns the CA's PEM form. The caller must not modify it.
func (a *CA) KeyPair() KeyPair { return a.pair }

// Certificate returns the CA's parsed certificate. The caller must not modify it.
func (a *CA) Certificate() *x509.Certificate { return a.cert }

// Issue signs a new leaf with a new key.
func (a *CA) Issue(leaf Leaf, now time.Time) (KeyPair, error) {
	if len(leaf.Usages) == 0 {
		return KeyPair{}, fmt.Errorf("leaf %q has no extended key usage", leaf.CommonName)
	}
	if !now.Before(a.cert.NotAfter) {
		return KeyPair{}, fmt.Errorf("CA %q expired at %s", a.cert.Subject, a.cert.NotAfter.Format(time.RFC3339))
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
		NotBefore:             slices.MaxFunc([]time.Time{now.Add(-Backdate), a.cert.NotBefore}, time.Time.Compare),
		NotAfter:              slices.MinFunc([]time.Time{now.Add(leaf.lifetime()), a.cert.NotAfter}, time.Time.Compare),
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

// CARenewal returns the reason why the stored CA must be replaced, or "" if it can stay. Reasons
// are: it is missing or broken, less than half of its lifetime is left, or more than the configured
// lifetime. A lifetime of zero means DefaultCALifetime.
func CARenewal(pair KeyPair, lifetime time.Duration, now time.Time) string {
	if pair.empty() {
		return "it does not exist yet"
	}
	a, err := ParseCA(pair)
	if err != nil {
		return err.Error()
	}
	return lifetimeReason(a.cert, cmp.Or(lifetime, DefaultCALifetime), now)
}

// LeafRenewal returns the reason why the stored leaf must be reissued, or "" if it can stay.
// Reasons are: it is missing or broken, it is not signed by a or comes with a chain, its names,
// usages or role differ, less than half of its lifetime is left, or more than the configured
// lifetime.
func LeafRenewal(pair KeyPair, want Leaf, a *CA, now time.Time) string {
	if pair.empty() {
		return "it does not exist yet"
	}
	cert, _, err := pair.parse()
	if err != nil {
		return err.Error()
	}
	switch {
	case cert.CheckSignatureFrom(a.cert) != nil:
		return fmt.Sprintf("it was not signed by the current CA %s", Fingerprint(a.cert))
	case cert.NotAfter.After(a.cert.NotAfter):
		return "it outlives its CA"
	case cert.Subject.CommonName != want.CommonName ||
		!slices.Equal(cert.Subject.Organization, []string{want.Organization}):
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

func (l Leaf) lifetime() time.Duration {
	return cmp.Or(l.Lifetime, DefaultLeafLifetime)
}

// lifetimeReason checks the remaining lifetime of a certificate that Issue or NewCA created,
// possibly with another lifetime than is configured now.
func lifetimeReason(cert *x509.Certificate, want time.Duration, now time.Time) string {
	left, life := cert.NotAfter.Sub(now), cert.NotAfter.Sub(cert.NotBefore)-Backdate
	if life <= 0 { // The issuer's clock was so far behind that the CA's validity had started less than Backdate before.
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
		// Check both, because left also grows when a clock is set back.
		return fmt.Sprintf("%s of its %s are left, more than the wanted lifetime of %s", left.Round(time.Second), life, want)
	}
	return ""
}

func expired(cert *x509.Certificate, now time.Time) string {
	return fmt.Sprintf("it expired at %s (%s ago)", cert.NotAfter.Format(time.RFC3339),
		now.Sub(cert.NotAfter).Round(time.Second))
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

// newSerial returns 128 random bits. RFC 5280, section 4.1.2.2, requires a positive number of at
// most 20 octets.
func newSerial() (*big.Int, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 128))
	if err != nil {
		return nil, fmt.Errorf("generating a serial number: %w", err)
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
