package certs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/hook/steps"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// commandTimeout is the wait timeout for pods if the context has no deadline.
const commandTimeout = time.Hour

// Renew renews the certificates that are due, continues a CA rotation that is in progress, and
// copies what has changed in the user's Secrets. It uses the PKI settings in the saved state.
func (m *Manager) Renew(ctx context.Context) error {
	c := &command{Manager: m}
	// A failure to copy the credential must not prevent the renewal of the certificates, nor the
	// reverse.
	var credential error
	copyCredential := func(ctx context.Context) (string, error) {
		did, err := c.copyCredential(ctx)
		if err != nil {
			m.Log.Error("cannot copy the push credential; the current one stays in use", "error", err.Error())
			credential = fmt.Errorf("renew: copy the push credential: %w", err)
			return "nothing: see the error", nil
		}
		return did, nil
	}
	err := m.run(ctx, "renew", []steps.Step{
		{Name: "read the saved state", Run: c.readState, Why: "it says where certificates and credentials come from"},
		{Name: "copy the push credential", Run: c.unlessExternal(copyCredential), Why: "the user may have changed it"},
		{Name: "renew the certificates", Why: "each is replaced at half of its lifetime, or when its source changes",
			Run: c.unlessExternal(func(ctx context.Context) (string, error) { return c.rotate(ctx, &rotation{}) })},
		{Name: "delete what other PKI modes left", Run: c.deleteUnneeded, Why: "nothing trusts it any more"},
	})
	err = errors.Join(err, credential)
	m.recordRenewal(ctx, err)
	return err
}

// maxRecorded is how much of an error the state Secret keeps, in bytes.
const maxRecorded = 1000

// recordRenewal records why a renewal failed, for zarf-registry status, or that it did not.
func (m *Manager) recordRenewal(ctx context.Context, failure error) {
	why := ""
	if failure != nil {
		text := strings.Join(strings.Fields(failure.Error()), " ")
		why = m.Now().UTC().Format(time.RFC3339) + ": " + text[:min(len(text), maxRecorded)]
	}
	// The failure may be that the time is over.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	why = strings.ToValidUTF8(why, "")
	err := m.UpdateState(ctx, func(s *state.State) bool {
		changed := s.RenewalFailed != why
		s.RenewalFailed = why
		return changed
	})
	if err != nil {
		m.Log.Info("cannot record the outcome", "error", err.Error())
	}
}

// copyCredential copies the push credential, if it is the user's.
func (c *command) copyCredential(ctx context.Context) (string, error) {
	if c.saved.PushSecret == "" {
		return "nothing: the credential is not a copy", nil
	}
	if err := c.RefuseZarfsName(ctx, c.saved.PushSecret); err != nil {
		return "", err
	}
	did, err := c.WritePush(ctx, c.saved.PushSecret, true)
	if err != nil {
		return "", err
	}
	_, err = c.copyRegistryAuth(ctx, authChange{push: true})
	return did, err
}

// Rotate replaces all certificates, whether due or not. If ca is set, it replaces the CA as well.
// It returns when every pod has loaded the new certificates, except those on excluded nodes.
func (m *Manager) Rotate(ctx context.Context, ca bool, exclude ...string) error {
	c := &command{Manager: m}
	r := &rotation{observed: true}
	return m.run(ctx, "rotate", []steps.Step{
		{Name: "read the saved state", Run: c.readState, Why: "it says where certificates come from"},
		{Name: "exclude nodes", Why: "a compromised node may report anything",
			Run: func(ctx context.Context) (string, error) { return m.exclude(ctx, exclude) }},
		{Name: "request new certificates", Why: "they are replaced even if they are not due",
			Run: c.unlessExternal(func(ctx context.Context) (string, error) { return c.request(ctx, r, ca) })},
		{Name: "replace the certificates", Why: "all pods must trust a certificate before it is presented",
			Run: c.unlessExternal(func(ctx context.Context) (string, error) { return c.rotate(ctx, r) })},
		{Name: "delete what other PKI modes left", Run: c.deleteUnneeded, Why: "nothing trusts it any more"},
	})
}

// exclude makes the rotation wait for no pod of these nodes.
func (m *Manager) exclude(ctx context.Context, nodes []string) (string, error) {
	if len(nodes) == 0 {
		return "none", nil
	}
	known, err := m.NodesReady(ctx)
	if err != nil {
		return "", release.RefuseForbidden(err)
	}
	for _, name := range nodes {
		if _, ok := known[name]; !ok {
			return "", exitcode.Refuse("node %s not found: leave out --exclude-node for it, since no rotation waits for its "+
				"pods", name)
		}
	}
	for _, name := range nodes {
		m.Excuse(name, "--exclude-node")
	}
	return release.ListNodes(nodes), nil
}

// Credential names a pair of user name and password.
type Credential string

// The credentials of a release. In proxy mode, nothing uses the pull credential.
const (
	PushCredential Credential = "push"
	PullCredential Credential = "pull"
)

