package noderuntime

import (
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/rancher/wharfie/pkg/registries"
	"github.com/sirupsen/logrus"
)

// byteOrderMarks are the byte order marks of UTF-8 and UTF-16, which Windows editors write.
var byteOrderMarks = []string{"\xef\xbb\xbf", "\xff\xfe", "\xfe\xff"}

// registries adds K3s' registries.yaml and, if live, the files that K3s will generate from it.
func (b *builder) registries() {
	k3s := b.Config.K3s
	if k3s.File == "" {
		if k3s.Live {
			b.problem("%s: live requires a file to write", fromRegistries)
		}
		return
	}
	place := fromRegistries
	if k3s.ExistingSecret != "" {
		place = fmt.Sprintf("Secret %s key %s", k3s.ExistingSecret, k3s.ExistingSecretKey)
	}
	switch {
	case b.Registries == nil && k3s.ExistingSecret != "":
		b.problem("Secret %s has no key %s or does not exist: create it in the release's namespace, "+
			"or correct nodeConfig.k3s.existingSecret", k3s.ExistingSecret, k3s.ExistingSecretKey)
		return
	case b.Registries == nil:
		b.problem("%s: is missing", place)
		return
	}
	hasPrefix := func(mark string) bool { return strings.HasPrefix(string(b.Registries), mark) }
	if slices.ContainsFunc(byteOrderMarks, hasPrefix) {
		b.problem("%s: starts with a byte order mark, which K3s does not accept after our first line; "+
			"save it as UTF-8 without it", place)
		return
	}
	// Do not append a newline: it would become part of a block scalar at the end of the document.
	b.add(source{fromRegistries, ""}, File{Path: k3s.File, Kind: KindRegistries, Content: b.Registries, Mode: private})
	doc, err := parseYAML(b.Registries)
	if err != nil {
		b.problem("%s: %v", place, err)
		return
	}
	doc.settle(registriesShape)
	before := len(b.problems)
	b.checkRegistries(place, doc)
	read, err := readAsK3s(b.Registries)
	if err != nil {
		if len(b.problems) == before { // otherwise the problems are known in more detail
			b.problem("%s: K3s cannot read it: %v", place, err)
		}
		return
	}
	b.k3s, b.live = read, liveHosts(read)
	b.writeLive()
}

func (b *builder) checkRegistries(place string, doc *node) {
	c := &checker{findings: &b.findings, source: place, check: b.CheckTLS}
	c.value("", doc, registriesShape)
	for _, i := range doc.get("mirrors").items {
		in, _ := host.mask(i.key)
		if strings.HasPrefix(i.key, "*.") {
			c.warn("%s: K3s and containerd do not support * as part of a name, so this applies to no image; list each host",
				c.at(join("mirrors", in)))
		}
		if aliasOfDockerHub(i.key) {
			c.warn("%s: does not apply to images of docker.io; write docker.io", c.at(join("mirrors", in)))
		}
		for _, rewrite := range i.value.get("rewrite").items {
			if strings.ContainsAny(rewrite.key+rewrite.value.text, "\\\"") {
				c.warn("%s: K3s does not escape rewrites in hosts.toml, and containerd ignores a file with an unescaped "+
					"backslash or quotation mark: write [.] for \\., [0-9] for \\d",
					c.at(join(join("mirrors", in), "rewrite")))
			}
		}
	}
	for _, i := range doc.get("configs").items {
		in, _ := host.mask(i.key)
		in = join("configs", in)
		if strings.HasPrefix(i.key, "*.") {
			c.warn("%s: K3s and containerd do not support * as part of a name, so this applies to no registry; list each host",
				c.at(in))
		}
		if i.key == "index.docker.io" {
			c.warn("%s: does not apply to images of docker.io; write docker.io", c.at(in))
		}
		c.auth(join(in, "auth"), i.value.get("auth"))
		tls := i.value.get("tls")
		for _, pair := range [][2]string{{"cert_file", "key_file"}, {"key_file", "cert_file"}} {
			if tls.get(pair[0]).text != "" && tls.get(pair[1]).text == "" {
				c.problem("%s: has %s but no %s: set both or neither", c.at(join(in, "tls")), pair[0], pair[1])
			}
		}
	}
	if len(doc.get("auths").items) > 0 {
		c.warn("%s: K3s ignores this: move it to configs.HOST.auth", c.at("auths"))
	}
}

func (c *checker) auth(where string, auth *node) {
	if auth.get("token").form != null {
		c.warn("%s: K3s ignores this: use identity_token, or the token as password with the user name that "+
			"the registry expects",
			c.at(join(where, "token")))
	}
	given := auth.get("auth")
	if given.scalar() && given.text != "" && auth.get("username").text == "" && auth.get("identity_token").text == "" {
		if user, _ := decodeAuth(given.text); user == "" {
			c.problem("%s: must be the base64 of USER:PASSWORD", c.at(join(where, "auth")))
		}
	}
}

// quiet discards the log output of K3s' parser.
var quiet sync.Mutex

// readAsK3s parses registries.yaml with K3s' own parser. That requires a path, which is that of a
// pipe: secrets must not be written to a file. Its errors quote the content, so only their line
// number is kept.
func readAsK3s(data []byte) (*registries.Registry, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	go func() {
		defer w.Close()
		_, _ = io.Copy(w, strings.NewReader(string(data))) // the parser has failed and reports why
	}()
	quiet.Lock()
	defer quiet.Unlock()
	level := logrus.GetLevel()
	logrus.SetLevel(logrus.PanicLevel)
	defer logrus.SetLevel(level)
	name := path.Join("/dev/fd", fmt.Sprint(r.Fd()))
	if _, err := os.Stat(name); err != nil {
		return nil, fmt.Errorf("passing it to the parser: %w", err)
	}
	registry, err := registries.GetPrivateRegistries(name)
	if err != nil {
		return nil, fmt.Errorf("the parser rejects it%s", atLine(err))
	}
	return registry.Registry, nil
}
