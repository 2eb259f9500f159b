package noderuntime

import (
	"encoding/base64"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/rancher/wharfie/pkg/registries"
)

// A remote is one registry that containerd asks.
type remote struct {
	// url is nil where it is the registry of the image itself.
	url      *url.URL
	override bool // the path is all of it, not what /v2 is put behind
	config   registries.RegistryConfig
	rewrites map[string]string
}

func (r remote) plain() bool {
	return !r.override && r.config.Auth == nil && r.config.TLS == nil && len(r.rewrites) == 0
}

// remotes are what is asked for the images of one host: the endpoints in order, then the host itself.
type remotes struct {
	endpoints []remote
	last      remote
}

// writeLive wants for K3s' containerd what K3s will want at its next start. The rules are those of its own generator,
// pkg/agent/containerd/config.go. What K3s puts into containerd's main configuration instead, credentials, becomes a header.
func (b *builder) writeLive() {
	k3s := b.Config.K3s
	switch {
	case !k3s.Live:
		return
	case k3s.LiveDirectory == "":
		b.problem("nodeConfig.k3s.livePath: is missing, and nodeConfig.k3s.live wants it")
		return
	}
	for _, name := range slices.Sorted(maps.Keys(b.live)) {
		if name == "_default" || validHost(name) {
			b.add(source{fromRegistries, name}, File{Path: inDirectory(k3s.LiveDirectory, name, "hosts.toml"), Kind: KindHosts, Content: b.liveHost(name, b.live[name]), Mode: private})
		}
	}
	b.warnLive()
}

// warnLive is about what K3s takes otherwise than it looks.
func (b *builder) warnLive() {
	if _, all := b.k3s.Mirrors["*"]; all {
		names := slices.AppendSeq(slices.Collect(maps.Keys(b.k3s.Configs)), maps.Keys(b.k3s.Mirrors))
		slices.Sort(names)
		for _, name := range names {
			if b.live[name] == nil && validHost(name) && !bareWord(name) {
				b.warn("registries.yaml: %s has no settings, so K3s leaves it out, and mirrors.\"*\" applies to it, too; to except it, write tls: {} below configs.%q", name, name)
			}
		}
		if config, both := b.k3s.Configs["*"]; both && (config.TLS != nil || config.Auth != nil) {
			b.warn("registries.yaml: K3s does not take configs.\"*\" for the endpoints of mirrors, nor beside mirrors.\"*\": name the host of each endpoint in configs")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(b.k3s.Configs)) {
		auth := b.k3s.Configs[name].Auth
		shown, _ := host.mask(name)
		switch {
		case auth == nil:
		case auth.Username == "" && auth.IdentityToken != "":
			b.warn("registries.yaml: configs.%q.auth.identity_token works after K3s was restarted: containerd takes it at its start only", shown)
		case name == "*":
			b.warn("registries.yaml: configs.\"*\".auth is not put into hosts.toml: containerd would send it to every registry; name hosts")
		}
	}
}

// liveHosts are the hosts that K3s writes a hosts.toml for, by the name of its directory.
func liveHosts(registry *registries.Registry) map[string]*remotes {
	hosts := map[string]*remotes{}
	for name, config := range registry.Configs {
		if u, _, ok := normalize(name); ok || name == "*" {
			hosts[directoryOf(name)] = &remotes{last: remote{url: u, config: config}}
		}
	}
	for name, mirror := range registry.Mirrors {
		// "*" has another name already, and is not found: what configs say of it is lost, in K3s, too.
		r := hosts[name]
		if r == nil {
			u, _, ok := normalize(name)
			if !ok && name != "*" {
				continue
			}
			r = &remotes{last: remote{url: u, config: configOf(registry, name)}}
			if name == "*" {
				r.last = remote{}
			}
		}
		r.mirror(registry, mirror)
		hosts[directoryOf(name)] = r
	}
	maps.DeleteFunc(hosts, func(_ string, r *remotes) bool { return len(r.endpoints) == 0 && r.last.plain() })
	return hosts
}

func (r *remotes) mirror(registry *registries.Registry, mirror registries.Mirror) {
	seen := map[string]bool{}
	for i, endpoint := range mirror.Endpoints {
		u, override, ok := normalize(endpoint)
		if !ok || seen[u.String()] {
			continue
		}
		seen[u.String()] = true
		name := u.Host
		if name == dockerHub {
			name = "docker.io"
		}
		of := remote{url: u, override: override, config: configOf(registry, name), rewrites: mirror.Rewrites}
		if r.last.url != nil && i+1 == len(mirror.Endpoints) && r.last.url.String() == u.String() {
			r.last = of
		} else {
			r.endpoints = append(r.endpoints, of)
		}
	}
}

// dockerHub is the host that serves docker.io's images.
const dockerHub = "registry-1.docker.io"

func configOf(registry *registries.Registry, name string) registries.RegistryConfig {
	if name == "docker.io" {
		if config, ok := registry.Configs[dockerHub]; ok {
			return config
		}
	}
	return registry.Configs[name]
}

func directoryOf(name string) string {
	if name == "*" {
		return "_default"
	}
	return name
}

// normalize is an endpoint's URL with all that may be left out, and whether its path is more than the protocol's own. What
// containerd does not use of a URL is left out.
func normalize(endpoint string) (u *url.URL, override, ok bool) {
	u, err := parseEndpoint(endpoint)
	if err != nil {
		return nil, false, false
	}
	u = &url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}
	if u.Scheme == "" {
		u.Scheme = "https"
		if port := u.Port(); port != "" && port != "443" && loopback(u.Host) {
			u.Scheme = "http"
		}
	}
	if u.Host == "docker.io" {
		u.Host = dockerHub
	}
	switch u.Path {
	case "", "/", "/v2":
		u.Path, u.RawPath = "/v2", ""
		return u, false, true
	}
	return u, true, true
}

