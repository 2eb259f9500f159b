package certs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/names"
	"github.com/zarf-dev/zarf-registry/internal/nodes"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/reloadstatus"
	"github.com/zarf-dev/zarf-registry/internal/state"
)

const (
	// rotationPoll is how often the pods are looked at while they are waited for.
	rotationPoll = time.Second
	// askTime bounds asking one pod; lookTime asking all of them, where there is no
	// patience left.
	askTime  = 5 * time.Second
	lookTime = 15 * time.Second
	// askedAtOnce bounds how many tunnels through the API server are open.
	askedAtOnce = 16
	// finishPatience is how long Finish waits for pods: longer than a kubelet takes
	// to bring a Secret to its pods, once for each of the two waits.
	finishPatience = 2 * time.Minute
	// reservedTime is left of a run's time for what comes after waiting.
	reservedTime = 20 * time.Second

	// maxWrites bounds the rounds of one run that write: a change takes four, and a
	// few may come one after the other. Who writes more goes in a circle.
	maxWrites = 50

	askedFor = "it was asked for"
)

// rotation brings the certificate Secrets to what is wanted of them. It keeps no
// plan: in each round it reads everything again, has pki.Next decide, and does
// that one thing; so it can be ended at any point, and another run goes on.
type rotation struct {
	*Keeper
	pki state.PKI
	// patience is how long pods are waited for in all; 0: they are looked at once.
	patience time.Duration
	// fresh is recorded with a change's phase where no state is saved yet.
	fresh *state.State
	// observed has it end only when all pods were seen to have loaded everything.
	observed bool
	// asked are the fingerprints of the certificates to be replaced, due or not, and
	// askedAuthority that of the authority.
	asked          []string
	askedAuthority string

	// from are the Secrets that are copied, once known.
	from *state.ExistingSecrets
	// reason is why a change of authorities is begun, as far as it is known.
	reason string
	// wrote are the Secrets that were written, in order.
	wrote []string

	// seen is what the pods that follow had loaded, as long as target is what they are
	// to load; late are the names of the others.
	seen   map[string]pki.Loaded
	target string
	late   []string
	// complaints are what pods themselves say about loading.
	complaints map[string]string
	refreshed  time.Time
	logged     map[string]bool
	nodes      nodes.ReadyNodes
	// onNodes are the nodes' copies of the CAs.
	onNodes *nodes.CACopies
}

// note remembers and logs that a Secret was written.
func (r *rotation) note(what, secret, reason string) {
	r.Log.Info(what, "secret", secret, "reason", reason)
	if !slices.Contains(r.wrote, secret) {
		r.wrote = append(r.wrote, secret)
	}
}

// once logs a line that every round would repeat.
func (r *rotation) once(message string, args ...any) {
	key := fmt.Sprint(append([]any{message}, args...)...)
	if r.logged[key] {
		return
	}
	if r.logged == nil {
		r.logged = map[string]bool{}
	}
	r.logged[key] = true
	r.Log.Info(message, args...)
}

// did says in words what was written.
func (r *rotation) did() string {
	if len(r.wrote) == 0 {
		return "all are valid, nothing issued"
	}
	return "wrote " + strings.Join(r.wrote, ", ")
}

