package settings_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/zarf-dev/zarf-registry/internal/release/nodeimages"
	"github.com/zarf-dev/zarf-registry/internal/release/settings"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/require"
)

func valid() settings.Settings {
	return settings.Settings{
		Namespace: "zarf", Release: "zarf-registry", Name: "zarf-registry",
		Mode: state.ModeProxy, ModeSource: state.SourceDefault,
		Address: "127.0.0.1:31999", Port: 31999, IPFamily: state.DualStack, IPFamilySource: state.SourceCluster,
		Architectures: []string{"amd64"},
		Proxy:         settings.Proxy{HostNetwork: true, DaemonSets: []string{"zarf-registry-proxy-amd64"}},
		Cache:         settings.Cache{Enabled: true},
		Injector: settings.Injector{Enabled: true, PayloadID: "0.1.0", PauseImages: map[string]settings.PauseImage{
			"amd64": {PauseImage: state.PauseImage{Reference: "pause:3.10", Reason: state.PauseName}, Source: state.SourceCluster},
		}, PauseRules: nodeimages.Rules{References: []string{"pause:3.10"}, Digest: "^a$", Name: "^b$", Own: "^c$"}},
		PKI: settings.PKI{Source: state.SourceState, PKI: state.PKI{
			Mode: state.PKIInternal, LeafLifetime: state.Duration(time.Hour), CALifetime: state.Duration(2 * time.Hour),
			ClusterDomain: "cluster.local",
		}},
		Expose: settings.Expose{TLSSecret: "outside"},
		NodeConfig: settings.NodeConfig{
			Directories: []string{"/etc/containers"}, DirectoriesInUse: []string{"/etc/containers"}, RegistriesSecret: "k3s",
			RegistriesKey: "registries.yaml", CA: true,
		},
		Preflight: settings.Preflight{Ignore: []string{"port"}, LabelNamespace: true},
		Finish:    settings.Finish{VerifyPulls: true, LocalRegistryHosting: true},
	}
}

