package certs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/hook/nodes"
	"github.com/zarf-dev/zarf-registry/internal/hook/reload"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

const (
	// maxWrites limits the writing rounds of one run. A CA rotation takes four, and several rotations
	// can follow each other. More rounds mean an endless loop.
	maxWrites = 50
	// overdue is how long pods may take to load what a rotation wrote. Kubelets take up to 90 s.
	overdue = 10 * time.Minute
)

var errOtherSettings = errors.New("an upgrade has changed the PKI settings")

// Rotation replaces the content of the certificate Secrets step by step. It keeps no plan: each
// round reads everything again, calls pki.Next for the next step, and takes that one step. A run
// can therefore be killed at any point, and another run continues.
type Rotation struct {
	*Manager
	// PKI are the settings in the saved state. The run ends if an upgrade replaces them there.
	PKI state.PKI
	// Timeout is the total wait timeout for pods. Zero means that pods are queried once.
	Timeout time.Duration
	// Observed makes the run end only when all pods are known to have loaded everything.
	Observed bool

	// requested are the fingerprints of the certificates to replace even if they are not due.
	// requestedCA is the fingerprint of the CA to replace.
	requested   []string
	requestedCA string
	// from are the Secrets to copy from, nil until known.
	from *state.ExistingSecrets
	// reason is why the CA rotation starts, "" if unknown.
	reason string
	// wrote are the names of the Secrets that this run has written, in order.
	wrote []string

	// loaded holds the answers of the pods that have loaded target, by peer.key. late are the names of
	// the other pods.
	loaded    map[string]pki.Loaded
	target    string
	late      []string
	refresher reload.Refresher
	told      map[string]bool
	nodes     nodes.ReadyNodes
	// onNodes are the copies of the CAs on the nodes.
	onNodes *nodes.CACopies
	// held is what the last round read.
	held []heldLeaf
}

// note logs and records that a Secret was written.
func (r *Rotation) note(what, secret, reason string) {
	r.Log.Info(what, "secret", secret, "reason", reason)
	if !slices.Contains(r.wrote, secret) {
		r.wrote = append(r.wrote, secret)
	}
}

// Did describes what the run has written.
func (r *Rotation) Did() string {
	if len(r.wrote) == 0 {
		return "all are valid, nothing issued"
	}
	return "wrote " + strings.Join(r.wrote, ", ")
}

// Run takes steps until nothing is left to do or the timeout expires. It returns what each pod is
// still missing then. Prepare, finish, the commands and the CronJob all continue here.
func (r *Rotation) Run(ctx context.Context) ([]string, error) {
	end := time.Now().Add(r.Timeout)
	conflicts, writes := 0, 0
	for {
		came, missing, err := r.round(ctx, end)
		switch {
		case err == nil && came == complete:
			return nil, nil
		case err == nil && came == wrote:
			if writes++; writes > maxWrites {
				return nil, fmt.Errorf("the certificates are still not current after %d writes, the last of which wrote %s: does "+
					"something else write them?", maxWrites, strings.Join(r.wrote, ", "))
			}
			conflicts = 0
			continue
		case err != nil && release.IsConflict(err) && conflicts < release.MaxConflicts:
			conflicts++
			r.Log.Info("conflict with another writer; reading everything again", "error", err.Error())
			if err := release.Sleep(ctx, release.PollInterval); err != nil {
				return nil, err
			}
			continue
		case errors.Is(err, errOtherSettings),
			err != nil && (ctx.Err() != nil || !release.IsTransient(err) || !time.Now().Before(end)):
			return nil, err
		case err != nil:
			// The API server may be restarting.
			r.waitFor("the API server", err.Error())
		case !time.Now().Before(end):
			return missing, r.recordWaiting(ctx, missing)
		}
		if err := release.Sleep(ctx, min(reload.Poll, max(0, time.Until(end)))); err != nil {
			return missing, err
		}
	}
}

// outcome is what a round has come to.
type outcome int

const (
	wrote    outcome = iota // something that the next round must read
	waiting                 // for pods or nodes
	complete                // nothing is left to do
)

