package hook

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/names"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/state"
)

// commandPatience is how long pods are waited for where a run's time has no end.
const commandPatience = time.Hour

// Renew renews the certificates that are due, goes on with a change of authorities
// that is under way, and copies what has changed in Secrets of the user. It reads
// from the state what Prepare was told.
func (h *Hook) Renew(ctx context.Context) error {
	c := &commanded{Hook: h}
	// A credential that cannot be copied must not keep the certificates from being
	// renewed, nor the other way round.
	var credential error
	err := h.runSteps(ctx, "renew", []step{
		{"read the saved state", "it says where certificates and credentials come from", c.readState},
		{"copy the push credential", "the user may have changed it", func(ctx context.Context) (string, error) {
			if c.external() || c.saved.PushSecret == "" {
				return "nothing: there is none to copy", nil
			}
			did, err := h.pushCredential(ctx, c.saved.PushSecret, true)
			if err != nil {
				h.Log.Error("the push credential cannot be copied; the present one goes on being used", "error", err.Error())
				credential = fmt.Errorf("renew: copy the push credential: %w", err)
				return "nothing: see the error", nil
			}
			return did, nil
		}},
		{"renew the certificates", "each is replaced at half of its life, or when its source has another", func(ctx context.Context) (string, error) {
			return c.rotate(ctx, &rotation{})
		}},
		{"delete what other PKI modes left", "nobody trusts it any more", c.unneeded},
	})
	return errors.Join(err, credential)
}

// Rotate replaces all certificates, due or not, and with authority the authority
// that signs them as well; it returns when every pod has loaded them.
func (h *Hook) Rotate(ctx context.Context, authority bool) error {
	c := &commanded{Hook: h}
	r := &rotation{observed: true}
	return h.runSteps(ctx, "rotate", []step{
		{"read the saved state", "it says where certificates come from", c.readState},
		{"ask for other certificates", "they are to be replaced whether they are due or not", func(ctx context.Context) (string, error) {
			return c.ask(ctx, r, authority)
		}},
		{"replace the certificates", "each pod must trust what another is about to show", func(ctx context.Context) (string, error) {
			return c.rotate(ctx, r)
		}},
		{"delete what other PKI modes left", "nobody trusts it any more", c.unneeded},
	})
}

// Credential is one of the two user names and passwords.
type Credential string

// The credentials.
const (
	PushCredential Credential = "push"
	PullCredential Credential = "pull"
)

// RotateCredential replaces a credential that the hook made, and returns when the
// registry takes the new one.
func (h *Hook) RotateCredential(ctx context.Context, credential Credential) error {
	c := &credentialRotation{commanded: &commanded{Hook: h}, credential: credential}
	if credential != PushCredential && credential != PullCredential {
		return refuse("there is no %q credential: choose %s or %s", credential, PushCredential, PullCredential)
	}
	unlessExternal := func(do work) work {
		return func(ctx context.Context) (string, error) {
			if c.external() {
				return nothingExternal, nil
			}
			return do(ctx)
		}
	}
	return h.runSteps(ctx, "rotate credential", []step{
		{"read the saved state", "it says where the credential comes from", c.readState},
		{fmt.Sprintf("replace the %s credential", credential), "who knows the former one loses it", unlessExternal(c.write)},
		{"wait for the registry", "until it has loaded the new one, the former is what it takes", unlessExternal(c.await)},
	})
}

const nothingExternal = "nothing: in external mode there are no certificates and credentials of ours"

// commanded is a run that goes by what Prepare recorded.
type commanded struct {
	*Hook
	saved *state.State
	// changing: a change of authorities was under way when the run began.
	changing bool
}

func (c *commanded) external() bool { return c.saved.Desired.Mode == state.ModeExternal }

