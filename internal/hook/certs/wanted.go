package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/hook/certs/certmanager"
	"github.com/zarf-dev/zarf-registry/internal/hook/userobject"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// requestedReason is why a certificate is replaced that is not due.
const requestedReason = "it was requested"

// usableCA returns the CA in a Secret, or why it must be replaced: pki.CARenewal returns a
// reason, or it has the requested fingerprint.
func usableCA(secret *corev1.Secret, lifetime time.Duration, requested string, now time.Time) (ca *pki.CA, due string) {
	pair := keyPair(secret)
	if due := pki.CARenewal(pair, lifetime, now); due != "" {
		return nil, due
	}
	ca, err := pki.ParseCA(pair)
	switch {
	case err != nil:
		return nil, err.Error()
	case pki.Fingerprint(ca.Certificate()) == requested:
		return nil, requestedReason
	}
	return ca, ""
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

// wantedLeaves returns the certificates that the Secrets should hold: the copies, and all others from
// our own CA.
func wantedLeaves(leaves []secretLeaf, copies map[string]sourceLeaf, ca *pki.CA) []wantedLeaf {
	var out []wantedLeaf
	for _, l := range leaves {
		w := wantedLeaf{secretLeaf: l, ca: ca}
		if copied, ok := copies[l.role()]; ok {
			w.copied = &copied
		}
		out = append(out, w)
	}
	return out
}

// Sources has cert-manager issue the certificates, if it is their source, and checks those to copy.
func (r *Rotation) Sources(ctx context.Context) (string, error) {
	copies, err := r.copies(ctx)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d certificates can be copied", len(copies)), nil
}

// copies reads and checks the certificates to copy. It waits for cert-manager only once per run.
func (r *Rotation) copies(ctx context.Context) (map[string]sourceLeaf, error) {
	switch {
	case r.PKI.Mode == state.PKIInternal:
		return nil, nil
	case r.from == nil && r.PKI.Mode == state.PKICertManager:
		if err := r.CertManager.Issue(ctx, *r.PKI.Issuer, r.certManagerLeaves(r.PKI)); err != nil {
			return nil, err
		}
		from := certmanager.Secrets(r.Settings.Name)
		r.from = &from
	case r.from == nil:
		r.from = r.PKI.Existing
	}
	copies, problems, err := r.sources(ctx, r.PKI, *r.from)
	if err != nil {
		return nil, err
	}
	return copies, userobject.Refuse(problems)
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

// readHeld reads the certificate Secrets. A certificate that no pod could load is due, and its
// held.Leaf is nil.
func (r *Rotation) readHeld(ctx context.Context, wanted []wantedLeaf) ([]heldLeaf, error) {
	var all []heldLeaf
	for _, w := range wanted {
		secret, err := r.leafSecret(ctx, w.secretLeaf)
		if err != nil {
			return nil, err
		}
		h := heldLeaf{wantedLeaf: w, secret: secret, pair: keyPair(secret)}
		if secret == nil {
			h.due = "it does not exist yet"
			all = append(all, h)
			continue
		}
		chain, err := pki.ParseChain(h.pair.Certificate)
		if w.role() == pki.OrganizationClient && (err != nil || !slices.Contains(pki.Roles(chain[0]), w.role())) {
			// Zarf writes certificates of its own when it is initialized and when it replaces credentials. Their CA
			// must not become part of any bundle.
			h.due = "Zarf has written another certificate"
			all = append(all, h)
			continue
		}
		h.held.Trust, _ = pki.ParseBundle(secret.Data[names.KeyCA]) // an invalid bundle is overwritten
		if err == nil {
			_, err = tls.X509KeyPair(h.pair.Certificate, h.pair.Key)
		}
		if err != nil {
			h.due = err.Error()
		} else {
			h.held.Leaf = chain[0]
		}
		all = append(all, h)
	}
	return all, nil
}

// position returns the state of the rotation. It sets due in the held certificates.
func (r *Rotation) position(held []heldLeaf) pki.Position {
	p := pki.Position{Held: map[string]pki.Held{}}
	for i := range held {
		h := &held[i]
		switch {
		case h.due != "":
		case slices.Contains(r.requested, pki.Fingerprint(h.held.Leaf)):
			h.due = requestedReason
		default:
			h.due = h.wantedLeaf.due(h.pair, r.Now())
		}
		if h.due != "" {
			p.Due = append(p.Due, h.role())
		}
		p.Want = p.Want.Union(h.trust())
		p.Held[h.role()] = h.held
	}
	return p
}