// run goes as far as patience allows. What is left to wait for then is returned:
// of each pod what it lacks.
func (r *rotation) run(ctx context.Context) ([]string, error) {
	end := time.Now().Add(r.patience)
	conflicts, writes := 0, 0
	for {
		done, waiting, err := r.round(ctx, end)
		switch {
		case done:
			return nil, nil
		case err == nil && len(waiting) == 0: // it wrote something
			if writes++; writes > maxWrites {
				return nil, fmt.Errorf("the certificates are not as wanted after %d rounds of writing, the last of which wrote %s: does something else write them?", maxWrites, strings.Join(r.wrote, ", "))
			}
			conflicts = 0
			continue
		case err != nil && release.IsConflict(err) && conflicts < release.MaxConflicts:
			conflicts++
			r.Log.Info("somebody else wrote at the same time; everything is read again", "error", err.Error())
			if err := release.Sleep(ctx, release.PollInterval); err != nil {
				return nil, err
			}
			continue
		case err != nil && (ctx.Err() != nil || !release.IsTransient(err) || !time.Now().Before(end)):
			return nil, err
		case err != nil:
			// The API server may be restarting: as good as not knowing.
			r.once("waiting", "for", "the API server", "error", err.Error())
		case !time.Now().Before(end):
			return waiting, r.recordWaiting(ctx, waiting)
		}
		if err := release.Sleep(ctx, min(rotationPoll, max(0, time.Until(end)))); err != nil {
			return waiting, err
		}
	}
}

// round reads everything, decides, and does one thing.
func (r *rotation) round(ctx context.Context, end time.Time) (done bool, waiting []string, err error) {
	stateSecret, saved, err := r.LoadState(ctx)
	if err != nil {
		return false, nil, err
	}
	if saved == nil && r.fresh == nil {
		return false, nil, r.NoState()
	}
	wanted, err := r.wanted(ctx)
	if err != nil {
		return false, nil, err
	}
	held, position, err := r.position(ctx, wanted)
	if err != nil {
		return false, nil, err
	}
	position.Settled = (saved == nil || saved.Rotation == nil) && !r.observed
	next := pki.Next(position)
	if next.Action == pki.Observe || next.Action == pki.Wait {
		position.Observed = true
		if position.Loaded, err = r.observe(ctx, held, position, end); err != nil {
			return false, nil, err
		}
		next = pki.Next(position)
	}
	if waiting, err = r.awaitNodes(ctx, saved, held, position, next); err != nil || len(waiting) > 0 {
		return false, waiting, err
	}
	switch next.Action {
	case pki.Done:
		if saved != nil && saved.Rotation != nil {
			saved.Rotation = nil
			if err := r.SaveState(ctx, stateSecret, *saved, release.RemovedService(stateSecret)); err != nil {
				return false, nil, err
			}
			r.Log.Info("the change of authorities is done", "why", next.Why)
		}
		r.tell(ctx, held)
		return true, nil, nil
	case pki.Wait:
		waiting = r.explain(next.Waiting)
		r.once("waiting", "for", "pods to load what is written", "missing", release.List(waiting), "why", next.Why)
		r.wake(ctx)
		return false, waiting, nil
	case pki.WriteTrust:
		phase := state.RotationTrust
		if next.Drops {
			phase = state.RotationDrop
		}
		if err := r.recordPhase(ctx, stateSecret, saved, phase, held); err != nil {
			return false, nil, err
		}
		return false, nil, r.writeTrust(ctx, held, next)
	case pki.Reissue:
		if !position.Settled {
			if err := r.recordPhase(ctx, stateSecret, saved, state.RotationReissue, held); err != nil {
				return false, nil, err
			}
		}
		return false, nil, r.reissue(ctx, held, next)
	}
	return false, nil, fmt.Errorf("the next step of the certificates' renewal is %q (%s), which cannot be", next.Action, next.Why)
}

// position reads the Secrets and says where the renewal stands.
func (r *rotation) position(ctx context.Context, wanted []wantedLeaf) ([]heldLeaf, pki.Position, error) {
	p := pki.Position{Held: map[string]pki.Held{}}
	var held []heldLeaf
	for _, w := range wanted {
		h, err := r.readHeld(ctx, w)
		if err != nil {
			return nil, p, err
		}
		switch {
		case h.due != "":
		case slices.Contains(r.asked, pki.Fingerprint(h.held.Leaf)):
			h.due = askedFor
		default:
			h.due = w.due(h.pair, r.Now())
		}
		if h.due != "" {
			p.Due = append(p.Due, h.role())
		}
		held = append(held, h)
		p.Want = p.Want.Union(w.trust())
		p.Held[h.role()] = h.held
	}
	return held, p, nil
}

