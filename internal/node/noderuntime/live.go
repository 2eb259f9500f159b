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

// A remote is a registry that containerd contacts.
type remote struct {
	// url is nil for the registry named by the image.
	url      *url.URL
	override bool // the path is complete, not a prefix of /v2
	config   registries.RegistryConfig
	rewrites map[string]string
}

func (r remote) plain() bool {
	return !r.override && r.config.Auth == nil && r.config.TLS == nil && len(r.rewrites) == 0
}

// remotes are the registries for images of one host: the endpoints in order, then the host itself.
type remotes struct {
	endpoints []remote
	last      remote
}

// writeLive adds the hosts.toml files that K3s will write at its next start. The rules are those of
// K3s' generator, pkg/agent/containerd/config.go. Credentials, which K3s puts into containerd's
// main configuration, become a header.
func (b *builder) writeLive() {
	k3s := b.Config.K3s
	switch {
	case !k3s.Live:
		return
	case k3s.LiveDirectory == "":
		b.problem("nodeConfig.k3s.livePath: is required by nodeConfig.k3s.live")
		return
	}
	for _, name := range slices.Sorted(maps.Keys(b.live)) {
		if name == "_default" || validHost(name) {
			b.add(source{fromRegistries, name}, File{
				Path: inDirectory(k3s.LiveDirectory, name, "hosts.toml"), Kind: KindHosts,
				Content: b.liveHost(name, b.live[name]), Mode: private,
			})
		}
	}
	b.warnLive()
}

// warnLive warns about settings that K3s interprets in unexpected ways.
func (b *builder) warnLive() {
	if _, all := b.k3s.Mirrors["*"]; all {
		names := slices.AppendSeq(slices.Collect(maps.Keys(b.k3s.Configs)), maps.Keys(b.k3s.Mirrors))
		slices.Sort(names)
		for _, name := range names {
			if b.live[name] == nil && validHost(name) && !bareWord(name) {
				b.warn("registries.yaml: K3s ignores %s, which has no settings, so mirrors.\"*\" applies to it too; "+
					"to exclude it, add tls: {} to configs.%q", name, name)
			}
		}
		if config, both := b.k3s.Configs["*"]; both && (config.TLS != nil || config.Auth != nil) {
			b.warn("registries.yaml: K3s does not apply configs.\"*\" to endpoints of mirrors or next to mirrors.\"*\": " +
				"list the host of each endpoint in configs")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(b.k3s.Configs)) {
		auth := b.k3s.Configs[name].Auth
		shown, _ := host.mask(name)
		switch {
		case auth == nil:
		case auth.Username == "" && auth.IdentityToken != "":
			b.warn("registries.yaml: configs.%q.auth.identity_token takes effect when K3s restarts: "+
				"containerd reads it only at its start", shown)
		case name == "*":
			b.warn("registries.yaml: configs.\"*\".auth is not written to hosts.toml: " +
				"containerd would send it to every registry; list the hosts")
		}
	}
}

// liveHosts returns the hosts that K3s writes a hosts.toml for, by directory name.
func liveHosts(registry *registries.Registry) map[string]*remotes {
	hosts := map[string]*remotes{}
	for name, config := range registry.Configs {
		if u, _, ok := normalize(name); ok || name == "*" {
			hosts[directoryOf(name)] = &remotes{last: remote{url: u, config: config}}
		}
	}
	for name, mirror := range registry.Mirrors {
		// "*" is stored under another name and not found. K3s loses its configs in the same way.
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

// dockerHub is the host that serves images of docker.io.
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

// normalize returns the URL of an endpoint with defaults filled in and parts that containerd
// ignores removed, and whether its path overrides that of the protocol.
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

// liveHost renders the hosts.toml of a host.
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
		t.table("", "[host]") // containerd 1 ignores a file without it
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

// decodeAuth decodes auth like containerd. The user is empty if it is invalid.
func decodeAuth(auth string) (user, password string) {
	data, err := base64.StdEncoding.DecodeString(auth)
	if err != nil {
		return "", ""
	}
	user, password, found := strings.Cut(string(data), ":")
	if !found {
		return "", ""
	}
	return user, strings.Trim(password, "\x00")
}
