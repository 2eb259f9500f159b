package pki

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
)

// Bundle is a set of CAs in the order of a ca.crt. The zero value is empty. It is immutable and
// safe for concurrent use.
type Bundle struct{ certs []*x509.Certificate }

// NewBundle returns a bundle without duplicates.
func NewBundle(certs ...*x509.Certificate) Bundle { return Bundle{}.with(certs) }

// ParseBundle parses a ca.crt. It rejects anything that is not a CA, an empty file, and files over
// 256 KiB.
func ParseBundle(data []byte) (Bundle, error) {
	blocks, err := parsePEM(data, maxBundle)
	if err != nil {
		return Bundle{}, fmt.Errorf("parsing CA certificates: %w", err)
	}
	if len(blocks) == 0 {
		return Bundle{}, errors.New("the CA certificates are missing: the file is empty")
	}
	certs, err := parseCertificates(blocks)
	if err != nil {
		return Bundle{}, fmt.Errorf("parsing CA certificates: %w", err)
	}
	for _, cert := range certs {
		if err := checkIsCA(cert); err != nil {
			return Bundle{}, err
		}
	}
	return NewBundle(certs...), nil
}

func checkIsCA(cert *x509.Certificate) error {
	switch {
	case !cert.IsCA || !cert.BasicConstraintsValid:
		return fmt.Errorf("certificate %q is not a CA", cert.Subject)
	case cert.KeyUsage != 0 && cert.KeyUsage&x509.KeyUsageCertSign == 0:
		return fmt.Errorf("certificate %q may not sign certificates: its key usages lack that", cert.Subject)
	}
	return nil
}

// PEM encodes the bundle as a ca.crt.
func (b Bundle) PEM() []byte {
	var out bytes.Buffer
	for _, cert := range b.certs {
		_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}) // writing to memory never fails
	}
	return out.Bytes()
}

// Certificates returns the CAs. The caller must not modify them.
func (b Bundle) Certificates() []*x509.Certificate { return slices.Clone(b.certs) }

// Fingerprints returns the fingerprints of the CAs in order.
func (b Bundle) Fingerprints() []string {
	out := make([]string, len(b.certs))
	for i, cert := range b.certs {
		out[i] = Fingerprint(cert)
	}
	return out
}

// Empty reports whether the bundle is empty.
func (b Bundle) Empty() bool { return len(b.certs) == 0 }

// Union returns the CAs of both bundles, those of b first.
func (b Bundle) Union(other Bundle) Bundle { return b.with(other.certs) }

// Contains reports whether all CAs of other are in b.
func (b Bundle) Contains(other Bundle) bool {
	return !slices.ContainsFunc(other.certs, func(cert *x509.Certificate) bool { return !b.has(cert) })
}

// Equal reports whether both contain the same CAs, in any order.
func (b Bundle) Equal(other Bundle) bool { return b.Contains(other) && other.Contains(b) }

func (b Bundle) has(cert *x509.Certificate) bool { return slices.ContainsFunc(b.certs, cert.Equal) }

func (b Bundle) with(certs []*x509.Certificate) Bundle {
	out := Bundle{slices.Clone(b.certs)}
	for _, cert := range certs {
		if !out.has(cert) {
			out.certs = append(out.certs, cert)
		}
	}
	return out
}
