package pki

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Roles returns the roles of a certificate: the Organization constants that it contains as
// organization, organizational unit or URI, because not every CA lets its users choose all of them.
// The result has no duplicates and is in the order of the constants. Other values are ignored.
func Roles(cert *x509.Certificate) []string {
	carried := slices.Concat(cert.Subject.Organization, cert.Subject.OrganizationalUnit)
	for _, uri := range cert.URIs {
		carried = append(carried, uri.String())
	}
	var roles []string
	for _, role := range []string{OrganizationServer, OrganizationNode, OrganizationPush, OrganizationClient,
		OrganizationCache} {
		if slices.Contains(carried, role) {
			roles = append(roles, role)
		}
	}
	return roles
}

// Requirement describes what a user's leaf must be valid for.
type Requirement struct {
	// DNSNames and IPAddresses are names that it must be valid for.
	DNSNames    []string
	IPAddresses []net.IP
	// Usages are extended key usages that it must allow.
	Usages []x509.ExtKeyUsage
	// Role is the Organization constant that it must contain; empty: none.
	Role string
	// NotRoles are roles that it must not contain, and NotServers DNS names that it must not be able to
	// serve: otherwise its many holders could act as the single intended one. Empty: none.
	NotRoles   []string
	NotServers []string
}

// maxTrust is the maximum number of user CAs. A longer list is probably that of all public CAs,
// each of which could then grant access.
const maxTrust = 20

// Check returns every problem that makes a leaf unusable, nil if there is none. Each problem is one
// line and names what to change; "it" is the leaf. Names from the certificates are quoted, keys
// never.
func Check(pair KeyPair, trust Bundle, want Requirement, now time.Time) error {
	var problems []error
	add := func(err error) {
		if err != nil {
			problems = append(problems, err)
		}
	}
	chain, err := ParseChain(pair.Certificate)
	add(err)
	key, err := parseKey(pair.Key)
	add(err)
	if trust.Empty() {
		add(errors.New("there is no trusted CA"))
	}
	if n := len(trust.certs); n > maxTrust {
		add(fmt.Errorf("there are %d trusted CAs, more than %d: list only those that issued the certificates, since each "+
			"can issue more", n, maxTrust))
	}
	if len(chain) == 0 {
		return errors.Join(problems...)
	}
	leaf := chain[0]
	if key != nil && !belongs(key, leaf) {
		hint := ""
		if i := slices.IndexFunc(chain, func(c *x509.Certificate) bool { return belongs(key, c) }); i > 0 {
			hint = fmt.Sprintf(", but to certificate %d of the chain, which must come first", i+1)
		}
		add(errors.New("the private key does not belong to the certificate" + hint))
	}
	add(validAt(leaf, now))
	if leaf.IsCA {
		add(errors.New("it is itself a CA certificate"))
	}
	if missing := want.missingNames(leaf); len(missing) != 0 {
		add(fmt.Errorf("it is not valid for %s, %s", strings.Join(missing, ", "), onlyFor(leaf)))
	}
	for _, usage := range want.Usages {
		if !allows(leaf, usage) {
			add(fmt.Errorf("its extended key usages do not allow %s", usageName(usage)))
		}
	}
	if leaf.KeyUsage != 0 && leaf.KeyUsage&x509.KeyUsageDigitalSignature == 0 {
		add(errors.New("its key usages do not allow digital signatures, which TLS 1.3 needs"))
	}
	if want.Role != "" && !slices.Contains(Roles(leaf), want.Role) {
		add(fmt.Errorf("it does not carry the role %s as organization (O), organizational unit (OU) or URI", want.Role))
	}
	for _, role := range want.NotRoles {
		if slices.Contains(Roles(leaf), role) {
			add(fmt.Errorf("it also carries the role %s, which its holders must not have: use another certificate for that role",
				role))
		}
	}
	for _, name := range want.NotServers {
		if allows(leaf, x509.ExtKeyUsageServerAuth) && leaf.VerifyHostname(name) == nil {
			add(fmt.Errorf("it allows server authentication as %s, so its holders could impersonate the server: use separate "+
				"certificates", name))
		}
	}
	if !trust.Empty() {
		for _, err := range checkChain(chain, trust, want.Usages, now) {
			add(err)
		}
	}
	return errors.Join(problems...)
}

func validAt(cert *x509.Certificate, now time.Time) error {
	switch {
	case now.After(cert.NotAfter):
		return errors.New(expired(cert, now))
	case now.Before(cert.NotBefore):
		return errors.New(notYet(cert, now))
	}
	return nil
}

func (r Requirement) missingNames(leaf *x509.Certificate) []string {
	var missing []string
	for _, name := range slices.Concat(r.DNSNames, ipStrings(r.IPAddresses)) {
		if leaf.VerifyHostname(name) != nil {
			missing = append(missing, name)
		}
	}
	return missing
}

func onlyFor(leaf *x509.Certificate) string {
	const enough = 10
	names := slices.Concat(leaf.DNSNames, ipStrings(leaf.IPAddresses))
	if len(names) == 0 {
		return "it has no DNS names and IP addresses at all (a common name does not count)"
	}
	more := ""
	if len(names) > enough {
		names, more = names[:enough], fmt.Sprintf(" and %d more", len(names)-enough)
	}
	for i, name := range names {
		names[i] = strings.Trim(strconv.Quote(name), `"`) // untrusted input: no line breaks
	}
	return "only for " + strings.Join(names, ", ") + more
}

