package noderuntime

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/zarf-dev/zarf-registry/test/golden"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// hunter2 stands in every place where a secret may stand. No message may contain it.
const hunter2 = "hunter2"

func TestBuildRefuses(t *testing.T) {
	withRegistries := func(document string) Inputs { return Inputs{Config: k3sConfig(), Registries: []byte(document)} }
	withHost := func(document string) Inputs {
		config := containerdConfig()
		config.Containerd.Hosts = map[string]string{"docker.io": document}
		return Inputs{Config: config}
	}
	with := func(config Config, change func(*Config)) Inputs {
		change(&config)
		return Inputs{Config: config, Registries: []byte("mirrors: {docker.io: {endpoint: [registry.example.com]}}\n")}
	}
	k3sMirrors := func(c *Config) {
		c.Directories = append(c.Directories, k3sCerts)
		c.Address, c.Mirrors, c.Containerd.Directories = address, []string{"docker.io"}, []string{k3sCerts}
	}
	golden := golden.Open(t, "refusals")
	for name, inputs := range map[string]Inputs{
		"invalid YAML": withRegistries("mirrors:\n  docker.io: [hunter2\n"),
		"a scalar instead of a mapping, which the parser quotes":   withRegistries("configs:\n  x:\n    auth: hunter2:\n"),
		"a value of another type":                                  withRegistries("configs: {x: {auth: hunter2}}\n"),
		"a byte order mark, which is invalid below our first line": withRegistries("\ufeffmirrors: {}\n"),
		"a missing certificate": {
			Config:     k3sConfig(),
			Registries: []byte("configs: {x: {tls: {ca_file: /a/b}}}\n"),
			CheckTLS:   func(string) error { return fs.ErrNotExist },
		},
		"a missing Secret": {
			Config: Config{
				Release:     "a/b",
				Directories: []string{"/etc/rancher/k3s"},
				K3s:         K3s{File: k3sFile, ExistingSecret: "mine", ExistingSecretKey: "r.yaml"},
			},
		},
		"a Secret's content": {
			Config: Config{
				Release:     "a/b",
				Directories: []string{"/etc/rancher/k3s"},
				K3s:         K3s{File: k3sFile, ExistingSecret: "mine", ExistingSecretKey: "r.yaml"},
			},
			Registries: []byte("- hunter2"),
		},
		"no content": {Config: k3sConfig()},

		"a duplicate mirror":                       {Config: containerdConfig("docker.io", "!docker.io")},
		"an exclusion of everything":               {Config: containerdConfig("!*")},
		"an invalid host of a mirror":              {Config: containerdConfig("u:hunter2@docker.io/x", "https://docker.io")},
		"another name of Docker Hub":               {Config: containerdConfig("index.docker.io")},
		"the cluster's registry itself":            {Config: containerdConfig(address)},
		"mirrors without an address":               with(containerdConfig("docker.io"), func(c *Config) { c.Address = "" }),
		"a mirror that registries.yaml configures": with(k3sConfig(), k3sMirrors),
		"a mirror that has a file":                 with(containerdConfig("docker.io"), func(c *Config) { c.Containerd.Hosts = map[string]string{"docker.io": ""} }),
		"a file that K3s writes": with(k3sConfig(), func(c *Config) {
			c.Containerd = Containerd{Directories: []string{k3sCerts}, Hosts: map[string]string{"docker.io": ""}}
		}),

		"invalid TOML":               withHost("server = hunter2"),
		"a duplicate table":          withHost("[host.\"https://x\"]\n[host.\"https://x\"]"),
		"a host that is no URL":      withHost("[host.\"https://u:hunter2@\"]"),
		"an unknown key of a host":   withHost("[host.\"https://x\"]\ncapability = [\"hunter2\"]"),
		"an unknown key":             withHost("hunter2 = true\n[host]"),
		"a server of another scheme": withHost("server = \"unix://u:hunter2@x\"\n[host]"),
		"hosts that are no tables":   withHost("host = \"hunter2\""),
		"a host that is no table":    withHost("host = {\"https://x\" = \"hunter2\"}"),
		"values of other types": withHost("capabilities = [\"pull\", \"hunter2\"]\nskip_verify = \"true\"\nca = 1\ndial_timeout = \"hunter2\"\n" +
			"client = [[[\"/a\"]]]\nrewrite = {a = 1}\nheader = {Authorization = {a = \"hunter2\"}}\n[host]"),
		"an invalid host name": with(containerdConfig(), func(c *Config) {
			c.Containerd.Hosts = map[string]string{"u:hunter2@x": "", "*": "", "index.docker.io": ""}
		}),

		"CRI-O without CAs":                     {Config: crioConfig()},
		"CRI-O without an address":              with(crioConfig(), func(c *Config) { c.Address = "" }),
		"invalid CAs":                           {Config: crioConfig(), CA: []byte("hunter2")},
		"a directory outside the allowed roots": with(containerdConfig(), func(c *Config) { c.Directories = []string{"/etc", "/etc/containerd2"} }),
		"a directory with ..":                   with(containerdConfig(), func(c *Config) { c.Directories = []string{"/etc/containerd/../x", "etc/containerd"} }),
		"a TLS directory with ..":               with(containerdConfig(), func(c *Config) { c.TLSDirectories = []string{"/etc/../x"} }),
		"a file outside the directories":        with(k3sConfig(), func(c *Config) { c.K3s = K3s{File: "/etc/shadow"} }),
		"a file too deep":                       with(k3sConfig(), func(c *Config) { c.K3s = K3s{File: "/etc/rancher/k3s/a/b/c"} }),
		"a file with ..":                        with(k3sConfig(), func(c *Config) { c.K3s = K3s{File: "/etc/rancher/k3s/../../shadow"} }),
	} {
		t.Run(name, func(t *testing.T) {
			desired, err := Build(inputs)
			if err == nil {
				t.Fatalf("accepted: %v", desired.Warnings)
			}
			golden.Check(t, name, err.Error())
			if desired != nil || strings.Contains(err.Error(), hunter2) {
				t.Errorf("%v with %v", desired, err)
			}
			if problems := (Problems)(nil); !errors.As(err, &problems) || len(problems) == 0 {
				t.Errorf("%T", err)
			}
		})
	}
}

