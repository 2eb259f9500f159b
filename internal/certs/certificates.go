package certs

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/names"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/state"
)

// Keys of the certificate Secrets, as in every kubernetes.io/tls Secret.
const (
	keyCertificate = corev1.TLSCertKey
	keyPrivateKey  = corev1.TLSPrivateKeyKey
)

// secretLeaf is a certificate of the release, with the suffix of the name of its Secret.
type secretLeaf struct {
	suffix string
	leaf   pki.Leaf
}

// role returns what the certificate authorizes its holder for.
func (l secretLeaf) role() string { return l.leaf.Organization }

// leaves returns the certificates of a release, as its own CA issues them.
func (k *Keeper) leaves(p state.PKI) []secretLeaf {
	serverName, lifetime := k.ServerName(), time.Duration(p.LeafLifetime)
	return []secretLeaf{
		{names.SuffixServerTLS, pki.Leaf{
			CommonName:   k.Settings.Name,
			Organization: pki.OrganizationServer,
			DNSNames: []string{
				k.Settings.Name,
				k.Settings.Name + "." + k.Settings.Namespace,
				serverName,
				serverName + "." + p.ClusterDomain,
			},
			Usages:   []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
			Lifetime: lifetime,
		}},
		{names.SuffixNodeTLS, pki.Leaf{
			CommonName:   k.Settings.Name + "-proxy",
			Organization: pki.OrganizationNode,
			// The proxy serves TLS on the loopback address of its node with the certificate that it presents
			// to the registry.
			DNSNames:    []string{loopbackName},
			IPAddresses: loopback(),
			Usages:      []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
			Lifetime:    lifetime,
		}},
		{names.SuffixPushTLS, pki.Leaf{
			CommonName:   k.Settings.Name + "-push",
			Organization: pki.OrganizationPush,
			Usages:       []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
			Lifetime:     lifetime,
		}},
	}
}

const loopbackName = "localhost"

func loopback() []net.IP { return []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback} }

