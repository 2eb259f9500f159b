package state_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/zarf-dev/zarf-registry/internal/state"
)

func TestDirectoriesOfNodesAreRememberedOnceAndInOrder(t *testing.T) {
	var none *state.NodeConfig
	one := &state.NodeConfig{Directories: []string{"/etc/containerd/certs.d"}}
	for name, c := range map[string]struct{ got, want *state.NodeConfig }{
		"nothing and nothing more":  {none.Remember(), nil},
		"nothing and something":     {none.Remember("/b", "/a", "/b"), &state.NodeConfig{Directories: []string{"/a", "/b"}}},
		"something and nothing":     {one.Remember(), one},
		"something and the same":    {one.Remember("/etc/containerd/certs.d"), one},
		"something and one besides": {one.Remember("/etc/containers"), &state.NodeConfig{Directories: []string{"/etc/containerd/certs.d", "/etc/containers"}}},
	} {
		if diff := cmp.Diff(c.want, c.got); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
	if len(one.Directories) != 1 {
		t.Errorf("what was remembered first is now %q", one.Directories)
	}
}

func TestDirectoriesOfNodesAreEncodedAndCheckedInEveryMode(t *testing.T) {
	s := state.State{Phase: state.PhasePrepared, NodeConfig: &state.NodeConfig{Directories: []string{"/etc/containerd/certs.d", "/etc/rancher/k3s"}},
		Desired: state.Settings{Mode: state.ModeExternal, Address: "registry.example.com", IPFamily: state.IPv4, DecidedBy: state.SourceValue}}
	data, err := state.Encode(s)
	if err != nil {
		t.Fatal(err)
	}
	if want := "\"nodeConfig\": {\n    \"directories\": [\n      \"/etc/containerd/certs.d\",\n      \"/etc/rancher/k3s\"\n    ]\n  }"; !strings.Contains(string(data), want) {
		t.Errorf("it is encoded as %s", data)
	}
	got, err := state.Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s.NodeConfig, got.NodeConfig); diff != "" {
		t.Error(diff)
	}
	for name, c := range map[string]struct {
		directories []string
		want        string
	}{
		"none at all":        {nil, "nodeConfig: it names no directory"},
		"a relative path":    {[]string{"etc/containers"}, `"etc/containers" is no directory`},
		"an empty path":      {[]string{""}, `"" is no directory`},
		"two dots":           {[]string{"/etc/../root"}, `"/etc/../root" is no directory`},
		"a slash at the end": {[]string{"/etc/containers/"}, `"/etc/containers/" is no directory`},
		"the root":           {[]string{"/"}, `"/" is no directory`},
		"one named twice":    {[]string{"/etc/containers", "/etc/containers"}, `"/etc/containers" is named twice`},
	} {
		t.Run(name, func(t *testing.T) {
			s.NodeConfig = &state.NodeConfig{Directories: c.directories}
			if _, err := state.Encode(s); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want one with %q", err, c.want)
			}
		})
	}
}
