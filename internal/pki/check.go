package pki

import (
	"crypto/x509"
	"errors"
	"net"
	"time"
)

// Roles are what a certificate entitles its holder to, out of the Organization
// constants: what its subject has as organization or organizational unit, and its
// URI names, because not every authority lets its customers choose the subject.
func Roles(cert *x509.Certificate) []string { return cert.Subject.Organization }

// Requirement is what a leaf of somebody else's making must be good for.
type Requirement struct {
	// DNSNames and IPAddresses are names that it must be valid for.
	DNSNames    []string
	IPAddresses []net.IP
	// Usages are extended key usages that it must allow.
	Usages []x509.ExtKeyUsage
	// Role is one of the Organization constants that it must carry; empty: none.
	Role string
}

// Check says everything that keeps a leaf from being used, nil where nothing does:
// each problem in a line of its own, in words that name what to change.
func Check(pair KeyPair, trust Bundle, want Requirement, now time.Time) error {
	return errors.New("not written yet")
}
