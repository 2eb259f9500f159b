// Package settings defines the document in which the chart hands its decisions to init-hook.
// Parse refuses a document that it does not fully understand. The package makes no decisions,
// and the document holds no secrets: it stands in the arguments of a Job.
package settings

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/release/nodeimages"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// Settings are the decisions for one release. The zero value is invalid.
type Settings struct {
	// Namespace, Release and Name are the release's namespace, its name, and the chart's full
	// name, from which the names of all objects are derived.
	Namespace string `json:"namespace"`
	Release   string `json:"release"`
	Name      string `json:"name"`
	// Mode is how nodes reach the registry.
	Mode       state.Mode   `json:"mode"`
	ModeSource state.Source `json:"modeSource"`
	// ModeReason is why a new cluster gets another mode than the default; empty otherwise.
	ModeReason string `json:"modeReason,omitempty"`
	// HelmAdopts reports whether the Helm that rendered this takes over objects that exist when it rolls back. Helm 4
	// does, because it applies on the server.
	HelmAdopts bool `json:"helmAdopts,omitempty"`
	// RegistryURL is the external registry, HOST[:PORT][/PATH]; empty in other modes.
	RegistryURL string `json:"registryURL,omitempty"`
	// Address is what image references begin with: a loopback address with Port, or RegistryURL.
	Address string `json:"address"`
	// Port is the port on each node's loopback address.
	Port int `json:"port"`
	// UnreservedPort leaves the port free for other Services in proxy mode.
	UnreservedPort bool `json:"unreservedPort,omitempty"`
	// IPFamily is the address family of the cluster.
	IPFamily       state.IPFamily `json:"ipFamily"`
	IPFamilySource state.Source   `json:"ipFamilySource"`
	// Architectures are those that the chart renders pods for, as in GOARCH.
	Architectures []string `json:"architectures,omitempty"`
	// AnonymousPull allows pulls through a node port without a credential.
	AnonymousPull bool `json:"anonymousPull,omitempty"`
	// OpenShift means that pods get their user from the namespace's range, and their permissions
	// from SecurityContextConstraints, which the chart binds.
	OpenShift bool `json:"openShift,omitempty"`

	// Workloads are the pods that the chart renders.
	Workloads []Workload `json:"workloads,omitempty"`

	Storage    Storage    `json:"storage,omitzero"`
	Proxy      Proxy      `json:"proxy,omitzero"`
	Cache      Cache      `json:"cache,omitzero"`
	Injector   Injector   `json:"injector,omitzero"`
	PKI        PKI        `json:"pki,omitzero"`
	Push       Push       `json:"push,omitzero"`
	Expose     Expose     `json:"expose,omitzero"`
	NodeConfig NodeConfig `json:"nodeConfig,omitzero"`
	Preflight  Preflight  `json:"preflight,omitzero"`
	Finish     Finish     `json:"finish,omitzero"`
}

// Proxy describes the proxies on the nodes.
type Proxy struct {
	// HostNetwork reports whether proxies use their node's network namespace.
	HostNetwork bool `json:"hostNetwork,omitempty"`
	// NodePorts are the ports that they listen on there, that of the registry first.
	NodePorts []int `json:"nodePorts,omitempty"`
	// DaemonSets are the names of those that the chart renders. Finish deletes the release's
	// other proxies. Empty in proxy mode: it keeps all of them.
	DaemonSets []string `json:"daemonSets,omitempty"`
}

// Cache describes the pods that keep copies of what proxies pull.
type Cache struct {
	// Enabled reports whether the chart renders such pods, in proxy mode only.
	Enabled bool `json:"enabled"`
}

// Injector describes how programs reach the nodes.
type Injector struct {
	// Enabled: as payload in ConfigMaps. Otherwise nodes pull ordinary images.
	Enabled bool `json:"enabled"`
	// PayloadID is the part of the payload's names that changes with the version. It counts for
	// programs without a digest.
	PayloadID string `json:"payloadID,omitempty"`
	// Digests are those of the payloads that the chart was packaged with, by injector.Program.Key.
	// A source checkout has none.
	Digests map[string]string `json:"digests,omitempty"`
	// RegistryArchitecture is that of the nodes on which the registry runs, as in GOARCH. Empty for all.
	RegistryArchitecture string `json:"registryArchitecture,omitempty"`
	// Healer reports whether the chart renders the healer, whose program is registry-node.
	Healer bool `json:"healer,omitempty"`
	// PauseImages are the images of injected pods, by architecture.
	PauseImages map[string]PauseImage `json:"pauseImages,omitempty"`
	// PauseRules say which other images may take their place.
	PauseRules nodeimages.Rules `json:"pauseRules,omitzero"`
}