// recordPhase records how far the change has come before anything of that phase is
// written: who finds the Secrets changed must find that it is under way.
func (r *rotation) recordPhase(ctx context.Context, secret *corev1.Secret, saved *state.State, phase state.RotationPhase, held []heldLeaf) error {
	next := saved
	if saved == nil {
		next = r.fresh
	}
	begun := next.Rotation
	switch {
	case begun != nil && begun.Phase == phase:
		return nil
	case begun == nil || phase == state.RotationTrust:
		reason := r.reason
		for _, h := range held {
			if h.due != "" {
				reason = cmp.Or(reason, fmt.Sprintf("the certificate in %s is due: %s", r.Object("Secret", r.Settings.Name+h.suffix), h.due))
			}
		}
		begun = &state.Rotation{Reason: cmp.Or(reason, "other authorities are to be trusted"), Since: r.Now().UTC().Truncate(time.Second)}
	}
	changed := *next
	changed.Rotation = &state.Rotation{Phase: phase, Reason: begun.Reason, Since: begun.Since}
	r.Log.Info("the change of authorities goes on", "rotation", phase, "reason", begun.Reason, "since", begun.Since)
	return r.SaveState(ctx, secret, changed, release.RemovedService(secret))
}

// recordWaiting records what holds the change up when patience is over.
func (r *rotation) recordWaiting(ctx context.Context, waiting []string) error {
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
		r.Log.Warn("what the change of authorities waits for could not be recorded", "error", err.Error())
	}
	return ctx.Err()
}

func (r *rotation) writeTrust(ctx context.Context, held []heldLeaf, next pki.Step) error {
	for _, h := range held {
		if h.held.Leaf == nil || h.held.Trust.Equal(next.Trust) {
			continue
		}
		if err := r.write(ctx, h, h.pair, next.Trust); err != nil {
			return err
		}
		r.note("trust written", r.Settings.Name+h.suffix, next.Why)
	}
	return nil
}

func (r *rotation) reissue(ctx context.Context, held []heldLeaf, next pki.Step) error {
	for _, h := range held {
		if !slices.Contains(next.Roles, h.role()) {
			continue
		}
		pair, err := h.make(r.Now())
		if err != nil {
			return err
		}
		if err := r.write(ctx, h, pair, next.Trust); err != nil {
			return err
		}
		r.note("certificate issued", r.Settings.Name+h.suffix, h.due)
	}
	return nil
}

func (r *rotation) write(ctx context.Context, h heldLeaf, pair pki.KeyPair, trust pki.Bundle) error {
	return r.WriteSecret(ctx, h.secret, r.Settings.Name+h.suffix, names.ComponentCertificates, corev1.SecretTypeTLS, secretData(pair, trust.PEM()))
}

// components are whose pods mount the Secret of a role. Nobody mounts that of pushing.
var components = map[string]string{pki.OrganizationServer: names.ComponentRegistry, pki.OrganizationNode: names.ComponentProxy}

// peer is a running pod that loads certificates.
type peer struct {
	pod  corev1.Pod
	role string
}

// key tells pods apart, also those that have the same name one after the other.
func (p peer) key() string { return p.pod.Name + " " + string(p.pod.UID) }

// peers lists the pods of a role that run on ready nodes. Those on others are
// named, and count for nothing: they serve nobody, and load everything when they
// are back.
func (r *rotation) peers(ctx context.Context, role string) ([]peer, error) {
	pods, err := r.RunningPods(ctx, &r.nodes, components[role], func(pod *corev1.Pod) {
		r.once("a pod on a node that is not ready holds nothing up", "pod", pod.Name, "node", pod.Spec.NodeName)
	})
	var out []peer
	for _, pod := range pods {
		out = append(out, peer{pod, role})
	}
	return out, err
}

