package noderuntime

import (
	"errors"
	"fmt"
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
	const in = "nodeConfig.k3s.registries: "
	const inHost = "nodeConfig.containerd.hosts.\"docker.io\": "
	for name, c := range map[string]struct {
		inputs Inputs
		want   string
	}{
		"invalid YAML": {
			withRegistries("mirrors:\n  docker.io: [hunter2\n"), in + "invalid YAML (line 2)",
		},
		"a scalar instead of a mapping, which the parser quotes": {
			withRegistries("configs:\n  x:\n    auth: hunter2:\n"), in + "invalid YAML (line 3)",
		},
		"UTF-8 with a byte order mark": {
			withRegistries("\ufeffmirrors: {}\n"),
			in + "starts with a byte order mark, which K3s does not accept after our first line; save it as UTF-8 without it",
		},
		"UTF-16": {
			withRegistries("\xff\xfem\x00"),
			in + "starts with a byte order mark, which K3s does not accept after our first line; save it as UTF-8 without it",
		},
		"an alias without an anchor": {
			withRegistries("mirrors: *hunter2\n"), in + "invalid YAML",
		},
		"a document that is too deeply nested": {
			withRegistries("a: " + strings.Repeat("{hunter2: ", 9000) + strings.Repeat("}", 9000)),
			in + "too deeply nested",
		},
		"nested aliases": {
			withRegistries(bomb()), in + "invalid YAML",
		},
		"a second document": {
			withRegistries("mirrors: {}\n---\nhunter2: hunter2\n"),
			in + "has more than one document; remove all but the first",
		},
		"a document that is a list": {
			withRegistries("- hunter2\n"), in + "must be a mapping, is a list",
		},
		"a document that is a string": {
			withRegistries("hunter2\n"), in + "must be a mapping, is a string",
		},
		"a duplicate key": {
			withRegistries("configs:\n  x:\n    auth: {username: a, username: hunter2}\n"),
			in + "configs.x.auth.username: duplicate key; remove all but one",
		},
		"a duplicate host": {
			withRegistries("configs:\n  \"x:5\": {}\n  'x:5': {}\n"),
			in + "configs.\"x:5\": duplicate key; remove all but one",
		},
		"a misspelled key": {
			withRegistries("configs: {x: {auth: {pasword: hunter2}}}\n"),
			in + "configs.x.auth.pasword: unknown key; did you mean password?",
		},
		"a key of another format": {
			withRegistries("configs: {x: {auth: {identitytoken: hunter2}}}\n"),
			in + "configs.x.auth.identitytoken: unknown key; did you mean identity_token?",
		},
		"an unknown key": {
			withRegistries("mirrors: {x: {colour: hunter2}}\n"),
			in + "mirrors.x.colour: unknown key; want one of endpoint, rewrite",
		},
		"an unknown key at the top": {
			withRegistries("mirror: {x: hunter2}\n"), in + "mirror: unknown key; did you mean mirrors?",
		},
		"an unknown key of credentials, which may be a user's name": {
			withRegistries("configs: {x: {auth: {hunter2: hunter2}}}\n"),
			in + "configs.x.auth: has an unknown key, not shown because it may be a secret; want one of auth, identity_token, " +
				"password, token, username",
		},
		"a key that contains its value": {
			withRegistries("configs: {x: {tls: {ca_file:hunter2}}}\n"),
			in + "configs.x.tls: has an unknown key, not shown because it may be a secret; want one of ca_file, cert_file, " +
				"insecure_skip_verify, key_file",
		},
		"a string instead of a mapping": {
			withRegistries("configs: {x: {auth: hunter2}}\n"), in + "configs.x.auth: must be a mapping, is a string",
		},
		"a string instead of a list": {
			withRegistries("mirrors: {x: {endpoint: hunter2}}\n"), in + "mirrors.x.endpoint: must be a list, is a string",
		},
		"a mapping instead of a string": {
			withRegistries("configs: {x: {auth: {password: {hunter2: hunter2}}}}\n"),
			in + "configs.x.auth.password: must be a string, is a mapping",
		},
		"a string instead of a boolean": {
			withRegistries("configs: {x: {tls: {insecure_skip_verify: hunter2}}}\n"),
			in + "configs.x.tls.insecure_skip_verify: must be true or false, without quotes",
		},
		"a host that is a URL": {
			withRegistries("configs: {'https://u:hunter2@x': {}}\n"),
			in + "configs.\"https://<REDACTED>@x\": invalid registry host; want docker.io, registry.example.com:5000 or \"*\"",
		},
		"a host with a user": {
			withRegistries("configs: {'u:hunter2@x': {}}\n"),
			in + "configs.\"<REDACTED>@x\": invalid registry host; want docker.io, registry.example.com:5000 or \"*\"",
		},
		"a host with a path": {
			withRegistries("mirrors: {'x/hunter2': {}}\n"),
			in + "mirrors.<REDACTED>: invalid registry host; want docker.io, registry.example.com:5000 or \"*\"",
		},
		"an endpoint without a host": {
			withRegistries("mirrors: {x: {endpoint: ['https:///hunter2']}}\n"),
			in + "mirrors.x.endpoint[0]: invalid URL; write it like https://registry.example.com:5000",
		},
		"an endpoint that is not a URL": {
			withRegistries("mirrors: {x: {endpoint: ['http://u:hunter2@ho st']}}\n"),
			in + "mirrors.x.endpoint[0]: invalid URL; write it like https://registry.example.com:5000",
		},
		"an empty endpoint": {
			withRegistries("mirrors: {x: {endpoint: [~, y]}}\n"),
			in + "mirrors.x.endpoint[0]: is empty; set it or remove it",
		},
		"an endpoint with another scheme": {
			withRegistries("mirrors: {x: {endpoint: ['ftp://u:hunter2@y?z=hunter2']}}\n"),
			in + "mirrors.x.endpoint[0]: ftp://<REDACTED>@y?z=<REDACTED> must start with https:// or http://",
		},
		"an invalid rewrite": {
			withRegistries("mirrors: {x: {rewrite: {'^(': y}}}\n"),
			in + "mirrors.x.rewrite.\"^(\": invalid regular expression: missing closing )",
		},
		"a relative path": {
			withRegistries("configs: {x: {tls: {ca_file: a/b}}}\n"),
			in + "configs.x.tls.ca_file: a/b must be an absolute path",
		},
		"a path with ..": {
			withRegistries("configs: {x: {tls: {ca_file: /a/../b}}}\n"),
			in + "configs.x.tls.ca_file: /a/../b must be a clean path, without .. or redundant slashes",
		},
		"a key instead of its path": {
			withRegistries("configs: {x: {tls: {ca_file: \"-----BEGIN hunter2\"}}}\n"),
			in + "configs.x.tls.ca_file: must be the path of a file on the node; the value is not shown because it may be a " +
				"secret",
		},
		"a certificate without its key": {
			withRegistries("configs: {x: {tls: {cert_file: /a}}}\n"),
			in + "configs.x.tls: has cert_file but no key_file: set both or neither",
		},
		"a key without its certificate": {
			withRegistries("configs: {x: {tls: {key_file: /a}}}\n"),
			in + "configs.x.tls: has key_file but no cert_file: set both or neither",
		},
		"an invalid auth": {
			withRegistries("configs: {x: {auth: {auth: hunter2}}}\n"),
			in + "configs.x.auth.auth: must be the base64 of USER:PASSWORD",
		},
		"several problems": {withRegistries("a: 1\nmirrors: {x: {endpoint: ['/']}}\nconfigs: {x: {auth: 1}}\n"),
			in + "a: unknown key; want one of auths, configs, mirrors\n" +
				in + "mirrors.x.endpoint[0]: invalid URL; write it like https://registry.example.com:5000\n" +
				in + "configs.x.auth: must be a mapping, is a number"},
		"a missing certificate": {
			Inputs{
				Config:     k3sConfig(),
				Registries: []byte("configs: {x: {tls: {ca_file: /a/b}}}\n"),
				CheckTLS:   func(string) error { return fs.ErrNotExist },
			},
			in + "configs.x.tls.ca_file: cannot use /a/b: file does not exist; create it on the node first",
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
				Registries: []byte("a: hunter2"),
			},
			"Secret mine key r.yaml: a: unknown key; want one of auths, configs, mirrors",
		},
		"no content": {Inputs{Config: k3sConfig()}, in + "is missing"},
		"live without a directory": {
			with(k3sConfig(), func(c *Config) { c.K3s.LiveDirectory = "" }),
			"nodeConfig.k3s.livePath: is required by nodeConfig.k3s.live",
		},
		"live without a file": {
			with(k3sConfig(), func(c *Config) { c.K3s.File = "" }),
			"nodeConfig.k3s.registries: live requires a file to write",
		},

		"a duplicate mirror": {
			Inputs{Config: containerdConfig("docker.io", "!docker.io")},
			"nodeConfig.mirrors: duplicate entry docker.io; remove all but one",
		},
		"an exclusion of everything": {
			Inputs{Config: containerdConfig("!*")}, "nodeConfig.mirrors: \"!*\" is not supported; remove \"*\" instead",
		},
		"an invalid host of a mirror": {
			Inputs{Config: containerdConfig("u:hunter2@docker.io/x", "https://docker.io")},
			"nodeConfig.mirrors: <REDACTED> is not a valid registry host; want docker.io, registry.example.com:5000 or " +
				"\"*\"\nnodeConfig.mirrors: https://docker.io is not a valid registry host; want docker.io, " +
				"registry.example.com:5000 or \"*\"",
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
		"a mirror that registries.yaml configures": {with(k3sConfig(), func(c *Config) {
			c.Address, c.Mirrors, c.Containerd.Directories = address, []string{"docker.io"}, []string{k3sCerts}
		}),
			"nodeConfig.mirrors: registries.yaml already configures docker.io: put http://127.0.0.1:31999 first in its " +
				"endpoints there, or remove it from nodeConfig.mirrors"},
		"a mirror that K3s will write later": {with(k3sConfig(), func(c *Config) {
			c.K3s.Live, c.Address, c.Mirrors, c.Containerd.Directories = false, address, []string{"docker.io"},
				[]string{k3sCerts}
		}),
			"nodeConfig.mirrors: registries.yaml already configures docker.io: put http://127.0.0.1:31999 first in its " +
				"endpoints there, or remove it from nodeConfig.mirrors"},
		"a mirror that has a file": {
			with(containerdConfig("docker.io"), func(c *Config) { c.Containerd.Hosts = map[string]string{"docker.io": ""} }),
			"nodeConfig.containerd.hosts: nodeConfig.mirrors already configures docker.io: remove it from one of them",
		},
		"a file that registries.yaml generates": {with(k3sConfig(), func(c *Config) {
			c.Containerd = Containerd{Directories: []string{k3sCerts}, Hosts: map[string]string{"docker.io": ""}}
		}),
			"nodeConfig.containerd.hosts: nodeConfig.k3s.registries already configures docker.io: remove it from one of them"},

		"invalid TOML": {
			withHost("server = hunter2"), inHost + "invalid TOML (line 1, column 10)",
		},
		"a duplicate table": {
			withHost("[host.\"https://x\"]\n[host.\"https://x\"]"), inHost + "duplicate key (line 2, column 2)",
		},
		"an unknown key of a host": {
			withHost("[host.\"https://x\"]\ncapability = [\"hunter2\"]"),
			inHost + "host.\"https://x\".capability: unknown key; did you mean capabilities?",
		},
		"a server that is not a URL": {
			withHost("server = \"https:///hunter2\""),
			inHost + "server: invalid URL; write it like https://registry.example.com:5000",
		},
		"a server of another scheme": {
			withHost("server = \"unix://u:hunter2@x\""),
			inHost + "server: unix://<REDACTED>@x must start with https:// or http://",
		},
		"a server that looks like a scheme": {
			withHost("server = \"httpd.example.com\""), inHost + "server: httpd.example.com must start with https:// or http://",
		},
		"a host that is not a URL": {
			withHost("[host.\"https://u:hunter2@\"]"),
			inHost + "host.<REDACTED>: invalid URL; write it like https://registry.example.com:5000",
		},
		"a host that containerd ignores": {
			withHost("host = {\"https://x\" = {capabilities = [\"pull\"]}}"),
			inHost +
				"host.\"https://x\": containerd ignores a host that is not a table; write it below a line [host.\"https://x\"]",
		},
		"an unknown capability": {
			withHost("capabilities = [\"pull\", \"hunter2\"]"),
			inHost + "capabilities[1]: unknown capability; want one of pull, resolve, push, referrers",
		},
		"a capability that is not a string": {
			withHost("capabilities = [1]"), inHost + "capabilities[0]: must be a quoted string, is a number",
		},
		"a quoted boolean": {
			withHost("skip_verify = \"hunter2\""), inHost + "skip_verify: must be true or false, without quotes",
		},
		"a header that is neither a string nor a list": {
			withHost("[header]\nAuthorization = {hunter2 = \"hunter2\"}"),
			inHost + "header.Authorization: must be a string or a list, is a mapping",
		},
		"a header whose name is its value": {
			withHost("[header]\n\"Authorization: hunter2\" = \"\""),
			inHost + "header.<REDACTED>: invalid HTTP header name",
		},
		"an invalid duration": {
			withHost("dial_timeout = \"hunter2\""), inHost + "dial_timeout: invalid duration; write it like 10s",
		},
		"a pair of three": {
			withHost("client = [[\"/a\", \"/b\", \"/c\"]]"),
			inHost + "client[0]: must be a pair of certificate file and key file",
		},
		"an invalid rewrite of a host": {
			withHost("[rewrite]\n\"[\" = \"x\""), inHost + "rewrite.\"[\": invalid regular expression: missing closing ]",
		},
		"an invalid host name": {with(containerdConfig(), func(c *Config) {
			c.Containerd.Hosts = map[string]string{"../hunter2": "", "*": "", "index.docker.io": ""}
		}),
			"nodeConfig.containerd.hosts.\"*\": use \"_default\" for all registries without a file of their own\n" +
				"nodeConfig.containerd.hosts.\"<REDACTED>\": invalid registry host; want docker.io, registry.example.com:5000 " +
				"or _default\n" +
				"nodeConfig.containerd.hosts.\"index.docker.io\": this host serves docker.io; write docker.io"},

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
			"file /etc/shadow: must be in a directory of nodeConfig or in a direct subdirectory: /etc/rancher/k3s, " +
				k3sCerts,
		},
		"a file too deep": {
			with(k3sConfig(), func(c *Config) { c.K3s = K3s{File: "/etc/rancher/k3s/a/b/c"} }),
			"file /etc/rancher/k3s/a/b/c: must be in a directory of nodeConfig or in a direct subdirectory: /etc/rancher/k3s, " +
				k3sCerts,
		},
		"a file with ..": {
			with(k3sConfig(), func(c *Config) { c.K3s = K3s{File: "/etc/rancher/k3s/../../shadow"} }),
			"file \"/etc/rancher/k3s/../../shadow\": must be an absolute path without .. or redundant slashes",
		},
		"two files with the same path": {with(k3sConfig(), func(c *Config) {
			c.K3s = K3s{File: k3sCerts + "/docker.io/hosts.toml", Live: true, LiveDirectory: k3sCerts}
		}),
			"nodeConfig.k3s.registries and nodeConfig.k3s.registries both write the file " + k3sCerts +
				"/docker.io/hosts.toml: use different directories"},
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
	const in = "nodeConfig.k3s.registries: "
	for name, c := range map[string]struct {
		registries string
		look       func(string) error
		want       []string
	}{
		"nothing": {"mirrors: {docker.io: {endpoint: [x]}}\n", nil, nil},
		"a token": {
			"configs: {x: {auth: {token: hunter2}}}\n",
			nil,
			[]string{
				in +
					"configs.x.auth.token: K3s ignores this: use identity_token, or the token as password with the user name that " +
					"the registry expects",
			},
		},
		"auths": {
			"auths: {'https://u:hunter2@x': {password: hunter2}}\n",
			nil,
			[]string{in + "auths: K3s ignores this: move it to configs.HOST.auth"},
		},
		"an identity token": {
			"configs: {x: {auth: {identity_token: hunter2}}}\n",
			nil,
			[]string{
				"registries.yaml: configs.\"x\".auth.identity_token takes effect when K3s restarts: containerd reads it only at " +
					"its start",
			},
		},
		"credentials in a URL": {
			"mirrors: {x: {endpoint: ['https://u:hunter2@y/hunter1']}}\n",
			nil,
			[]string{
				in + "mirrors.x.endpoint[0]: https://<REDACTED>@y/hunter1: container runtimes ignore credentials in a URL; " +
					"configure them separately",
			},
		},
		"a query": {
			"mirrors: {x: {endpoint: ['https://y?token=hunter2']}}\n",
			nil,
			[]string{
				in + "mirrors.x.endpoint[0]: https://y?token=<REDACTED>: container runtimes ignore everything after the path",
			},
		},
		"IPv6": {
			"mirrors: {x: {endpoint: ['https://[fd00::1]:5000']}}\n",
			nil,
			[]string{"[fd00::1]:5000: containerd supports IPv6 addresses of registries since version 2"},
		},
		"a backslash in a rewrite": {
			"mirrors: {x: {endpoint: [y], rewrite: {'^a\\.b': c/d, '^\\d': e/f}}}\n",
			nil,
			[]string{
				in +
					`mirrors.x.rewrite: K3s does not escape rewrites in hosts.toml, and containerd ignores a file with an unescaped backslash or quotation mark: write [.] for \., [0-9] for \d`,
			},
		},
		"ineffective rewrites": {"mirrors: {x: {endpoint: [y], rewrite: {'^a[.]b/([0-9]+)$': 'c/${1}'}}}\n", nil, nil},
		"other names of Docker Hub": {"mirrors: {index.docker.io: {endpoint: [y]}, registry-1.docker.io: {endpoint: " +
			"[y]}}\nconfigs: {index.docker.io: {tls: {}}, registry-1.docker.io: {tls: {}}}\n", nil, []string{
			in + "mirrors.\"index.docker.io\": does not apply to images of docker.io; write docker.io",
			in + "mirrors.\"registry-1.docker.io\": does not apply to images of docker.io; write docker.io",
			in + "configs.\"index.docker.io\": does not apply to images of docker.io; write docker.io",
		}},
		"credentials for all hosts": {
			"configs: {'*': {auth: {username: u, password: hunter2}}}\n",
			nil,
			[]string{
				"registries.yaml: configs.\"*\".auth is not written to hosts.toml: containerd would send it to every registry; " +
					"list the hosts",
			},
		},
		"a certificate that is not mounted": {
			"configs: {x: {tls: {ca_file: /a/b}}}\n",
			func(string) error { return ErrNotMounted },
			[]string{
				in + "configs.x.tls.ca_file: /a/b was not checked: add its directory to nodeConfig.tlsDirectories",
			},
		},
		"an ineffective exclusion in K3s": {"mirrors: {'*': {endpoint: [x]}, quay.io: {}}\nconfigs: {docker.io: {}, " +
			"ghcr.io: {tls: {}}}\n", nil, []string{
			"registries.yaml: K3s ignores docker.io, which has no settings, so mirrors.\"*\" applies to it too; to exclude " +
				"it, add tls: {} to configs.\"docker.io\"",
			"registries.yaml: K3s ignores quay.io, which has no settings, so mirrors.\"*\" applies to it too; to exclude it, " +
				"add tls: {} to configs.\"quay.io\"",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			desired, err := Build(Inputs{Config: k3sConfig(), Registries: []byte(c.registries), CheckTLS: c.look})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, desired.Warnings); diff != "" {
				t.Error(diff)
			}
		})
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

// bomb returns a small document that becomes large when its aliases are expanded.
func bomb() string {
	var b strings.Builder
	b.WriteString("a: &a [hunter2, hunter2, hunter2, hunter2, hunter2, hunter2, hunter2, hunter2]\n")
	for name := 'b'; name < 'k'; name++ {
		fmt.Fprintf(&b, "%c: &%c [%s]\n", name, name, strings.Repeat(fmt.Sprintf("*%c, ", name-1), 8))
	}
	return b.String()
}