// PauseImage is an image of injected pods, and where it comes from.
type PauseImage struct {
	state.PauseImage
	Source state.Source `json:"source"`
}

// Decisions describe the images of injected pods, and where they come from, for people.
func (i Injector) Decisions() []string {
	var lines []string
	for _, architecture := range slices.Sorted(maps.Keys(i.PauseImages)) {
		image := i.PauseImages[architecture]
		lines = append(lines, fmt.Sprintf("pause image for %s: %s, source: %s: %s", architecture, image.Reference,
			image.Source, image.Reason))
	}
	return lines
}

// digestInName is how many digits of a digest the payload's names contain.
const digestInName = 12

// ID returns the part of the names of a program's payload that changes with its content. program
// is an injector.Program.Key.
func (i Injector) ID(program string) string {
	if digest := i.Digests[program]; digest != "" {
		return digest[:digestInName]
	}
	return i.PayloadID
}

// PKI says where certificates come from. It is empty in external mode.
type PKI struct {
	state.PKI
	Source state.Source `json:"source"`
}

// Push describes what is pushed into the registry, and with which credential.
type Push struct {
	// Secret is the user's Secret with the push credential. Empty: prepare generates one.
	Secret string `json:"secret,omitempty"`
	// HookDigests are the digests of init-hook's own image by architecture, by which the chart refers to it.
	// Empty: the chart does not know them.
	HookDigests map[string]string `json:"hookDigests,omitempty"`
}

// Expose describes the access for clients outside of the cluster. It is empty without one.
type Expose struct {
	// TLSSecret is the user's Secret with the certificate that these clients see. The registry mounts it.
	TLSSecret string `json:"tlsSecret,omitempty"`
	// Address is where they find it, HOST[:PORT]; empty if unknown.
	Address string `json:"address,omitempty"`
}

// NodeConfig describes the pods that write files on nodes. It is empty if the chart renders none.
type NodeConfig struct {
	// Directories are the directories that these pods manage.
	Directories []string `json:"directories,omitempty"`
	// DirectoriesInUse are those of Directories that get files. In the others, the pods restore
	// the original files.
	DirectoriesInUse []string `json:"directoriesInUse,omitempty"`
	// Mirrors are the registries for which nodes ask this one first: hosts, "*", and exceptions such as "!quay.io".
	Mirrors []string `json:"mirrors,omitempty"`
	// RegistriesSecret is the user's Secret with the registries.yaml of K3s, under RegistriesKey.
	RegistriesSecret string `json:"registriesSecret,omitempty"`
	RegistriesKey    string `json:"registriesKey,omitempty"`
	// CA reports whether the pods write the CA certificates of the proxies.
	CA bool `json:"ca,omitempty"`
	// DaemonSets are the names of those that finish waits for. Empty: all of the release that
	// configure nodes.
	DaemonSets []string `json:"daemonSets,omitempty"`
	// AgentsOnly leaves out control-plane nodes: an administrator's kubeconfig is in a directory that
	// would be mounted there.
	AgentsOnly bool `json:"agentsOnly,omitempty"`
}

// Preflight controls the checks before anything changes.
type Preflight struct {
	// Ignore are the names of checks whose blockers count as warnings, or IgnoreAll.
	Ignore []string `json:"ignore,omitempty"`
	// LabelNamespace lets prepare label the namespace so that its Pod Security level admits the
	// pods that nodes need. Cleanup restores the previous label.
	LabelNamespace bool `json:"labelNamespace,omitempty"`
}

// IgnoreAll stands for all checks in Preflight.Ignore.
const IgnoreAll = "all"

// Ignores reports whether blockers of a check count as warnings.
func (p Preflight) Ignores(check string) bool {
	return slices.Contains(p.Ignore, check) || slices.Contains(p.Ignore, IgnoreAll)
}

// Finish controls what happens after the rollout.
type Finish struct {
	// Verify makes every node pull an image.
	VerifyPulls bool `json:"verifyPulls"`
	// MaxFailedNodes is how many of the ready nodes may fail a rollout or the verification of pulls: a number or a
	// percentage. Empty for none.
	MaxFailedNodes string `json:"maxFailedNodes,omitempty"`
	// LocalRegistryHosting makes finish write the ConfigMap by which tools find the cluster's
	// registry (KEP-1755).
	LocalRegistryHosting bool `json:"localRegistryHosting,omitempty"`
}

// mirroredHost stands for all hosts where "*" is mirrored: it does not exist (RFC 2606).
const mirroredHost = "zarf-registry.invalid"

