package noderuntime

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// hunter2 stands wherever a secret may stand; no message may have it.
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
		"YAML that does not parse": {withRegistries("mirrors:\n  docker.io: [hunter2\n"), in + "is not YAML that can be read (line 2)"},
		"a mapping that is no mapping, named by the parser with its value": {withRegistries("configs:\n  x:\n    auth: hunter2:\n"), in + "is not YAML that can be read (line 3)"},
		"UTF-8 with a byte order mark":                                     {withRegistries("\ufeffmirrors: {}\n"), in + "begins with a byte order mark, which K3s would not take for one below the first line of ours; save it as UTF-8 without it"},
		"UTF-16":                                                           {withRegistries("\xff\xfem\x00"), in + "begins with a byte order mark, which K3s would not take for one below the first line of ours; save it as UTF-8 without it"},
		"an alias of nothing":                                              {withRegistries("mirrors: *hunter2\n"), in + "is not YAML that can be read"},
		"a document deeper than any":                                       {withRegistries("a: " + strings.Repeat("{hunter2: ", 9000) + strings.Repeat("}", 9000)), in + "is nested deeper than anything that K3s reads"},
		"aliases of aliases of aliases":                                    {withRegistries(bomb()), in + "is not YAML that can be read"},
		"a second document":                                                {withRegistries("mirrors: {}\n---\nhunter2: hunter2\n"), in + "holds more than one document, and only the first would be read; leave out what follows its end"},
		"a document that is a list":                                        {withRegistries("- hunter2\n"), in + "must be a mapping, and is a list"},
		"a document that is a text":                                        {withRegistries("hunter2\n"), in + "must be a mapping, and is a text"},
		"a key twice":                                                      {withRegistries("configs:\n  x:\n    auth: {username: a, username: hunter2}\n"), in + "configs.x.auth.username: is there more than once, and only the last would be read; leave one"},
		"a host twice":                                                     {withRegistries("configs:\n  \"x:5\": {}\n  'x:5': {}\n"), in + "configs.\"x:5\": is there more than once, and only the last would be read; leave one"},
		"an unknown key that looks like one":                               {withRegistries("configs: {x: {auth: {pasword: hunter2}}}\n"), in + "configs.x.auth.pasword: unknown key; did you mean password?"},
		"a key of another format":                                          {withRegistries("configs: {x: {auth: {identitytoken: hunter2}}}\n"), in + "configs.x.auth.identitytoken: unknown key; did you mean identity_token?"},
		"an unknown key":                                                   {withRegistries("mirrors: {x: {colour: hunter2}}\n"), in + "mirrors.x.colour: unknown key; known are endpoint, rewrite"},
		"an unknown key at the top":                                        {withRegistries("mirror: {x: hunter2}\n"), in + "mirror: unknown key; did you mean mirrors?"},
		"an unknown key of credentials, which may be a user's name": {withRegistries("configs: {x: {auth: {hunter2: hunter2}}}\n"), in + "configs.x.auth: has a key that nobody knows, and that is not shown because it may be a secret; known are auth, identity_token, password, token, username"},
		"a key with its value in it":                                {withRegistries("configs: {x: {tls: {ca_file:hunter2}}}\n"), in + "configs.x.tls: has a key that nobody knows, and that is not shown because it may be a secret; known are ca_file, cert_file, insecure_skip_verify, key_file"},
		"a text where a mapping goes":                               {withRegistries("configs: {x: {auth: hunter2}}\n"), in + "configs.x.auth: must be a mapping, and is a text"},
		"a text where a list goes":                                  {withRegistries("mirrors: {x: {endpoint: hunter2}}\n"), in + "mirrors.x.endpoint: must be a list, and is a text"},
		"a mapping where a text goes":                               {withRegistries("configs: {x: {auth: {password: {hunter2: hunter2}}}}\n"), in + "configs.x.auth.password: must be a text, and is a mapping"},
		"a text where true or false goes":                           {withRegistries("configs: {x: {tls: {insecure_skip_verify: hunter2}}}\n"), in + "configs.x.tls.insecure_skip_verify: must be true or false, without quotes"},
		"a host that is a URL":                                      {withRegistries("configs: {'https://u:hunter2@x': {}}\n"), in + "configs.\"https://<REDACTED>@x\": is not a registry's host; write it as docker.io, registry.example.com:5000 or \"*\""},
		"a host with a user":                                        {withRegistries("configs: {'u:hunter2@x': {}}\n"), in + "configs.\"<REDACTED>@x\": is not a registry's host; write it as docker.io, registry.example.com:5000 or \"*\""},
		"a host with a path":                                        {withRegistries("mirrors: {'x/hunter2': {}}\n"), in + "mirrors.<REDACTED>: is not a registry's host; write it as docker.io, registry.example.com:5000 or \"*\""},
		"an endpoint without a host":                                {withRegistries("mirrors: {x: {endpoint: ['https:///hunter2']}}\n"), in + "mirrors.x.endpoint[0]: is not a URL with a host; write it as https://registry.example.com:5000"},
		"an endpoint that is no URL":                                {withRegistries("mirrors: {x: {endpoint: ['http://u:hunter2@ho st']}}\n"), in + "mirrors.x.endpoint[0]: is not a URL with a host; write it as https://registry.example.com:5000"},
		"an endpoint that is empty":                                 {withRegistries("mirrors: {x: {endpoint: [~, y]}}\n"), in + "mirrors.x.endpoint[0]: is empty; fill it in or leave it out"},
		"an endpoint of another scheme":                             {withRegistries("mirrors: {x: {endpoint: ['ftp://u:hunter2@y?z=hunter2']}}\n"), in + "mirrors.x.endpoint[0]: ftp://<REDACTED>@y?z=<REDACTED> must begin with https:// or http://"},
		"a rewrite that is no expression":                           {withRegistries("mirrors: {x: {rewrite: {'^(': y}}}\n"), in + "mirrors.x.rewrite.\"^(\": is not a regular expression: missing closing )"},
		"a relative path":                                           {withRegistries("configs: {x: {tls: {ca_file: a/b}}}\n"), in + "configs.x.tls.ca_file: a/b must be an absolute path of the node"},
		"a path that climbs":                                        {withRegistries("configs: {x: {tls: {ca_file: /a/../b}}}\n"), in + "configs.x.tls.ca_file: /a/../b must be a plain path, without .. and needless slashes"},
		"a key where its path goes":                                 {withRegistries("configs: {x: {tls: {ca_file: \"-----BEGIN hunter2\"}}}\n"), in + "configs.x.tls.ca_file: must be the path of a file on the node; it looks like something else and is not shown"},
		"a certificate without its key":                             {withRegistries("configs: {x: {tls: {cert_file: /a}}}\n"), in + "configs.x.tls: has cert_file and no key_file: give both or none"},
		"a key without its certificate":                             {withRegistries("configs: {x: {tls: {key_file: /a}}}\n"), in + "configs.x.tls: has key_file and no cert_file: give both or none"},
		"auth that is not what it is":                               {withRegistries("configs: {x: {auth: {auth: hunter2}}}\n"), in + "configs.x.auth.auth: must be the base64 of USER:PASSWORD"},
		"all at once": {withRegistries("a: 1\nmirrors: {x: {endpoint: ['/']}}\nconfigs: {x: {auth: 1}}\n"),
			in + "a: unknown key; known are auths, configs, mirrors\n" +
				in + "mirrors.x.endpoint[0]: is not a URL with a host; write it as https://registry.example.com:5000\n" +
				in + "configs.x.auth: must be a mapping, and is a number"},
		"a certificate that is not there": {
			Inputs{Config: k3sConfig(), Registries: []byte("configs: {x: {tls: {ca_file: /a/b}}}\n"), LookTLS: func(string) error { return fs.ErrNotExist }},
			in + "configs.x.tls.ca_file: /a/b cannot be used: file does not exist; put it on the node first",
		},
		"a Secret that is not there": {
			Inputs{Config: Config{Release: "a/b", Directories: []string{"/etc/rancher/k3s"}, K3s: K3s{File: k3sFile, ExistingSecret: "mine", ExistingSecretKey: "r.yaml"}}},
			"Secret mine has no key r.yaml, or does not exist: make it in the release's namespace, or correct nodeConfig.k3s.existingSecret",
		},
		"a Secret's content": {
			Inputs{Config: Config{Release: "a/b", Directories: []string{"/etc/rancher/k3s"}, K3s: K3s{File: k3sFile, ExistingSecret: "mine", ExistingSecretKey: "r.yaml"}}, Registries: []byte("a: hunter2")},
			"Secret mine key r.yaml: a: unknown key; known are auths, configs, mirrors",
		},
		"no content":               {Inputs{Config: k3sConfig()}, in + "is missing"},
		"live without a directory": {with(k3sConfig(), func(c *Config) { c.K3s.LiveDirectory = "" }), "nodeConfig.k3s.livePath: is missing, and nodeConfig.k3s.live wants it"},
		"live without a file":      {with(k3sConfig(), func(c *Config) { c.K3s.File = "" }), "nodeConfig.k3s.registries: live has nothing to write: there is no file"},

		"a mirror twice":             {Inputs{Config: containerdConfig("docker.io", "!docker.io")}, "nodeConfig.mirrors: docker.io is there more than once; leave one"},
		"an exception from nothing":  {Inputs{Config: containerdConfig("!*")}, "nodeConfig.mirrors: \"!*\" means nothing: leave out \"*\" instead"},
		"a mirror of no host":        {Inputs{Config: containerdConfig("u:hunter2@docker.io/x", "https://docker.io")}, "nodeConfig.mirrors: <REDACTED> is not a registry's host; write it as docker.io, registry.example.com:5000 or \"*\"\nnodeConfig.mirrors: https://docker.io is not a registry's host; write it as docker.io, registry.example.com:5000 or \"*\""},
		"Docker Hub by another name": {Inputs{Config: containerdConfig("index.docker.io")}, "nodeConfig.mirrors: index.docker.io is asked for images of docker.io; name it docker.io"},
		"the registry itself":        {Inputs{Config: containerdConfig(address)}, "nodeConfig.mirrors: 127.0.0.1:31999 is the cluster's registry itself; leave it out"},
		"mirrors without an address": {with(containerdConfig("docker.io"), func(c *Config) { c.Address = "" }), "nodeConfig.mirrors: there is no address on the nodes that a mirror could be asked at; mirrors need one"},
		"a mirror that registries.yaml has": {with(k3sConfig(), func(c *Config) {
			c.Address, c.Mirrors, c.Containerd.Directories = address, []string{"docker.io"}, []string{k3sCerts}
		}), "nodeConfig.mirrors: registries.yaml says already what is asked for docker.io: put http://127.0.0.1:31999 first among its endpoints there, or leave it out of nodeConfig.mirrors"},
		"one that K3s will write later": {with(k3sConfig(), func(c *Config) {
			c.K3s.Live, c.Address, c.Mirrors, c.Containerd.Directories = false, address, []string{"docker.io"}, []string{k3sCerts}
		}), "nodeConfig.mirrors: registries.yaml says already what is asked for docker.io: put http://127.0.0.1:31999 first among its endpoints there, or leave it out of nodeConfig.mirrors"},
		"a mirror that has a file": {with(containerdConfig("docker.io"), func(c *Config) { c.Containerd.Hosts = map[string]string{"docker.io": ""} }), "nodeConfig.containerd.hosts: nodeConfig.mirrors says already what is asked for docker.io: leave it out of one of them"},
		"a file that registries.yaml makes": {with(k3sConfig(), func(c *Config) {
			c.Containerd = Containerd{Directories: []string{k3sCerts}, Hosts: map[string]string{"docker.io": ""}}
		}), "nodeConfig.containerd.hosts: nodeConfig.k3s.registries says already what is asked for docker.io: leave it out of one of them"},

		"TOML that does not parse":                  {withHost("server = hunter2"), inHost + "is not TOML that can be read (line 1, column 10)"},
		"a table twice":                             {withHost("[host.\"https://x\"]\n[host.\"https://x\"]"), inHost + "has something twice (line 2, column 2)"},
		"an unknown key of a host":                  {withHost("[host.\"https://x\"]\ncapability = [\"hunter2\"]"), inHost + "host.\"https://x\".capability: unknown key; did you mean capabilities?"},
		"a server that is no URL":                   {withHost("server = \"https:///hunter2\""), inHost + "server: is not a URL with a host; write it as https://registry.example.com:5000"},
		"a server of another scheme":                {withHost("server = \"unix://u:hunter2@x\""), inHost + "server: unix://<REDACTED>@x must begin with https:// or http://"},
		"a server that looks like a scheme":         {withHost("server = \"httpd.example.com\""), inHost + "server: httpd.example.com must begin with https:// or http://"},
		"a host that is no URL":                     {withHost("[host.\"https://u:hunter2@\"]"), inHost + "host.<REDACTED>: is not a URL with a host; write it as https://registry.example.com:5000"},
		"a host that containerd overlooks":          {withHost("host = {\"https://x\" = {capabilities = [\"pull\"]}}"), inHost + "host.\"https://x\": containerd overlooks a host that is not a table of its own; write it below a line [host.\"https://x\"]"},
		"a capability that is none":                 {withHost("capabilities = [\"pull\", \"hunter2\"]"), inHost + "capabilities[1]: is no capability; known are pull, resolve, push, referrers"},
		"a capability that is no text":              {withHost("capabilities = [1]"), inHost + "capabilities[0]: must be a text in quotes, and is a number"},
		"true in quotes":                            {withHost("skip_verify = \"hunter2\""), inHost + "skip_verify: must be true or false, without quotes"},
		"a header that is neither text nor list":    {withHost("[header]\nAuthorization = {hunter2 = \"hunter2\"}"), inHost + "header.Authorization: must be a text or a list, and is a mapping"},
		"a header whose name is its value":          {withHost("[header]\n\"Authorization: hunter2\" = \"\""), inHost + "header.<REDACTED>: is not the name of an HTTP header"},
		"a duration that is none":                   {withHost("dial_timeout = \"hunter2\""), inHost + "dial_timeout: is not a duration; write it as 10s"},
		"a pair of three":                           {withHost("client = [[\"/a\", \"/b\", \"/c\"]]"), inHost + "client[0]: must be a pair: the certificate's file, then the key's"},
		"a rewrite of a host that is no expression": {withHost("[rewrite]\n\"[\" = \"x\""), inHost + "rewrite.\"[\": is not a regular expression: missing closing ]"},
		"a host's name that is none": {with(containerdConfig(), func(c *Config) {
			c.Containerd.Hosts = map[string]string{"../hunter2": "", "*": "", "index.docker.io": ""}
		}),
			"nodeConfig.containerd.hosts.\"*\": write \"_default\" for all registries that have no file of their own\n" +
				"nodeConfig.containerd.hosts.\"<REDACTED>\": is not a registry's host; write it as docker.io, registry.example.com:5000 or _default\n" +
				"nodeConfig.containerd.hosts.\"index.docker.io\": is asked for images of docker.io; name it docker.io"},

		"CRI-O without authorities":          {Inputs{Config: crioConfig()}, "nodeConfig.crio.ca: there are no authorities to trust: the Secret with the certificates of the nodes' proxies has no ca.crt yet"},
		"CRI-O without an address":           {with(crioConfig(), func(c *Config) { c.Address = "" }), "nodeConfig.crio: there is no address on the nodes that the cluster's registry has; CRI-O needs one"},
		"authorities that are none":          {Inputs{Config: crioConfig(), CA: []byte("hunter2")}, "nodeConfig.crio.ca: the authorities of the nodes' proxies cannot be used: " + caError([]byte("hunter2"))},
		"a directory outside":                {with(containerdConfig(), func(c *Config) { c.Directories = []string{"/etc", "/etc/containerd2"} }), "directory /etc: files are written below these only: /etc/containerd, /etc/containers, /etc/rancher, /etc/k0s, /etc/crio, /var/lib/rancher, /var/snap/microk8s, /var/snap/k8s\ndirectory /etc/containerd2: files are written below these only: /etc/containerd, /etc/containers, /etc/rancher, /etc/k0s, /etc/crio, /var/lib/rancher, /var/snap/microk8s, /var/snap/k8s"},
		"a directory that climbs":            {with(containerdConfig(), func(c *Config) { c.Directories = []string{"/etc/containerd/../x", "etc/containerd"} }), "directory \"/etc/containerd/../x\": must be an absolute path without .. and needless slashes\ndirectory \"etc/containerd\": must be an absolute path without .. and needless slashes"},
		"a directory to look in that climbs": {with(containerdConfig(), func(c *Config) { c.TLSDirectories = []string{"/etc/../x"} }), "nodeConfig.tlsDirectories: \"/etc/../x\" must be an absolute path without .. and needless slashes"},
		"a file outside":                     {with(k3sConfig(), func(c *Config) { c.K3s = K3s{File: "/etc/shadow"} }), "file /etc/shadow: is not in a directory that nodeConfig may write to, nor in one right below: /etc/rancher/k3s, " + k3sCerts},
		"a file too deep":                    {with(k3sConfig(), func(c *Config) { c.K3s = K3s{File: "/etc/rancher/k3s/a/b/c"} }), "file /etc/rancher/k3s/a/b/c: is not in a directory that nodeConfig may write to, nor in one right below: /etc/rancher/k3s, " + k3sCerts},
		"a file that climbs":                 {with(k3sConfig(), func(c *Config) { c.K3s = K3s{File: "/etc/rancher/k3s/../../shadow"} }), "file \"/etc/rancher/k3s/../../shadow\": must be an absolute path without .. and needless slashes"},
		"two files of one path": {with(k3sConfig(), func(c *Config) {
			c.K3s = K3s{File: k3sCerts + "/docker.io/hosts.toml", Live: true, LiveDirectory: k3sCerts}
		}),
			"nodeConfig.k3s.registries and nodeConfig.k3s.registries both want the file " + k3sCerts + "/docker.io/hosts.toml: give them different directories"},
	} {
		t.Run(name, func(t *testing.T) {
			wanted, err := Build(c.inputs)
			if err == nil {
				t.Fatalf("accepted: %v", wanted.Warnings)
			}
			if diff := cmp.Diff(strings.Split(c.want, "\n"), strings.Split(err.Error(), "\n")); diff != "" {
				t.Error(diff)
			}
			if wanted != nil || strings.Contains(err.Error(), hunter2) {
				t.Errorf("%v with %v", wanted, err)
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
		"nothing":                  {"mirrors: {docker.io: {endpoint: [x]}}\n", nil, nil},
		"a token":                  {"configs: {x: {auth: {token: hunter2}}}\n", nil, []string{in + "configs.x.auth.token: K3s does not read this: what it takes is identity_token, or the token as the password of whatever user name the registry wants beside it"}},
		"auths":                    {"auths: {'https://u:hunter2@x': {password: hunter2}}\n", nil, []string{in + "auths: K3s does not read this: put it into configs.HOST.auth"}},
		"an identity token":        {"configs: {x: {auth: {identity_token: hunter2}}}\n", nil, []string{"registries.yaml: configs.\"x\".auth.identity_token works after K3s was restarted: containerd takes it at its start only"}},
		"credentials in a URL":     {"mirrors: {x: {endpoint: ['https://u:hunter2@y/hunter1']}}\n", nil, []string{in + "mirrors.x.endpoint[0]: https://<REDACTED>@y/hunter1: container runtimes do not use a user's name or password in a URL; give credentials apart from it"}},
		"a query":                  {"mirrors: {x: {endpoint: ['https://y?token=hunter2']}}\n", nil, []string{in + "mirrors.x.endpoint[0]: https://y?token=<REDACTED>: container runtimes do not use what follows the path"}},
		"IPv6":                     {"mirrors: {x: {endpoint: ['https://[fd00::1]:5000']}}\n", nil, []string{"[fd00::1]:5000: containerd takes IPv6 addresses of registries from version 2 on"}},
		"a backslash in a rewrite": {"mirrors: {x: {endpoint: [y], rewrite: {'^a\\.b': c/d, '^\\d': e/f}}}\n", nil, []string{in + `mirrors.x.rewrite: K3s writes rewrites into hosts.toml as they are, and containerd takes no notice of a file in which a backslash or a quotation mark stands so: write [.] for \., [0-9] for \d`}},
		"rewrites without one":     {"mirrors: {x: {endpoint: [y], rewrite: {'^a[.]b/([0-9]+)$': 'c/${1}'}}}\n", nil, nil},
		"Docker Hub by other names": {"mirrors: {index.docker.io: {endpoint: [y]}, registry-1.docker.io: {endpoint: [y]}}\nconfigs: {index.docker.io: {tls: {}}, registry-1.docker.io: {tls: {}}}\n", nil, []string{
			in + "mirrors.\"index.docker.io\": images of docker.io are not looked for under this name; name it docker.io",
			in + "mirrors.\"registry-1.docker.io\": images of docker.io are not looked for under this name; name it docker.io",
			in + "configs.\"index.docker.io\": K3s does not take this for images of docker.io; name it docker.io",
		}},
		"credentials for everybody":  {"configs: {'*': {auth: {username: u, password: hunter2}}}\n", nil, []string{"registries.yaml: configs.\"*\".auth is not put into hosts.toml: containerd would send it to every registry; name hosts"}},
		"a certificate out of sight": {"configs: {x: {tls: {ca_file: /a/b}}}\n", func(string) error { return ErrNotMounted }, []string{in + "configs.x.tls.ca_file: whether /a/b is there was not looked at: name its directory in nodeConfig.tlsDirectories to have that done"}},
		"an exception that is none in K3s": {"mirrors: {'*': {endpoint: [x]}, quay.io: {}}\nconfigs: {docker.io: {}, ghcr.io: {tls: {}}}\n", nil, []string{
			"registries.yaml: docker.io has no settings, so K3s leaves it out, and mirrors.\"*\" applies to it, too; to except it, write tls: {} below configs.\"docker.io\"",
			"registries.yaml: quay.io has no settings, so K3s leaves it out, and mirrors.\"*\" applies to it, too; to except it, write tls: {} below configs.\"quay.io\"",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			wanted, err := Build(Inputs{Config: k3sConfig(), Registries: []byte(c.registries), LookTLS: c.look})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, wanted.Warnings); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParseConfig(t *testing.T) {
	for name, c := range map[string]struct{ data, want string }{
		"all there":               {`{"release": "a/b", "directories": ["/etc/containerd"], "containerd": {"hosts": {"docker.io": "x"}}, "k3s": {}, "crio": {}}`, ""},
		"an unknown field":        {`{"release": "a/b", "colour": "hunter2"}`, `reading config.json: json: unknown field "colour"`},
		"a value of another type": {`{"release": "a/b", "containerd": {"hosts": {"x": 12345}}}`, "reading config.json: containerd.hosts is not what it should be, string"},
		"no JSON":                 {`{"release": hunter2`, "reading config.json: is not JSON that can be read (byte 13)"},
		"the end too early":       {`{"release": "a/b"`, "reading config.json: unexpected EOF"},
		"something behind it":     {`{"release": "a/b"} {}`, "reading config.json: something follows the end of the object"},
		"no release":              {`{}`, "reading config.json: release is missing"},
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

// bomb is a small document that is a large one when its aliases are expanded.
func bomb() string {
	var b strings.Builder
	b.WriteString("a: &a [hunter2, hunter2, hunter2, hunter2, hunter2, hunter2, hunter2, hunter2]\n")
	for name := 'b'; name < 'k'; name++ {
		fmt.Fprintf(&b, "%c: &%c [%s]\n", name, name, strings.Repeat(fmt.Sprintf("*%c, ", name-1), 8))
	}
	return b.String()
}