// requirement returns what a certificate that init-hook did not issue must satisfy.
func (k *Keeper) requirement(role string, p state.PKI) pki.Requirement {
	switch role {
	case pki.OrganizationServer:
		return pki.Requirement{
			DNSNames: []string{k.ServerName()}, // the name that clients verify
			Usages:   []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		}
	case pki.OrganizationNode:
		want := pki.Requirement{
			Role:   role,
			Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
			// The private key is on every node.
			NotRole:   pki.OrganizationPush,
			NotServer: k.ServerName(),
		}
		if p.ServeTLS {
			want.Usages = append(want.Usages, x509.ExtKeyUsageServerAuth)
			want.DNSNames, want.IPAddresses = []string{loopbackName}, loopback()
		}
		return want
	default:
		return pki.Requirement{Role: role, Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	}
}

// sourceLeaf is a certificate to copy, and the object that it was read from.
type sourceLeaf struct {
	from  string
	pair  pki.KeyPair
	trust pki.Bundle
}

// Problem describes what is wrong with an object of the user. Cause continues a sentence that
// begins with the name of the object.
type Problem struct{ Object, Cause, Remedy string }

func (p Problem) String() string { return p.Object + " " + p.Cause }

// refuseAll returns one error for all problems, nil if there are none.
func refuseAll(problems []Problem) error {
	if len(problems) == 0 {
		return nil
	}
	lines := make([]string, len(problems))
	for i, p := range problems {
		lines[i] = strings.ReplaceAll(fmt.Sprintf("%s; %s", p, p.Remedy), "\n", " ")
	}
	return exitcode.Refuse("%s", strings.Join(lines, "\n  "))
}

// sourceSecret returns the name of the Secret of a role, "" if the role has none.
func sourceSecret(from state.ExistingSecrets, role string) string {
	switch role {
	case pki.OrganizationServer:
		return from.Server
	case pki.OrganizationNode:
		return from.Node
	default:
		return from.Push
	}
}

// sources reads the Secrets that certificates are copied from, and returns all their problems. It
// omits roles without a Secret.
func (k *Keeper) sources(
	ctx context.Context, p state.PKI, from state.ExistingSecrets,
) (map[string]sourceLeaf, []Problem, error) {
	var problems []Problem
	var fallback []byte // from the Secret that has only ca.crt
	if from.Authority != "" {
		secret, found, err := k.sourceSecret(ctx, p, from.Authority, names.KeyCA)
		if err != nil {
			return nil, nil, err
		}
		problems = append(problems, found...)
		if secret != nil {
			fallback = secret.Data[names.KeyCA]
			if _, err := pki.ParseBundle(fallback); len(fallback) > 0 && err != nil {
				problems = append(problems, badCA(k.Object("Secret", from.Authority), err))
				fallback = nil
			}
		}
	}
	leaves := map[string]sourceLeaf{}
	for _, l := range k.leaves(p) {
		name := sourceSecret(from, l.role())
		if name == "" {
			continue
		}
		leaf, found, err := k.source(ctx, p, l.role(), name, from.Authority, fallback)
		if err != nil {
			return nil, nil, err
		}
		problems = append(problems, found...)
		leaves[l.role()] = leaf
	}
	return leaves, problems, nil
}

func (k *Keeper) source(
	ctx context.Context, p state.PKI, role, name, caSecret string, fallback []byte,
) (sourceLeaf, []Problem, error) {
	secret, problems, err := k.sourceSecret(ctx, p, name, keyCertificate, keyPrivateKey)
	if err != nil || secret == nil {
		return sourceLeaf{}, problems, err
	}
	object := k.Object("Secret", name)
	trust := secret.Data[names.KeyCA]
	switch {
	case len(trust) > 0:
	case len(fallback) > 0:
		trust = fallback
	case p.Mode == state.PKICertManager:
		problems = append(problems, Problem{object, "has no key " + names.KeyCA + ": its issuer does not provide its CA",
			"use an issuer that does, such as a CA issuer, or pki.mode=existingSecret"})
	case caSecret != "":
		// The problems of that Secret are reported separately.
	default:
		problems = append(problems,
			Problem{object, "has no key " + names.KeyCA + ", and pki.existingSecret.ca names no other",
				"add the PEM of the CA that signed the certificate, or name a Secret that has it"})
	}
	if len(problems) > 0 || len(trust) == 0 {
		return sourceLeaf{}, problems, nil
	}
	bundle, err := pki.ParseBundle(trust)
	if err != nil {
		return sourceLeaf{}, []Problem{badCA(object, err)}, nil
	}
	if err := pki.Check(keyPair(secret), bundle, k.requirement(role, p), k.Now()); err != nil {
		for line := range strings.Lines(err.Error()) {
			problems = append(problems,
				Problem{object, "holds no certificate for " + purpose(role) + ": " + strings.TrimSpace(line), "replace it"})
		}
	}
	return sourceLeaf{object, keyPair(secret), bundle}, problems, nil
}

func badCA(object string, err error) Problem {
	return Problem{object, fmt.Sprintf("has a key %s that cannot be used: %v", names.KeyCA, err),
		"it must contain the PEM of the CA certificates and nothing else"}
}

// purpose returns what certificates of a role are for, for messages.
func purpose(role string) string {
	switch role {
	case pki.OrganizationServer:
		return "the registry"
	case pki.OrganizationNode:
		return "the proxies"
	default:
		return "pushing"
	}
}

// sourceSecret reads a Secret that init-hook did not create, and returns its problems. The Secret
// is nil if it cannot be used at all.
func (k *Keeper) sourceSecret(
	ctx context.Context, p state.PKI, name string, keys ...string,
) (*corev1.Secret, []Problem, error) {
	object := k.Object("Secret", name)
	secret, err := k.Secrets.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, []Problem{{object, "does not exist", "create it, or name another"}}, nil
	case err != nil:
		return nil, nil, fmt.Errorf("reading %s: %w", object, release.RefuseForbidden(err))
	case p.Mode == state.PKIExistingSecret && secret.Labels[names.LabelManagedBy] == names.Manager:
		return nil, []Problem{{object, "was made by init-hook, which overwrites and deletes it", "name your own Secret"}}, nil
	case secret.Type != corev1.SecretTypeTLS && secret.Type != corev1.SecretTypeOpaque && secret.Type != "":
		return nil, []Problem{{object,
			fmt.Sprintf("is of type %s, not %s or %s", secret.Type, corev1.SecretTypeTLS, corev1.SecretTypeOpaque),
			"name one that contains a certificate"}}, nil
	}
	var problems []Problem
	for _, key := range keys {
		if len(secret.Data[key]) == 0 {
			problems = append(problems, Problem{object, "has no key " + key, "add it, in PEM"})
		}
	}
	return secret, problems, nil
}