// round reads everything, decides on the next step, and takes it. It returns what is waited for.
func (r *Rotation) round(ctx context.Context, end time.Time) (outcome, []string, error) {
	s, err := r.read(ctx)
	if err != nil {
		return wrote, nil, err
	}
	if s.ca == nil && r.PKI.OwnCA() {
		return wrote, nil, r.writeCA(ctx, s.caSecret, s.caDue)
	}
	next, err := r.decide(ctx, s, end)
	if err != nil {
		return wrote, nil, err
	}
	missing, err := r.awaitNodes(ctx, s, next)
	if err != nil || len(missing) > 0 {
		return waiting, missing, err
	}
	return r.take(ctx, s, next)
}

// snapshot is what a round has read.
type snapshot struct {
	stateSecret *corev1.Secret
	saved       *state.State
	// ca is the release's own CA, nil without one, or if a new one is due.
	ca       *pki.CA
	caSecret *corev1.Secret
	caDue    string
	held     []heldLeaf // not read if a CA is due
	position pki.Position
}

func (r *Rotation) read(ctx context.Context) (s *snapshot, err error) {
	s = &snapshot{}
	if s.stateSecret, s.saved, err = r.LoadState(ctx); err != nil {
		return s, err
	}
	if s.saved == nil {
		return s, r.NoState()
	}
	if s.saved.PKI == nil || !reflect.DeepEqual(*s.saved.PKI, r.PKI) {
		return s, fmt.Errorf("%w in %s: zarf-registry certs renew, or the CronJob, continues with them", errOtherSettings,
			r.Object("Secret", r.Settings.Name+names.SuffixState))
	}
	copies, err := r.copies(ctx)
	if err != nil {
		return s, err
	}
	if r.PKI.OwnCA() {
		if s.caSecret, err = r.Secret(ctx, r.Settings.Name+names.SuffixCA); err != nil {
			return s, err
		}
		s.ca, s.caDue = usableCA(s.caSecret, time.Duration(r.PKI.CALifetime), r.requestedCA, r.Now())
		if s.ca == nil {
			return s, nil
		}
	}
	if s.held, err = r.readHeld(ctx, wantedLeaves(r.leaves(r.PKI), copies, s.ca)); err != nil {
		return s, err
	}
	r.held = s.held
	s.position = r.position(s.held)
	s.position.Settled = s.saved.Rotation == nil && !r.Observed
	s.position.Urgent = nearExpiry(s.held, s.position.Due, r.Now())
	s.position.Overdue = s.position.Urgent && s.saved.Rotation != nil && r.Now().Sub(s.saved.Rotation.Since) > overdue
	return s, nil
}

// decide returns the next step. It asks the pods what they have loaded only if that matters.
func (r *Rotation) decide(ctx context.Context, s *snapshot, end time.Time) (pki.Step, error) {
	next := pki.Next(s.position)
	if next.Action != pki.Observe && next.Action != pki.Wait {
		return next, nil
	}
	s.position.Observed = true
	loaded, err := r.observe(ctx, s.held, s.position, end)
	if err != nil {
		return next, err
	}
	s.position.Loaded = loaded
	return pki.Next(s.position), nil
}

func (r *Rotation) take(ctx context.Context, s *snapshot, next pki.Step) (outcome, []string, error) {
	switch next.Action {
	case pki.Done:
		return complete, nil, r.finish(ctx, s, next.Why)
	case pki.Wait:
		r.waitFor("pods to load the new Secrets", release.List(next.Waiting), "reason", next.Why)
		r.refreshLate(ctx)
		return waiting, next.Waiting, nil
	case pki.WriteTrust:
		phase := state.RotationTrust
		if next.Drops {
			phase = state.RotationDrop
		}
		if err := r.recordPhase(ctx, s, phase); err != nil {
			return wrote, nil, err
		}
		return wrote, nil, r.writeTrust(ctx, s.held, next)
	case pki.Reissue:
		if len(next.Waiting) > 0 {
			r.once("no longer waiting for these pods: the certificates are about to expire, and then no node could pull",
				"missing", release.List(next.Waiting))
		}
		if !s.position.Settled {
			if err := r.recordPhase(ctx, s, state.RotationReissue); err != nil {
				return wrote, nil, err
			}
		}
		return wrote, nil, r.reissue(ctx, s.held, next)
	}
	return wrote, nil, fmt.Errorf("unknown rotation action %q (%s)", next.Action, next.Why)
}

