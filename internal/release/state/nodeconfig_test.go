package state_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/require"
)

func TestRememberSortsAndDeduplicates(t *testing.T) {
	var none *state.NodeConfig
	one := &state.NodeConfig{Directories: []string{"/etc/containerd/certs.d"}}
	for name, c := range map[string]struct{ got, want *state.NodeConfig }{
		"nil and no directories":    {none.Remember(), nil},
		"nil and directories":       {none.Remember("/b", "/a", "/b"), &state.NodeConfig{Directories: []string{"/a", "/b"}}},
		"one directory and no more": {one.Remember(), one},
		"the same directory again":  {one.Remember("/etc/containerd/certs.d"), one},
		"another directory": {one.Remember("/etc/containers"),
			&state.NodeConfig{Directories: []string{"/etc/containerd/certs.d", "/etc/containers"}}},
	} {
		if diff := cmp.Diff(c.want, c.got); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
	if len(one.Directories) != 1 {
		t.Errorf("Remember changed its receiver to %q", one.Directories)
	}
}

func TestNodeConfigIsEncodedAndValidatedInEveryMode(t *testing.T) {
	s := state.State{Phase: state.PhasePrepared,
		NodeConfig: &state.NodeConfig{Directories: []string{"/etc/containerd/certs.d", "/etc/rancher/k3s"}},
		Desired: state.Settings{Mode: state.ModeExternal, Address: "registry.example.com", IPFamily: state.IPv4,
			DecidedBy: state.SourceValue}}
	data := require.Value(state.Encode(s, nil))(t)
	if want := "\"nodeConfig\": {\n    \"directories\": [\n      \"/etc/containerd/certs.d\",\n      " +
		"\"/etc/rancher/k3s\"\n    ]\n  }"; !strings.Contains(string(data), want) {
		t.Errorf("encoded as %s", data)
	}
	got := require.Value(state.Decode(data))(t)
	if diff := cmp.Diff(s.NodeConfig, got.NodeConfig); diff != "" {
		t.Error(diff)
	}
	for name, c := range map[string]struct {
		directories []string
		want        string
	}{
		"no directories":     {nil, "nodeConfig: no directories"},
		"a relative path":    {[]string{"etc/containers"}, `"etc/containers": want an absolute path`},
		"an empty path":      {[]string{""}, `"": want an absolute path`},
		"two dots":           {[]string{"/etc/../root"}, `"/etc/../root": want an absolute path`},
		"a slash at the end": {[]string{"/etc/containers/"}, `"/etc/containers/": want an absolute path`},
		"the root":           {[]string{"/"}, `"/": want an absolute path`},
		"a duplicate":        {[]string{"/etc/containers", "/etc/containers"}, `duplicate directory "/etc/containers"`},
	} {
		t.Run(name, func(t *testing.T) {
			s.NodeConfig = &state.NodeConfig{Directories: c.directories}
			if _, err := state.Encode(s, nil); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want one with %q", err, c.want)
			}
		})
	}
}