// ownCA reports whether the release has its own CA, which init-hook creates and stores.
func ownCA(p state.PKI) bool {
	return p.Mode == state.PKIInternal || p.Mode == state.PKIExistingSecret && p.Existing.Push == ""
}

// currentCA returns the release's own CA. It creates a new one if there is none, if the current one
// can no longer be used, or if this run replaces it. The certificate of the previous CA stays in
// the trust bundles as long as it is needed. Its key is discarded.
func (r *rotation) currentCA(ctx context.Context) (*pki.CA, error) {
	name := r.Settings.Name + names.SuffixCA
	secret, err := r.Secret(ctx, name)
	if err != nil {
		return nil, err
	}
	pair := keyPair(secret)
	reason := pki.CARenewal(pair, time.Duration(r.pki.AuthorityLifetime), r.Now())
	if reason == "" {
		present, err := pki.ParseCA(pair)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.Object("Secret", name), err)
		}
		if r.requestedCA != pki.Fingerprint(present.Certificate()) {
			return present, nil
		}
		reason = askedFor
	}
	made, err := pki.NewCA(r.Settings.Name+" certificate authority", r.Now(), time.Duration(r.pki.AuthorityLifetime))
	if err != nil {
		return nil, err
	}
	if err := r.WriteSecret(ctx, secret, name, names.ComponentCertificates, corev1.SecretTypeTLS,
		secretData(made.KeyPair(), nil)); err != nil {
		return nil, err
	}
	r.note("CA created", name, reason)
	r.reason = cmp.Or(r.reason, fmt.Sprintf("the authority in %s is new: %s", r.Object("Secret", name), reason))
	return made, nil
}

// wantedLeaf is a certificate that a Secret should hold: a copy, or one that our own CA issues.
type wantedLeaf struct {
	secretLeaf
	copied *sourceLeaf
	ca     *pki.CA
}

// trust returns the CAs that peers must trust to accept the certificate.
func (w wantedLeaf) trust() pki.Bundle {
	if w.copied != nil {
		return w.copied.trust
	}
	return pki.NewBundle(w.ca.Certificate())
}

// due returns why the certificate in the Secret must be replaced, "" if it can stay.
func (w wantedLeaf) due(held pki.KeyPair, now time.Time) string {
	if w.copied == nil {
		return pki.LeafRenewal(held, w.leaf, w.ca, now)
	}
	if !bytes.Equal(held.Certificate, w.copied.pair.Certificate) || !bytes.Equal(held.Key, w.copied.pair.Key) {
		return w.copied.from + " has another certificate"
	}
	return ""
}

func (w wantedLeaf) make(now time.Time) (pki.KeyPair, error) {
	if w.copied != nil {
		return w.copied.pair, nil
	}
	return w.ca.Issue(w.leaf, now)
}

// wanted returns the certificates that the Secrets should hold. It does not create a CA while there
// are problems with the certificates to copy.
func (r *rotation) wanted(ctx context.Context) ([]wantedLeaf, error) {
	copies, err := r.copies(ctx)
	if err != nil {
		return nil, err
	}
	var ca *pki.CA
	if ownCA(r.pki) {
		if ca, err = r.currentCA(ctx); err != nil {
			return nil, err
		}
	}
	var out []wantedLeaf
	for _, l := range r.leaves(r.pki) {
		w := wantedLeaf{secretLeaf: l, ca: ca}
		if copied, ok := copies[l.role()]; ok {
			w.copied = &copied
		}
		out = append(out, w)
	}
	return out, nil
}

