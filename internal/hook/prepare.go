package hook

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/injector"
	"github.com/zarf-dev/zarf-registry/internal/noderuntime"
	"github.com/zarf-dev/zarf-registry/internal/state"
)

// Prepare makes everything that the chart's objects need before they can run:
// it decides the mode, makes certificates and credentials, writes the payload and
// records what is desired. Nothing is changed until the decision stands and
// nothing is seen to be in its way.
func (h *Hook) Prepare(ctx context.Context) error {
	p := &preparation{inspection{Hook: h}}
	ours := h.Settings.Mode != state.ModeExternal
	return h.runSteps(ctx, "prepare", []step{
		{"look at the nodes", "injected pods need the nodes' own pause image and a payload for each architecture", p.look},
		{"read the saved state", "an upgrade keeps the mode that the cluster uses, and never overwrites what it cannot read", p.readState},
		{"decide the mode", "what cannot work or would silently undo the saved mode is refused before anything changes", p.decide},
		{"preflight", "what stands in the way is said all at once, before anything changes", p.preflight},
		{"label the namespace", "podSecurity.label=true: Pod Security must admit host ports and the nodes' directories", onlyIf(h.Settings.LabelsNamespace(), p.labelNamespace)},
		{"make the certificates", "proxies and registry speak mutual TLS", onlyIf(ours, p.certificates)},
		{"make the push credential", "only who has it may change what the registry serves", onlyIf(ours, p.credentials)},
		{"open the node port's listener", "a node port leads to it, so it must be there first", onlyIf(h.Settings.Mode == state.ModeNodePort, h.openPlain)},
		{"seed the payload", "nodes that hold only the pause image get the programs from the API server", onlyIf(ours || h.Settings.ConfiguresNodes(), p.seed)},
		{"record the desired mode", "a run that is interrupted from here on can be continued", p.record},
	})
}

// inspection is what Prepare and Preflight find out before anything is changed.
type inspection struct {
	*Hook
	nodes       []corev1.Node
	stateSecret *corev1.Secret
	saved       *state.State
	desired     state.Settings
	payloads    map[injector.Program]*injector.Payload
	// nodeConfig is what the chart decided of node configuration, empty where it did
	// not or where it cannot be read.
	nodeConfig noderuntime.Config
}

// preparation is what the steps of one Prepare hand on to each other.
type preparation struct{ inspection }

func (i *inspection) look(ctx context.Context) (string, error) {
	list, err := i.Cluster.Nodes.List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", fmt.Errorf("listing nodes: %w", refuseForbidden(err))
	}
	// Windows nodes run no pod of this project and pull no image of Linux.
	i.nodes = slices.DeleteFunc(list.Items, func(n corev1.Node) bool { return !linux(n) })
	if len(i.nodes) == 0 {
		return "", refuse("the cluster has no nodes that run Linux: add one, then run this again")
	}
	byArchitecture := map[string]int{}
	for _, n := range i.nodes {
		byArchitecture[n.Status.NodeInfo.Architecture]++
	}
	var parts []string
	for _, arch := range slices.Sorted(maps.Keys(byArchitecture)) {
		parts = append(parts, fmt.Sprintf("%d %s", byArchitecture[arch], arch))
	}
	return fmt.Sprintf("found %d nodes (%s)", len(i.nodes), strings.Join(parts, ", ")), nil
}

func (i *inspection) readState(ctx context.Context) (string, error) {
	var err error
	i.stateSecret, i.saved, err = i.loadState(ctx)
	if err != nil {
		return "", refuseForbidden(err)
	}
	if i.saved == nil {
		return "found none: this is a new installation", nil
	}
	if i.saved.Current == nil {
		return fmt.Sprintf("found %s desired, never proven", i.saved.Desired.Mode), nil
	}
	return fmt.Sprintf("found %s desired, and %s at %s proven", i.saved.Desired.Mode, i.saved.Current.Mode, i.saved.Current.Address), nil
}

func (i *inspection) decide(context.Context) (string, error) {
	o := &i.Settings
	external := o.Mode == state.ModeExternal
	switch {
	case !external && o.RegistryURL != "":
		return "", refuse("registryURL is %s and registryProxy is %t: an external registry is not deployed by this release, so there is nothing that a proxy or a node port could lead to; "+
			"and images would be named by %s, not by the registry's address: leave out one of the two (--set registryURL= or --set registryProxy=null)",
			o.RegistryURL, o.Mode == state.ModeProxy, o.Address)
	case external && o.RegistryURL == "":
		return "", refuse("external mode without a registry: name it, --set registryURL=HOST[:PORT][/PATH]")
	case external && strings.Contains(o.RegistryURL, "://"):
		return "", refuse("registryURL is %s: image references have no scheme, name it as HOST[:PORT][/PATH]", o.RegistryURL)
	}
	if !external {
		if err := o.PKI.Validate(); err != nil {
			return "", refuse("the settings of the certificates are impossible: %w", err)
		}
	}
	if i.saved != nil {
		if err := i.undoing(i.saved.Desired); err != nil {
			return "", err
		}
	}
	i.desired = state.Settings{Mode: o.Mode, Address: o.Address, IPFamily: o.IPFamily, DecidedBy: o.ModeSource}
	if !external {
		i.desired.Port, i.desired.HostNetwork, i.desired.MTLS = o.Port, o.Proxy.HostNetwork, o.PKI.Mode
	}
	return fmt.Sprintf("%s at %s on %s, decided by %s", i.desired.Mode, i.desired.Address, i.desired.IPFamily, i.desired.DecidedBy), nil
}