func TestBuildWarns(t *testing.T) {
	config := containerdConfig()
	config.Containerd.Hosts = map[string]string{"[fd00::1]:5000": "skip_verify = true\nca = \"/a/b\""}
	desired := require.Value(Build(Inputs{Config: config, CheckTLS: func(string) error { return ErrNotMounted }}))(t)
	const in = "nodeConfig.containerd.hosts.\"[fd00::1]:5000\": "
	if diff := cmp.Diff([]string{
		"[fd00::1]:5000: containerd supports IPv6 addresses of registries since version 2",
		in + "containerd before version 2 ignores a file without hosts; append a line [host]",
		in + "/a/b was not checked: add its directory to nodeConfig.tlsDirectories",
	}, desired.Warnings); diff != "" {
		t.Error(diff)
	}
}

// registries.yaml is written as it is: whatever K3s reads is accepted, also what it ignores.
func TestRegistriesAreWrittenAsTheyAre(t *testing.T) {
	for _, document := range []string{
		"", "# nothing", "mirrors:\n  docker.io:\n  \"*\":\n", "configs: {x: {auth: {token: hunter2}}}",
		"mirrors: {x: {colour: red}}\n---\nmore", "mirrors: {\"*.gcr.io\": {endpoint: [x]}}\r\n",
		"configs: {x: {auth: {auth: not-base64}, tls: {cert_file: relative}}}\n\n",
		"mirrors: {x: {endpoint: ['ftp://y'], rewrite: {'^(': \"\\\\1\"}}}",
	} {
		desired, err := Build(Inputs{Config: k3sConfig(), Registries: []byte(document),
			CheckTLS: func(string) error { return fs.ErrNotExist }})
		if err != nil || len(desired.Warnings) > 0 || len(desired.Files) != 1 {
			t.Errorf("%q: %+v, %v", document, desired, err)
			continue
		}
		if f := desired.Files[0]; string(f.Content) != document || f.Path != k3sFile || f.Mode != 0o600 {
			t.Errorf("%q: %+v", document, f)
		}
	}
}

func TestParseConfig(t *testing.T) {
	for name, c := range map[string]struct{ data, want string }{
		"a complete configuration": {
			`{"release": "a/b", "directories": ["/etc/containerd"], "containerd": {"hosts": {"docker.io": "x"}}, "k3s": {}, "crio": {}}`,
			"",
		},
		"an unknown field": {
			`{"release": "a/b", "colour": "hunter2"}`, `reading config.json: json: unknown field "colour"`,
		},
		"a value of another type": {
			`{"release": "a/b", "containerd": {"hosts": {"x": 12345}}}`,
			"reading config.json: containerd.hosts: want a value of type string",
		},
		"invalid JSON":   {`{"release": hunter2`, "reading config.json: invalid JSON at byte 13"},
		"truncated JSON": {`{"release": "a/b"`, "reading config.json: unexpected EOF"},
		"trailing data":  {`{"release": "a/b"} {}`, "reading config.json: unexpected data after the object"},
		"no release":     {`{}`, "reading config.json: release is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			config, err := ParseConfig([]byte(c.data))
			if got := errorText(err); got != c.want {
				t.Errorf("%q", got)
			}
			if (err == nil) != (config.Release != "") {
				t.Errorf("%+v with %v", config, err)
			}
		})
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
