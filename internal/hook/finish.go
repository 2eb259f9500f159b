package hook

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/state"
)

// Finish waits for what the chart applied, pushes the project's images, proves on
// every node that a pull works, records what was proven, and only then deletes what
// the former mode left.
//
// In proxy mode the NodePort Service of the former mode goes before the proof,
// because it hides the proxies; it is put back where the proof fails.
func (h *Hook) Finish(ctx context.Context) error {
	f := &finishing{Hook: h}
	defer f.deleteProofs() // also those of a run that was killed, whatever its mode
	return h.runSteps(ctx, "finish", f.steps())
}

// finishing is what the steps of one Finish hand on to each other.
type finishing struct {
	*Hook
	// switching: this run, or one that was killed, removed the NodePort Service.
	switching bool
	proven    []string
	// rotated: no change of authorities is under way any more.
	rotated bool
}

func (f *finishing) steps() []step {
	rotate := step{"finish the change of authorities", "the former ones are trusted until all pods show certificates of the new", f.rotate}
	unneeded := step{"delete what other PKI modes left", "nobody trusts it any more", f.unneeded}
	configured := step{"wait for the node configuration", "CRI-O needs the authority before it can pull; and a node that refuses is named", onlyIf(f.Settings.ConfiguresNodes(), f.waitNodeConfig)}
	push := step{"push the project's images", "later upgrades and the proof pull them from the registry itself", onlyIf(f.Settings.Push.Images, f.push)}
	prove := step{"prove by pulling", "only a pull on every node covers network plugin, kube-proxy and container runtime at once", onlyIf(f.Settings.Finish.Verify, f.prove)}
	advertise := step{"tell tools of the registry", "those that build images look for it in " + HostingNamespace, f.advertise}
	record := step{"record the proven mode", "the state never says more than was proven", f.record}

	collect := step{"collect former payloads", "no pod needs them any more", f.collect}
	payload := step{"delete the payload", "nothing starts from it any more", f.deletePayload}
	if f.Settings.ConfiguresNodes() {
		payload = collect
	}

	switch f.Settings.Mode {
	case state.ModeNodePort:
		return []step{
			{"read the saved state", "only what prepare recorded can be finished", f.readState},
			{"wait for the registry", "node ports and pushes need it", f.waitRegistry},
			{"look at the NodePort Service", "each node pulls through it", f.lookAtService},
			{"wait for the node port's listener", "the NodePort Service leads to it", f.openPlain},
			push,
			configured,
			prove,
			record,
			{"delete the proxies", "each node was seen to pull without them", f.deleteFormerProxies},
			collect,
			advertise,
			rotate,
			unneeded,
		}
	case state.ModeExternal:
		return []step{
			{"read the saved state", "only what prepare recorded can be finished", f.readState},
			configured,
			record,
			{"delete the NodePort Service", "it leads nowhere any more", f.deleteService},
			{"delete the proxies", "they lead nowhere any more", f.deleteFormerProxies},
			{"close the node port's listener", "nothing shall be served in plain text that nobody asks for", f.closePlain},
			advertise,
			payload,
		}
	default:
		return append(f.orPutBack([]step{
			{"read the saved state", "only what prepare recorded can be finished", f.readState},
			{"wait for the registry", "proxies and pushes need it", f.waitRegistry},
			push, // while the proxies start
			{"wait for the proxies", "each node pulls through its own", f.waitProxies},
			configured,
			{"remove the NodePort Service", "kube-proxy would answer in the proxies' place; it is put back if the proof fails", f.removeService},
			prove,
		}), []step{
			{"close the node port's listener", "nothing leaves the registry in plain text in proxy mode", f.closePlain},
			record,
			{"delete former proxies", "the chart does not render them any more", f.deleteFormerProxies},
			collect,
			advertise,
			rotate,
			unneeded,
		}...)
	}
}