func TestParseReadsWhatEncodingWrites(t *testing.T) {
	want := valid()
	document := require.Value(json.Marshal(want))(t)
	got := require.Value(settings.Parse(document))(t)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestParseRejects(t *testing.T) {
	document := require.Value(json.Marshal(valid()))(t)
	for name, c := range map[string]struct{ document, want string }{
		"nothing":                {"", "decoding settings: EOF"},
		"an unknown field":       {`{"colour":"red"}`, `unknown field "colour"`},
		"a nested unknown field": {`{"proxy":{"colour":"red"}}`, `unknown field "colour"`},
		"trailing data":          {string(document) + "{}", "trailing data"},
		"invalid settings":       {"{}", `invalid namespace ""`},
	} {
		if _, err := settings.Parse([]byte(c.document)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error is %v, want one with %q", name, err, c.want)
		}
	}
}

func TestValidate(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*settings.Settings)
		want   string // "": valid
	}{
		"accepts proxy mode":      {func(*settings.Settings) {}, ""},
		"accepts an IPv6 cluster": {func(s *settings.Settings) { s.IPFamily, s.Address = state.IPv6, "[::1]:31999" }, ""},
		"accepts external mode without our PKI": {func(s *settings.Settings) {
			s.Mode, s.RegistryURL, s.Address, s.Port, s.PKI = state.ModeExternal, "a.b/c", "a.b/c", 0, settings.PKI{}
			s.Cache = settings.Cache{}
		}, ""},
		"rejects caches in nodeport mode": {func(s *settings.Settings) { s.Mode = state.ModeNodePort },
			"cache requires mode proxy, not nodeport"},
		"rejects the namespace kube.system": {func(s *settings.Settings) { s.Namespace = "kube.system" },
			`invalid namespace "kube.system": want a DNS label`},
		"rejects a release that Helm does": {func(s *settings.Settings) { s.Release = "a..b" },
			`invalid release name "a..b"`},
		"accepts a release with dots": {func(s *settings.Settings) { s.Release = "a.1-b" }, ""},
		"rejects a name that no Service can have": {func(s *settings.Settings) { s.Name = "1x" },
			`invalid name "1x": want a DNS label that begins with a letter`},
		"rejects an unknown mode": {func(s *settings.Settings) { s.Mode = "boat" },
			`invalid mode "boat": want proxy, nodeport, external`},
		"rejects an unknown source": {func(s *settings.Settings) { s.ModeSource = "dream" },
			`invalid modeSource "dream"`},
		"rejects a port out of range": {func(s *settings.Settings) { s.Port = 70000 },
			"invalid port 70000: want 1-65535"},
		"rejects an address of another family": {func(s *settings.Settings) { s.IPFamily = state.IPv6 },
			`address: "127.0.0.1:31999" is not a loopback address of an IPv6 cluster`},
		"rejects an address with another port": {func(s *settings.Settings) { s.Port = 32000 },
			`address: "127.0.0.1:31999" does not have port 32000`},
		"rejects another external address": {func(s *settings.Settings) {
			s.Mode, s.RegistryURL = state.ModeExternal, "a.b"
		}, `address: "127.0.0.1:31999" differs from registryURL "a.b"`},
		"rejects an external registry beside proxies": {func(s *settings.Settings) { s.RegistryURL = "a.b" },
			"registryURL is a.b and registryProxy is true, but an external registry has neither proxies nor a node port: " +
				"unset one of the two (--set registryURL="},
		"rejects an external registry beside a node port": {func(s *settings.Settings) {
			s.Mode, s.RegistryURL = state.ModeNodePort, "a.b"
		}, "registryProxy is false"},
		"rejects external mode without a registry": {func(s *settings.Settings) { s.Mode = state.ModeExternal },
			"external mode needs a registry: --set registryURL="},
		"rejects an external registry with a scheme": {func(s *settings.Settings) {
			s.Mode, s.RegistryURL, s.Address = state.ModeExternal, "http://a.b", "http://a.b"
		}, "registryURL is http://a.b: image references have no scheme"},
		"rejects a digest that is too short": {func(s *settings.Settings) {
			s.Injector.Digests = map[string]string{"registry-amd64": "abc"}
		}, `invalid injector.digests.registry-amd64 "abc"`},
		"rejects a payload without an ID": {func(s *settings.Settings) { s.Injector.PayloadID = "" },
			"injector.payloadID is empty"},
		"rejects lifetimes that are too short": {func(s *settings.Settings) { s.PKI.LeafLifetime = 0 }, "pki: "},
		"rejects an unknown source of the PKI mode": {func(s *settings.Settings) { s.PKI.Source = "dream" },
			`invalid pki.source "dream"`},
		"rejects a CA for nodes without directories": {func(s *settings.Settings) {
			s.NodeConfig = settings.NodeConfig{CA: true}
		}, "nodeConfig: ca requires directories"},
		"rejects a registries key without directories": {func(s *settings.Settings) {
			s.NodeConfig = settings.NodeConfig{RegistriesKey: "corp"}
		}, "registriesSecret and registriesKey require each other"},
		"rejects relative directories": {func(s *settings.Settings) { s.NodeConfig.Directories = []string{"etc"} },
			"nodeConfig: directories: "},
		"rejects unknown directories in use": {func(s *settings.Settings) {
			s.NodeConfig.DirectoriesInUse = []string{"/etc"}
		}, `nodeConfig: directoriesInUse: "/etc" is missing from directories`},
		"accepts Zarf's clients": {func(s *settings.Settings) { s.PKI.Zarf = true }, ""},
		"rejects Zarf's clients in nodeport mode": {func(s *settings.Settings) {
			s.PKI.Zarf, s.Mode = true, state.ModeNodePort
		}, "pki.zarf requires mode proxy, not nodeport"},
		"rejects a registries Secret without key": {func(s *settings.Settings) { s.NodeConfig.RegistriesKey = "" },
			"registriesSecret and registriesKey require each other"},
	} {
		t.Run(name, func(t *testing.T) {
			s := valid()
			c.change(&s)
			err := s.Validate()
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error is %v, want one with %q", err, c.want)
			}
		})
	}
}

func TestPrograms(t *testing.T) {
	s := settings.Settings{Mode: state.ModeProxy, Injector: settings.Injector{Enabled: true, RegistryArchitecture: "arm64"}}
	for architecture, want := range map[string][]string{"arm64": {"registry", "registry-node"}, "amd64": {"registry-node"}} {
		if got := s.Programs(architecture); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", architecture, got, want)
		}
	}
	s.Injector.RegistryArchitecture = ""
	if got := s.Programs("amd64"); !slices.Equal(got, []string{"registry", "registry-node"}) {
		t.Errorf("without an architecture: %v", got)
	}
	s.Mode = state.ModeExternal
	if got := s.Programs("amd64"); got != nil {
		t.Errorf("external: %v", got)
	}
}
