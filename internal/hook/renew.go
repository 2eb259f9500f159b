package hook

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/hook/certs"
	"github.com/zarf-dev/zarf-registry/internal/hook/credentials"
	"github.com/zarf-dev/zarf-registry/internal/hook/reload"
	"github.com/zarf-dev/zarf-registry/internal/hook/steps"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// commandTimeout is the wait timeout for pods if the context has no deadline.
const commandTimeout = time.Hour

// Renew renews the certificates that are due, continues a CA rotation that is in progress, and
// copies what has changed in the user's Secrets. It uses the PKI settings in the saved state.
func (h *Hook) Renew(ctx context.Context) error {
	c := &command{run: h.start(), cronJob: h.CronJob}
	err := c.phase(ctx, "renew", []steps.Step{
		{Name: "read the saved state", Run: c.readState, Why: "it says where certificates and credentials come from"},
		{Name: "copy the push credential", Run: c.unlessExternal(c.copyCredential), Why: "the user may have changed it"},
		{Name: "renew the certificates", Run: c.unlessExternal(c.rotate),
			Why: "each is replaced at half of its lifetime, or when its source changes"},
		{Name: "delete what other PKI modes left", Run: c.deleteUnneeded, Why: "nothing trusts it any more"},
	})
	err = errors.Join(err, c.uncopied)
	c.recordRenewal(ctx, err)
	return err
}

// Rotate replaces all certificates, whether due or not. If ca is set, it replaces the CA as well.
// It returns when every pod has loaded the new certificates, except those on excluded nodes.
func (h *Hook) Rotate(ctx context.Context, ca bool, exclude ...string) error {
	c := &command{run: h.start(), cronJob: h.CronJob}
	return c.phase(ctx, "rotate", []steps.Step{
		{Name: "read the saved state", Run: c.readState, Why: "it says where certificates come from"},
		{Name: "exclude nodes", Why: "a compromised node may report anything",
			Run: func(ctx context.Context) (string, error) { return c.exclude(ctx, exclude) }},
		{Name: "request new certificates", Why: "they are replaced even if they are not due",
			Run: c.unlessExternal(func(ctx context.Context) (string, error) {
				c.rotation.Observed = true
				return c.rotation.Request(ctx, ca, c.saved.Rotation)
			})},
		{Name: "replace the certificates", Run: c.unlessExternal(c.rotate),
			Why: "all pods must trust a certificate before it is presented"},
		{Name: "delete what other PKI modes left", Run: c.deleteUnneeded, Why: "nothing trusts it any more"},
	})
}

// RotateCredential replaces a generated credential. It returns when the registry accepts the new
// one.
func (h *Hook) RotateCredential(ctx context.Context, credential credentials.Credential) error {
	c := &command{run: h.start()}
	r := &credentials.Rotation{Manager: c.credentials, Credential: credential}
	return c.phase(ctx, "rotate credential", []steps.Step{
		{Name: "read the saved state", Why: "it says where the credential comes from",
			Run: func(ctx context.Context) (did string, err error) {
				did, err = c.readState(ctx)
				r.Saved = c.saved
				return did, err
			}},
		{Name: fmt.Sprintf("replace the %s credential", credential), Run: c.unlessExternal(r.Write),
			Why: "the previous one loses access"},
		{Name: "wait for the registry", Run: c.unlessExternal(r.Await),
			Why: "it accepts the previous one until it has loaded the new one"},
	})
}

// command holds what the steps of one command share. It uses the settings that prepare saved.
type command struct {
	*run
	cronJob  bool
	saved    *state.State
	rotation *certs.Rotation
	// uncopied is why the push credential could not be copied, which must not prevent the renewal of the
	// certificates.
	uncopied error
}

const nothingExternal = "nothing: external mode needs no certificates and credentials"

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
	c.rotation = &certs.Rotation{Manager: c.certs, PKI: *saved.PKI}
	if r := saved.Rotation; r != nil {
		return fmt.Sprintf("certificates are of mode %s; a CA rotation is in progress since %s, in phase %s: %s",
			saved.PKI.Mode, r.Since.Format(time.RFC3339), r.Phase, r.Reason), nil
	}
	return fmt.Sprintf("certificates are of mode %s", saved.PKI.Mode), nil
}

func (c *command) copyCredential(ctx context.Context) (string, error) {
	did, err := c.credentials.Copy(ctx, c.saved)
	if err != nil {
		c.Log.Error("cannot copy the push credential; the current one stays in use", "error", err.Error())
		c.uncopied = fmt.Errorf("renew: copy the push credential: %w", err)
		return "nothing: see the error", nil
	}
	return did, nil
}

// exclude makes the rotation wait for no pod of these nodes.
func (c *command) exclude(ctx context.Context, nodes []string) (string, error) {
	if len(nodes) == 0 {
		return "none", nil
	}
	known, err := c.NodesReady(ctx)
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
		c.Excuse(name, "--exclude-node")
	}
	return release.ListNodes(nodes), nil
}

// rotate replaces certificates until nothing is left to do.
func (c *command) rotate(ctx context.Context) (string, error) {
	c.rotation.Timeout = reload.WaitTimeout(ctx, commandTimeout)
	waiting, err := c.rotation.Run(ctx)
	switch {
	case err != nil:
		return "", err
	case len(waiting) > 0:
		return "", fmt.Errorf("not all pods have loaded the certificates; all of them keep working: %s; see the logs of "+
			"the pods; zarf-registry certs renew, or the CronJob, continues the rotation", release.List(waiting))
	case c.rotation.Observed:
		return c.rotation.Did() + "; all pods have loaded them", nil
	}
	return c.rotation.Did(), nil
}

// deleteUnneeded deletes what finish had to keep because a CA rotation was in progress. If that fails,
// the next upgrade deletes it.
func (c *command) deleteUnneeded(ctx context.Context) (string, error) {
	if c.saved.Rotation == nil || c.external() {
		return "nothing: the last upgrade deleted it", nil
	}
	if c.cronJob {
		return "nothing: the next upgrade deletes it", nil
	}
	did, err := c.certs.DeleteUnneeded(ctx, *c.saved.PKI)
	if err != nil {
		c.Log.Warn("cannot delete what other PKI modes left; the next upgrade tries again", "error", err.Error())
		return "nothing: see the warning", nil
	}
	return did, nil
}

// maxRecorded is how much of an error the state Secret keeps, in bytes.
const maxRecorded = 1000

// recordRenewal records why a renewal failed, for zarf-registry status, or that it did not.
func (c *command) recordRenewal(ctx context.Context, failure error) {
	why := ""
	if failure != nil {
		text := strings.Join(strings.Fields(failure.Error()), " ")
		why = c.Now().UTC().Format(time.RFC3339) + ": " + text[:min(len(text), maxRecorded)]
	}
	// The failure may be that the time is over.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	why = strings.ToValidUTF8(why, "")
	err := c.UpdateState(ctx, func(s *state.State) bool {
		changed := s.RenewalFailed != why
		s.RenewalFailed = why
		return changed
	})
	if err != nil {
		c.Log.Info("cannot record the outcome", "error", err.Error())
	}
}