func allows(cert *x509.Certificate, usage x509.ExtKeyUsage) bool {
	unlimited := len(cert.ExtKeyUsage) == 0 && len(cert.UnknownExtKeyUsage) == 0
	return unlimited || slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageAny) || slices.Contains(cert.ExtKeyUsage, usage)
}

func usageName(usage x509.ExtKeyUsage) string {
	switch usage {
	case x509.ExtKeyUsageServerAuth:
		return "server authentication"
	case x509.ExtKeyUsageClientAuth:
		return "client authentication"
	}
	return fmt.Sprintf("usage %d", usage)
}

// checkChain returns the reasons why peers with this trust bundle would reject the leaf. x509's
// verification decides, but it reports only one reason, without names. If it rejects the leaf, the
// chain is walked for better reasons.
func checkChain(chain []*x509.Certificate, trust Bundle, usages []x509.ExtKeyUsage, now time.Time) []error {
	leaf := chain[0]
	options := x509.VerifyOptions{Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(), CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}
	for _, cert := range trust.certs {
		options.Roots.AddCert(cert)
	}
	for _, cert := range chain[1:] {
		options.Intermediates.AddCert(cert)
	}
	verified, err := leaf.Verify(options)
	if err != nil {
		problems := walk(chain, trust, now)
		if len(problems) == 0 && validAt(leaf, now) == nil {
			problems = append(problems, fmt.Errorf("verification failed: %w", err))
		}
		return problems
	}
	var problems []error
	for _, issuer := range verified[0][1:] {
		if problem := weakness(issuer.PublicKey); problem != "" { // x509 accepts any key
			problems = append(problems, fmt.Errorf("CA %q: its key: %s", issuer.Subject, problem))
		}
	}
	for _, usage := range usages {
		options.KeyUsages = []x509.ExtKeyUsage{usage}
		if _, err := leaf.Verify(options); err != nil && allows(leaf, usage) {
			problems = append(problems, fmt.Errorf("a CA between it and the trusted one does not allow %s", usageName(usage)))
		}
	}
	return problems
}

// walk follows the chain from the leaf to a trusted CA. It returns the problems of the certificates
// on the way, or where the chain ends.
func walk(chain []*x509.Certificate, trust Bundle, now time.Time) []error {
	var problems []error
	cert := chain[0]
	// No chain is longer than this unless it contains a cycle.
	for below := range chain {
		if trust.has(cert) {
			return problems
		}
		issuer, trusted := issuerOf(cert, trust.certs, now), true
		if issuer == nil {
			issuer, trusted = issuerOf(cert, chain[1:], now), false
		}
		if issuer == nil {
			return append(problems, noIssuer(cert, trust))
		}
		where := "intermediate"
		if trusted {
			where = "trusted CA"
		}
		about := func(problem string) {
			problems = append(problems, fmt.Errorf("%s %q: %s", where, issuer.Subject, problem))
		}
		if insecure(issuer.CheckSignature(cert.SignatureAlgorithm, cert.RawTBSCertificate, cert.Signature)) {
			problems = append(problems, fmt.Errorf("%q is signed with %s, which is insecure", cert.Subject,
				cert.SignatureAlgorithm))
		}
		if err := checkIsCA(issuer); err != nil {
			problems = append(problems, err)
		}
		if err := validAt(issuer, now); err != nil {
			about(err.Error())
		}
		if issuer.BasicConstraintsValid && issuer.MaxPathLen >= 0 && below > issuer.MaxPathLen {
			about(fmt.Sprintf("it allows %d CAs below it, and the chain has %d", issuer.MaxPathLen, below))
		}
		if trusted {
			return problems
		}
		cert = issuer
	}
	return append(problems, noIssuer(cert, trust))
}

// issuerOf returns the signer of cert, preferably one that is valid now; nil if there is none.
func issuerOf(cert *x509.Certificate, candidates []*x509.Certificate, now time.Time) *x509.Certificate {
	var found *x509.Certificate
	for _, c := range candidates {
		if !bytes.Equal(c.RawSubject, cert.RawIssuer) {
			continue
		}
		err := c.CheckSignature(cert.SignatureAlgorithm, cert.RawTBSCertificate, cert.Signature)
		if (err == nil || insecure(err)) && (found == nil || validAt(found, now) != nil) {
			found = c
		}
	}
	return found
}

func insecure(err error) bool {
	var algorithm x509.InsecureAlgorithmError
	return errors.As(err, &algorithm)
}

func noIssuer(cert *x509.Certificate, trust Bundle) error {
	sameName := func(c *x509.Certificate) bool { return bytes.Equal(c.RawSubject, cert.RawIssuer) }
	switch {
	case bytes.Equal(cert.RawIssuer, cert.RawSubject):
		return fmt.Errorf("%q is self-signed and is not among the trusted CAs", cert.Subject)
	case slices.ContainsFunc(trust.certs, sameName):
		return fmt.Errorf("%q was not signed by the trusted CA %q, but by another key of the same name", cert.Subject,
			cert.Issuer)
	}
	return fmt.Errorf("it does not lead to a trusted CA: add %q, the issuer of %q, as an intermediate to the chain or "+
		"as a trusted CA",
		cert.Issuer, cert.Subject)
}