// readState refuses to finish what prepare did not begin: the steps delete what
// the mode does not need.
func (f *finishing) readState(ctx context.Context) (string, error) {
	_, s, err := f.mustLoadState(ctx)
	if err != nil {
		return "", err
	}
	if d := s.Desired; d.Mode != f.Settings.Mode || d.Address != f.Settings.Address {
		return "", refuse("prepare recorded %s mode at %s, but finish was asked for %s mode at %s: run prepare for that first, or helm upgrade, which runs both",
			d.Mode, d.Address, f.Settings.Mode, f.Settings.Address)
	}
	return fmt.Sprintf("%s mode at %s is desired", s.Desired.Mode, s.Desired.Address), nil
}

func (f *finishing) record(ctx context.Context) (string, error) {
	did := ""
	err := f.updateStateSecret(ctx, func(_ *corev1.Secret, s *state.State) (bool, []byte) {
		desired := s.Desired
		switch {
		case f.Settings.Mode == state.ModeExternal:
			s.Phase, s.Current, s.Nodes = state.PhaseReady, &desired, nil
			did = "current is external, where there is nothing to prove"
		case f.Settings.Finish.Verify:
			s.Phase, s.Current, s.Nodes = state.PhaseReady, &desired, f.proven
			did = fmt.Sprintf("current is %s, proven on %d nodes", desired.Mode, len(f.proven))
		case s.Current != nil && s.Current.Same(desired):
			did = "current stays as it was proven before: the proof was switched off (initHook.prove=false)"
		default:
			s.Current, s.Nodes = nil, nil
			did = "nothing is current: the proof was switched off (initHook.prove=false)"
		}
		return true, nil // the NodePort Service is not to be put back any more
	})
	return did, err
}

// rotate goes on with the change of authorities where Prepare, which cannot ask pods
// that do not run yet, had to leave it. Pods that do not follow in time fail
// nothing: all go on working, and the CronJob goes on with it.
func (f *finishing) rotate(ctx context.Context) (string, error) {
	_, s, err := f.mustLoadState(ctx)
	if err != nil {
		return "", err
	}
	if s.PKI == nil {
		return "nothing: prepare was of a release that recorded nothing of it", nil
	}
	r := &rotation{Hook: f.Hook, pki: *s.PKI, patience: patience(ctx, finishPatience)}
	waiting, err := r.run(ctx)
	if err != nil {
		return "", err
	}
	if len(waiting) > 0 {
		f.Log.Warn("the change of authorities is not finished; everything works, and init-hook certs renew, which the CronJob runs, goes on with it",
			"waiting", enumerate(waiting))
		return fmt.Sprintf("%s; not finished, it waits for pods: %d", r.did(), len(waiting)), nil
	}
	f.rotated = true
	return r.did(), nil
}

func (f *finishing) unneeded(ctx context.Context) (string, error) {
	if !f.rotated {
		return "nothing: it may still be needed", nil
	}
	_, s, err := f.mustLoadState(ctx)
	if err != nil || s.PKI == nil {
		return "nothing", err
	}
	return f.deleteUnneeded(ctx, *s.PKI)
}

// orPutBack has the NodePort Service put back when a step fails, also when the run
// is out of time or was told to end: until the proof it is what the nodes pulled by.
func (f *finishing) orPutBack(steps []step) []step {
	for i, s := range steps {
		if s.run == nil {
			continue
		}
		steps[i].run = func(ctx context.Context) (string, error) {
			did, err := s.run(ctx)
			if err != nil {
				err = f.putBack(err)
			}
			return did, err
		}
	}
	return steps
}

// usesProxy says whether a pod is a proxy of a DaemonSet that the chart renders.
func (f *finishing) usesProxy(pod corev1.Pod) bool {
	for _, owner := range pod.OwnerReferences {
		if owner.Kind == "DaemonSet" {
			return f.renders(owner.Name)
		}
	}
	return false
}

// renders says whether the chart renders a proxy DaemonSet. Who runs finish by hand
// in proxy mode need not know their names: then all are.
func (f *finishing) renders(daemonSet string) bool {
	if f.Settings.Mode != state.ModeProxy {
		return false
	}
	return len(f.Settings.Proxy.DaemonSets) == 0 || slices.Contains(f.Settings.Proxy.DaemonSets, daemonSet)
}
