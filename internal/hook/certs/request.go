package certs

import (
	"context"
	"fmt"
	"strings"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// Request makes the run replace certificates that are not due, and the CA if ca is set. A CA rotation
// that is in progress continues instead.
func (r *Rotation) Request(ctx context.Context, ca bool, inProgress *state.Rotation) (string, error) {
	r.reason = "zarf-registry certs rotate asked for it"
	if r.PKI.Mode == state.PKIExistingSecret {
		var sources []string
		for _, l := range r.leaves(r.PKI) {
			if name := SourceSecret(*r.PKI.Existing, l.role()); name != "" {
				sources = append(sources, r.Object("Secret", name))
			}
		}
		return "", exitcode.Refuse("the certificates are copies of %s: renew them there, then run zarf-registry certs renew",
			strings.Join(sources, ", "))
	}
	if issuer := r.PKI.Issuer; issuer != nil && ca {
		return "", exitcode.Refuse("the CA belongs to %s %s, not to this release: replace it there, then run zarf-registry "+
			"certs rotate, which reissues all certificates", issuer.Kind, issuer.Name)
	}
	if ca && inProgress != nil {
		r.Log.Warn("a CA rotation is in progress; this run continues it and does not start another",
			"since", inProgress.Since, "rotation", inProgress.Phase, "reason", inProgress.Reason)
		return "nothing: a CA rotation is in progress and continues", nil
	}
	if r.PKI.Issuer != nil {
		if err := r.CertManager.Renew(ctx, *r.PKI.Issuer, r.certManagerLeaves(r.PKI)); err != nil {
			return "", err
		}
		return "cert-manager has issued new certificates", nil
	}
	for _, l := range r.leaves(r.PKI) {
		secret, err := r.leafSecret(ctx, l)
		if err != nil {
			return "", err
		}
		if chain, err := pki.ParseChain(keyPair(secret).Certificate); err == nil {
			r.requested = append(r.requested, pki.Fingerprint(chain[0]))
		}
	}
	if !ca {
		return fmt.Sprintf("certificates to replace: %d", len(r.requested)), nil
	}
	secret, err := r.Secret(ctx, r.Settings.Name+names.SuffixCA)
	if err != nil {
		return "", err
	}
	if present, err := pki.ParseCA(keyPair(secret)); err == nil {
		r.requestedCA = pki.Fingerprint(present.Certificate())
	}
	return fmt.Sprintf("replacing the CA and %d certificates", len(r.requested)), nil
}