// observe asks the pods what they have loaded, all those at least that had not
// followed yet.
func (r *rotation) observe(ctx context.Context, held []heldLeaf, position pki.Position, end time.Time) ([]pki.Loaded, error) {
	target := fmt.Sprint(position.Due, position.Want.Fingerprints())
	var peers []peer
	for _, h := range held {
		leaf := ""
		if h.held.Leaf != nil {
			leaf = pki.Fingerprint(h.held.Leaf)
		}
		target += fmt.Sprint(h.role(), leaf, h.held.Trust.Fingerprints())
		if components[h.role()] == "" {
			continue
		}
		of, err := r.peers(ctx, h.role())
		if err != nil {
			return nil, err
		}
		peers = append(peers, of...)
	}
	if r.target != target {
		r.target, r.seen, r.refreshed = target, map[string]pki.Loaded{}, time.Time{}
	}
	ctx, cancel := context.WithTimeout(ctx, max(lookTime, time.Until(end)))
	defer cancel()
	answers := make([]*pki.Loaded, len(peers))
	complaints := make([]string, len(peers))
	var group errgroup.Group
	group.SetLimit(askedAtOnce)
	for i, p := range peers {
		if seen, ok := r.seen[p.key()]; ok {
			answers[i] = &seen
			continue
		}
		group.Go(func() error {
			answers[i], complaints[i] = r.ask(ctx, p)
			return nil
		})
	}
	_ = group.Wait() // none returns an error
	var out []pki.Loaded
	r.complaints = map[string]string{}
	for i, answer := range answers {
		if answer == nil {
			r.once("a pod that is not ready and cannot be asked holds nothing up", "pod", peers[i].pod.Name, "problem", complaints[i])
			continue
		}
		out = append(out, *answer)
		r.complaints[answer.Pod] = complaints[i]
		alone := position
		alone.Loaded = []pki.Loaded{*answer}
		if pki.Next(alone).Action != pki.Wait {
			r.seen[peers[i].key()] = *answer
		}
	}
	r.late = nil
	for _, p := range peers {
		if _, follows := r.seen[p.key()]; !follows {
			r.late = append(r.late, p.pod.Name)
		}
	}
	return out, nil
}

// ask asks a pod what it has loaded, and returns with it what the pod says is wrong
// with what it could not load. It is nil where the pod cannot be asked and is not ready.
func (r *rotation) ask(ctx context.Context, p peer) (*pki.Loaded, string) {
	out := &pki.Loaded{Pod: r.PodName(&p.pod), Role: p.role}
	report, err := r.askPod(ctx, &p.pod)
	if err != nil {
		if !nodes.PodReady(p.pod) {
			return nil, err.Error()
		}
		out.Problem = err.Error()
		return out, ""
	}
	out.Leaf = report.Certificates.Leaf.SHA256
	for _, authority := range report.Certificates.Authorities {
		out.Trust = append(out.Trust, authority.SHA256)
	}
	return out, report.Certificates.Problem
}

// askPod asks a pod what it has loaded.
func (k *Keeper) askPod(ctx context.Context, pod *corev1.Pod) (*reloadstatus.Report, error) {
	if pod.Annotations[names.AnnotationMetricsPort] == "" {
		return nil, errors.New("it runs a release that cannot be asked what it has loaded; helm upgrade replaces it")
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	report, err := k.Registry.Loaded(ctx, pod)
	if err != nil {
		return nil, fmt.Errorf("it cannot be asked what it has loaded: %w", err)
	}
	return report, nil
}

// patience is what is left to wait for pods out of a run's time, at most most.
func patience(ctx context.Context, most time.Duration) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return most
	}
	rest := time.Until(deadline)
	return max(0, min(most, rest-min(reservedTime, rest/2)))
}

// explain adds to what pods lack what they themselves say about it.
func (r *rotation) explain(waiting []string) []string {
	out := slices.Clone(waiting)
	for i, line := range out {
		for pod, complaint := range r.complaints {
			if complaint != "" && strings.Contains(line, pod) {
				out[i] += fmt.Sprintf(" (it says: %s)", complaint)
			}
		}
	}
	return out
}

