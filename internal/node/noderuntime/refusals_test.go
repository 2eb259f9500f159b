package noderuntime

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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
	const in = "nodeConfig.k3s.registries: "
	const inHost = "nodeConfig.containerd.hosts.\"docker.io\": "
	const keys = "want one of ca, capabilities, client, dial_timeout, header, override_path, rewrite, skip_verify"
	for name, c := range map[string]struct {
		inputs Inputs
		want   string
	}{
		"invalid YAML": {
			withRegistries("mirrors:\n  docker.io: [hunter2\n"), in + "K3s cannot read it (line 2)",
		},
		"a scalar instead of a mapping, which the parser quotes": {
			withRegistries("configs:\n  x:\n    auth: hunter2:\n"), in + "K3s cannot read it (line 3)",
		},
		"a value of another type": {
			withRegistries("configs: {x: {auth: hunter2}}\n"), in + "K3s cannot read it (line 1)",
		},
		"a byte order mark, which is invalid below our first line": {
			withRegistries("\ufeffmirrors: {}\n"), in + "starts with a byte order mark: save it as UTF-8 without one",
		},
		"a missing certificate": {
			Inputs{
				Config:     k3sConfig(),
				Registries: []byte("configs: {x: {tls: {ca_file: /a/b}}}\n"),
				CheckTLS:   func(string) error { return fs.ErrNotExist },
			},
			in + "cannot use /a/b: file does not exist; create it on the node first",
		},
		"a missing Secret": {
			Inputs{
				Config: Config{
					Release:     "a/b",
					Directories: []string{"/etc/rancher/k3s"},
					K3s:         K3s{File: k3sFile, ExistingSecret: "mine", ExistingSecretKey: "r.yaml"},
				},
			},
			"Secret mine has no key r.yaml or does not exist: create it in the release's namespace, or correct " +
				"nodeConfig.k3s.existingSecret",
		},
		"a Secret's content": {
			Inputs{
				Config: Config{
					Release:     "a/b",
					Directories: []string{"/etc/rancher/k3s"},
					K3s:         K3s{File: k3sFile, ExistingSecret: "mine", ExistingSecretKey: "r.yaml"},
				},
				Registries: []byte("- hunter2"),
			},
			"Secret mine key r.yaml: K3s cannot read it (line 1)",
		},
		"no content": {Inputs{Config: k3sConfig()}, in + "is missing"},

		"a duplicate mirror": {
			Inputs{Config: containerdConfig("docker.io", "!docker.io")},
			"nodeConfig.mirrors: duplicate entry docker.io; remove all but one",
		},
		"an exclusion of everything": {
			Inputs{Config: containerdConfig("!*")}, "nodeConfig.mirrors: \"!*\" is not supported; remove \"*\" instead",
		},
		"an invalid host of a mirror": {
			Inputs{Config: containerdConfig("u:hunter2@docker.io/x", "https://docker.io")},
			"nodeConfig.mirrors: <REDACTED>@docker.io/x is not a valid registry host; want docker.io, " +
				"registry.example.com:5000 or \"*\"\nnodeConfig.mirrors: https://docker.io is not a valid registry host; " +
				"want docker.io, registry.example.com:5000 or \"*\"",
		},
		"another name of Docker Hub": {
			Inputs{Config: containerdConfig("index.docker.io")},
			"nodeConfig.mirrors: index.docker.io serves docker.io; write docker.io",
		},
		"the cluster's registry itself": {
			Inputs{Config: containerdConfig(address)},
			"nodeConfig.mirrors: 127.0.0.1:31999 is the cluster's registry itself; remove it",
		},
		"mirrors without an address": {
			with(containerdConfig("docker.io"), func(c *Config) { c.Address = "" }),
			"nodeConfig.mirrors: requires an address of the registry on the nodes",
		},
		"a mirror that registries.yaml configures": {with(k3sConfig(), k3sMirrors),
			"nodeConfig.mirrors: registries.yaml already configures docker.io: put http://127.0.0.1:31999 first in its " +
				"endpoints there, or remove it from nodeConfig.mirrors"},
		"a mirror that has a file": {
			with(containerdConfig("docker.io"), func(c *Config) { c.Containerd.Hosts = map[string]string{"docker.io": ""} }),
			"nodeConfig.containerd.hosts: nodeConfig.mirrors already configures docker.io: remove it from one of them",
		},
		"a file that K3s writes": {with(k3sConfig(), func(c *Config) {
			c.Containerd = Containerd{Directories: []string{k3sCerts}, Hosts: map[string]string{"docker.io": ""}}
		}),
			"nodeConfig.containerd.hosts: nodeConfig.k3s.registries already configures docker.io: remove it from one of them"},

		"invalid TOML":          {withHost("server = hunter2"), inHost + "invalid TOML (line 1, column 10)"},
		"a duplicate table":     {withHost("[host.\"https://x\"]\n[host.\"https://x\"]"), inHost + "duplicate key (line 2, column 2)"},
		"a host that is no URL": {withHost("[host.\"https://u:hunter2@\"]"), inHost + "host.\"https://<REDACTED>@\": invalid URL; write it like https://registry.example.com:5000"},
		"an unknown key of a host": {
			withHost("[host.\"https://x\"]\ncapability = [\"hunter2\"]"),
			inHost + "host.\"https://x\": has an unknown key; " + keys,
		},
		"an unknown key": {withHost("hunter2 = true\n[host]"), inHost + "has an unknown key; " + keys},
		"a server of another scheme": {
			withHost("server = \"unix://u:hunter2@x\"\n[host]"),
			inHost + "server: invalid URL; write it like https://registry.example.com:5000",
		},
		"hosts that are no tables": {withHost("host = \"hunter2\""), inHost + "host: must be a table"},
		"a host that is no table": {
			withHost("host = {\"https://x\" = \"hunter2\"}"), inHost + "host.\"https://x\": must be a table",
		},
		"values of other types": {
			withHost("capabilities = [\"pull\", \"hunter2\"]\nskip_verify = \"true\"\nca = 1\ndial_timeout = \"hunter2\"\n" +
				"client = [[[\"/a\"]]]\nrewrite = {a = 1}\nheader = {Authorization = {a = \"hunter2\"}}\n[host]"),
			inHost + "containerd does not accept the value of ca\n" +
				inHost + "containerd does not accept the value of capabilities\n" +
				inHost + "containerd does not accept the value of client\n" +
				inHost + "containerd does not accept the value of dial_timeout\n" +
				inHost + "containerd does not accept the value of header\n" +
				inHost + "containerd does not accept the value of rewrite\n" +
				inHost + "containerd does not accept the value of skip_verify",
		},
		"an invalid host name": {with(containerdConfig(), func(c *Config) {
			c.Containerd.Hosts = map[string]string{"u:hunter2@x": "", "*": "", "index.docker.io": ""}
		}),
			"nodeConfig.containerd.hosts.\"*\": use \"_default\" for all registries without a file of their own\n" +
				"nodeConfig.containerd.hosts.\"index.docker.io\": this host serves docker.io; write docker.io\n" +
				"nodeConfig.containerd.hosts.\"<REDACTED>@x\": invalid registry host; want docker.io, " +
				"registry.example.com:5000 or _default"},

		"CRI-O without CAs": {
			Inputs{Config: crioConfig()},
			"nodeConfig.crio.ca: no CAs to trust: the Secret with the proxies' certificates has no ca.crt yet",
		},
		"CRI-O without an address": {
			with(crioConfig(), func(c *Config) { c.Address = "" }),
			"nodeConfig.crio: requires an address of the registry on the nodes",
		},
		"invalid CAs": {
			Inputs{Config: crioConfig(), CA: []byte("hunter2")},
			"nodeConfig.crio.ca: invalid CAs of the proxies: " + caError([]byte("hunter2")),
		},
		"a directory outside the allowed roots": {
			with(containerdConfig(), func(c *Config) { c.Directories = []string{"/etc", "/etc/containerd2"} }),
			"directory /etc: must be below one of /etc/containerd, /etc/containers, /etc/rancher, /etc/k0s, /etc/crio, " +
				"/var/lib/rancher, /var/snap/microk8s, /var/snap/k8s\ndirectory /etc/containerd2: must be below one of " +
				"/etc/containerd, /etc/containers, /etc/rancher, /etc/k0s, /etc/crio, /var/lib/rancher, /var/snap/microk8s, " +
				"/var/snap/k8s",
		},
		"a directory with ..": {
			with(containerdConfig(), func(c *Config) { c.Directories = []string{"/etc/containerd/../x", "etc/containerd"} }),
			"directory \"/etc/containerd/../x\": must be an absolute path without .. or redundant slashes\ndirectory " +
				"\"etc/containerd\": must be an absolute path without .. or redundant slashes",
		},
		"a TLS directory with ..": {
			with(containerdConfig(), func(c *Config) { c.TLSDirectories = []string{"/etc/../x"} }),
			"nodeConfig.tlsDirectories: \"/etc/../x\" must be an absolute path without .. or redundant slashes",
		},
		"a file outside the directories": {
			with(k3sConfig(), func(c *Config) { c.K3s = K3s{File: "/etc/shadow"} }),
			"file /etc/shadow: must be in a directory of nodeConfig or in a direct subdirectory: /etc/rancher/k3s",
		},
		"a file too deep": {
			with(k3sConfig(), func(c *Config) { c.K3s = K3s{File: "/etc/rancher/k3s/a/b/c"} }),
			"file /etc/rancher/k3s/a/b/c: must be in a directory of nodeConfig or in a direct subdirectory: /etc/rancher/k3s",
		},
		"a file with ..": {
			with(k3sConfig(), func(c *Config) { c.K3s = K3s{File: "/etc/rancher/k3s/../../shadow"} }),
			"file \"/etc/rancher/k3s/../../shadow\": must be an absolute path without .. or redundant slashes",
		},
	} {
		t.Run(name, func(t *testing.T) {
			desired, err := Build(c.inputs)
			if err == nil {
				t.Fatalf("accepted: %v", desired.Warnings)
			}
			if diff := cmp.Diff(strings.Split(c.want, "\n"), strings.Split(err.Error(), "\n")); diff != "" {
				t.Error(diff)
			}
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
	desired, err := Build(Inputs{Config: config, CheckTLS: func(string) error { return ErrNotMounted }})
	if err != nil {
		t.Fatal(err)
	}
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