// MirroredHost returns a host whose images nodes pull through this registry first. It is empty without mirrors.
func (n NodeConfig) MirroredHost() string {
	host := ""
	for _, m := range n.Mirrors {
		switch {
		case m == "*":
			host = mirroredHost
		case !strings.HasPrefix(m, "!"):
			return m
		}
	}
	return host
}

// ConfiguresNodes reports whether the chart renders pods that manage files on nodes.
func (s *Settings) ConfiguresNodes() bool { return len(s.NodeConfig.Directories) > 0 }

// LabelsNamespace reports whether prepare labels the namespace for Pod Security.
func (s *Settings) LabelsNamespace() bool {
	return s.Preflight.LabelNamespace && (s.Mode == state.ModeProxy || s.ConfiguresNodes())
}

// Certificates returns where certificates come from, and whether the caches have one.
func (s *Settings) Certificates() state.PKI {
	p := s.PKI.PKI
	p.Cache = s.Cache.Enabled
	return p
}

// Programs are the names of those that reach the nodes of an architecture as payload, if the injector
// is enabled.
func (s *Settings) Programs(architecture string) []string {
	var programs []string
	if only := s.Injector.RegistryArchitecture; s.Mode != state.ModeExternal && (only == "" || only == architecture) {
		programs = append(programs, "registry")
	}
	if s.Mode == state.ModeProxy || s.ConfiguresNodes() || s.Injector.Healer {
		programs = append(programs, "registry-node")
	}
	return programs
}

