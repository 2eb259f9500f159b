// Package state defines the persistent state of a release: the settings that the last install or upgrade
// requested, those that were last verified, and what commands need that do not have the chart's values. It encodes,
// decodes and validates the versioned JSON in the key state.json of the Secret <fullname>-state. It does not access the
// cluster.
package state

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/zarf-dev/zarf-registry/internal/version"
)

const (
	// Version is the format that this release reads and writes. A new field needs no new version: older programs keep
	// fields at the top level that they do not know.
	Version = 1
	// Key is the Secret's only key, of the JSON.
	Key = "state.json"
)

// Mode is how a node's container runtime reaches the registry.
type Mode string

// The modes.
const (
	// ModeProxy: a proxy on every node's loopback address, with mutual TLS to the registry.
	ModeProxy Mode = "proxy"
	// ModeNodePort: a NodePort Service, which kube-proxy serves on the loopback address.
	ModeNodePort Mode = "nodeport"
	// ModeExternal: an external registry; nothing is deployed.
	ModeExternal Mode = "external"
)

// IPFamily is the IP families of the cluster.
type IPFamily string

// The IP families.
const (
	IPv4      IPFamily = "IPv4"
	IPv6      IPFamily = "IPv6"
	DualStack IPFamily = "DualStack"
)

// Source is where a setting comes from.
type Source string

// The sources, in order of precedence.
const (
	SourceValue   Source = "value"   // the chart's values
	SourceState   Source = "state"   // the previous state
	SourceCluster Source = "cluster" // detected in the cluster
	SourceDefault Source = "default" // none of the above
)

// Phase is how far the desired settings are applied.
type Phase string

// The phases of settings.
const (
	// PhasePrepared: the desired settings are written and the chart is being applied; nothing is verified.
	PhasePrepared Phase = "prepared"
	// PhaseReady: current equals desired, and every ready node has pulled through its loopback address. In
	// external mode nothing is verified.
	PhaseReady Phase = "ready"
)

// Settings are how nodes reach the registry.
type Settings struct {
	Mode Mode `json:"mode"`
	// Address is the prefix of image references: host and port, such as "127.0.0.1:31999" or "[::1]:31999";
	// in external mode the registry's host, port and path from the values.
	Address string `json:"address"`
	// Port is the port on each node's loopback address, in proxy and nodeport mode; 0 in external mode.
	Port     int      `json:"port"`
	IPFamily IPFamily `json:"ipFamily"`
	// HostNetwork means that proxies use the host network.
	HostNetwork bool `json:"hostNetwork"`
	// MTLS is the source of the certificates; empty in external mode, which has none.
	PKIMode PKIMode `json:"pkiMode"`
	// DecidedBy is where the mode comes from.
	DecidedBy Source `json:"decidedBy"`
}

// Same reports whether the settings are equal, ignoring DecidedBy.
func (s Settings) Same(other Settings) bool {
	s.DecidedBy = other.DecidedBy
	return s == other
}

// State is the content of the Secret. Desired are the settings of the last install or upgrade. Current are
// the last verified settings; nil until there are any.
type State struct {
	Version int       `json:"version"`
	Phase   Phase     `json:"phase"`
	Desired Settings  `json:"desired"`
	Current *Settings `json:"current,omitempty"`
	// Nodes are the names of the nodes that pulled in the last verification.
	VerifiedNodes []string `json:"verifiedNodes,omitempty"`
	// ExcusedNodes maps each node that the last finish did not wait for to the reason.
	ExcusedNodes map[string]string `json:"excusedNodes,omitempty"`
	// HookImage is init-hook's own image, which finish pushed to the registry for later Jobs; nil if it is not
	// there.
	HookImage *HookImage `json:"hookImage,omitempty"`
	// PauseImages are the images of injected programs by architecture, as in GOARCH. Only an explicit value replaces
	// one: nodes that join or leave must not restart anything.
	PauseImages map[string]PauseImage `json:"pauseImages,omitempty"`
	// PKI is the certificate configuration of the last prepare, for renewals without the chart's values; nil
	// in external mode.
	PKI *PKI `json:"pki,omitempty"`
	// Rotation is nil unless a CA rotation is in progress.
	Rotation *Rotation `json:"rotation,omitempty"`
	// PushSecret is the user's Secret that the push credential is copied from; empty if init-hook generates it.
	PushSecret string `json:"pushSecret,omitempty"`
	// PortNotReserved is why proxy mode needs no Service that reserves the port; empty if it needs one.
	PortNotReserved string `json:"portNotReserved,omitempty"`
	// RenewalFailed is when and why the last certs renew failed; empty if it succeeded. The CronJob does not
	// keep failed pods.
	RenewalFailed string `json:"renewalFailed,omitempty"`
	// NodeConfig is nil if the release has no files on nodes.
	NodeConfig *NodeConfig `json:"nodeConfig,omitempty"`
	// Mirrors is nil if nodes have no mirrors, or none were checked.
	Mirrors *Mirrors `json:"mirrors,omitempty"`
	// UpdatedBy is the version of init-hook that wrote the state, UpdatedAt when.
	UpdatedBy string    `json:"updatedBy"`
	UpdatedAt time.Time `json:"updatedAt"`
}

