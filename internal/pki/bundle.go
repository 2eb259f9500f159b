package pki

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
)

// Bundle is a set of certificate authorities, in the order in which they stand in a
// ca.crt. The zero value is empty. It is immutable and safe for concurrent use.
type Bundle struct{ certs []*x509.Certificate }

// NewBundle makes a bundle. What is there twice is taken once.
func NewBundle(certs ...*x509.Certificate) Bundle { return Bundle{}.with(certs) }

// ParseBundle reads a ca.crt. It refuses anything in it that is not a certificate
// authority, an empty file, and files over 64 KiB.
func ParseBundle(data []byte) (Bundle, error) {
	certs, err := parseCertificates(data)
	if err != nil {
		return Bundle{}, fmt.Errorf("parsing authorities: %w", err)
	}
	for _, cert := range certs {
		if !cert.IsCA || !cert.BasicConstraintsValid {
			return Bundle{}, fmt.Errorf("certificate %q is not a certificate authority", cert.Subject)
		}
	}
	return NewBundle(certs...), nil
}

// PEM is the bundle as a ca.crt holds it.
func (b Bundle) PEM() []byte {
	var out bytes.Buffer
	for _, cert := range b.certs {
		_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}) // writing to memory never fails
	}
	return out.Bytes()
}

// Certificates are the authorities. The caller must not modify them.
func (b Bundle) Certificates() []*x509.Certificate { return slices.Clone(b.certs) }

// Fingerprints are those of the authorities, in order.
func (b Bundle) Fingerprints() []string {
	out := make([]string, len(b.certs))
	for i, cert := range b.certs {
		out[i] = Fingerprint(cert)
	}
	return out
}

// Empty says whether nothing is in it.
func (b Bundle) Empty() bool { return len(b.certs) == 0 }

// Union has the authorities of both, those of b first.
func (b Bundle) Union(other Bundle) Bundle { return b.with(other.certs) }

// Contains says whether all authorities of other are in b.
func (b Bundle) Contains(other Bundle) bool {
	return !slices.ContainsFunc(other.certs, func(cert *x509.Certificate) bool { return !b.has(cert) })
}

// Equal says whether both have the same authorities, in whatever order.
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

// maxChain is how many certificates a file may hold: verification tries every order.
const maxChain = 10

// ParseChain reads a tls.crt: the leaf, then the intermediates that lead to an
// authority. It refuses anything else in the file, more than 10 certificates, and
// files over 64 KiB.
func ParseChain(data []byte) ([]*x509.Certificate, error) {
	certs, err := parseCertificates(data)
	if err != nil {
		return nil, fmt.Errorf("parsing certificate: %w", err)
	}
	return certs, nil
}

// begin is how every PEM block begins.
var begin = []byte("-----BEGIN ")

// parseCertificates is strict where encoding/pem passes over what it does not
// understand: a file of which one certificate was damaged must not be taken for one
// with fewer certificates.
func parseCertificates(data []byte) ([]*x509.Certificate, error) {
	if len(data) > maxPEM {
		return nil, fmt.Errorf("%d bytes are too many, the limit is %d", len(data), maxPEM)
	}
	var certs []*x509.Certificate
	for rest := bytes.TrimSpace(data); len(rest) > 0; {
		block, after := pem.Decode(rest)
		switch {
		case !bytes.HasPrefix(rest, begin):
			return nil, fmt.Errorf("after %d certificates there is something in it that is no PEM block", len(certs))
		case block == nil, bytes.Count(rest[:len(rest)-len(after)], begin) > 1:
			return nil, fmt.Errorf("PEM block %d is damaged", len(certs)+1)
		case block.Type != "CERTIFICATE":
			return nil, fmt.Errorf("found a PEM block %q where %q was expected", block.Type, "CERTIFICATE")
		case len(certs) == maxChain:
			return nil, fmt.Errorf("there are more than %d certificates in it", maxChain)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", len(certs)+1, err)
		}
		certs = append(certs, cert)
		rest = bytes.TrimSpace(after)
	}
	if len(certs) == 0 {
		return nil, errors.New("no PEM block found")
	}
	return certs, nil
}
