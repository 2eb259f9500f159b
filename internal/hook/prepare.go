package hook

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"strings"

	"github.com/zarf-dev/zarf-registry/internal/hook/certs"
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
	p := &prepareRun{run: r, inspection: i, rotation: &certs.Rotation{Manager: r.certs, PKI: h.Settings.Certificates()}}
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
		{Name: "check the sources of certificates", In: ours,
			Run: steps.OnlyIf(h.Settings.PKI.Mode != state.PKIInternal, p.rotation.Sources),
			Why: "cert-manager may not issue them, or Secrets of the user may have changed"},
		{Name: "record the source of certificates", In: ours, Run: p.recordPKI,
			Why: "from here on the CronJob must use the same, and a CA rotation is recorded beside it"},
		{Name: "issue the certificates", In: ours, Run: p.certificates,
			Why: "proxies and registry use mutual TLS"},
		{Name: "write the push credential", In: ours, Run: p.pushCredential,
			Why: "only its owner may change what the registry serves"},
		{Name: "open the plain listener", In: []state.Mode{state.ModeNodePort}, Run: r.credentials.OpenPlain,
			Why: "a node port leads to it, so it must be open first"},
		{Name: "create the NodePort Service", In: ours, Run: p.ownPort,
			Why: "another Service with it would answer in the registry's place"},
		{Name: "seed the payload", Run: steps.OnlyIf(r.injects(), p.seed),
			Why: "nodes that hold only the pause image get the programs from the API server"},
		{Name: "record the desired mode", Run: p.record,
			Why: "a run that is interrupted from here on can be continued"},
	})
}

// prepareRun holds what the steps of one Prepare share.
type prepareRun struct {
	*run
	inspection *preflight.Inspection
	rotation   *certs.Rotation
}

func (p *prepareRun) decide(ctx context.Context) (string, error) {
	if _, err := p.hookImage(); err != nil {
		return "", err
	}
	return p.inspection.Decide(ctx)
}

// recordPKI saves where certificates come from. Without a saved state, it saves all that is decided.
func (p *prepareRun) recordPKI(ctx context.Context) (string, error) {
	did := "unchanged"
	err := p.save(ctx, func(saved *state.State) *state.State {
		switch {
		case saved == nil:
			saved = p.next(nil)
		case saved.PKI != nil && reflect.DeepEqual(*saved.PKI, p.rotation.PKI):
			return nil
		}
		saved.PKI, did = &p.rotation.PKI, "certificates are of mode "+string(p.rotation.PKI.Mode)
		return saved
	})
	return did, err
}

// certificates issues or copies the certificates as far as possible without waiting for pods. If that
// changes the trusted CAs, finish completes the CA rotation: only then do pods run that can report what
// they have loaded.
func (p *prepareRun) certificates(ctx context.Context) (string, error) {
	waiting, err := p.rotation.Run(ctx)
	if err != nil || len(waiting) == 0 {
		return p.rotation.Did(), err
	}
	if err := p.rotation.StartCaches(ctx); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s; finish continues the CA rotation, which waits for: %s", p.rotation.Did(),
		release.List(waiting)), nil
}

func (p *prepareRun) pushCredential(ctx context.Context) (string, error) {
	copied := p.inspection.Saved != nil && p.inspection.Saved.PushSecret != ""
	if s := p.Settings; s.PKI.Zarf && s.Push.Secret != "" {
		if err := p.credentials.RefuseZarfsName(ctx, s.Push.Secret); err != nil {
			return "", err
		}
	}
	did, err := p.credentials.WritePush(ctx, p.Settings.Push.Secret, copied)
	if err != nil {
		return "", err
	}
	return did, p.credentials.WriteRegistryAuth(ctx)
}

// ownPort makes the Service that owns the node port. Who serves the port changes in finish only.
func (p *prepareRun) ownPort(ctx context.Context) (string, error) {
	var working state.Mode
	if saved := p.inspection.Saved; saved != nil {
		working = saved.Working().Mode
	}
	return p.port.Own(ctx, working)
}

// seed writes the payload for every architecture of the nodes.
func (p *prepareRun) seed(ctx context.Context) (string, error) {
	s := &p.Settings
	if !s.Injector.Enabled {
		return "nothing: injector.enabled=false, the nodes pull ordinary images", nil
	}
	return p.payload.Seed(ctx, p.inspection.Architectures(), s.Programs)
}

func (p *prepareRun) record(ctx context.Context) (string, error) {
	if err := p.save(ctx, p.next); err != nil {
		return "", err
	}
	images := p.Settings.Injector.Decisions()
	return strings.Join(append([]string{fmt.Sprintf("desired is %s", p.inspection.Desired.Mode)}, images...), "; "), nil
}

// save writes the state that follows the saved one, unless that is nil. It reads the saved one again: a CA
// rotation and the CronJob write it too.
func (p *prepareRun) save(ctx context.Context, next func(saved *state.State) *state.State) error {
	return release.RetryOnConflict(ctx, func() error {
		secret, saved, err := p.LoadState(ctx)
		if err != nil {
			return err
		}
		if s := next(saved); s != nil {
			return p.SaveState(ctx, secret, *s)
		}
		return nil
	})
}

func (p *prepareRun) next(saved *state.State) *state.State {
	decided := &p.Settings
	s := &state.State{Phase: state.PhasePrepared, Desired: p.inspection.Desired, PortNotReserved: p.port.Unreserved}
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
func (p *prepareRun) pauseImages(saved *state.State) map[string]state.PauseImage {
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
