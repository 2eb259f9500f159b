package hook

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
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
	f := &finishing{run: h.start()}
	defer f.verifier.DeletePods() // also those of a killed run in either mode
	if err := f.phase(ctx, "finish", f.steps()); err != nil {
		return err
	}
	f.warnOfCronJobs(ctx, h.Again) // last, so that nobody misses it
	return nil
}

// finishing holds what the steps of one Finish share.
type finishing struct {
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

func (f *finishing) steps() []steps.Step {
	s := &f.Settings
	var (
		readState = steps.Step{Name: "read the saved state", Run: f.readState,
			Why: "only what prepare recorded can be finished"}
		waitRegistry = steps.Step{Name: "wait for the registry", Run: f.waitRegistry,
			Why: "nodes and pushes need it"}
		push = steps.Step{Name: "push the project's images", Run: f.push,
			Why: "later upgrades and the verification pull them from the registry itself"}
		configured = steps.Step{Name: "wait for the node configuration",
			Run: steps.OnlyIf(s.ConfiguresNodes(), f.WaitConfigured),
			Why: "CRI-O needs the CA before it can pull; and a node that refuses is reported"}
		verifyNodes = steps.Step{Name: "verify pulls", Run: steps.OnlyIf(s.Finish.VerifyPulls, f.verify),
			Why: "only a pull on every node covers network plugin, kube-proxy and container runtime at once"}
		verifyMirrors = steps.Step{Name: "verify mirrors",
			Run: steps.OnlyIf(s.Finish.VerifyPulls && s.NodeConfig.MirroredHost() != "", f.verifyMirrors),
			Why: "a container runtime may ignore the files"}
		record = steps.Step{Name: "record the verified mode", Run: f.record,
			Why: "the state never claims more than was verified"}
		closePlain = steps.Step{Name: "close the plain listener", Run: f.certs.ClosePlain,
			Why: "outside of nodeport mode only port-forwards may use plain HTTP"}
		release = steps.Step{Name: "delete the NodePort Service",
			Run: steps.OnlyIf(s.UnreservedPort, f.deleteService), Why: "reservePort=false"}
		deleteProxies = steps.Step{Name: "delete previous proxies", Run: f.DeletePreviousProxies,
			Why: "the chart no longer renders them"}
		collect = steps.Step{Name: "delete previous payloads", Run: f.collect,
			Why: "no pod needs them any more"}
		advertise = steps.Step{Name: "advertise the registry", Run: f.advertise,
			Why: "tools that build images look for it in " + HostingNamespace}
		caches = steps.Step{Name: "wait for the caches", Run: steps.OnlyIf(s.Cache.Enabled, f.WaitCaches),
			Why: "without them, proxies pull from the registry"}
		rotate = steps.Step{Name: "finish the CA rotation", Run: f.rotate,
			Why: "the previous CA stays trusted until all pods show certificates of the new one"}
		credentials = steps.Step{Name: "accept Zarf's credential", Run: steps.OnlyIf(s.PKI.Zarf, f.certs.AcceptZarf),
			Why: "Helm writes its Secret after prepare has run"}
		unneeded = steps.Step{Name: "delete what other PKI modes left", Run: f.unneeded,
			Why: "nothing trusts it any more"}
	)
	switch s.Mode {
	case state.ModeNodePort:
		return append(f.orSwitchBack([]steps.Step{
			readState,
			waitRegistry,
			{Name: "wait for the plain listener", Run: f.certs.OpenPlain, Why: "the NodePort Service leads to it"},
			push, configured,
			{Name: "serve the node port", Run: f.servePort,
				Why: "kube-proxy answers in the proxies' place; they stay until pulls are verified"},
			verifyNodes,
		}), verifyMirrors, record, deleteProxies, collect, advertise, rotate, unneeded)
	case state.ModeExternal:
		deletePayload := steps.Step{Name: "delete the payload", Run: f.payload.Delete, Why: "nothing starts from it any more"}
		if s.ConfiguresNodes() {
			deletePayload = collect
		}
		return []steps.Step{
			readState, configured, record,
			{Name: "delete the NodePort Service", Run: f.deleteService, Why: "it leads nowhere any more"},
			deleteProxies, closePlain, advertise, deletePayload,
		}
	default:
		return append(f.orSwitchBack([]steps.Step{
			readState,
			waitRegistry,
			push, // while the proxies start
			{Name: "wait for the proxies", Run: f.WaitProxies, Why: "each node pulls through its own"},
			{Name: "hand over to the proxies' program", Run: f.handOver,
				Why: "prepare has changed it in place, so that no proxy restarts"},
			configured,
			{Name: "reserve the node port", Run: f.reservePort,
				Why: "kube-proxy would answer in the proxies' place; it does again if verification fails"},
			verifyNodes,
		}), verifyMirrors, closePlain, record, release, deleteProxies, collect, advertise, credentials, rotate, caches,
			unneeded)
	}
}

func (f *finishing) waitRegistry(ctx context.Context) (string, error) {
	return f.WaitRegistry(ctx, f.cluster.Deployments)
}

func (f *finishing) verify(ctx context.Context) (did string, err error) {
	f.verified, did, err = f.verifier.Nodes(ctx, f.switching)
	return did, err
}

// verifyMirrors warns of nodes that ignore their mirrors. Pulls by the registry's own address work there.
func (f *finishing) verifyMirrors(ctx context.Context) (string, error) {
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
func (f *finishing) collect(ctx context.Context) (string, error) {
	return f.payload.Collect(ctx, func(pod corev1.Pod) bool {
		return pod.Labels[names.LabelComponent] == names.ComponentProxy && !f.UsesProxy(pod)
	})
}

// readState refuses to run without a prepare of the same settings, because the steps delete what
// the mode does not need.
func (f *finishing) readState(ctx context.Context) (string, error) {
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

func (f *finishing) record(ctx context.Context) (string, error) {
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

// rotate continues a CA rotation where Prepare had to stop.
func (f *finishing) rotate(ctx context.Context) (did string, err error) {
	_, s, err := f.RequireState(ctx)
	if err != nil {
		return "", err
	}
	if s.PKI == nil {
		return "nothing: the state has no PKI settings", nil
	}
	f.rotated, did, err = f.certs.FinishRotation(ctx, *s.PKI)
	return did, err
}

func (f *finishing) unneeded(ctx context.Context) (string, error) {
	if !f.rotated {
		return "nothing: it may still be needed", nil
	}
	_, s, err := f.RequireState(ctx)
	if err != nil || s.PKI == nil {
		return "nothing", err
	}
	return f.certs.DeleteUnneeded(ctx, *s.PKI)
}
