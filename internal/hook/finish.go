package hook

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/hook/certs"
	"github.com/zarf-dev/zarf-registry/internal/hook/reload"
	"github.com/zarf-dev/zarf-registry/internal/hook/steps"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// Finish waits for what the chart applied, pushes the project's images, verifies a pull on every
// node, records the verified mode, and only then deletes what the previous mode left.
//
// A switch changes who answers on the node port before pulls are verified, because kube-proxy hides
// the proxies. If verification fails, Finish switches back.
func (h *Hook) Finish(ctx context.Context) error {
	f := &finishRun{run: h.start()}
	defer f.verifier.DeletePods() // also those of a killed run in either mode
	if err := f.phase(ctx, "finish", f.steps()); err != nil {
		return err
	}
	f.warnOfCronJobs(ctx, h.Again) // last, so that nobody misses it
	return nil
}

// finishRun holds what the steps of one Finish share.
type finishRun struct {
	*run
	// switching is true if the last verified mode is another one that shares the port.
	switching bool
	verified  []string
	mirrors   *state.Mirrors // nil unless checked
	// unpushed is true if the registry lacks the image of the CronJobs.
	unpushed bool
	// rotated is true if no CA rotation is in progress any more.
	rotated bool
}

func (f *finishRun) steps() []steps.Step {
	s := &f.Settings
	nodePort, proxy, external := []state.Mode{state.ModeNodePort}, []state.Mode{state.ModeProxy},
		[]state.Mode{state.ModeExternal}
	unverified := []steps.Step{
		{Name: "read the saved state", Run: f.readState,
			Why: "only what prepare recorded can be finished"},
		{Name: "wait for the registry", In: ours, Run: f.waitRegistry,
			Why: "nodes and pushes need it"},
		{Name: "wait for the plain listener", In: nodePort, Run: f.credentials.OpenPlain,
			Why: "the NodePort Service leads to it"},
		{Name: "push the project's images", In: ours, Run: f.push, // while the proxies start
			Why: "later upgrades and the verification pull them from the registry itself"},
		{Name: "wait for the proxies", In: proxy, Run: f.WaitProxies,
			Why: "each node pulls through its own"},
		{Name: "hand over to the proxies' program", In: proxy, Run: f.handOver,
			Why: "prepare has changed it in place, so that no proxy restarts"},
		{Name: "wait for the node configuration", Run: steps.OnlyIf(s.ConfiguresNodes(), f.WaitConfigured),
			Why: "CRI-O needs the CA before it can pull; and a node that refuses is reported"},
		{Name: "serve the node port", In: nodePort, Run: f.port.Serve,
			Why: "kube-proxy answers in the proxies' place; they stay until pulls are verified"},
		{Name: "reserve the node port", In: proxy, Run: f.port.Reserve,
			Why: "kube-proxy would answer in the proxies' place; it does again if verification fails"},
		{Name: "verify pulls", In: ours, Run: steps.OnlyIf(s.Finish.VerifyPulls, f.verify),
			Why: "only a pull on every node covers network plugin, kube-proxy and container runtime at once"},
	}
	if s.Mode != state.ModeExternal {
		unverified = f.orSwitchBack(unverified)
	}
	const plain = "outside of nodeport mode only port-forwards may use plain HTTP"
	return append(unverified, []steps.Step{
		{Name: "verify mirrors", In: ours,
			Run: steps.OnlyIf(s.Finish.VerifyPulls && s.NodeConfig.MirroredHost() != "", f.verifyMirrors),
			Why: "a container runtime may ignore the files"},
		{Name: "close the plain listener", In: proxy, Run: f.credentials.ClosePlain, Why: plain},
		{Name: "record the verified mode", Run: f.record,
			Why: "the state never claims more than was verified"},
		{Name: "delete the NodePort Service", In: external, Run: f.port.Delete,
			Why: "it leads nowhere any more"},
		{Name: "delete the NodePort Service", In: proxy, Run: steps.OnlyIf(s.UnreservedPort, f.port.Delete),
			Why: "reservePort=false"},
		{Name: "delete previous proxies", Run: f.DeletePreviousProxies,
			Why: "the chart no longer renders them"},
		{Name: "close the plain listener", In: external, Run: f.credentials.ClosePlain, Why: plain},
		{Name: "delete previous payloads", Run: steps.OnlyIf(f.injects(), f.collect),
			Why: "no pod needs them any more"},
		{Name: "delete the payload", In: external, Run: steps.OnlyIf(!f.injects(), f.payload.Delete),
			Why: "nothing starts from it any more"},
		{Name: "advertise the registry", Run: f.advertise,
			Why: "tools that build images look for it in " + HostingNamespace},
		{Name: "accept Zarf's credential", In: proxy, Run: steps.OnlyIf(s.PKI.Zarf, f.credentials.AcceptZarf),
			Why: "Helm writes its Secret after prepare has run"},
		{Name: "finish the CA rotation", In: ours, Run: f.rotate,
			Why: "the previous CA stays trusted until all pods show certificates of the new one"},
		{Name: "wait for the caches", In: proxy, Run: steps.OnlyIf(s.Cache.Enabled, f.WaitCaches),
			Why: "without them, proxies pull from the registry"},
		{Name: "delete what other PKI modes left", In: ours, Run: f.unneeded,
			Why: "nothing trusts it any more"},
	}...)
}

