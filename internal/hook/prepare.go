package hook

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/state"
	"github.com/zarf-dev/zarf-registry/internal/version"
)

// Prepare makes everything that the chart's objects need before they can run:
// it decides the mode, makes certificates and credentials, writes the payload and
// records what is desired. Nothing is changed until the decision stands.
func (h *Hook) Prepare(ctx context.Context) error {
	p := preparation{Hook: h}
	return h.runSteps(ctx, "prepare", []step{
		{"look at the nodes", "injected pods need the nodes' own pause image and a payload for each architecture", p.look},
		{"read the saved state", "an upgrade keeps the mode that the cluster uses, and never overwrites what it cannot read", p.readState},
		{"decide the mode", "what cannot work or would silently undo the saved mode is refused before anything changes", p.decide},
		{"make the certificates", "proxies and registry speak mutual TLS", p.certificates},
		{"make the push credential", "only who has it may change what the registry serves", p.credentials},
		{"seed the payload", "nodes that hold only the pause image get the programs from the API server", p.seed},
		{"record the desired mode", "a run that is interrupted from here on can be continued", p.record},
	})
}

// preparation is what the steps of one Prepare hand on to each other.
type preparation struct {
	*Hook
	nodes       []corev1.Node
	stateSecret *corev1.Secret
	saved       *state.State
	desired     state.Settings
}

func (p *preparation) look(ctx context.Context) (string, error) {
	list, err := p.Cluster.Nodes.List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", fmt.Errorf("listing nodes: %w", err)
	}
	p.nodes = list.Items
	if len(p.nodes) == 0 {
		return "", refuse("the cluster has no nodes: add one, then run this again")
	}
	byArchitecture := map[string]int{}
	for _, n := range p.nodes {
		byArchitecture[n.Status.NodeInfo.Architecture]++
		if p.Options.Injector && ready(n) && !slices.ContainsFunc(p.Options.PauseImages, func(i string) bool { return reports(n, i) }) {
			// Not an error: a kubelet reports only its 50 largest images, and
			// the pause image is among the smallest.
			p.Log.Warn("a node does not report the pause image; injected pods start there only if it holds the image all the same",
				"node", n.Name, "images", p.Options.PauseImages, "chosenBy", p.Options.PauseImageSource, "override", "injector.image")
		}
	}
	var parts []string
	for _, arch := range slices.Sorted(maps.Keys(byArchitecture)) {
		parts = append(parts, fmt.Sprintf("%d %s", byArchitecture[arch], arch))
	}
	return fmt.Sprintf("found %d nodes (%s)", len(p.nodes), strings.Join(parts, ", ")), nil
}

func (p *preparation) readState(ctx context.Context) (string, error) {
	var err error
	p.stateSecret, p.saved, err = p.loadState(ctx)
	if err != nil {
		return "", err
	}
	if p.saved == nil {
		return "found none: this is a new installation", nil
	}
	if p.saved.Current == nil {
		return fmt.Sprintf("found %s desired, never proven", p.saved.Desired.Mode), nil
	}
	return fmt.Sprintf("found %s at %s, proven", p.saved.Current.Mode, p.saved.Current.Address), nil
}

func (p *preparation) decide(context.Context) (string, error) {
	o := p.Options
	if p.saved != nil && o.ModeSource == state.SourceDefault && p.saved.Desired.Mode != o.Mode {
		return "", refuse("the cluster uses %s mode, but the chart was rendered without seeing it and fell back to %s mode; name the mode: --set registryProxy=%t",
			p.saved.Desired.Mode, o.Mode, p.saved.Desired.Mode == state.ModeProxy)
	}
	p.desired = state.Settings{
		Mode: o.Mode, Address: o.Address(), Port: o.Port,
		IPFamily: o.IPFamily, HostNetwork: o.HostNetwork,
		MTLS: "internal", DecidedBy: o.ModeSource,
	}
	return fmt.Sprintf("%s at %s on %s, decided by %s", p.desired.Mode, p.desired.Address, p.desired.IPFamily, p.desired.DecidedBy), nil
}

func (p *preparation) record(ctx context.Context) (string, error) {
	s := state.State{Phase: state.PhasePrepared, Desired: p.desired}
	if p.saved != nil {
		s.Current, s.Nodes = p.saved.Current, p.saved.Nodes
	}
	if err := p.saveState(ctx, p.stateSecret, s); err != nil {
		return "", err
	}
	return fmt.Sprintf("desired is %s", p.desired.Mode), nil
}

// loadState returns the state's Secret and its content, nil where there is none.
func (h *Hook) loadState(ctx context.Context) (*corev1.Secret, *state.State, error) {
	name := h.Options.Name + SuffixState
	secret, err := h.secret(ctx, name)
	if err != nil || secret == nil {
		return nil, nil, err
	}
	s, err := state.Decode(secret.Data[state.Key])
	if err != nil {
		return nil, nil, refuse("%s, key %s: %w", h.object("Secret", name), state.Key, err)
	}
	return secret, &s, nil
}

func (h *Hook) saveState(ctx context.Context, old *corev1.Secret, s state.State) error {
	s.UpdatedBy, s.UpdatedAt = version.Version, h.Now().UTC().Truncate(0)
	data, err := state.Encode(s)
	if err != nil {
		return err
	}
	return h.writeSecret(ctx, old, h.Options.Name+SuffixState, componentState, corev1.SecretTypeOpaque, map[string][]byte{state.Key: data})
}

func ready(n corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func reports(n corev1.Node, image string) bool {
	return slices.ContainsFunc(n.Status.Images, func(i corev1.ContainerImage) bool {
		return slices.Contains(i.Names, image)
	})
}
