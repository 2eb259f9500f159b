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
	p := &preparation{run: r, Inspection: i}
	ours := h.Settings.Mode != state.ModeExternal
	injects := ours || h.Settings.ConfiguresNodes()
	return r.phase(ctx, "prepare", []steps.Step{
		{Name: "list the nodes", Run: i.Look,
			Why: "injected pods need the nodes' own pause image and a payload for each architecture"},
		{Name: "read the saved state", Run: i.ReadState,
			Why: "an upgrade keeps the mode that the cluster uses, and never overwrites a state that it cannot read"},
		{Name: "decide the mode", Run: p.decide,
			Why: "settings that cannot work, or would silently undo the saved mode, are refused before anything changes"},
		{Name: "preflight", Run: i.Check,
			Why: "all blockers are reported at once, before anything changes"},
		{Name: "replace the claim", Run: steps.OnlyIf(ours, i.ReplaceClaim),
			Why: "a claim that never got a volume cannot be corrected, and Helm creates it again"},
		{Name: "label the namespace", Run: steps.OnlyIf(h.Settings.LabelsNamespace(), i.LabelNamespace),
			Why: "podSecurity.label=true: Pod Security must admit host ports and host directories"},
		{Name: "issue the certificates", Run: steps.OnlyIf(ours, p.certificates),
			Why: "proxies and registry use mutual TLS"},
		{Name: "write the push credential", Run: steps.OnlyIf(ours, p.credentials),
			Why: "only its owner may change what the registry serves"},
		{Name: "open the plain listener", Run: steps.OnlyIf(h.Settings.Mode == state.ModeNodePort, r.certs.OpenPlain),
			Why: "a node port leads to it, so it must be open first"},
		{Name: "create the NodePort Service", Run: steps.OnlyIf(ours, p.ownPort),
			Why: "another Service with it would answer in the registry's place"},
		{Name: "seed the payload", Run: steps.OnlyIf(injects, p.seed),
			Why: "nodes that hold only the pause image get the programs from the API server"},
		{Name: "record the desired mode", Run: p.record,
			Why: "a run that is interrupted from here on can be continued"},
	})
}

// preparation holds what the steps of one Prepare share.
type preparation struct {
	*run
	*preflight.Inspection
	// unreserved is why no Service has to reserve the port.
	unreserved string
}

func (p *preparation) decide(ctx context.Context) (string, error) {
	if _, err := p.hookImage(); err != nil {
		return "", err
	}
	return p.Decide(ctx)
}

func (p *preparation) certificates(ctx context.Context) (string, error) {
	recorded := p.Saved != nil && p.Saved.PKI != nil
	return p.certs.Issue(ctx, p.run.Settings.Certificates(), p.next(nil), recorded)
}

func (p *preparation) credentials(ctx context.Context) (string, error) {
	copied := p.Saved != nil && p.Saved.PushSecret != ""
	if s := p.run.Settings; s.PKI.Zarf && s.Push.Secret != "" {
		if err := p.certs.RefuseZarfsName(ctx, s.Push.Secret); err != nil {
			return "", err
		}
	}
	did, err := p.certs.WritePush(ctx, p.run.Settings.Push.Secret, copied)
	if err != nil {
		return "", err
	}
	return did, p.certs.WriteRegistryAuth(ctx)
}

// seed writes the payload for every architecture of the nodes.
func (p *preparation) seed(ctx context.Context) (string, error) {
	s := &p.run.Settings
	if !s.Injector.Enabled {
		return "nothing: injector.enabled=false, the nodes pull ordinary images", nil
	}
	return p.payload.Seed(ctx, p.Architectures(), s.Programs)
}

func (p *preparation) record(ctx context.Context) (string, error) {
	err := release.RetryOnConflict(ctx, func() error {
		// Read the state again: the step that issues certificates writes it, and so does the CronJob.
		secret, saved, err := p.run.LoadState(ctx)
		if err != nil {
			return err
		}
		return p.run.SaveState(ctx, secret, p.next(saved))
	})
	if err != nil {
		return "", err
	}
	images := p.run.Settings.Injector.Decisions()
	return strings.Join(append([]string{fmt.Sprintf("desired is %s", p.Desired.Mode)}, images...), "; "), nil
}

// next returns the state that follows the saved one.
func (p *preparation) next(saved *state.State) state.State {
	decided := &p.run.Settings
	s := state.State{Phase: state.PhasePrepared, Desired: p.Desired, PortNotReserved: p.unreserved}
	if saved != nil {
		s.Current, s.VerifiedNodes, s.NodeConfig = saved.Current, saved.VerifiedNodes, saved.NodeConfig
		s.ExcusedNodes = saved.ExcusedNodes
	}
	s.PauseImages = p.pauseImages(saved)
	// Pods may write to these directories from now on. Finish removes them from the list.
	s.NodeConfig = s.NodeConfig.Remember(decided.NodeConfig.Directories...)
	if p.Desired.Mode == state.ModeExternal {
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
func (p *preparation) pauseImages(saved *state.State) map[string]state.PauseImage {
	images := map[string]state.PauseImage{}
	if saved != nil {
		maps.Copy(images, saved.PauseImages)
	}
	for architecture, image := range p.run.Settings.Injector.PauseImages {
		if _, recorded := images[architecture]; !recorded || image.Source != state.SourceDefault {
			images[architecture] = image.PauseImage
		}
	}
	return images
}