// Parse reads and validates a document. It refuses unknown fields and trailing data.
func Parse(document []byte) (Settings, error) {
	decoder := json.NewDecoder(bytes.NewReader(document))
	decoder.DisallowUnknownFields()
	var s Settings
	if err := decoder.Decode(&s); err != nil {
		return Settings{}, fmt.Errorf("decoding settings: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return Settings{}, errors.New("decoding settings: trailing data after the JSON object")
	}
	return s, s.Validate()
}

// OfJob reads the settings from the arguments of a rendered Job, its command first.
func OfJob(args []string) (Settings, error) {
	const advice = "use the chart of the same version"
	for _, arg := range args {
		if document, found := strings.CutPrefix(arg, "--settings="); found {
			s, err := Parse([]byte(document))
			if err != nil {
				return Settings{}, exitcode.Refuse("the chart passes %s settings that this program does not support: %s: %w",
					args[0], advice, err)
			}
			return s, nil
		}
	}
	return Settings{}, exitcode.Refuse("the chart passes its Job no settings, but %q: %s", args, advice)
}

var sha256Sum = regexp.MustCompile(`^[0-9a-f]{64}$`)

// ValidateRelease returns an error for each invalid name of a release.
func (s *Settings) ValidateRelease() error {
	var v problems
	v.check(len(validation.IsDNS1123Label(s.Namespace)) == 0, "invalid namespace %q: want a DNS label", s.Namespace)
	v.check(len(s.Release) <= 53 && len(validation.IsDNS1123Subdomain(s.Release)) == 0, // what Helm accepts
		"invalid release name %q", s.Release)
	v.check(len(validation.IsDNS1035Label(s.Name)) == 0, // required of Services
		"invalid name %q: want a DNS label that begins with a letter", s.Name)
	return v.err()
}

// Decision describes the mode and where it comes from, for people.
func (s *Settings) Decision() string {
	d := fmt.Sprintf("%s mode at %s, source: %s", s.Mode, s.Address, s.ModeSource)
	if s.ModeReason != "" {
		d += ": " + s.ModeReason
	}
	return d
}

// Validate returns an error for each setting that is invalid or contradicts another.
func (s *Settings) Validate() error {
	var v problems
	v.add("", s.ValidateRelease())
	v.oneOf("mode", string(s.Mode), "proxy", "nodeport", "external")
	v.source("modeSource", s.ModeSource)
	v.oneOf("ipFamily", string(s.IPFamily), "IPv4", "IPv6", "DualStack")
	v.source("ipFamilySource", s.IPFamilySource)
	v.add("", s.validateRegistryURL())
	v.add("address", s.validateAddress())
	v.check(!s.Injector.Enabled || s.Injector.PayloadID != "", "injector.payloadID is empty: the payload's names need it")
	for program, digest := range s.Injector.Digests {
		v.check(sha256Sum.MatchString(digest), "invalid injector.digests.%s %q: want 64 hexadecimal digits", program, digest)
	}
	if s.Injector.Enabled {
		for architecture, image := range s.Injector.PauseImages {
			v.add("injector.pauseImages."+architecture, image.Validate())
			v.source("injector.pauseImages."+architecture+".source", image.Source)
		}
		for _, architecture := range s.Architectures {
			_, ok := s.Injector.PauseImages[architecture]
			v.check(ok, "injector.pauseImages has no image for %s", architecture)
		}
		v.add("injector.pauseRules", s.Injector.PauseRules.Validate())
	}
	if s.Mode != state.ModeExternal {
		v.check(s.Port > 0 && s.Port < 1<<16, "invalid port %d: want 1-65535", s.Port)
		v.source("pki.source", s.PKI.Source)
		certificates := s.Certificates()
		v.add("pki", certificates.Validate())
	}
	v.check(!s.Cache.Enabled || s.Mode == state.ModeProxy, "cache requires mode proxy, not %s", s.Mode)
	if s.PKI.Zarf {
		v.check(s.Mode == state.ModeProxy, "pki.zarf requires mode proxy, not %s", s.Mode)
	}
	v.add("nodeConfig", s.NodeConfig.validate())
	v.add("storage", s.Storage.validate())
	for _, w := range s.Workloads {
		v.check(w.Values != "" && w.Component != "", "workloads: %q of component %q: both are needed", w.Values, w.Component)
	}
	return v.err()
}

// validateAddress compares the address with what it is made of.
func (s *Settings) validateRegistryURL() error {
	switch external := s.Mode == state.ModeExternal; {
	case !external && s.RegistryURL != "":
		return fmt.Errorf("registryURL is %s and registryProxy is %t, but an external registry has neither proxies nor a "+
			"node port: unset one of the two (--set registryURL= or --set registryProxy=null)",
			s.RegistryURL, s.Mode == state.ModeProxy)
	case external && s.RegistryURL == "":
		return errors.New("external mode needs a registry: --set registryURL=HOST[:PORT][/PATH]")
	case strings.Contains(s.RegistryURL, "://"):
		return fmt.Errorf("registryURL is %s: image references have no scheme: use HOST[:PORT][/PATH]", s.RegistryURL)
	}
	return nil
}

func (s *Settings) validateAddress() error {
	if s.Mode == state.ModeExternal {
		if s.Address != s.RegistryURL {
			return fmt.Errorf("%q differs from registryURL %q", s.Address, s.RegistryURL)
		}
		return nil
	}
	host, port, err := net.SplitHostPort(s.Address)
	if err != nil {
		return err
	}
	ip, err := netip.ParseAddr(host)
	if err != nil || !ip.IsLoopback() || ip.Is6() != (s.IPFamily == state.IPv6) {
		return fmt.Errorf("%q is not a loopback address of an %s cluster", s.Address, s.IPFamily)
	}
	if port != strconv.Itoa(s.Port) {
		return fmt.Errorf("%q does not have port %d", s.Address, s.Port)
	}
	return nil
}

func (n NodeConfig) validate() error {
	var v problems
	if len(n.Directories) > 0 {
		recorded := state.NodeConfig{Directories: n.Directories}
		v.add("directories", recorded.Validate())
	}
	for _, directory := range n.DirectoriesInUse {
		v.check(slices.Contains(n.Directories, directory), "directoriesInUse: %q is missing from directories", directory)
	}
	if len(n.Directories) == 0 {
		v.check(len(n.DaemonSets) == 0, "daemonSets requires directories")
		v.check(!n.CA, "ca requires directories")
		v.check(!n.AgentsOnly, "agentsOnly requires directories")
		v.check(n.RegistriesSecret == "", "registriesSecret requires directories")
	}
	v.check((n.RegistriesSecret == "") == (n.RegistriesKey == ""), "registriesSecret and registriesKey require each other")
	return v.err()
}

// problems collects errors.
type problems []error

func (v *problems) err() error { return errors.Join(*v...) }

func (v *problems) check(ok bool, format string, args ...any) {
	if !ok {
		*v = append(*v, fmt.Errorf(format, args...))
	}
}

func (v *problems) add(path string, err error) {
	switch {
	case err == nil:
	case path == "":
		*v = append(*v, err)
	default:
		*v = append(*v, fmt.Errorf("%s: %w", path, err))
	}
}

func (v *problems) oneOf(path, value string, choices ...string) {
	v.check(slices.Contains(choices, value), "invalid %s %q: want %s", path, value, strings.Join(choices, ", "))
}

func (v *problems) source(path string, source state.Source) {
	v.oneOf(path, string(source), string(state.SourceValue), string(state.SourceState), string(state.SourceCluster),
		string(state.SourceDefault))
}
