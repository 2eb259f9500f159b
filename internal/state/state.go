// Package state is the memory of the mode: what a cluster's registry was last
// asked to be, and what it was last proven to be. It encodes and decodes the
// versioned JSON kept under the key state.json of the Secret
// <fullname>-state, and validates it. It neither reads nor writes the cluster.
package state

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

const (
	// Version is the format written by this release. A reader refuses newer
	// ones: it cannot know what they mean.
	Version = 1
	// Key is the Secret's key under which the JSON stands.
	Key = "state.json"
	// KeyRemovedService is the Secret's key under which the NodePort Service stands
	// (as JSON) while a switch to proxy mode has removed it and nothing is proven yet.
	KeyRemovedService = "removed-service.json"
)

// Mode is how a node's container runtime reaches the registry.
type Mode string

// The modes.
const (
	// ModeProxy: a proxy on every node's loopback address, mutual TLS to the registry.
	ModeProxy Mode = "proxy"
	// ModeNodePort: a NodePort Service, which kube-proxy serves on loopback.
	ModeNodePort Mode = "nodeport"
	// ModeExternal: a registry that is not ours; nothing is deployed.
	ModeExternal Mode = "external"
)

// IPFamily is the cluster's address families.
type IPFamily string

// The IP families.
const (
	IPv4      IPFamily = "IPv4"
	IPv6      IPFamily = "IPv6"
	DualStack IPFamily = "DualStack"
)

// Source says what decided a setting.
type Source string

// The sources, in the order in which they decide.
const (
	SourceValue   Source = "value"   // the user named it
	SourceState   Source = "state"   // it was remembered
	SourceCluster Source = "cluster" // it was seen in the cluster
	SourceDefault Source = "default" // nothing else was known
)

// Phase is how far the desired settings are realised.
type Phase string

// The phases.
const (
	// PhasePrepared: desired was written, the chart is being applied, nothing
	// is proven.
	PhasePrepared Phase = "prepared"
	// PhaseReady: current equals desired and every node that was ready pulled
	// through its loopback address. In external mode nothing is to be proven.
	PhaseReady Phase = "ready"
)

// Settings are one way for the registry to be reached.
type Settings struct {
	Mode Mode `json:"mode"`
	// Address is what image references begin with, host and port:
	// "127.0.0.1:31999" or "[::1]:31999"; in external mode host, port and path of
	// the registry as the user gave them.
	Address string `json:"address"`
	// Port is the port on each node's loopback address, the same in proxy and
	// nodeport mode; 0 in external mode.
	Port     int      `json:"port"`
	IPFamily IPFamily `json:"ipFamily"`
	// HostNetwork says whether proxies use their node's network namespace.
	HostNetwork bool `json:"hostNetwork"`
	// MTLS is where the certificates come from; empty in external mode, which has none.
	MTLS PKIMode `json:"mtls"`
	// DecidedBy is what decided the mode.
	DecidedBy Source `json:"decidedBy"`
}

// Same says whether two settings have the nodes reach the registry in the same
// way, whoever decided them.
func (s Settings) Same(other Settings) bool {
	s.DecidedBy = other.DecidedBy
	return s == other
}

// State is the content of the Secret. Desired is what the last install or
// upgrade asked for; Current is what was last proven and is nil until then. It
// never says more than was proven.
type State struct {
	Version int       `json:"version"`
	Phase   Phase     `json:"phase"`
	Desired Settings  `json:"desired"`
	Current *Settings `json:"current,omitempty"`
	// Nodes are the names of the nodes that pulled in the last proof.
	Nodes []string `json:"nodes,omitempty"`
	// HookImage is init-hook's own image as finish pushed it into the registry,
	// from where later Jobs can pull it; nil where it is not pushed.
	HookImage *HookImage `json:"hookImage,omitempty"`
	// PKI is what Prepare was last told of the certificates, so that they can be
	// renewed without the chart's values; nil in external mode.
	PKI *PKI `json:"pki,omitempty"`
	// Rotation is under way, nil where none is.
	Rotation *Rotation `json:"rotation,omitempty"`
	// PushSecret is the user's Secret that the push credential is copied from, empty
	// where the hook makes it.
	PushSecret string `json:"pushSecret,omitempty"`
	// NodeConfig says where files of this release may be on nodes; nil where none are.
	NodeConfig *NodeConfig `json:"nodeConfig,omitempty"`
	// UpdatedBy is the release of init-hook that wrote the state, UpdatedAt when.
	UpdatedBy string    `json:"updatedBy"`
	UpdatedAt time.Time `json:"updatedAt"`
}