func loopback(hostPort string) bool {
	name, _, err := net.SplitHostPort(hostPort)
	if err != nil {
		name = hostPort
	}
	addr, _ := netip.ParseAddr(strings.Trim(name, "[]"))
	return name == "localhost" || addr.IsLoopback()
}

// liveHost is a host's hosts.toml.
func (b *builder) liveHost(name string, r *remotes) []byte {
	var t tomlWriter
	t.line("")
	if r.last.url != nil {
		t.line("server = %s", quote(r.last.url.String()))
	}
	t.tls("", r.last.config.TLS)
	if name != "_default" {
		t.auth("", "[header]", r.last.config.Auth)
	}
	t.rewrites("", "[rewrite]", r.last.rewrites)
	if len(r.endpoints) == 0 {
		t.table("", "[host]") // containerd 1 reads no file without it
	}
	for _, e := range r.endpoints {
		table := "host." + quote(e.url.String())
		t.table("", "["+table+"]")
		t.line("  capabilities = [%s, %s]", quote("pull"), quote("resolve"))
		if e.override {
			t.line("  override_path = true")
		}
		t.tls("  ", e.config.TLS)
		t.auth("  ", "["+table+".header]", e.config.Auth)
		t.rewrites("  ", "["+table+".rewrite]", e.rewrites)
	}
	return t.Bytes()
}

func (t *tomlWriter) tls(indent string, tls *registries.TLSConfig) {
	if tls == nil {
		return
	}
	if tls.CAFile != "" {
		t.line("%sca = [%s]", indent, quote(tls.CAFile))
	}
	if tls.CertFile != "" || tls.KeyFile != "" {
		t.line("%sclient = [[%s, %s]]", indent, quote(tls.CertFile), quote(tls.KeyFile))
	}
	if tls.InsecureSkipVerify {
		t.line("%sskip_verify = true", indent)
	}
}

func (t *tomlWriter) auth(indent, table string, auth *registries.AuthConfig) {
	if auth == nil {
		return
	}
	user, password := auth.Username, auth.Password
	switch {
	case user != "":
	case auth.IdentityToken != "" || auth.Auth == "":
		return
	default:
		if user, password = decodeAuth(auth.Auth); user == "" {
			return
		}
	}
	t.table(indent, table)
	t.line("%s  Authorization = %s", indent, quote("Basic "+base64.StdEncoding.EncodeToString([]byte(user+":"+password))))
}

func (t *tomlWriter) rewrites(indent, table string, rewrites map[string]string) {
	if len(rewrites) == 0 {
		return
	}
	t.table(indent, table)
	for _, pattern := range slices.Sorted(maps.Keys(rewrites)) {
		t.line("%s  %s = %s", indent, quote(pattern), quote(rewrites[pattern]))
	}
}