// tell has kubelets bring at once to the pods what was written, where nobody has
// waited for them. Nothing depends on it.
func (r *rotation) tell(ctx context.Context, held []heldLeaf) {
	if len(r.wrote) == 0 || !r.refreshed.IsZero() {
		return
	}
	for _, h := range held {
		if components[h.role()] == "" {
			continue
		}
		peers, err := r.peers(ctx, h.role())
		if err != nil {
			r.once("the pods could not be told of their new certificates", "error", err.Error())
			return
		}
		for _, p := range peers {
			r.late = append(r.late, p.pod.Name)
		}
	}
	r.wake(ctx)
}

// wake has kubelets look at the Secrets of the pods that do not follow yet. Who may
// not annotate pods waits for the kubelets' own time.
func (r *rotation) wake(ctx context.Context) {
	if len(r.late) == 0 || time.Since(r.refreshed) < refreshInterval {
		return
	}
	r.refreshed = time.Now()
	if err := r.refresh(ctx, r.late); err != nil {
		r.once("pods could not be annotated; kubelets bring their Secrets up to date by themselves, which takes up to 90 seconds", "error", err.Error())
	}
}

// awaitNodes has the copies of the authorities that nodes hold for CRI-O follow ca.crt
// of the node certificate, and says of each node what holds the next step up. CRI-O
// verifies what proxies show by its copy, which a pod writes when it starts: so before
// another certificate is shown each copy must have its authority, and a change has ended
// when none has a former one any more.
//
// Where certificates that must be replaced are near their end, nodes that cannot write are
// left behind, rather than all of them.
//
// A renewal under authorities that stay asks nobody, as with pods: it must go on
// whatever nodes do. Nodes that were away during a change get theirs afterwards.
func (r *rotation) awaitNodes(ctx context.Context, saved *state.State, held []heldLeaf, position pki.Position, next pki.Step) ([]string, error) {
	if saved == nil || saved.NodeConfig == nil {
		return nil, nil // no file is on any node
	}
	i := slices.IndexFunc(held, func(h heldLeaf) bool { return h.role() == pki.OrganizationNode })
	if i < 0 || held[i].held.Leaf == nil || held[i].held.Trust.Empty() {
		return nil, nil // there is nothing that a node could be given
	}
	shown := next.Action == pki.Reissue && !position.Settled && slices.Contains(next.Roles, pki.OrganizationNode)
	if !shown && next.Action != pki.Done {
		return nil, nil
	}
	if r.onNodes == nil {
		r.onNodes = &nodes.CACopies{Observer: r.Observer, Once: r.once, Ready: &r.nodes}
	}
	waiting, err := r.onNodes.Outdated(ctx, held[i].held.Trust.Fingerprints(), position.Settled)
	if len(waiting) > 0 && shown && nearEnd(held, next.Roles, r.Now()) {
		r.once("no longer waiting for nodes: the certificates are about to expire, and then no node could pull; on these, CRI-O trusts no proxy until they are done",
			"missing", release.List(waiting))
		return nil, err
	}
	if len(waiting) > 0 {
		r.once("waiting", "for", "nodes to write the current CAs", "missing", release.List(waiting),
			"why", "CRI-O must trust what a proxy is about to show, and forget what none shows any more")
	}
	return waiting, err
}

// nearEnd says whether a tenth or less is left of the life of a certificate that is to be
// replaced. What holds a change up has been named since the middle of it.
func nearEnd(held []heldLeaf, roles []string, now time.Time) bool {
	const part = 10
	return slices.ContainsFunc(held, func(h heldLeaf) bool {
		leaf := h.held.Leaf
		return slices.Contains(roles, h.role()) && leaf != nil && now.After(leaf.NotAfter.Add(-leaf.NotAfter.Sub(leaf.NotBefore)/part))
	})
}