// RotateCredential replaces a generated credential. It returns when the registry accepts the new
// one.
func (m *Manager) RotateCredential(ctx context.Context, credential Credential) error {
	c := &credentialRotation{command: &command{Manager: m}, credential: credential}
	return m.run(ctx, "rotate credential", []steps.Step{
		{Name: "read the saved state", Run: c.readState, Why: "it says where the credential comes from"},
		{Name: fmt.Sprintf("replace the %s credential", credential), Run: c.unlessExternal(c.write),
			Why: "the previous one loses access"},
		{Name: "wait for the registry", Run: c.unlessExternal(c.await),
			Why: "it accepts the previous one until it has loaded the new one"},
	})
}

const nothingExternal = "nothing: external mode needs no certificates and credentials"

// command is one run with the settings that prepare saved.
type command struct {
	*Manager
	saved *state.State
	// rotating reports whether a CA rotation was in progress when the run began.
	rotating bool
}

func (c *command) external() bool { return c.saved.Desired.Mode == state.ModeExternal }

func (c *command) unlessExternal(work steps.Work) steps.Work {
	return func(ctx context.Context) (string, error) {
		if c.external() {
			return nothingExternal, nil
		}
		return work(ctx)
	}
}

func (c *command) readState(ctx context.Context) (string, error) {
	_, saved, err := c.LoadState(ctx)
	switch {
	case err != nil:
		return "", release.RefuseForbidden(err)
	case saved == nil:
		return "", c.NoState()
	}
	c.saved = saved
	switch {
	case c.external():
		return nothingExternal, nil
	case saved.PKI == nil:
		return "", exitcode.Refuse("%s has no PKI settings: run helm upgrade, zarf-registry install or "+
			"zarf-registry prepare first",
			c.Object("Secret", c.Settings.Name+names.SuffixState))
	}
	c.rotating = saved.Rotation != nil
	if c.rotating {
		return fmt.Sprintf("certificates are of mode %s; a CA rotation is in progress since %s, in phase %s: %s",
			saved.PKI.Mode, saved.Rotation.Since.Format(time.RFC3339), saved.Rotation.Phase, saved.Rotation.Reason), nil
	}
	return fmt.Sprintf("certificates are of mode %s", saved.PKI.Mode), nil
}

// request makes r replace certificates that are not due.
func (c *command) request(ctx context.Context, r *rotation, ca bool) (string, error) {
	p := *c.saved.PKI
	r.reason = "zarf-registry certs rotate asked for it"
	if p.Mode == state.PKIExistingSecret {
		var sources []string
		for _, l := range c.leaves(p) {
			if name := SourceSecret(*p.Existing, l.role()); name != "" {
				sources = append(sources, c.Object("Secret", name))
			}
		}
		return "", exitcode.Refuse("the certificates are copies of %s: renew them there, then run zarf-registry certs renew",
			strings.Join(sources, ", "))
	}
	if ca && p.Issuer != nil {
		return "", exitcode.Refuse("the CA belongs to %s %s, not to this release: replace it there, then run zarf-registry "+
			"certs rotate, which reissues all certificates", p.Issuer.Kind, p.Issuer.Name)
	}
	if ca && c.rotating {
		c.Log.Warn("a CA rotation is in progress; this run continues it and does not start another",
			"since", c.saved.Rotation.Since, "rotation", c.saved.Rotation.Phase, "reason", c.saved.Rotation.Reason)
		return "nothing: a CA rotation is in progress and continues", nil
	}
	if p.Mode == state.PKICertManager {
		if err := c.certManagerRenew(ctx, p, ca); err != nil {
			return "", err
		}
		return "cert-manager has issued new certificates", nil
	}
	for _, l := range c.leaves(p) {
		secret, err := c.leafSecret(ctx, l)
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
	secret, err := c.Secret(ctx, c.Settings.Name+names.SuffixCA)
	if err != nil {
		return "", err
	}
	if present, err := pki.ParseCA(keyPair(secret)); err == nil {
		r.requestedCA = pki.Fingerprint(present.Certificate())
	}
	return fmt.Sprintf("replacing the CA and %d certificates", len(r.requested)), nil
}

// rotate runs r until nothing is left to do.
func (c *command) rotate(ctx context.Context, r *rotation) (string, error) {
	r.Manager, r.pki, r.recorded, r.timeout = c.Manager, *c.saved.PKI, true, waitTimeout(ctx, commandTimeout)
	waiting, err := r.run(ctx)
	if err != nil {
		return "", err
	}
	if len(waiting) > 0 {
		return "", fmt.Errorf("not all pods have loaded the certificates; all of them keep working: %s; see the logs of "+
			"the pods; zarf-registry certs renew, or the CronJob, continues the rotation", release.List(waiting))
	}
	if r.observed {
		return r.did() + "; all pods have loaded them", nil
	}
	return r.did(), nil
}

// deleteUnneeded deletes what finish had to keep because a CA rotation was in progress. If that fails,
// the next upgrade deletes it.
func (c *command) deleteUnneeded(ctx context.Context) (string, error) {
	if !c.rotating {
		return "nothing: the last upgrade deleted it", nil
	}
	if c.CronJob {
		return "nothing: the next upgrade deletes it", nil
	}
	did, err := c.DeleteUnneeded(ctx, *c.saved.PKI)
	if err != nil {
		c.Log.Warn("cannot delete what other PKI modes left; the next upgrade tries again", "error", err.Error())
		return "nothing: see the warning", nil
	}
	return did, nil
}