// Working returns the settings that a run keeps which names no others: the last verified ones, or else the desired
// ones. A switch that failed is continued only if its mode is named again.
func (s *State) Working() Settings {
	if s.Current != nil {
		return *s.Current
	}
	return s.Desired
}

// HookImage is an image inside the registry.
type HookImage struct {
	// Reference is "<repository>:<tag>@<digest>", without the registry's address.
	Reference string `json:"reference"`
	// Architecture is the image's only architecture, as in GOARCH.
	Architecture string `json:"architecture"`
}

// PauseImage is an image in which injected programs run.
type PauseImage struct {
	Reference string      `json:"reference"`
	Reason    PauseReason `json:"reason"`
}

// PauseReason is why an image may carry programs.
type PauseReason string

// The reasons.
const (
	PauseValue   PauseReason = "value"   // the chart's values name it
	PauseDigest  PauseReason = "digest"  // its digest is that of an official pause image
	PauseName    PauseReason = "name"    // its repository is a well-known one
	PauseDefault PauseReason = "default" // official, and no node reported a trusted one
)

// String describes the reason, for people.
func (r PauseReason) String() string {
	return map[PauseReason]string{
		PauseValue: "set by injector.image", PauseDigest: "the digest of an official pause image",
		PauseName: "trusted by name", PauseDefault: "the default: no node reported a trusted image",
	}[r]
}

// Validate returns an error for an image that nothing can use.
func (p PauseImage) Validate() error {
	if p.Reference == "" || strings.ContainsFunc(p.Reference, unicode.IsSpace) {
		return fmt.Errorf("invalid image %q", p.Reference)
	}
	if p.Reason.String() == "" {
		return fmt.Errorf("image %s: unknown reason %q", p.Reference, string(p.Reason))
	}
	return nil
}

// Encode sets the version, validates s and returns its JSON. previous is the document that it replaces, or nil: fields
// at its top level that this release does not know are kept.
func Encode(s State, previous []byte) ([]byte, error) {
	s.Version = Version
	if err := s.validate(); err != nil {
		return nil, fmt.Errorf("encoding state: %w", err)
	}
	var document any = s
	if kept := unknownFields(previous); len(kept) > 0 {
		own, err := json.Marshal(s)
		if err == nil {
			err = json.Unmarshal(own, &kept)
		}
		if err != nil {
			return nil, fmt.Errorf("encoding state: %w", err)
		}
		document = kept
	}
	data, err := json.MarshalIndent(document, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encoding state: %w", err)
	}
	return append(data, '\n'), nil
}

// unknownFields returns the fields at the top level of a document that State does not have.
func unknownFields(document []byte) map[string]json.RawMessage {
	fields := map[string]json.RawMessage{}
	if json.Unmarshal(document, &fields) != nil {
		return nil
	}
	for field := range reflect.TypeFor[State]().Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		delete(fields, name)
	}
	return fields
}

// Decode parses and validates JSON from Encode. Another version and invalid values are errors, so that no program
// overwrites a state that it does not understand. Unknown fields are ignored.
func Decode(data []byte) (State, error) {
	var header struct {
		Version   int    `json:"version"`
		UpdatedBy string `json:"updatedBy"`
	}
	if err := json.Unmarshal(data, &header); err != nil {
		return State{}, fmt.Errorf("decoding state: %w", err)
	}
	if header.Version != Version {
		return State{}, fmt.Errorf("its format has version %d, written by %s, and this program (%s) supports version %d: "+
			"use the release that wrote it, or a newer one", header.Version, cmp.Or(header.UpdatedBy, "an unknown release"),
			version.Version, Version)
	}
	var s State
	if err := json.Unmarshal(data, &s); err != nil {
		return State{}, fmt.Errorf("decoding state: %w", err)
	}
	if err := s.validate(); err != nil {
		return State{}, fmt.Errorf("decoding state: %w", err)
	}
	return s, nil
}

func (s State) validate() error {
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
		return errors.New("phase is ready but current is not set")
	}
	if s.PKI != nil {
		if err := s.PKI.Validate(); err != nil {
			return fmt.Errorf("pki: %w", err)
		}
	}
	rotationPhases := []RotationPhase{RotationTrust, RotationReissue, RotationDrop}
	if r := s.Rotation; r != nil && !slices.Contains(rotationPhases, r.Phase) {
		return fmt.Errorf("rotation: unknown phase %q", r.Phase)
	}
	if s.NodeConfig != nil {
		if err := s.NodeConfig.Validate(); err != nil {
			return fmt.Errorf("nodeConfig: %w", err)
		}
	}
	for architecture, image := range s.PauseImages {
		if err := image.Validate(); err != nil {
			return fmt.Errorf("pauseImages.%s: %w", architecture, err)
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
		return fmt.Errorf("invalid port %d: want 1-65535", s.Port)
	case s.Address == "":
		return errors.New("address is empty")
	}
	return nil
}