// undoing refuses a decision that nobody made and that differs from the saved one.
func (i *inspection) undoing(saved state.Settings) error {
	const blind = "but the chart was rendered without seeing the cluster and fell back to %s"
	o := &i.Settings
	if o.ModeSource == state.SourceDefault && saved.Mode != o.Mode {
		return refuse("the cluster uses %s mode, "+blind+" mode: name the mode, %s to keep it, or %s to switch",
			saved.Mode, o.Mode, setMode(saved.Mode, saved.Address), setMode(o.Mode, o.RegistryURL))
	}
	if o.IPFamilySource == state.SourceDefault && saved.IPFamily != o.IPFamily && o.Mode != state.ModeExternal {
		return refuse("the cluster's registry is set up for %s, "+blind+": name it, --set ipFamily=%s", saved.IPFamily, o.IPFamily, saved.IPFamily)
	}
	used := saved.MTLS
	if i.saved.PKI != nil {
		used = i.saved.PKI.Mode
	}
	if o.PKI.Source == state.SourceDefault && used != "" && used != o.PKI.Mode && o.Mode != state.ModeExternal {
		return refuse("the cluster's certificates are of mode %s, "+blind+": name the mode, --set pki.mode=%s to keep it, or --set pki.mode=%s to change it",
			used, o.PKI.Mode, used, o.PKI.Mode)
	}
	return nil
}

// setMode is the option of Helm that names a mode.
func setMode(mode state.Mode, registryURL string) string {
	if mode == state.ModeExternal {
		return "--set registryURL=" + registryURL
	}
	return fmt.Sprintf("--set registryProxy=%t", mode == state.ModeProxy)
}

func (p *preparation) record(ctx context.Context) (string, error) {
	err := againOnConflict(ctx, func() error {
		// Read again: the certificates' step writes it, and so does the CronJob.
		secret, saved, err := p.loadState(ctx)
		if err != nil {
			return err
		}
		return p.saveState(ctx, secret, p.next(saved), removedService(secret))
	})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("desired is %s", p.desired.Mode), nil
}

// next is the state to record, after the saved one.
func (p *preparation) next(saved *state.State) state.State {
	s := state.State{Phase: state.PhasePrepared, Desired: p.desired}
	if saved != nil {
		s.Current, s.Nodes, s.NodeConfig = saved.Current, saved.Nodes, saved.NodeConfig
	}
	// From here on pods may write there; Finish knows better.
	s.NodeConfig = s.NodeConfig.Remember(p.Settings.NodeConfig.Directories...)
	if p.desired.Mode == state.ModeExternal {
		return s
	}
	s.PKI, s.PushSecret = &p.Settings.PKI.PKI, p.Settings.Push.Secret
	if saved != nil {
		s.HookImage, s.Rotation = saved.HookImage, saved.Rotation
	}
	if own := p.Registry.HookImage(); own != nil && p.Settings.Push.Images && p.FinishFollows {
		s.HookImage = own
	}
	return s
}

// certificates makes or copies the certificates as far as that can be done at once.
// Where it changes whom everybody trusts, Finish does the rest: pods of this
// release, which can be asked what they have loaded, run only then.
func (p *preparation) certificates(ctx context.Context) (string, error) {
	fresh := p.next(nil)
	r := &rotation{Hook: p.Hook, pki: p.Settings.PKI.PKI, fresh: &fresh}
	if _, err := r.copies(ctx); err != nil {
		return "", err
	}
	if p.saved != nil && p.saved.PKI != nil {
		// From here on the CronJob must want the same.
		err := p.updateState(ctx, func(s *state.State) bool {
			same := s.PKI != nil && reflect.DeepEqual(*s.PKI, r.pki)
			s.PKI = &r.pki
			return !same
		})
		if err != nil {
			return "", err
		}
	}
	waiting, err := r.run(ctx)
	if err != nil {
		return "", err
	}
	if len(waiting) > 0 {
		return fmt.Sprintf("%s; finish goes on with the change of authorities, which waits for: %s", r.did(), enumerate(waiting)), nil
	}
	return r.did(), nil
}

// NodeReady says whether a node's status has it ready.
func NodeReady(n corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func linux(n corev1.Node) bool {
	os := n.Status.NodeInfo.OperatingSystem
	return os == "" || os == "linux"
}