// finish records that no CA rotation is in progress.
func (r *Rotation) finish(ctx context.Context, s *snapshot, why string) error {
	if s.saved.Rotation != nil {
		if err := r.record(ctx, s, nil); err != nil {
			return err
		}
		r.Log.Info("the CA rotation is complete", "reason", why)
	}
	r.refreshAll(ctx, s.held)
	return nil
}

// record saves how far the CA rotation is. It fails with a conflict if the state has changed since the
// round read it.
func (r *Rotation) record(ctx context.Context, s *snapshot, rotation *state.Rotation) error {
	changed := *s.saved
	changed.Rotation = rotation
	return r.SaveState(ctx, s.stateSecret, changed)
}

// recordPhase saves the phase of the CA rotation before anything of that phase is written: another
// process that finds the Secrets changed must also find that a rotation is in progress.
func (r *Rotation) recordPhase(ctx context.Context, s *snapshot, phase state.RotationPhase) error {
	begun := s.saved.Rotation
	switch {
	case begun != nil && begun.Phase == phase:
		return nil
	case begun == nil || phase == state.RotationTrust:
		reason := r.reason
		for _, h := range s.held {
			if h.due != "" {
				reason = cmp.Or(reason, fmt.Sprintf("the certificate in %s is due: %s",
					r.Object("Secret", r.secretName(h.secretLeaf)), h.due))
			}
		}
		begun = &state.Rotation{Reason: cmp.Or(reason, "the trusted CAs change"),
			Since: r.Now().UTC().Truncate(time.Second)}
	}
	r.Log.Info("the CA rotation continues", "rotation", phase, "reason", begun.Reason, "since", begun.Since)
	return r.record(ctx, s, &state.Rotation{Phase: phase, Reason: begun.Reason, Since: begun.Since})
}

// recordWaiting saves what the CA rotation waits for when the timeout expires.
func (r *Rotation) recordWaiting(ctx context.Context, waiting []string) error {
	text := release.List(waiting)
	err := r.UpdateState(ctx, func(s *state.State) bool {
		if s.Rotation == nil || s.Rotation.Waiting == text {
			return false
		}
		changed := *s.Rotation
		changed.Waiting = text
		s.Rotation = &changed
		return true
	})
	if err != nil {
		r.Log.Warn("cannot record what the CA rotation waits for", "error", err.Error())
	}
	return ctx.Err()
}

// writeCA creates the release's own CA, or replaces it. The certificate of the previous CA stays in
// the trust bundles as long as it is needed. Its key is discarded.
func (r *Rotation) writeCA(ctx context.Context, secret *corev1.Secret, due string) error {
	name := r.Settings.Name + names.SuffixCA
	ca, err := pki.NewCA(r.Settings.Name+" certificate authority", r.Now(), time.Duration(r.PKI.CALifetime))
	if err != nil {
		return err
	}
	if err := r.WriteSecret(ctx, secret, name, names.ComponentCertificates, corev1.SecretTypeTLS,
		secretData(ca.KeyPair(), nil)); err != nil {
		return err
	}
	r.note("CA created", name, due)
	r.reason = cmp.Or(r.reason, fmt.Sprintf("the CA in %s is new: %s", r.Object("Secret", name), due))
	return nil
}

func (r *Rotation) writeTrust(ctx context.Context, held []heldLeaf, next pki.Step) error {
	for _, h := range held {
		if h.held.Leaf == nil || h.held.Trust.Equal(next.Trust) {
			continue
		}
		if err := r.write(ctx, h, h.pair, next.Trust); err != nil {
			return err
		}
		r.note("trusted CAs written", r.secretName(h.secretLeaf), next.Why)
	}
	return nil
}

// reissue replaces the certificates. Where the identity may not create a missing Secret, it replaces
// the others first.
func (r *Rotation) reissue(ctx context.Context, held []heldLeaf, next pki.Step) error {
	var missing []error
	for _, h := range held {
		if !slices.Contains(next.Roles, h.role()) {
			continue
		}
		pair, err := h.make(r.Now())
		if err != nil {
			return err
		}
		err = r.write(ctx, h, pair, next.Trust)
		if h.secret == nil && exitcode.IsRefusal(err) {
			missing = append(missing, err)
			continue
		}
		if err != nil {
			return err
		}
		r.note("certificate issued", r.secretName(h.secretLeaf), h.due)
	}
	return errors.Join(missing...)
}

