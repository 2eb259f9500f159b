package noderuntime

import (
	"errors"
	"net/url"
	"path"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// A containerdHost is containerd's view of a registry in a hosts.toml; see its docs/hosts.md.
type containerdHost struct {
	URL          string // empty: the registry of the image
	Capabilities string
	CA           string
	Client       [2]string
	SkipVerify   bool
	Header       string // Authorization
	Rewrite      map[string]string
}

type containerdTable struct {
	Capabilities []string          `toml:"capabilities"`
	CA           []string          `toml:"ca"`
	Client       [][2]string       `toml:"client"`
	SkipVerify   bool              `toml:"skip_verify"`
	OverridePath bool              `toml:"override_path"`
	Header       map[string]string `toml:"header"`
	Rewrite      map[string]string `toml:"rewrite"`
}

// asContainerd parses a file like containerd: hosts in the order of their tables, then the server.
func asContainerd(t *testing.T, data []byte) (hosts []containerdHost) {
	t.Helper()
	var file struct {
		containerdTable
		Server string                     `toml:"server"`
		Host   map[string]containerdTable `toml:"host"`
	}
	if err := toml.NewDecoder(strings.NewReader(string(data))).DisallowUnknownFields().Decode(&file); err != nil {
		t.Fatalf("containerd cannot read it: %v\n%s", err, data)
	}
	add := func(to string, table containerdTable) {
		h := containerdHost{
			Capabilities: strings.Join(table.Capabilities, " "), SkipVerify: table.SkipVerify, CA: strings.Join(table.CA, " "),
			Header: table.Header["Authorization"], Rewrite: table.Rewrite,
		}
		if len(table.Client) > 0 {
			h.Client = table.Client[0]
		}
		if to != "" {
			u, err := url.Parse(to)
			if err != nil {
				t.Fatal(err)
			}
			u.Path = path.Clean("/" + u.Path)
			if !strings.HasSuffix(u.Path, "/v2") && !table.OverridePath {
				u.Path = path.Join(u.Path, "v2")
			}
			h.URL = u.String()
		}
		hosts = append(hosts, h)
	}
	var p unstable.Parser
	last := ""
	for p.Reset(data); p.NextExpression(); {
		e := p.Expression()
		if e.Kind != unstable.Table {
			continue
		}
		if keys := keysOf(e); len(keys) > 1 && keys[0] == "host" && keys[1] != last {
			last = keys[1]
			add(last, file.Host[last])
		}
	}
	add(file.Server, file.containerdTable)
	return hosts
}

// Live files follow the rules of K3s' generator: the hosts that containerd contacts for an image,
// in order. TestK3sDocumentedInputs has more.
func TestLiveMatchesK3s(t *testing.T) {
	const (
		pull = "pull resolve"
		hub  = "https://registry-1.docker.io/v2"
		own  = "https://registry.example.com/v2"
	)
	mirror := func(url string) containerdHost { return containerdHost{URL: url, Capabilities: pull} }
	type hosts = map[string][]containerdHost
	for name, c := range map[string]struct {
		registries string
		want       hosts
	}{
		"no configuration":                          {"", hosts{}},
		"omits a host with a port and no endpoints": {"mirrors: {registry.example.com: }", hosts{}},
		"omits a loopback host":                     {"mirrors: {'localhost:5000': }", hosts{}},
		"omits an empty configuration":              {"configs: {docker.io: {}}", hosts{}},
		"keeps an empty tls": {
			"configs: {docker.io: {tls: {}}}", hosts{"docker.io": {{URL: hub}}},
		},
		"without a path": {
			"mirrors: {docker.io: {endpoint: ['https://registry.example.com']}}", hosts{"docker.io": {mirror(own), {URL: hub}}},
		},
		"with a trailing slash": {
			"mirrors: {docker.io: {endpoint: ['https://registry.example.com/']}}", hosts{"docker.io": {mirror(own), {URL: hub}}},
		},
		"without a scheme": {
			"mirrors: {docker.io: {endpoint: [registry.example.com]}}", hosts{"docker.io": {mirror(own), {URL: hub}}},
		},
		"without a scheme, with a path": {
			"mirrors: {docker.io: {endpoint: [registry.example.com/v2]}}", hosts{"docker.io": {mirror(own), {URL: hub}}},
		},
		"keeps a path that ends in v2": {
			"mirrors: {docker.io: {endpoint: ['https://registry.example.com/prefix/v2']}}",
			hosts{"docker.io": {mirror("https://registry.example.com/prefix/v2"), {URL: hub}}},
		},
		"keeps a path without a scheme": {
			"mirrors: {docker.io: {endpoint: [registry.example.com/prefix/v2]}}",
			hosts{"docker.io": {mirror("https://registry.example.com/prefix/v2"), {URL: hub}}},
		},
		"a port": {
			"mirrors: {docker.io: {endpoint: ['registry.example.com:443']}}",
			hosts{"docker.io": {mirror("https://registry.example.com:443/v2"), {URL: hub}}},
		},
		"an address": {
			"mirrors: {docker.io: {endpoint: [1.2.3.4]}}", hosts{"docker.io": {mirror("https://1.2.3.4/v2"), {URL: hub}}},
		},
		"an address and a port": {
			"mirrors: {docker.io: {endpoint: ['1.2.3.4:443']}}",
			hosts{"docker.io": {mirror("https://1.2.3.4:443/v2"), {URL: hub}}},
		},
		"uses http for loopback with a port": {
			"mirrors: {docker.io: {endpoint: ['localhost:5000', '127.0.0.1:5000', '[::1]:5000']}}",
			hosts{
				"docker.io": {
					mirror("http://localhost:5000/v2"), mirror("http://127.0.0.1:5000/v2"), mirror("http://[::1]:5000/v2"), {URL: hub},
				},
			},
		},
		"uses https for loopback on port 443 or without a port": {
			"mirrors: {docker.io: {endpoint: ['localhost:443', localhost]}}",
			hosts{"docker.io": {mirror("https://localhost:443/v2"), mirror("https://localhost/v2"), {URL: hub}}},
		},
		"keeps the scheme of a loopback URL": {
			"mirrors: {docker.io: {endpoint: ['https://localhost:5000']}}",
			hosts{"docker.io": {mirror("https://localhost:5000/v2"), {URL: hub}}},
		},
		"drops duplicates": {
			"mirrors: {docker.io: {endpoint: [registry.example.com, 'https://registry.example.com', " +
				"'https://registry.example.org', 'https://registry.example.com/v2']}}",
			hosts{"docker.io": {mirror(own), mirror("https://registry.example.org/v2"), {URL: hub}}},
		},
		"treats the default at the end as the default": {
			"mirrors: {docker.io: {endpoint: [registry.example.com, docker.io]}}", hosts{"docker.io": {mirror(own), {URL: hub}}},
		},
		"requests the default first if it comes first": {
			"mirrors: {docker.io: {endpoint: [docker.io, registry.example.com]}}",
			hosts{"docker.io": {mirror(hub), mirror(own), {URL: hub}}},
		},
		"applies rewrites to the default at the end": {
			"mirrors: {docker.io: {endpoint: [docker.io], rewrite: {'^a/(.*)': 'b/$1'}}}",
			hosts{"docker.io": {{URL: hub, Rewrite: map[string]string{"^a/(.*)": "b/$1"}}}},
		},
		"applies rewrites to every endpoint": {
			`mirrors: {docker.io: {endpoint: [registry.example.com], rewrite: {'^\d"(.*)': 'b/$1'}}}`,
			hosts{"docker.io": {{URL: own, Capabilities: pull, Rewrite: map[string]string{`^\d"(.*)`: "b/$1"}}, {URL: hub}}},
		},
		"appends the image's registry to a wildcard": {
			"mirrors: {'*': {endpoint: [registry.example.com]}}", hosts{"_default": {mirror(own), {}}},
		},
		"applies a wildcard's tls to all": {
			"configs: {'*': {tls: {insecure_skip_verify: true}}}", hosts{"_default": {{SkipVerify: true}}},
		},
		"ignores a wildcard's tls next to a wildcard mirror": {
			"mirrors: {'*': {endpoint: [registry.example.com]}}\nconfigs: {'*': {tls: {insecure_skip_verify: true}}}",
			hosts{"_default": {mirror(own), {}}},
		},
		"applies a wildcard's credentials to none": {
			"configs: {'*': {auth: {username: user, password: pass}}}", hosts{"_default": {{}}},
		},
		"credentials of the default": {
			"configs: {docker.io: {auth: {username: user, password: pass}}}",
			hosts{"docker.io": {{URL: hub, Header: "Basic dXNlcjpwYXNz"}}},
		},
		"credentials in one string": {
			"configs: {docker.io: {auth: {auth: dXNlcjpwYXNz}}}", hosts{"docker.io": {{URL: hub, Header: "Basic dXNlcjpwYXNz"}}},
		},
		"ignores a token": {
			"configs: {docker.io: {auth: {identity_token: x}}}", hosts{"docker.io": {{URL: hub}}},
		},
		"uses the settings of the endpoint's host": {
			"mirrors: {docker.io: {endpoint: ['registry.example.com']}}\nconfigs: {registry.example.com: {auth: {username: " +
				"user, password: pass}, tls: {ca_file: /ca, cert_file: /c, key_file: /k}}}",
			hosts{
				"docker.io": {
					{URL: own, Capabilities: pull, Header: "Basic dXNlcjpwYXNz", CA: "/ca", Client: [2]string{"/c", "/k"}}, {URL: hub},
				},
				"registry.example.com": {{URL: own, Header: "Basic dXNlcjpwYXNz", CA: "/ca", Client: [2]string{"/c", "/k"}}},
			},
		},
		"uses the settings of an endpoint at Docker Hub": {
			"mirrors: {quay.io: {endpoint: [docker.io]}}\nconfigs: {docker.io: {tls: {insecure_skip_verify: true}}}",
			hosts{
				"quay.io":   {{URL: hub, Capabilities: pull, SkipVerify: true}, {URL: "https://quay.io/v2"}},
				"docker.io": {{URL: hub, SkipVerify: true}},
			},
		},
		"loopback with https and without verification": {
			"mirrors: {'localhost:5000': {endpoint: ['https://localhost:5000']}}\nconfigs: {'localhost:5000': {tls: " +
				"{insecure_skip_verify: true}}}",
			hosts{
				"localhost:5000": {
					{URL: "https://localhost:5000/v2", Capabilities: pull, SkipVerify: true},
					{URL: "http://localhost:5000/v2", SkipVerify: true},
				},
			},
		},
		"a wildcard within a name is not a host": {
			"mirrors: {'*.gcr.io': {endpoint: [registry.example.com]}}", hosts{},
		},
		"drops the parts of a URL that containerd ignores": {
			"mirrors: {docker.io: {endpoint: ['https://u:p@registry.example.com?x=y#z']}}",
			hosts{"docker.io": {mirror(own), {URL: hub}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			desired, err := Build(Inputs{Config: k3sConfig(), Registries: []byte(c.registries)})
			if err != nil {
				t.Fatal(err)
			}
			got := hosts{}
			for _, f := range desired.Files {
				if f.Kind == KindHosts {
					got[path.Base(path.Dir(f.Path))] = asContainerd(t, f.Content)
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func containerdConfig(mirrors ...string) Config {
	return Config{
		Release: "zarf/zarf-registry", Address: address, Directories: []string{certsDir}, Mirrors: mirrors,
		Containerd: Containerd{Directories: []string{certsDir}},
	}
}

func TestMirrorsByteForByte(t *testing.T) {
	const here = "\n[host.\"http://127.0.0.1:31999\"]\n  capabilities = [\"pull\", \"resolve\"]\n"
	for name, c := range map[string]struct {
		mirrors []string
		want    map[string]string
	}{
		"one host": {[]string{"docker.io"}, map[string]string{"docker.io": here}},
		"all but one, and the cluster's registry itself": {[]string{"*", "!quay.io"}, map[string]string{
			"_default": here, "quay.io": "\n# Asked directly: nodeConfig.mirrors has \"!quay.io\".\n[host]\n",
			address: "\n# Asked directly: this is the cluster's registry itself, which mirrors all others.\n[host]\n",
		}},
		"none": {nil, map[string]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			desired, err := Build(Inputs{Config: containerdConfig(c.mirrors...)})
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]string{}
			for _, f := range desired.Files {
				got[path.Base(path.Dir(f.Path))] = string(f.Content)
				hosts := asContainerd(t, f.Content)
				if last := hosts[len(hosts)-1]; last.URL != "" {
					t.Errorf("%s: the last registry is %s, want the image's own", f.Path, last.URL)
				}
				if f.Mode != 0o600 || path.Dir(path.Dir(f.Path)) != certsDir {
					t.Errorf("%s has mode %v", f.Path, f.Mode)
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestHosts(t *testing.T) {
	config := containerdConfig()
	config.Containerd.Hosts = map[string]string{
		"_default": "",
		"registry.example.com:5000": `server = "https://registry.example.com:5000"
ca = "ca.crt"
[host."https://mirror.example.com"]
  capabilities = ["pull", "Resolve"]
  ca = ["/etc/ssl/a.pem", "b.pem"]
  client = [["/etc/ssl/c.pem", "/etc/ssl/k.pem"], "/etc/ssl/both.pem"]
  skip_verify = false
  override_path = true
  dial_timeout = "10s"
  [host."https://mirror.example.com".header]
    Authorization = ["Basic x"]
    x-one = "two"`,
	}
	var looked []string
	desired, err := Build(Inputs{Config: config, CheckTLS: func(name string) error {
		looked = append(looked, name)
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	if want := config.Containerd.Hosts["registry.example.com:5000"] + "\n"; string(desired.Files[1].Content) != want {
		t.Errorf("content:\n%s", desired.Files[1].Content)
	}
	base := certsDir + "/registry.example.com:5000/"
	if diff := cmp.Diff(
		[]string{base + "ca.crt", "/etc/ssl/a.pem", base + "b.pem", "/etc/ssl/c.pem", "/etc/ssl/k.pem", "/etc/ssl/both.pem"},
		looked,
	); diff != "" {
		t.Error(diff)
	}
}

// containerd 1 fails with "invalid `host` tree" if there is no such table, and ignores the file.
func TestContainerd1ReadsEachFile(t *testing.T) {
	config := k3sConfig()
	config.Directories = append(config.Directories, certsDir)
	config.Containerd = Containerd{Directories: []string{certsDir}, Hosts: map[string]string{
		"a.example": "server = \"https://b.example\"", "b.example": "skip_verify = true\n[host]",
		"c.example": "[host.\"https://b.example\"]", "d.example": "# nothing", "e.example": "",
	}}
	desired, err := Build(Inputs{
		Config: config,
		Registries: []byte(
			"mirrors: {docker.io: {endpoint: [x.example]}}\nconfigs: {'*': {tls: {}}, x.example: {auth: {username: u, " +
				"password: p}}, y.example: {tls: {insecure_skip_verify: true}}}\n",
		),
	})
	if err != nil {
		t.Fatal(err)
	}
	live := 0
	for _, f := range desired.Files {
		if path.Dir(path.Dir(f.Path)) != k3sCerts {
			continue
		}
		live++
		var file map[string]any
		if err := toml.Unmarshal(f.Content, &file); err != nil || file["host"] == nil {
			t.Errorf("%s: %v\n%s", f.Path, err, f.Content)
		}
	}
	if live != 4 {
		t.Errorf("%d files", live)
	}
	if diff := cmp.Diff(
		[]string{
			"nodeConfig.containerd.hosts.\"a.example\": containerd before version 2 ignores a file without hosts; append a " +
				"line [host]",
		},
		desired.Warnings,
	); diff != "" {
		t.Error(diff)
	}
}

func TestGeneratedAndEmbedded(t *testing.T) {
	const embedded = `
server = "https://registry-1.docker.io/v2"
[host."https://127.0.0.1:6443/v2"]
  capabilities = ["pull", "resolve"]
  ca = ["/var/lib/rancher/k3s/agent/server-ca.crt"]
  client = [["/var/lib/rancher/k3s/agent/client.crt", "/var/lib/rancher/k3s/agent/client.key"]]
`
	const head = "# File generated by k3s. DO NOT EDIT.\n"
	for name, c := range map[string]struct {
		content             string
		generated, embedded bool
	}{
		"K3s' with its embedded registry":   {head + embedded, true, true},
		"RKE2's with its embedded registry": {"# File generated by rke2. DO NOT EDIT.\n" + embedded, true, true},
		"the embedded registry's own file": {
			head + "server = \"https://[::1]:6443/v2\"\nclient = [[\"a\", \"b\"]]\n", true, true,
		},
		"K3s' with a mirror":                         {head + "[host.\"https://registry.example.com/v2\"]\n", true, false},
		"K3s' with a mirror on loopback":             {head + "[host.\"http://127.0.0.1:5000/v2\"]\n", true, false},
		"an administrator's file that looks like it": {embedded, false, false},
		"a mark that is not at the top":              {"\n" + head, false, false},
		"invalid TOML":                               {head + "[", true, false},
		"ours": {
			"# Written by zarf-registry, release a/b. Changes are overwritten.\n", false, false,
		},
		"nothing":                           {"", false, false},
		"only a mark, without a line break": {strings.TrimSuffix(head, "\n"), true, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Generated([]byte(c.content)); got != c.generated {
				t.Errorf("generated: %v", got)
			}
			if got := Embedded([]byte(c.content)); got != c.embedded {
				t.Errorf("embedded: %v", got)
			}
		})
	}
}

// Documents are accepted if and only if go-toml, and so containerd, accepts them.
func TestParseTOMLAgreesWithGoTOML(t *testing.T) {
	for document, ok := range map[string]bool{
		"": true, "a = 1": true, "a.b = 1\na.c = 2": true, "[a]\nb = 1\n[a.c]\nd = 1": true, "[a.b]\n[a]\nc = 1": true,
		"[[a]]\nb = 1\n[[a]]\n[a.c]\n[[a.d]]": true, "a = {b = 1, c = {d = 2}}": true, "a = [{b = 1}, {b = 1}]": true,
		"[a]\nb.c = 1\n[a.b.d]": true,
		"a = 1\na = 2":          false, "[a]\n[a]": false, "a.b = 1\n[a]": false, "a = 1\n[a.b]": false,
		"a = {b = 1}\n[a.c]": false, "a = {b = 1, b = 2}": false,
		"a = []\n[[a]]": false, "[[a]]\n[a]": false, "[a]\n[[a]]": false, "[a.b]\nc = 1\n[a]\nb.d = 1": false,
		"a = [{b = 1, b = 2}]": false,
		"a":                    false, "a = ": false, "a = \"\\q\"": false, "[a": false, "a = \"x": false,
		"a = 1 b = 2": false, "\x00": false,
		"a = '''": false, "a = [": false, "a = {": false,
		"\"a\\u0062\" = 1\nab = 2": false,
	} {
		_, err := parseTOML([]byte(document))
		theirs := toml.Unmarshal([]byte(document), &map[string]any{})
		if (err == nil) != ok || (theirs == nil) != ok {
			t.Errorf("%q: %v, go-toml: %v", document, err, theirs)
		}
		if d := (*toml.DecodeError)(nil); errors.As(theirs, &d) && err != nil && strings.Contains(err.Error(), "line") {
			if line, _ := d.Position(); !strings.Contains(err.Error(), "line "+string(rune('0'+line))) {
				t.Errorf("%q: %v, go-toml: line %d", document, err, line)
			}
		}
	}
}
