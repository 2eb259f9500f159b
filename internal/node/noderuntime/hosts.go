package noderuntime

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2/unstable"
)

// mirrors adds a hosts.toml for each registry that is mirrored at Config.Address.
func (b *builder) mirrors() {
	config := b.Config
	if len(config.Mirrors) == 0 {
		return
	}
	if !validHost(config.Address) {
		b.problem("%s: requires an address of the registry on the nodes", fromMirrors)
		return
	}
	warnIPv6(&b.findings, config.Address)
	seen := map[string]bool{}
	for _, entry := range config.Mirrors {
		name, except := strings.CutPrefix(entry, "!")
		shown, _ := host.mask(name)
		switch {
		case except && name == "*":
			b.problem("%s: \"!*\" is not supported; remove \"*\" instead", fromMirrors)
		case name != "*" && !validHost(name):
			b.problem("%s: %s is not a valid registry host; want docker.io, registry.example.com:5000 or \"*\"",
				fromMirrors, shown)
		case aliasOfDockerHub(name):
			b.problem("%s: %s serves docker.io; write docker.io", fromMirrors, name)
		case name == config.Address:
			b.problem("%s: %s is the cluster's registry itself; remove it", fromMirrors, name)
		case seen[name]:
			b.problem("%s: duplicate entry %s; remove all but one", fromMirrors, name)
		default:
			b.mirror(name, except)
		}
		seen[name] = true
	}
}

func (b *builder) mirror(name string, except bool) {
	content := fmt.Sprintf("\n[host.%s]\n  capabilities = [\"pull\", \"resolve\"]\n", quote("http://"+b.Config.Address))
	if except {
		content = direct("nodeConfig.mirrors has \"!" + name + "\".")
	}
	for _, directory := range b.Config.Containerd.Directories {
		b.addHost(fromMirrors, directory, name, content)
		_, given := b.Config.Containerd.Hosts[b.Config.Address]
		if name == "*" && !given && !b.claimed(directory, b.Config.Address) {
			b.addHost(fromMirrors, directory, b.Config.Address,
				direct("this is the cluster's registry itself, which mirrors all others."))
		}
	}
}

// direct returns the hosts.toml of a registry that is contacted directly, so that "_default" does
// not apply to it. containerd 1 ignores a file without a host table.
func direct(why string) string { return "\n# Asked directly: " + why + "\n[host]\n" }

// claimed reports whether registries.yaml configures a host in that directory, now or once K3s
// restarts.
func (b *builder) claimed(directory, name string) bool {
	return directory == b.Config.K3s.LiveDirectory && b.live[directoryOf(name)] != nil
}

func (b *builder) addHost(from, directory, name, content string) {
	file := inDirectory(directory, directoryOf(name), "hosts.toml")
	if !b.Config.K3s.Live && b.claimed(directory, name) {
		// K3s writes the file at its next start, after it has emptied the directory.
		b.conflict(source{fromRegistries, name}, source{from, name}, file)
		return
	}
	b.add(source{from, name}, File{Path: file, Kind: KindHosts, Content: []byte(content), Mode: private})
}

func aliasOfDockerHub(name string) bool { return name == "index.docker.io" || name == dockerHub }

// hosts adds the user's hosts.toml files. containerd ignores an unreadable file except for a log
// line, so that images would come from an unexpected source. Files that containerd would not read
// or use are therefore rejected.
func (b *builder) hosts() {
	for _, name := range slices.Sorted(maps.Keys(b.Config.Containerd.Hosts)) {
		shown, _ := host.mask(name)
		place := fromHosts + "." + quote(shown)
		switch {
		case name == "_default":
			place = fromHosts + "._default"
		case name == "*":
			b.problem("%s: use \"_default\" for all registries without a file of their own", place)
			continue
		case !validHost(name):
			b.problem("%s: invalid registry host; want docker.io, registry.example.com:5000 or _default", place)
			continue
		case aliasOfDockerHub(name):
			b.problem("%s: this host serves docker.io; write docker.io", place)
			continue
		}
		warnIPv6(&b.findings, name)
		b.host(place, name, []byte(b.Config.Containerd.Hosts[name]))
	}
}

func (b *builder) host(place, name string, content []byte) {
	var bases []string
	for _, directory := range b.Config.Containerd.Directories {
		b.addHost(fromHosts, directory, name, string(withNewline(content)))
		bases = append(bases, inDirectory(directory, name))
	}
	doc, err := parseTOML(content)
	if err != nil {
		b.problem("%s: %v", place, err)
		return
	}
	c := &checker{findings: &b.findings, source: place, strict: true, check: b.CheckTLS, bases: bases}
	c.value("", doc, hostsShape)
	c.hostTable("", doc)
	tables := hostTables(content)
	if len(doc.items) > 0 && doc.get("host").form == null {
		b.warn("%s: containerd before version 2 ignores a file without hosts; append a line [host]", place)
	}
	rewrites := doc.get("rewrite").form != null
	for _, i := range doc.get("host").items {
		shown, _ := endpoint.mask(i.key)
		in := join("host", shown)
		c.hostTable(in, i.value)
		if i.value.form == mapping && !slices.Contains(tables, i.key) {
			c.problem(
				"%s: containerd ignores a host that is not a table; write it below a line [host.%s]", c.at(in), quote(shown),
			)
		}
		rewrites = rewrites || i.value.get("rewrite").form != null
	}
	notRancher := func(d string) bool { return !below(d, "/var/lib/rancher") }
	if rewrites && slices.ContainsFunc(b.Config.Containerd.Directories, notRancher) {
		b.warn("%s: only the containerd of K3s and RKE2 supports rewrite; others ignore it", place)
	}
}

// hostTable checks what the shape does not express.
func (c *checker) hostTable(in string, n *node) {
	for i, pair := range n.get("client").list {
		if pair.form == list && len(pair.list) != 2 {
			c.problem("%s: must be a pair of certificate file and key file",
				c.at(fmt.Sprintf("%s[%d]", join(in, "client"), i)))
		}
	}
}

// hostTables returns the hosts with a line [host."URL"] or below it, in order. containerd ignores
// others.
func hostTables(data []byte) (hosts []string) {
	var p unstable.Parser
	for p.Reset(data); p.NextExpression(); {
		if e := p.Expression(); e.Kind == unstable.Table {
			if keys := keysOf(e); len(keys) > 1 && keys[0] == "host" {
				hosts = append(hosts, keys[1])
			}
		}
	}
	return hosts
}
