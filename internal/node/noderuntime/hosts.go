package noderuntime

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/mask"
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
	b.warnIPv6(config.Address)
	seen := map[string]bool{}
	for _, entry := range config.Mirrors {
		name, except := strings.CutPrefix(entry, "!")
		switch {
		case except && name == "*":
			b.problem("%s: \"!*\" is not supported; remove \"*\" instead", fromMirrors)
		case name != "*" && !validHost(name):
			b.problem("%s: %s is not a valid registry host; want docker.io, registry.example.com:5000 or \"*\"",
				fromMirrors, mask.Text(name))
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
		if name == "*" && !given && !b.configuredByK3s(directory, b.Config.Address) {
			b.addHost(fromMirrors, directory, b.Config.Address,
				direct("this is the cluster's registry itself, which mirrors all others."))
		}
	}
}

// direct returns the hosts.toml of a registry that is contacted directly, so that "_default" does
// not apply to it. containerd 1 ignores a file without a host table.
func direct(why string) string { return "\n# Asked directly: " + why + "\n[host]\n" }

func (b *builder) addHost(from, directory, name, content string) {
	folder := name
	if name == "*" {
		folder = "_default"
	}
	file := inDirectory(directory, folder, "hosts.toml")
	if b.configuredByK3s(directory, name) {
		b.conflict(source{fromRegistries, name}, source{from, name}, file)
		return
	}
	b.add(source{from, name}, File{Path: file, Kind: KindHosts, Content: []byte(content), Mode: private})
}

func aliasOfDockerHub(name string) bool {
	return name == "index.docker.io" || name == "registry-1.docker.io"
}

func (b *builder) warnIPv6(host string) {
	if strings.HasPrefix(host, "[") {
		b.warn("%s: containerd supports IPv6 addresses of registries since version 2", host)
	}
}

// hosts adds the user's hosts.toml files. containerd ignores an unreadable file except for a log
// line, so that images would come from an unexpected source. Files that containerd would not read
// are therefore rejected.
func (b *builder) hosts() {
	for _, name := range slices.Sorted(maps.Keys(b.Config.Containerd.Hosts)) {
		place := fromHosts + "." + quote(mask.Text(name))
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
		b.warnIPv6(name)
		content := []byte(b.Config.Containerd.Hosts[name])
		for _, directory := range b.Config.Containerd.Directories {
			b.addHost(fromHosts, directory, name, string(withNewline(content)))
		}
		doc, err := parseTOML(content)
		if err != nil {
			b.problem("%s: %v", place, err)
			continue
		}
		b.hostsFile(place, doc)
	}
}

// hostKeys are the settings of a registry in hosts.toml, with the values that containerd accepts:
// https://github.com/containerd/containerd/blob/main/docs/hosts.md.
var hostKeys = map[string]func(any) bool{
	"capabilities":  listOf(isCapability),
	"ca":            oneOrMore(isText),
	"client":        oneOrMore(oneOrMore(isText)),
	"skip_verify":   isBool,
	"header":        tableOf(oneOrMore(isText)),
	"override_path": isBool,
	"dial_timeout":  isDuration,
	"rewrite":       tableOf(isText), // K3s and RKE2 only
}

// hostsFile checks a hosts.toml: the settings of the registry itself, and those of each host.
func (b *builder) hostsFile(place string, doc map[string]any) {
	server, hosts := doc["server"], doc["host"]
	if s, ok := server.(string); server != nil && (!ok || !validEndpoint(s)) {
		b.problem("%s: server: invalid URL; write it like https://registry.example.com:5000", place)
	}
	if len(doc) > 0 && hosts == nil {
		b.warn("%s: containerd before version 2 ignores a file without hosts; append a line [host]", place)
	}
	delete(doc, "server")
	delete(doc, "host")
	b.hostTable(place, doc)
	tables, ok := hosts.(map[string]any)
	if hosts != nil && !ok {
		b.problem("%s: host: must be a table", place)
	}
	for _, url := range slices.Sorted(maps.Keys(tables)) {
		in := fmt.Sprintf("%s: host.%s", place, quote(mask.Text(url)))
		table, ok := tables[url].(map[string]any)
		switch {
		case !validEndpoint(url):
			b.problem("%s: invalid URL; write it like https://registry.example.com:5000", in)
		case !ok:
			b.problem("%s: must be a table", in)
		default:
			b.hostTable(in, table)
		}
	}
}

func (b *builder) hostTable(place string, table map[string]any) {
	for _, key := range slices.Sorted(maps.Keys(table)) {
		switch valid, known := hostKeys[key]; {
		case !known: // not shown, because it may be a secret
			b.problem("%s: has an unknown key; want one of %s", place,
				strings.Join(slices.Sorted(maps.Keys(hostKeys)), ", "))
		case !valid(table[key]):
			b.problem("%s: containerd does not accept the value of %s", place, key)
		case key == "ca" || key == "client":
			b.certificates(place, table[key])
		}
	}
}

// certificates checks a path or a list of them, possibly of pairs.
func (b *builder) certificates(place string, v any) {
	switch v := v.(type) {
	case string:
		b.certificate(place, v)
	case []any:
		for _, item := range v {
			b.certificates(place, item)
		}
	}
}

func isText(v any) bool { _, ok := v.(string); return ok }
func isBool(v any) bool { _, ok := v.(bool); return ok }

func isCapability(v any) bool {
	s, _ := v.(string)
	return slices.Contains([]string{"pull", "resolve", "push", "referrers"}, strings.ToLower(s))
}

func isDuration(v any) bool {
	s, _ := v.(string)
	_, err := time.ParseDuration(s)
	return err == nil
}

func listOf(of func(any) bool) func(any) bool {
	return func(v any) bool {
		values, ok := v.([]any)
		return ok && !slices.ContainsFunc(values, func(v any) bool { return !of(v) })
	}
}

func oneOrMore(of func(any) bool) func(any) bool {
	return func(v any) bool { return of(v) || listOf(of)(v) }
}

func tableOf(of func(any) bool) func(any) bool {
	return func(v any) bool {
		table, ok := v.(map[string]any)
		return ok && listOf(of)(slices.Collect(maps.Values(table)))
	}
}
