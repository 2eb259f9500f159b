package noderuntime

import (
	"path"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestK3sDocumentedInputs has each notation of registries.yaml that K3s documents
// (https://docs.k3s.io/installation/private-registry and …/registry-mirror). All are accepted and written byte
// for byte; want has the hosts that containerd contacts until K3s restarts, and warns part of the warning.
func TestK3sDocumentedInputs(t *testing.T) {
	const (
		pull = "pull resolve"
		hub  = "https://registry-1.docker.io/v2"
		k8s  = "https://registry.k8s.io/v2"
		own  = "https://registry.example.com:5000/v2"
	)
	type hosts = map[string][]containerdHost
	mirror := containerdHost{URL: own, Capabilities: pull}
	for name, c := range map[string]struct {
		registries, warns string
		want              hosts
	}{
		"the embedded registry, for two registries": {registries: "mirrors:\n  docker.io:\n  registry.k8s.io:\n", want: hosts{}},
		"the embedded registry, for all":            {registries: "mirrors:\n  \"*\":\n", want: hosts{}},
		"the embedded registry, before a mirror for one of two": {
			registries: "mirrors:\n  docker.io:\n  registry.k8s.io:\n    endpoint:\n      - https://registry.example.com:5000\n",
			want:       hosts{"registry.k8s.io": {mirror, {URL: k8s}}},
		},
		"a registry as its own endpoint, to keep it with --disable-default-registry-endpoint": {
			registries: "mirrors:\n  registry.example.com:\n    endpoint:\n      - https://registry.example.com\n", want: hosts{},
		},
		"a registry at another port than in its name": {
			registries: "mirrors:\n  registry.example.com:\n    endpoint:\n      - \"https://registry.example.com:5000\"\n",
			want:       hosts{"registry.example.com": {mirror, {URL: "https://registry.example.com/v2"}}},
		},
		"rewrites for the registry itself, at the default port": {
			registries: "mirrors:\n  registry.example.com:\n    endpoint:\n      - \"https://registry.example.com:443\"\n" +
				"    rewrite:\n      \"^team/(.*)\": \"mirrors/team/$1\"\n",
			want: hosts{"registry.example.com": {{URL: "https://registry.example.com:443/v2", Capabilities: pull,
				Rewrite: map[string]string{"^team/(.*)": "mirrors/team/$1"}}, {URL: "https://registry.example.com/v2"}}},
		},
		"an endpoint with the path of the protocol": {
			registries: "mirrors:\n  docker.io:\n    endpoint:\n      - https://registry.example.com:5000/v2\n",
			want:       hosts{"docker.io": {mirror, {URL: hub}}},
		},
		"an endpoint with the path of a project": {
			registries: "mirrors:\n  docker.io:\n    endpoint:\n      - https://registry.example.com:5000/v2/cache\n",
			want: hosts{"docker.io": {{URL: "https://registry.example.com:5000/v2/cache", Capabilities: pull},
				{URL: hub}}},
		},
		"an endpoint without TLS, with a user": {
			registries: "mirrors:\n  docker.io:\n    endpoint:\n      - \"http://registry.example.com:5000\"\n" +
				"configs:\n  \"registry.example.com:5000\":\n    auth:\n      username: user\n      password: pass\n",
			want: hosts{
				"docker.io": {{URL: "http://registry.example.com:5000/v2", Capabilities: pull, Header: "Basic dXNlcjpwYXNz"},
					{URL: hub}},
				"registry.example.com:5000": {{URL: own, Header: "Basic dXNlcjpwYXNz"}},
			},
		},
		"TLS with all files, for a host with a port": {
			registries: "mirrors:\n  docker.io:\n    endpoint:\n      - \"https://registry.example.com:5000\"\n" +
				"configs:\n  \"registry.example.com:5000\":\n    tls:\n      cert_file: /tls/cert.pem\n" +
				"      key_file: /tls/key.pem\n      ca_file: /tls/ca.pem\n",
			want: hosts{
				"docker.io": {{URL: own, Capabilities: pull, CA: "/tls/ca.pem", Client: [2]string{"/tls/cert.pem", "/tls/key.pem"}},
					{URL: hub}},
				"registry.example.com:5000": {{URL: own, CA: "/tls/ca.pem", Client: [2]string{"/tls/cert.pem", "/tls/key.pem"}}},
			},
		},
		"TLS with files that are left open": {
			registries: "mirrors:\n  docker.io:\n    endpoint:\n      - \"https://registry.example.com:5000\"\n" +
				"configs:\n  \"registry.example.com:5000\":\n    tls:\n      cert_file: # path\n      key_file:\n      ca_file:\n",
			want: hosts{"docker.io": {mirror, {URL: hub}}, "registry.example.com:5000": {{URL: own}}},
		},
		"a wildcard that is not verified, with an empty exception": {
			registries: "mirrors:\n  \"*\":\n    endpoint:\n      - \"https://registry.example.com:5000\"\n" +
				"configs:\n  \"docker.io\":\n  \"*\":\n    tls:\n      insecure_skip_verify: true\n",
			want:  hosts{"_default": {mirror, {}}},
			warns: "K3s ignores docker.io, which has no settings",
		},
		"a bearer token": {
			registries: "configs:\n  registry.example.com:\n    auth:\n      token: bearer\n",
			want:       hosts{"registry.example.com": {{URL: "https://registry.example.com/v2"}}},
			warns:      "K3s ignores this: use identity_token",
		},
	} {
		t.Run(name, func(t *testing.T) {
			desired, err := Build(Inputs{Config: k3sConfig(), Registries: []byte(c.registries),
				CheckTLS: func(string) error { return nil }})
			if err != nil {
				t.Fatal(err)
			}
			got := hosts{}
			for _, f := range desired.Files {
				if f.Kind == KindHosts {
					got[path.Base(path.Dir(f.Path))] = asContainerd(t, f.Content)
				} else if f.Path != k3sFile || string(f.Content) != c.registries {
					t.Errorf("%s has changed:\n%s", f.Path, f.Content)
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
			if all := strings.Join(desired.Warnings, "\n"); !strings.Contains(all, c.warns) || c.warns == "" && all != "" {
				t.Errorf("warnings: %s", all)
			}
		})
	}
}