func (f *finishRun) waitRegistry(ctx context.Context) (string, error) {
	return f.WaitRegistry(ctx, f.cluster.Deployments)
}

func (f *finishRun) verify(ctx context.Context) (did string, err error) {
	f.verified, did, err = f.verifier.Nodes(ctx, f.switching)
	return did, err
}

// verifyMirrors warns of nodes that ignore their mirrors. Pulls by the registry's own address work there.
func (f *finishRun) verifyMirrors(ctx context.Context) (string, error) {
	m, err := f.verifier.Mirrors(ctx, f.verified)
	if err != nil {
		return "", err
	}
	f.mirrors = m
	if m == nil {
		return "nothing: no node is configured", nil
	}
	for _, failure := range m.Failed {
		f.Log.Warn("nodes could not pull from the mirror: their container runtime may not read the files (docs/reference/"+
			"node-configuration.md#files), or not before it restarts", "nodes", release.ListNodes(failure.Nodes),
			"image", m.Image, "error", failure.Reason)
	}
	return fmt.Sprintf("%d nodes pulled %s from this registry", len(m.Pulled), m.Image), nil
}

// collect deletes previous payloads. Proxies that the chart no longer renders are about to end.
func (f *finishRun) collect(ctx context.Context) (string, error) {
	return f.payload.Collect(ctx, func(pod corev1.Pod) bool {
		return pod.Labels[names.LabelComponent] == names.ComponentProxy && !f.UsesProxy(pod)
	})
}

// readState refuses to run without a prepare of the same settings, because the steps delete what
// the mode does not need.
func (f *finishRun) readState(ctx context.Context) (string, error) {
	_, s, err := f.RequireState(ctx)
	if err != nil {
		return "", err
	}
	if d := s.Desired; d.Mode != f.Settings.Mode || d.Address != f.Settings.Address {
		return "", exitcode.Refuse(
			"prepare recorded %s mode at %s, but finish was asked for %s mode at %s: run prepare for that first, or helm "+
				"upgrade, which runs both",
			d.Mode, d.Address, f.Settings.Mode, f.Settings.Address)
	}
	f.switching = f.switches(s)
	return fmt.Sprintf("%s mode at %s is desired", s.Desired.Mode, s.Desired.Address), nil
}

func (f *finishRun) record(ctx context.Context) (string, error) {
	did := ""
	err := f.UpdateState(ctx, func(s *state.State) bool {
		desired := s.Desired
		s.Mirrors, s.ExcusedNodes = f.mirrors, f.Excused
		switch {
		case f.Settings.Mode == state.ModeExternal:
			s.Phase, s.Current, s.VerifiedNodes = state.PhaseReady, &desired, nil
			did = "current is external, which needs no verification"
		case f.Settings.Finish.VerifyPulls:
			s.Phase, s.Current, s.VerifiedNodes = state.PhaseReady, &desired, f.verified
			did = fmt.Sprintf("current is %s, verified on %d nodes", desired.Mode, len(f.verified))
		case s.Current != nil && s.Current.Same(desired):
			did = "the verified mode is unchanged: verification is disabled (initHook.verifyPulls=false)"
		default:
			s.Current, s.VerifiedNodes = nil, nil
			did = "no mode is verified: verification is disabled (initHook.verifyPulls=false)"
		}
		return true // from here on nothing switches back
	})
	return did, err
}

// rotationTimeout is the wait timeout of finish for pods. It is longer than a kubelet takes to refresh
// the Secrets of its pods, once for each of the two waits of a CA rotation.
const rotationTimeout = 2 * time.Minute

// rotate continues a CA rotation where prepare had to stop. It is not an error if pods have not loaded
// the certificates in time: they keep working, and the CronJob continues the rotation.
func (f *finishRun) rotate(ctx context.Context) (did string, err error) {
	_, s, err := f.RequireState(ctx)
	if err != nil {
		return "", err
	}
	if s.PKI == nil {
		return "nothing: the state has no PKI settings", nil
	}
	r := &certs.Rotation{Manager: f.certs, PKI: *s.PKI, Timeout: reload.WaitTimeout(ctx, rotationTimeout)}
	waiting, err := r.Run(ctx)
	if err != nil {
		return "", err
	}
	if f.rotated = len(waiting) == 0; f.rotated {
		return r.Did(), nil
	}
	f.Log.Warn("the CA rotation is not finished; everything works, and zarf-registry certs renew, which the "+
		"CronJob runs, continues it",
		"waiting", release.List(waiting))
	return fmt.Sprintf("%s; not finished, waiting for %d pods", r.Did(), len(waiting)), nil
}

func (f *finishRun) unneeded(ctx context.Context) (string, error) {
	if !f.rotated {
		return "nothing: it may still be needed", nil
	}
	_, s, err := f.RequireState(ctx)
	if err != nil || s.PKI == nil {
		return "nothing", err
	}
	return f.certs.DeleteUnneeded(ctx, *s.PKI)
}
