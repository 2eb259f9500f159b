package noderuntime

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2/unstable"
)

// mirrors wants hosts.toml for what is asked for at Address first.
func (b *builder) mirrors() {
	config := b.Config
	if len(config.Mirrors) == 0 {
		return
	}
	if !validHost(config.Address) {
		b.problem("%s: there is no address on the nodes that a mirror could be asked at; mirrors need one", fromMirrors)
		return
	}
	warnIPv6(&b.findings, config.Address)
	seen := map[string]bool{}
	for _, entry := range config.Mirrors {
		name, except := strings.CutPrefix(entry, "!")
		shown, _ := host.mask(name)
		switch {
		case except && name == "*":
			b.problem("%s: \"!*\" means nothing: leave out \"*\" instead", fromMirrors)
		case name != "*" && !validHost(name):
			b.problem("%s: %s is not a registry's host; write it as docker.io, registry.example.com:5000 or \"*\"", fromMirrors, shown)
		case aliasOfDockerHub(name):
			b.problem("%s: %s is asked for images of docker.io; name it docker.io", fromMirrors, name)
		case name == config.Address:
			b.problem("%s: %s is the cluster's registry itself; leave it out", fromMirrors, name)
		case seen[name]:
			b.problem("%s: %s is there more than once; leave one", fromMirrors, name)
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
		if _, given := b.Config.Containerd.Hosts[b.Config.Address]; name == "*" && !given && !b.taken(directory, b.Config.Address) {
			b.addHost(fromMirrors, directory, b.Config.Address, direct("this is the cluster's registry itself, which mirrors all others."))
		}
	}
}

// direct is a hosts.toml of a registry that is asked itself, without a word of "_default". containerd 1 reads none without a
// table host.
func direct(why string) string { return "\n# Asked directly: " + why + "\n[host]\n" }

// taken says whether registries.yaml says something about a host in that directory, now or from K3s' next start on.
func (b *builder) taken(directory, name string) bool {
	return directory == b.Config.K3s.LiveDirectory && b.live[directoryOf(name)] != nil
}

func (b *builder) addHost(from, directory, name, content string) {
	file := inDirectory(directory, directoryOf(name), "hosts.toml")
	if !b.Config.K3s.Live && b.taken(directory, name) {
		// K3s will write it at its next start, and remove all that is in its directory first.
		b.conflict(source{fromRegistries, name}, source{from, name}, file)
		return
	}
	b.add(source{from, name}, File{Path: file, Kind: KindHosts, Content: []byte(content), Mode: private})
}

func aliasOfDockerHub(name string) bool { return name == "index.docker.io" || name == dockerHub }

// hosts wants hosts.toml as the user wrote them. containerd logs a line about a file that it cannot read and goes on without
// it: images would come from where nobody wants them to come from. So what it would not read, or not use, is refused.
func (b *builder) hosts() {
	for _, name := range slices.Sorted(maps.Keys(b.Config.Containerd.Hosts)) {
		shown, _ := host.mask(name)
		place := fromHosts + "." + quote(shown)
		switch {
		case name == "_default":
			place = fromHosts + "._default"
		case name == "*":
			b.problem("%s: write \"_default\" for all registries that have no file of their own", place)
			continue
		case !validHost(name):
			b.problem("%s: is not a registry's host; write it as docker.io, registry.example.com:5000 or _default", place)
			continue
		case aliasOfDockerHub(name):
			b.problem("%s: is asked for images of docker.io; name it docker.io", place)
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
	c := &checker{findings: &b.findings, source: place, strict: true, look: b.LookTLS, bases: bases}
	c.check("", doc, hostsShape)
	c.hostTable("", doc)
	tables := hostTables(content)
	if len(doc.items) > 0 && doc.get("host").form == null {
		b.warn("%s: containerd takes no notice of a file without hosts before version 2; add a line [host] in the end", place)
	}
	rewrites := doc.get("rewrite").form != null
	for _, i := range doc.get("host").items {
		shown, _ := endpoint.mask(i.key)
		in := join("host", shown)
		c.hostTable(in, i.value)
		if i.value.form == mapping && !slices.Contains(tables, i.key) {
			c.problem("%s: containerd overlooks a host that is not a table of its own; write it below a line [host.%s]", c.at(in), quote(shown))
		}
		rewrites = rewrites || i.value.get("rewrite").form != null
	}
	if rewrites && slices.ContainsFunc(b.Config.Containerd.Directories, func(d string) bool { return !below(d, "/var/lib/rancher") }) {
		b.warn("%s: rewrite is known to K3s' and RKE2's containerd only; others take no notice of it", place)
	}
}

// hostTable checks what the shape does not say.
func (c *checker) hostTable(in string, n *node) {
	for i, pair := range n.get("client").list {
		if pair.form == list && len(pair.list) != 2 {
			c.problem("%s: must be a pair: the certificate's file, then the key's", c.at(fmt.Sprintf("%s[%d]", join(in, "client"), i)))
		}
	}
}

// hostTables are the hosts that have a line [host."URL"], or one below it, in order. containerd sees no others.
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
