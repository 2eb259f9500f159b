package status

import (
	"bytes"
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/hook/certs"
	"github.com/zarf-dev/zarf-registry/internal/hook/certs/certmanager"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// Certificate describes the certificate in a Secret.
type Certificate struct {
	Secret   string    `json:"secret"`
	Subject  string    `json:"subject,omitempty"`
	NotAfter time.Time `json:"notAfter,omitzero"`
	// DaysLeft is the number of whole days until NotAfter, negative after it. Left is the
	// same to the second.
	DaysLeft int           `json:"daysLeft"`
	Left     time.Duration `json:"-"`
	// Valid reports whether the certificate is in its validity period, is signed by a CA
	// that its peers trust, and has the required names and usages. Message says why not.
	Valid   bool   `json:"valid"`
	Message string `json:"message,omitempty"`
}

// SecretCertificate describes a certificate Secret in detail.
type SecretCertificate struct {
	Certificate
	// Kind is the owner: ca, server, node, push, cache or client.
	Kind        string    `json:"kind"`
	CommonName  string    `json:"commonName,omitempty"`
	Roles       []string  `json:"roles,omitempty"`
	DNSNames    []string  `json:"dnsNames,omitempty"`
	IPAddresses []string  `json:"ipAddresses,omitempty"`
	URIs        []string  `json:"uris,omitempty"`
	Serial      string    `json:"serial,omitempty"`
	SHA256      string    `json:"sha256,omitempty"`
	Issuer      string    `json:"issuer,omitempty"`
	NotBefore   time.Time `json:"notBefore,omitzero"`
	// RenewAt is when init-hook or cert-manager renews it. It is zero if the user does.
	RenewAt time.Time `json:"renewAt,omitzero"`
	// TrustedCAs are the SHA-256 fingerprints of the certificates in ca.crt.
	TrustedCAs []string `json:"trustedCAs,omitempty"`
	// Source is the Secret it is copied from. It is nil if init-hook issues it.
	Source *Source `json:"source,omitempty"`

	role  string // "" for the CA
	pair  pki.KeyPair
	chain []*x509.Certificate // empty if it cannot be parsed
	trust pki.Bundle
}

// Source is the Secret of the user or of cert-manager from which a certificate is copied.
type Source struct {
	Secret   string    `json:"secret"`
	SHA256   string    `json:"sha256,omitempty"`
	NotAfter time.Time `json:"notAfter,omitzero"`
	// Copied reports whether its content is in use. Message says why not, or why this is unknown.
	Copied  bool   `json:"copied"`
	Message string `json:"message,omitempty"`
}

const kindCA = "ca"

// leaf is a leaf certificate: its name in reports, the name of its Secret, and its role.
type leaf struct{ name, secret, role string }

// leaves returns the leaf certificates of every mode, and that of Zarf's clients.
func (c *collector) leaves() []leaf {
	all := []leaf{
		{"server", c.Name + names.SuffixServerTLS, pki.OrganizationServer},
		{"node", c.Name + names.SuffixNodeTLS, pki.OrganizationNode},
		{"push", c.Name + names.SuffixPushTLS, pki.OrganizationPush},
	}
	if c.pki().Cache {
		all = append(all, leaf{"cache", c.Name + names.SuffixCacheTLS, pki.OrganizationCache})
	}
	if c.pki().Zarf {
		all = append(all, leaf{"client", names.ZarfClientTLS, pki.OrganizationClient})
	}
	return all
}

func (c *collector) certificates(ctx context.Context) error {
	if c.external() {
		return nil
	}
	held, err := c.held(ctx)
	for _, h := range held {
		c.report.Certificates = append(c.report.Certificates, h.Certificate)
	}
	c.rotation()
	return err
}

// stalled is the age at which a CA rotation needs attention. By default, the CronJob
// continues it every hour.
const stalled = time.Hour

func (c *collector) rotation() {
	s := c.report.State
	if s == nil || s.Rotation == nil || c.Now().Sub(s.Rotation.Since) < stalled {
		return
	}
	waiting := ""
	if s.Rotation.Waiting != "" {
		waiting = ", waiting for: " + oneLine(s.Rotation.Waiting)
	}
	c.next("The CA rotation started at %s is in phase %s%s: run %s, which continues it and shows what it waits for.",
		s.Rotation.Since.Format(time.RFC3339), s.Rotation.Phase, waiting, c.renewCommand())
}

// pki returns how certificates are issued: without a state, as by default.
func (c *collector) pki() state.PKI {
	if s := c.report.State; s != nil && s.PKI != nil {
		return *s.PKI
	}
	return state.PKI{Mode: state.PKIInternal}
}

// renewCommand returns the command that repairs a certificate.
func (c *collector) renewCommand() string {
	if s := c.report.State; s == nil || s.PKI == nil {
		return c.installCommand() // the state does not say how certificates are issued
	}
	command := "zarf-registry certs renew --namespace " + c.Namespace
	if c.Release != "zarf-registry" {
		command += " --release " + c.Release
	}
	if c.Name != "zarf-registry" {
		command += " --name " + c.Name
	}
	return command
}

// held reads the Secrets that pods mount, and the CA's if init-hook holds it.
func (c *collector) held(ctx context.Context) ([]*SecretCertificate, error) {
	p := c.pki()
	var list, found []*SecretCertificate
	if p.OwnCA() {
		h, err := c.read(ctx, kindCA, c.Name+names.SuffixCA)
		if err != nil {
			return nil, err
		}
		if h != nil {
			list = append(list, h)
		}
	}
	for _, k := range c.leaves() {
		h, err := c.read(ctx, k.name, k.secret)
		if err != nil {
			return nil, err
		}
		if h == nil {
			continue
		}
		h.role = k.role
		if k.role == pki.OrganizationClient && h.Message == "" && !slices.Contains(h.Roles, k.role) {
			h.Message, h.trust = "Zarf has written another certificate", pki.Bundle{} // which nobody else is to trust
		}
		if source := sourceName(c.Name, k.role, p); source != "" {
			h.Source = &Source{Secret: source}
		}
		found = append(found, h)
	}
	for _, h := range found {
		c.checkLeaf(h, found)
	}
	for _, h := range list {
		c.checkCA(h, found)
	}
	list = append(list, found...)
	for _, h := range list {
		c.advise(h)
	}
	return list, nil
}

// sourceName returns the Secret from which the certificate of a role is copied, or "".
func sourceName(name, role string, p state.PKI) string {
	switch {
	case p.Mode == state.PKICertManager:
		return certs.SourceSecret(certmanager.Secrets(name), role)
	case p.Mode == state.PKIExistingSecret && p.Existing != nil:
		return certs.SourceSecret(*p.Existing, role)
	}
	return ""
}

// read reads a Secret and describes it without regard to the others. It returns nil if
// reading is forbidden.
func (c *collector) read(ctx context.Context, kind, name string) (*SecretCertificate, error) {
	h := &SecretCertificate{Certificate: Certificate{Secret: name, Message: "not found"}, Kind: kind}
	secret, missing, err := c.secret(ctx, h.Secret)
	switch {
	case missing:
		return h, nil
	case secret == nil:
		return nil, err
	}
	h.pair = pki.KeyPair{Certificate: secret.Data[corev1.TLSCertKey], Key: secret.Data[corev1.TLSPrivateKeyKey]}
	h.Message = ""
	if h.chain, err = pki.ParseChain(h.pair.Certificate); err != nil {
		h.Message = "key tls.crt: " + err.Error()
		return h, nil
	}
	h.describe(h.chain[0], c.Now())
	if kind == kindCA {
		h.trust = pki.NewBundle(h.chain[0])
		return h, nil
	}
	if h.trust, err = pki.ParseBundle(secret.Data[names.KeyCA]); err != nil {
		h.Message = "key " + names.KeyCA + ": " + err.Error()
	}
	h.TrustedCAs = h.trust.Fingerprints()
	return h, nil
}

func (h *SecretCertificate) describe(cert *x509.Certificate, now time.Time) {
	h.Subject, h.NotBefore, h.NotAfter = cert.Subject.String(), cert.NotBefore, cert.NotAfter
	h.Left = cert.NotAfter.Sub(now).Round(time.Second)
	h.DaysLeft = int(h.Left / (24 * time.Hour))
	if h.Left < 0 {
		h.DaysLeft--
	}
	h.CommonName, h.Issuer = cert.Subject.CommonName, cert.Issuer.String()
	h.Roles, h.DNSNames = pki.Roles(cert), cert.DNSNames
	for _, ip := range cert.IPAddresses {
		h.IPAddresses = append(h.IPAddresses, ip.String())
	}
	for _, uri := range cert.URIs {
		h.URIs = append(h.URIs, uri.String())
	}
	h.Serial, h.SHA256 = fmt.Sprintf("%x", cert.SerialNumber), pki.Fingerprint(cert)
}

// checkLeaf checks whether its peers accept a leaf. Each trusts the ca.crt of its own
// Secret, and the Secrets are written one by one.
func (c *collector) checkLeaf(h *SecretCertificate, all []*SecretCertificate) {
	if h.Message != "" {
		return
	}
	want := certs.Requirement(h.role, c.Name, c.Namespace, c.pki())
	if err := pki.Check(h.pair, h.trust, want, c.Now()); err != nil {
		h.Message = sentences(err)
		return
	}
	for _, other := range all {
		if other != h && !other.trust.Empty() && pki.Check(h.pair, other.trust, pki.Requirement{}, c.Now()) != nil {
			h.Message = fmt.Sprintf("it is not signed by a CA in %s of Secret %s", names.KeyCA, other.Secret)
			return
		}
	}
	h.Valid = true
}

func (c *collector) checkCA(h *SecretCertificate, found []*SecretCertificate) {
	if h.Message != "" {
		return
	}
	_, err := pki.ParseCA(h.pair)
	switch now := c.Now(); {
	case err != nil:
		h.Message = sentences(err)
	case !now.Before(h.NotAfter):
		h.Message = "it expired at " + h.NotAfter.Format(time.RFC3339)
	case now.Before(h.NotBefore):
		h.Message = "it is not valid before " + h.NotBefore.Format(time.RFC3339)
	}
	// During a rotation, a new CA is written before pods trust it.
	if s := c.report.State; h.Message == "" && (s == nil || s.Rotation == nil) {
		for _, leaf := range found {
			if !leaf.trust.Empty() && !leaf.trust.Contains(h.trust) {
				h.Message = fmt.Sprintf("it is not in %s of Secret %s", names.KeyCA, leaf.Secret)
				break
			}
		}
	}
	h.Valid = h.Message == ""
}

// advise adds the next steps for a certificate and sets when it is due.
func (c *collector) advise(h *SecretCertificate) {
	old := false
	if len(h.chain) > 0 {
		begin := h.chain[0].NotBefore
		if issued := begin.Add(pki.Backdate); h.Source == nil && issued.Before(h.NotAfter) {
			begin = issued // as in package pki
		}
		life := h.NotAfter.Sub(begin)
		if h.Source == nil || c.pki().Mode == state.PKICertManager {
			h.RenewAt = begin.Add(life / 2)
		}
		// It was due at half of its lifetime, so renewal does not work.
		old = h.Left < life/4
	}
	switch {
	case !h.Valid:
		c.next("The certificate in Secret %s/%s is not usable (%s): %s.", c.Namespace, h.Secret, h.Message, c.remedy(h))
	case old:
		c.next("The certificate in Secret %s/%s expires in %s, less than a quarter of its lifetime: %s.", c.Namespace,
			h.Secret, Remaining(h.Left), c.remedy(h))
	}
}

func (c *collector) remedy(h *SecretCertificate) string {
	switch {
	case h.Source == nil:
		return c.renewCommand() + " issues a new one"
	case c.pki().Mode == state.PKICertManager:
		return fmt.Sprintf("kubectl --namespace %s describe certificate %s shows whether cert-manager renews it; %s then "+
			"copies it", c.Namespace, strings.TrimSuffix(h.Source.Secret, names.SuffixIssued), c.renewCommand())
	default:
		return fmt.Sprintf("put a valid one into Secret %s/%s; %s then copies it", c.Namespace, h.Source.Secret,
			c.renewCommand())
	}
}

func (c *collector) source(ctx context.Context, h *SecretCertificate) error {
	s := h.Source
	if s == nil {
		return nil
	}
	secret, missing, err := c.secret(ctx, s.Secret)
	if err != nil {
		return err
	}
	if secret == nil && !missing {
		s.Message = "no permission to read it"
		return nil
	}
	if missing {
		s.Message = "not found"
		c.next("Secret %s/%s, from which %s is copied, is missing: %s.", c.Namespace, s.Secret, h.Secret, c.sourceRemedy(h))
		return nil
	}
	chain, err := pki.ParseChain(secret.Data[corev1.TLSCertKey])
	if err != nil {
		s.Message = "key tls.crt: " + err.Error()
		c.next("Secret %s/%s cannot be copied to %s (%s): %s.", c.Namespace, s.Secret, h.Secret, s.Message, c.sourceRemedy(h))
		return nil
	}
	s.SHA256, s.NotAfter = pki.Fingerprint(chain[0]), chain[0].NotAfter
	if slices.EqualFunc(chain, h.chain, func(a, b *x509.Certificate) bool { return bytes.Equal(a.Raw, b.Raw) }) {
		s.Copied = true
		return nil
	}
	s.Message = "contains another certificate, which is not in use yet"
	if r := c.report.State.Rotation; r != nil {
		s.Message += ": the CA rotation comes first"
		return nil // rotation reports itself when it is late
	}
	c.next("Secret %s/%s contains another certificate than its copy %s: run %s, which checks and copies it.", c.Namespace,
		s.Secret, h.Secret, c.renewCommand())
	return nil
}

func (c *collector) sourceRemedy(h *SecretCertificate) string {
	if c.pki().Mode == state.PKICertManager {
		return c.remedy(h)
	}
	return fmt.Sprintf("create it, or set pki.existingSecret.%s; until then %s stays unchanged", h.Kind, h.Secret)
}

// Remaining formats a remaining time in days or, below two days, precisely.
func Remaining(left time.Duration) string {
	switch {
	case left >= 48*time.Hour:
		return fmt.Sprintf("%d days", left/(24*time.Hour))
	case left >= time.Hour:
		return strings.TrimSuffix(left.Truncate(time.Minute).String(), "0s")
	}
	return left.Truncate(time.Second).String()
}

func sentences(err error) string { return oneLine(strings.ReplaceAll(err.Error(), "\n", "; ")) }