func (r *Rotation) write(ctx context.Context, h heldLeaf, pair pki.KeyPair, trust pki.Bundle) error {
	return r.WriteSecret(ctx, h.secret, r.secretName(h.secretLeaf), names.ComponentCertificates, corev1.SecretTypeTLS,
		secretData(pair, trust.PEM()))
}

// StartCaches issues the certificate of the caches if they have none, although not all pods trust its CA yet. Their
// pods need the Secret to start, and Helm may wait for them. Until the rotation continues, proxies that do not trust
// them pull from the registry.
func (r *Rotation) StartCaches(ctx context.Context) error {
	i := slices.IndexFunc(r.held, func(h heldLeaf) bool { return h.role() == pki.OrganizationCache })
	if i < 0 || r.held[i].held.Leaf != nil {
		return nil
	}
	var trust pki.Bundle
	for _, h := range r.held {
		trust = trust.Union(h.held.Trust).Union(h.trust())
	}
	cache := r.held[i]
	pair, err := cache.make(r.Now())
	if err != nil {
		return err
	}
	if err := r.write(ctx, cache, pair, trust); err != nil {
		if release.IsConflict(err) {
			return nil // somebody else has issued it
		}
		return err
	}
	r.note("certificate issued", r.secretName(cache.secretLeaf), cache.due)
	return nil
}

// awaitNodes makes the copies of the CAs on the nodes follow the ca.crt of the node certificate,
// and returns what each node that blocks the next step is missing. CRI-O verifies the proxies with
// these copies, which a pod writes on startup. A proxy may therefore present a certificate of a new
// CA only once all copies contain that CA, and the rotation has ended only once no copy contains a
// previous CA.
//
// If a certificate that must be replaced is about to expire, the rotation no longer waits for nodes
// that cannot write: otherwise no node could pull.
//
// A renewal by the same CAs does not wait for nodes, nor for pods: it must succeed whatever state
// they are in. Nodes that were away during a rotation get the current CAs later.
func (r *Rotation) awaitNodes(ctx context.Context, s *snapshot, next pki.Step) ([]string, error) {
	held, position := s.held, s.position
	if s.saved.NodeConfig == nil {
		return nil, nil // the nodes have no copies
	}
	i := slices.IndexFunc(held, func(h heldLeaf) bool { return h.role() == pki.OrganizationNode })
	if i < 0 || held[i].held.Leaf == nil || held[i].held.Trust.Empty() {
		return nil, nil // there is no bundle to copy
	}
	shown := next.Action == pki.Reissue && !position.Settled && slices.Contains(next.Roles, pki.OrganizationNode)
	if !shown && next.Action != pki.Done {
		return nil, nil
	}
	if r.onNodes == nil {
		r.onNodes = &nodes.CACopies{Observer: r.Observer, Once: r.once, Ready: &r.nodes}
	}
	waiting, err := r.onNodes.Outdated(ctx, held[i].held.Trust.Fingerprints(), position.Settled)
	if len(waiting) > 0 && shown && nearExpiry(held, next.Roles, r.Now()) {
		r.once("no longer waiting for nodes: the certificates are about to expire, and then no node could pull; on these, "+
			"CRI-O trusts no proxy until they are done",
			"missing", release.List(waiting))
		return nil, err
	}
	if len(waiting) > 0 {
		r.waitFor("nodes to write the current CAs", release.List(waiting), "reason",
			"CRI-O must trust the next certificate of the proxies, and no previous CA")
	}
	return waiting, err
}

// nearExpiry reports whether at most a tenth of the lifetime of a certificate to replace is left.
// Renewal starts at half of the lifetime, and what blocks it is reported from then on.
func nearExpiry(held []heldLeaf, roles []string, now time.Time) bool {
	const part = 10
	return slices.ContainsFunc(held, func(h heldLeaf) bool {
		leaf := h.held.Leaf
		return slices.Contains(roles, h.role()) && leaf != nil &&
			now.After(leaf.NotAfter.Add(-leaf.NotAfter.Sub(leaf.NotBefore)/part))
	})
}