// copies reads and checks the certificates to copy. It waits for cert-manager only once per run.
func (r *rotation) copies(ctx context.Context) (map[string]sourceLeaf, error) {
	switch {
	case r.pki.Mode == state.PKIInternal:
		return nil, nil
	case r.from == nil && r.pki.Mode == state.PKICertManager:
		from, err := r.certManagerSources(ctx, r.pki)
		if err != nil {
			return nil, err
		}
		r.from = &from
	case r.from == nil:
		r.from = r.pki.Existing
	}
	copies, problems, err := r.sources(ctx, r.pki, *r.from)
	if err != nil {
		return nil, err
	}
	return copies, refuseAll(problems)
}

// heldLeaf is the current content of a certificate Secret.
type heldLeaf struct {
	wantedLeaf
	secret *corev1.Secret
	pair   pki.KeyPair
	held   pki.Held
	// due is why the certificate must be replaced, "" if it can stay.
	due string
}

// readHeld reads a certificate Secret. A certificate that no pod could load is due, and its
// held.Leaf is nil.
func (k *Keeper) readHeld(ctx context.Context, w wantedLeaf) (heldLeaf, error) {
	out := heldLeaf{wantedLeaf: w}
	var err error
	if out.secret, err = k.Secret(ctx, k.Settings.Name+w.suffix); err != nil {
		return out, err
	}
	if out.secret == nil {
		out.due = "there is none yet"
		return out, nil
	}
	out.pair = keyPair(out.secret)
	out.held.Trust, _ = pki.ParseBundle(out.secret.Data[names.KeyCA]) // an invalid bundle is overwritten
	chain, err := pki.ParseChain(out.pair.Certificate)
	if err == nil {
		_, err = tls.X509KeyPair(out.pair.Certificate, out.pair.Key)
	}
	if err != nil {
		out.due = err.Error()
		return out, nil
	}
	out.held.Leaf = chain[0]
	return out, nil
}

func keyPair(secret *corev1.Secret) pki.KeyPair {
	if secret == nil {
		return pki.KeyPair{}
	}
	return pki.KeyPair{Certificate: secret.Data[keyCertificate], Key: secret.Data[keyPrivateKey]}
}

func secretData(pair pki.KeyPair, trust []byte) map[string][]byte {
	data := map[string][]byte{keyCertificate: pair.Certificate, keyPrivateKey: pair.Key}
	if trust != nil {
		data[names.KeyCA] = trust
	}
	return data
}

// DeleteUnneeded deletes the objects of PKI modes that are no longer in use. Call it only when
// nothing trusts their certificates any more.
func (k *Keeper) DeleteUnneeded(ctx context.Context, p state.PKI) (string, error) {
	var did []string
	if name := k.Settings.Name + names.SuffixCA; !ownCA(p) {
		secret, err := k.Secret(ctx, name)
		if err != nil {
			return "", err
		}
		if secret != nil {
			err := k.Secrets.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &secret.UID}})
			if err != nil && !apierrors.IsNotFound(err) {
				return "", fmt.Errorf("deleting %s: %w", k.Object("Secret", name), err)
			}
			did = append(did, "deleted "+k.Object("Secret", name))
		}
	}
	if p.Mode != state.PKICertManager {
		deleted, err := k.DeleteCertManager(ctx)
		switch {
		case release.MissingPermission(err):
			did = append(did, "no permission to read cert-manager objects, so none were created")
		case err != nil:
			return "", err
		case deleted != "nothing":
			did = append(did, deleted)
		}
	}
	if len(did) == 0 {
		return "nothing: there are no such objects", nil
	}
	return strings.Join(did, ", "), nil
}
