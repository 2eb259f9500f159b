package hook

import (
	"context"
	"fmt"
	"maps"
	"strings"

	"github.com/zarf-dev/zarf-registry/internal/hook/preflight"
	"github.com/zarf-dev/zarf-registry/internal/hook/steps"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// Prepare creates everything that the chart's objects need before they can run. It changes nothing
// until the mode is decided and preflight has found no blocker.
func (h *Hook) Prepare(ctx context.Context) error {
	r := h.start()
	i := r.inspection()
	p := &prepare{run: r, inspection: i}
	return r.phase(ctx, "prepare", []steps.Step{
		{Name: "list the nodes", Run: i.Look,
			Why: "injected pods need the nodes' own pause image and a payload for each architecture"},
		{Name: "read the saved state", Run: i.ReadState,
			Why: "an upgrade keeps the mode that the cluster uses, and never overwrites a state that it cannot read"},
		{Name: "decide the mode", Run: p.decide,
			Why: "settings that cannot work, or would silently undo the saved mode, are refused before anything changes"},
		{Name: "preflight", Run: i.Check,
			Why: "all blockers are reported at once, before anything changes"},
		{Name: "replace the claim", In: ours, Run: i.ReplaceClaim,
			Why: "a claim that never got a volume cannot be corrected, and Helm creates it again"},
		{Name: "label the namespace", Run: steps.OnlyIf(h.Settings.LabelsNamespace(), i.LabelNamespace),
			Why: "podSecurity.label=true: Pod Security must admit host ports and host directories"},
		{Name: "issue the certificates", In: ours, Run: p.certificates,
			Why: "proxies and registry use mutual TLS"},
		{Name: "write the push credential", In: ours, Run: p.credentials,
			Why: "only its owner may change what the registry serves"},
		{Name: "open the plain listener", In: []state.Mode{state.ModeNodePort}, Run: r.certs.OpenPlain,
			Why: "a node port leads to it, so it must be open first"},
		{Name: "create the NodePort Service", In: ours, Run: p.ownPort,
			Why: "another Service with it would answer in the registry's place"},
		{Name: "seed the payload", Run: steps.OnlyIf(r.injects(), p.seed),
			Why: "nodes that hold only the pause image get the programs from the API server"},
		{Name: "record the desired mode", Run: p.record,
			Why: "a run that is interrupted from here on can be continued"},
	})
}

// prepare holds what the steps of one Prepare share.
type prepare struct {
	*run
	inspection *preflight.Inspection
	// unreserved is why no Service has to reserve the port.
	unreserved string
}

func (p *prepare) decide(ctx context.Context) (string, error) {
	if _, err := p.hookImage(); err != nil {
		return "", err
	}
	return p.inspection.Decide(ctx)
}

func (p *prepare) certificates(ctx context.Context) (string, error) {
	recorded := p.inspection.Saved != nil && p.inspection.Saved.PKI != nil
	return p.certs.Issue(ctx, p.Settings.Certificates(), p.next(nil), recorded)
}

func (p *prepare) credentials(ctx context.Context) (string, error) {
	copied := p.inspection.Saved != nil && p.inspection.Saved.PushSecret != ""
	if s := p.Settings; s.PKI.Zarf && s.Push.Secret != "" {
		if err := p.certs.RefuseZarfsName(ctx, s.Push.Secret); err != nil {
			return "", err
		}
	}
	did, err := p.certs.WritePush(ctx, p.Settings.Push.Secret, copied)
	if err != nil {
		return "", err
	}
	return did, p.certs.WriteRegistryAuth(ctx)
}

// seed writes the payload for every architecture of the nodes.
func (p *prepare) seed(ctx context.Context) (string, error) {
	s := &p.Settings
	if !s.Injector.Enabled {
		return "nothing: injector.enabled=false, the nodes pull ordinary images", nil
	}
	return p.payload.Seed(ctx, p.inspection.Architectures(), s.Programs)
}

func (p *prepare) record(ctx context.Context) (string, error) {
	err := release.RetryOnConflict(ctx, func() error {
		// Read the state again: the step that issues certificates writes it, and so does the CronJob.
		secret, saved, err := p.LoadState(ctx)
		if err != nil {
			return err
		}
		return p.SaveState(ctx, secret, p.next(saved))
	})
	if err != nil {
		return "", err
	}
	images := p.Settings.Injector.Decisions()
	return strings.Join(append([]string{fmt.Sprintf("desired is %s", p.inspection.Desired.Mode)}, images...), "; "), nil
}

// next returns the state that follows the saved one.
func (p *prepare) next(saved *state.State) state.State {
	decided := &p.Settings
	s := state.State{Phase: state.PhasePrepared, Desired: p.inspection.Desired, PortNotReserved: p.unreserved}
	if saved != nil {
		s.Current, s.VerifiedNodes, s.NodeConfig = saved.Current, saved.VerifiedNodes, saved.NodeConfig
		s.ExcusedNodes = saved.ExcusedNodes
	}
	s.PauseImages = p.pauseImages(saved)
	// Pods may write to these directories from now on. Finish removes them from the list.
	s.NodeConfig = s.NodeConfig.Remember(decided.NodeConfig.Directories...)
	if p.inspection.Desired.Mode == state.ModeExternal {
		return s
	}
	certificates := decided.Certificates()
	s.PKI, s.PushSecret = &certificates, decided.Push.Secret
	if saved != nil {
		s.HookImage, s.Rotation = saved.HookImage, saved.Rotation
	}
	if own, _ := p.registry.HookImage(); own != nil && p.finishFollows {
		s.HookImage = own // the chart is rendered after this, with its digest
	}
	return s
}

// pauseImages returns the images of injected programs, to record. A rendering that could not see the
// cluster chose by default, and changes nothing that is recorded.
func (p *prepare) pauseImages(saved *state.State) map[string]state.PauseImage {
	images := map[string]state.PauseImage{}
	if saved != nil {
		maps.Copy(images, saved.PauseImages)
	}
	for architecture, image := range p.Settings.Injector.PauseImages {
		if _, recorded := images[architecture]; !recorded || image.Source != state.SourceDefault {
			images[architecture] = image.PauseImage
		}
	}
	return images
}
