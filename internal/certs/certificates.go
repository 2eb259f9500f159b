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

// secretLeaf is a certificate to hold, with the suffix of its Secret's name.
type secretLeaf struct {
	suffix string
	leaf   pki.Leaf
}

// role is what the certificate entitles to.
func (l secretLeaf) role() string { return l.leaf.Organization }

// leaves are the certificates of a release, as an authority of our own issues them.
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
			// The proxy serves TLS on its node's loopback address with the
			// certificate that it shows the registry.
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

// requirement is what a certificate of somebody else's making must be good for.
func (k *Keeper) requirement(role string, p state.PKI) pki.Requirement {
	switch role {
	case pki.OrganizationServer:
		return pki.Requirement{
			DNSNames: []string{k.ServerName()}, // what clients verify
			Usages:   []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		}
	case pki.OrganizationNode:
		want := pki.Requirement{
			Role:   role,
			Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
			// It is on every node.
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

// sourceLeaf is a certificate of somebody else's making, and where it was found.
type sourceLeaf struct {
	from  string
	pair  pki.KeyPair
	trust pki.Bundle
}

// Problem is something wrong with an object of the user. Cause continues a sentence that begins with
// the object's name.
type Problem struct{ Object, Cause, Remedy string }

func (p Problem) String() string { return p.Object + " " + p.Cause }

// refuseAll is the error of all problems, nil where there are none.
func refuseAll(problems []Problem) error {
	if len(problems) == 0 {
		return nil
	}
	lines := make([]string, len(problems))
	for i, p := range problems {
		lines[i] = strings.ReplaceAll(fmt.Sprintf("%s; %s", p, p.Remedy), "\n", " ")
	}
	return release.Refuse("%s", strings.Join(lines, "\n  "))
}

// sourceSecret names the Secret of a role.
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

// sources reads the Secrets that certificates are copied from, and says everything
// that is wrong with them. Roles without a Secret are left out.
func (k *Keeper) sources(ctx context.Context, p state.PKI, from state.ExistingSecrets) (map[string]sourceLeaf, []Problem, error) {
	var problems []Problem
	var fallback []byte // of the Secret that only has ca.crt
	if from.Authority != "" {
		secret, found, err := k.sourceSecret(ctx, p, from.Authority, names.KeyCA)
		if err != nil {
			return nil, nil, err
		}
		problems = append(problems, found...)
		if secret != nil {
			fallback = secret.Data[names.KeyCA]
			if _, err := pki.ParseBundle(fallback); len(fallback) > 0 && err != nil {
				problems = append(problems, badAuthority(k.Object("Secret", from.Authority), err))
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

func (k *Keeper) source(ctx context.Context, p state.PKI, role, name, authority string, fallback []byte) (sourceLeaf, []Problem, error) {
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
		problems = append(problems, Problem{object, "has no key " + names.KeyCA + ": its issuer does not tell its authority",
			"choose an issuer that does, as those of the kinds CA and SelfSigned do, or mode existingSecret"})
	case authority != "":
		// What is wrong with that Secret is said of it.
	default:
		problems = append(problems, Problem{object, "has no key " + names.KeyCA + ", and pki.existingSecret.ca names no other",
			"put the PEM of the authority there that signed the certificate, or name a Secret that has it"})
	}
	if len(problems) > 0 || len(trust) == 0 {
		return sourceLeaf{}, problems, nil
	}
	bundle, err := pki.ParseBundle(trust)
	if err != nil {
		return sourceLeaf{}, []Problem{badAuthority(object, err)}, nil
	}
	if err := pki.Check(keyPair(secret), bundle, k.requirement(role, p), k.Now()); err != nil {
		for line := range strings.Lines(err.Error()) {
			problems = append(problems, Problem{object, "holds no certificate for " + purpose(role) + ": " + strings.TrimSpace(line), "replace it"})
		}
	}
	return sourceLeaf{object, keyPair(secret), bundle}, problems, nil
}

func badAuthority(object string, err error) Problem {
	return Problem{object, fmt.Sprintf("has a key %s that cannot be used: %v", names.KeyCA, err), "put the PEM of the certificate authorities there, and nothing else"}
}

// purpose says what a role is for.
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

// sourceSecret reads a Secret that is not of our making, and says what it lacks. It is
// nil where there is none that could be meant.
func (k *Keeper) sourceSecret(ctx context.Context, p state.PKI, name string, keys ...string) (*corev1.Secret, []Problem, error) {
	object := k.Object("Secret", name)
	secret, err := k.Secrets.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, []Problem{{object, "does not exist", "make it, or name another"}}, nil
	case err != nil:
		return nil, nil, fmt.Errorf("reading %s: %w", object, release.RefuseForbidden(err))
	case p.Mode == state.PKIExistingSecret && secret.Labels[names.LabelManagedBy] == names.Manager:
		return nil, []Problem{{object, "was made by init-hook, which overwrites and deletes it", "name a Secret of your own"}}, nil
	case secret.Type != corev1.SecretTypeTLS && secret.Type != corev1.SecretTypeOpaque && secret.Type != "":
		return nil, []Problem{{object, fmt.Sprintf("is of type %s, not %s or %s", secret.Type, corev1.SecretTypeTLS, corev1.SecretTypeOpaque), "name one that holds a certificate"}}, nil
	}
	var problems []Problem
	for _, key := range keys {
		if len(secret.Data[key]) == 0 {
			problems = append(problems, Problem{object, "has no key " + key, "put it there, in PEM"})
		}
	}
	return secret, problems, nil
}

// ownAuthority says whether certificates are issued by the authority that init-hook keeps.
func ownAuthority(p state.PKI) bool {
	return p.Mode == state.PKIInternal || p.Mode == state.PKIExistingSecret && p.Existing.Push == ""
}

// authority returns the authority of our own. It makes a new one where there is
// none, where it cannot go on being used, and where it is the one to be replaced.
// Its certificate stays in the trust of all as long as it is needed; its key is not.
func (r *rotation) authority(ctx context.Context) (*pki.CA, error) {
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
		if r.askedAuthority != pki.Fingerprint(present.Certificate()) {
			return present, nil
		}
		reason = askedFor
	}
	made, err := pki.NewCA(r.Settings.Name+" certificate authority", r.Now(), time.Duration(r.pki.AuthorityLifetime))
	if err != nil {
		return nil, err
	}
	if err := r.WriteSecret(ctx, secret, name, names.ComponentCertificates, corev1.SecretTypeTLS, secretData(made.KeyPair(), nil)); err != nil {
		return nil, err
	}
	r.note("authority made", name, reason)
	r.reason = cmp.Or(r.reason, fmt.Sprintf("the authority in %s is new: %s", r.Object("Secret", name), reason))
	return made, nil
}

// wantedLeaf is where a certificate comes from: a copy, or an authority of our own.
type wantedLeaf struct {
	secretLeaf
	copied    *sourceLeaf
	authority *pki.CA
}

// trust is what whoever meets the certificate must trust.
func (w wantedLeaf) trust() pki.Bundle {
	if w.copied != nil {
		return w.copied.trust
	}
	return pki.NewBundle(w.authority.Certificate())
}

// due says why the held certificate is to be replaced, "" where it can stay.
func (w wantedLeaf) due(held pki.KeyPair, now time.Time) string {
	if w.copied == nil {
		return pki.LeafRenewal(held, w.leaf, w.authority, now)
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
	return w.authority.Issue(w.leaf, now)
}

// wanted is what the Secrets shall hold in the end. Nothing is made as long as
// something is wrong with what is to be copied.
func (r *rotation) wanted(ctx context.Context) ([]wantedLeaf, error) {
	copies, err := r.copies(ctx)
	if err != nil {
		return nil, err
	}
	var authority *pki.CA
	if ownAuthority(r.pki) {
		if authority, err = r.authority(ctx); err != nil {
			return nil, err
		}
	}
	var out []wantedLeaf
	for _, l := range r.leaves(r.pki) {
		w := wantedLeaf{secretLeaf: l, authority: authority}
		if copied, ok := copies[l.role()]; ok {
			w.copied = &copied
		}
		out = append(out, w)
	}
	return out, nil
}

// copies reads and checks what is copied. cert-manager is asked once in a run.
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

// heldLeaf is what one of our Secrets holds.
type heldLeaf struct {
	wantedLeaf
	secret *corev1.Secret
	pair   pki.KeyPair
	held   pki.Held
	// due says why the certificate is to be replaced, "" where it can stay.
	due string
}

// readHeld reads one of our Secrets. What no pod could load is due, and no leaf.
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
	out.held.Trust, _ = pki.ParseBundle(out.secret.Data[names.KeyCA]) // what cannot be read is written again
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

// DeleteUnneeded deletes what other PKI modes left, once nobody trusts it any more.
func (k *Keeper) DeleteUnneeded(ctx context.Context, p state.PKI) (string, error) {
	var did []string
	if name := k.Settings.Name + names.SuffixCA; !ownAuthority(p) {
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
			did = append(did, "cert-manager's objects may not be looked at: none were made with these rights")
		case err != nil:
			return "", err
		case deleted != "nothing":
			did = append(did, deleted)
		}
	}
	if len(did) == 0 {
		return "nothing: there is nothing of that", nil
	}
	return strings.Join(did, ", "), nil
}
