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

	"github.com/zarf-dev/zarf-registry/test/require"
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
			u := require.Value(url.Parse(to))(t)
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
			desired := require.Value(Build(Inputs{Config: containerdConfig(c.mirrors...)}))(t)
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
	require.NoError(t, err)
	if want := config.Containerd.Hosts["registry.example.com:5000"] + "\n"; string(desired.Files[1].Content) != want {
		t.Errorf("content:\n%s", desired.Files[1].Content)
	}
	if diff := cmp.Diff([]string{"/etc/ssl/a.pem", "/etc/ssl/c.pem", "/etc/ssl/k.pem", "/etc/ssl/both.pem"}, looked); diff != "" {
		t.Error(diff)
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