func (c *commanded) readState(ctx context.Context) (string, error) {
	_, saved, err := c.loadState(ctx)
	switch {
	case err != nil:
		return "", refuseForbidden(err)
	case saved == nil:
		return "", c.noState()
	}
	c.saved = saved
	switch {
	case c.external():
		return nothingExternal, nil
	case saved.PKI == nil:
		return "", refuse("%s says nothing of the certificates, because it was written by release %s: run helm upgrade, init-hook install or init-hook prepare first",
			c.object("Secret", c.Settings.Name+names.SuffixState), cmp.Or(saved.UpdatedBy, "unknown"))
	}
	c.changing = saved.Rotation != nil
	if c.changing {
		return fmt.Sprintf("certificates are of mode %s; a change of authorities is under way since %s, in phase %s: %s",
			saved.PKI.Mode, saved.Rotation.Since.Format(time.RFC3339), saved.Rotation.Phase, saved.Rotation.Reason), nil
	}
	return fmt.Sprintf("certificates are of mode %s", saved.PKI.Mode), nil
}

// ask has r replace what would not be due.
func (c *commanded) ask(ctx context.Context, r *rotation, authority bool) (string, error) {
	if c.external() {
		return nothingExternal, nil
	}
	p := *c.saved.PKI
	r.reason = "init-hook certs rotate asked for it"
	if p.Mode == state.PKIExistingSecret {
		names := []string{c.object("Secret", p.Existing.Server), c.object("Secret", p.Existing.Node)}
		if p.Existing.Push != "" {
			names = append(names, c.object("Secret", p.Existing.Push))
		}
		return "", refuse("the certificates are copies of %s: renew them there, then run init-hook certs renew", strings.Join(names, ", "))
	}
	if authority && p.Issuer != nil {
		return "", refuse("the authority is that of %s %s, which is not ours: replace it there, then run init-hook certs rotate, which has all certificates issued again", p.Issuer.Kind, p.Issuer.Name)
	}
	if authority && c.changing {
		c.Log.Warn("a change of authorities is under way; this run goes on with it and begins no other",
			"since", c.saved.Rotation.Since, "rotation", c.saved.Rotation.Phase, "reason", c.saved.Rotation.Reason)
		return "nothing: a change of authorities is under way, and is gone on with", nil
	}
	if p.Mode == state.PKICertManager {
		if err := c.certManagerRenew(ctx, p, authority); err != nil {
			return "", err
		}
		return "cert-manager has issued other certificates", nil
	}
	for _, l := range c.leaves(p) {
		secret, err := c.secret(ctx, c.Settings.Name+l.suffix)
		if err != nil {
			return "", err
		}
		if chain, err := pki.ParseChain(keyPair(secret).Certificate); err == nil {
			r.asked = append(r.asked, pki.Fingerprint(chain[0]))
		}
	}
	if !authority {
		return fmt.Sprintf("certificates to replace: %d", len(r.asked)), nil
	}
	secret, err := c.secret(ctx, c.Settings.Name+names.SuffixCA)
	if err != nil {
		return "", err
	}
	if present, err := pki.ParseCA(keyPair(secret)); err == nil {
		r.askedAuthority = pki.Fingerprint(present.Certificate())
	}
	return fmt.Sprintf("the authority is to be replaced, and so are the certificates: %d", len(r.asked)), nil
}

// rotate has r go on until nothing is left to do.
func (c *commanded) rotate(ctx context.Context, r *rotation) (string, error) {
	if c.external() {
		return nothingExternal, nil
	}
	r.Hook, r.pki, r.patience = c.Hook, *c.saved.PKI, patience(ctx, commandPatience)
	waiting, err := r.run(ctx)
	if err != nil {
		return "", err
	}
	if len(waiting) > 0 {
		return "", fmt.Errorf("not all pods follow, and everything works as before: %s; see the pods' logs; init-hook certs renew, or the CronJob, goes on with it", enumerate(waiting))
	}
	if r.observed {
		return r.did() + "; all pods have loaded it", nil
	}
	return r.did(), nil
}

// unneeded deletes what Finish could not, because a change was under way. Where that
// fails the next upgrade does it.
func (c *commanded) unneeded(ctx context.Context) (string, error) {
	if c.external() || !c.changing {
		return "nothing: the last upgrade did it", nil
	}
	did, err := c.deleteUnneeded(ctx, *c.saved.PKI)
	if err != nil {
		c.Log.Warn("what other PKI modes left could not be deleted; the next upgrade does it", "error", err.Error())
		return "nothing: see the warning", nil
	}
	return did, nil
}