// HookImage is an image inside the registry.
type HookImage struct {
	// Reference is "<repository>:<tag>", without the registry's address.
	Reference string `json:"reference"`
	// Architecture is the only one that it runs on, as in GOARCH.
	Architecture string `json:"architecture"`
}

// Encode validates s and returns its JSON, with the version set.
func Encode(s State) ([]byte, error) {
	s.Version = Version
	if err := s.validate(); err != nil {
		return nil, fmt.Errorf("encoding state: %w", err)
	}
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encoding state: %w", err)
	}
	return append(data, '\n'), nil
}

// Decode reads the JSON that Encode wrote. A newer version, an unknown field or
// an impossible value is an error, so that nobody overwrites what they cannot read.
func Decode(data []byte) (State, error) {
	var version struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(data, &version); err != nil {
		return State{}, fmt.Errorf("decoding state: %w", err)
	}
	if version.Version > Version {
		return State{}, fmt.Errorf("decoding state: it has version %d, this release reads up to version %d: use the release that wrote it, or a newer one", version.Version, Version)
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	var s State
	if err := decoder.Decode(&s); err != nil {
		return State{}, fmt.Errorf("decoding state: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return State{}, errors.New("decoding state: there is more after the JSON object")
	}
	if err := s.validate(); err != nil {
		return State{}, fmt.Errorf("decoding state: %w", err)
	}
	return s, nil
}

func (s State) validate() error {
	if s.Version < 1 {
		return fmt.Errorf("version %d is impossible", s.Version)
	}
	if !slices.Contains([]Phase{PhasePrepared, PhaseReady}, s.Phase) {
		return fmt.Errorf("unknown phase %q", s.Phase)
	}
	if err := s.Desired.validate(); err != nil {
		return fmt.Errorf("desired: %w", err)
	}
	if s.Current != nil {
		if err := s.Current.validate(); err != nil {
			return fmt.Errorf("current: %w", err)
		}
	}
	if s.Phase == PhaseReady && s.Current == nil {
		return errors.New("phase is ready but nothing is current")
	}
	if s.PKI != nil {
		if err := s.PKI.Validate(); err != nil {
			return fmt.Errorf("pki: %w", err)
		}
	}
	if r := s.Rotation; r != nil && !slices.Contains([]RotationPhase{RotationTrust, RotationReissue, RotationDrop}, r.Phase) {
		return fmt.Errorf("rotation: unknown phase %q", r.Phase)
	}
	if s.NodeConfig != nil {
		if err := s.NodeConfig.Validate(); err != nil {
			return fmt.Errorf("nodeConfig: %w", err)
		}
	}
	if i := s.HookImage; i != nil && (i.Reference == "" || i.Architecture == "") {
		return fmt.Errorf("hookImage %q for architecture %q is incomplete", i.Reference, i.Architecture)
	}
	return nil
}

func (s Settings) validate() error {
	switch {
	case !slices.Contains([]Mode{ModeProxy, ModeNodePort, ModeExternal}, s.Mode):
		return fmt.Errorf("unknown mode %q", s.Mode)
	case !slices.Contains([]IPFamily{IPv4, IPv6, DualStack}, s.IPFamily):
		return fmt.Errorf("unknown IP family %q", s.IPFamily)
	case s.Mode != ModeExternal && (s.Port < 1 || s.Port > 65535):
		return fmt.Errorf("port %d is impossible", s.Port)
	case s.Address == "":
		return errors.New("address is empty")
	}
	return nil
}
