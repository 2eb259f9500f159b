package noderuntime

import (
	"encoding/base64"
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

// byteOrderMarks are what files of UTF-8 and UTF-16 may begin with, as those of Windows do.
var byteOrderMarks = []string{"\xef\xbb\xbf", "\xff\xfe", "\xfe\xff"}

// registries wants K3s' registries.yaml, and with live what K3s would make of it.
func (b *builder) registries() {
	k3s := b.Config.K3s
	if k3s.File == "" {
		if k3s.Live {
			b.problem("%s: live has nothing to write: there is no file", fromRegistries)
		}
		return
	}
	place := fromRegistries
	if k3s.ExistingSecret != "" {
		place = fmt.Sprintf("Secret %s key %s", k3s.ExistingSecret, k3s.ExistingSecretKey)
	}
	switch {
	case b.Registries == nil && k3s.ExistingSecret != "":
		b.problem("Secret %s has no key %s, or does not exist: make it in the release's namespace, or correct nodeConfig.k3s.existingSecret", k3s.ExistingSecret, k3s.ExistingSecretKey)
		return
	case b.Registries == nil:
		b.problem("%s: is missing", place)
		return
	}
	if slices.ContainsFunc(byteOrderMarks, func(mark string) bool { return strings.HasPrefix(string(b.Registries), mark) }) {
		b.problem("%s: begins with a byte order mark, which K3s would not take for one below the first line of ours; save it as UTF-8 without it", place)
		return
	}
	// No newline is added: a text in a block that ends with the document would get it.
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
		if len(b.problems) == before { // else it was said already, and better
			b.problem("%s: K3s would not read it: %v", place, err)
		}
		return
	}
	b.k3s, b.live = read, liveHosts(read)
	b.writeLive()
}

func (b *builder) checkRegistries(place string, doc *node) {
	c := &checker{findings: &b.findings, source: place, look: b.LookTLS}
	c.check("", doc, registriesShape)
	for _, i := range doc.get("mirrors").items {
		in, _ := host.mask(i.key)
		if strings.HasPrefix(i.key, "*.") {
			c.warn("%s: neither K3s nor containerd knows * as a part of a name: this applies to no image; name each host", c.at(join("mirrors", in)))
		}
		if aliasOfDockerHub(i.key) {
			c.warn("%s: images of docker.io are not looked for under this name; name it docker.io", c.at(join("mirrors", in)))
		}
		for _, rewrite := range i.value.get("rewrite").items {
			if strings.ContainsAny(rewrite.key+rewrite.value.text, "\\\"") {
				c.warn("%s: K3s writes rewrites into hosts.toml as they are, and containerd takes no notice of a file in which a backslash or a quotation mark stands so: write [.] for \\., [0-9] for \\d",
					c.at(join(join("mirrors", in), "rewrite")))
			}
		}
	}
	for _, i := range doc.get("configs").items {
		in, _ := host.mask(i.key)
		in = join("configs", in)
		if strings.HasPrefix(i.key, "*.") {
			c.warn("%s: neither K3s nor containerd knows * as a part of a name: this applies to no registry; name each host", c.at(in))
		}
		if i.key == "index.docker.io" {
			c.warn("%s: K3s does not take this for images of docker.io; name it docker.io", c.at(in))
		}
		c.auth(join(in, "auth"), i.value.get("auth"))
		tls := i.value.get("tls")
		for _, pair := range [][2]string{{"cert_file", "key_file"}, {"key_file", "cert_file"}} {
			if tls.get(pair[0]).text != "" && tls.get(pair[1]).text == "" {
				c.problem("%s: has %s and no %s: give both or none", c.at(join(in, "tls")), pair[0], pair[1])
			}
		}
	}
	if len(doc.get("auths").items) > 0 {
		c.warn("%s: K3s does not read this: put it into configs.HOST.auth", c.at("auths"))
	}
}

func (c *checker) auth(where string, auth *node) {
	if auth.get("token").form != null {
		c.warn("%s: K3s does not read this: what it takes is identity_token, or the token as the password of whatever user name the registry wants beside it",
			c.at(join(where, "token")))
	}
	if given := auth.get("auth"); given.scalar() && given.text != "" && auth.get("username").text == "" && auth.get("identity_token").text == "" {
		if user, _ := decodeAuth(given.text); user == "" {
			c.problem("%s: must be the base64 of USER:PASSWORD", c.at(join(where, "auth")))
		}
	}
}

// decodeAuth reads what containerd reads from auth; no user where it is something else.
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

// quiet keeps what K3s' reader logs out of the program's own log while it reads.
var quiet sync.Mutex

// readAsK3s has K3s' own reader read registries.yaml. It wants a path, and gets that of a pipe: secrets do not belong in
// a file for that. Its errors quote what they find, so no more of them than the line is kept.
func readAsK3s(data []byte) (*registries.Registry, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	go func() {
		defer w.Close()
		_, _ = io.Copy(w, strings.NewReader(string(data))) // an error is the reader's, who went away
	}()
	quiet.Lock()
	defer quiet.Unlock()
	level := logrus.GetLevel()
	logrus.SetLevel(logrus.PanicLevel)
	defer logrus.SetLevel(level)
	name := path.Join("/dev/fd", fmt.Sprint(r.Fd()))
	if _, err := os.Stat(name); err != nil {
		return nil, fmt.Errorf("it could not be handed to its reader: %w", err)
	}
	registry, err := registries.GetPrivateRegistries(name)
	if err != nil {
		return nil, fmt.Errorf("its reader refuses it%s", atLine(err))
	}
	return registry.Registry, nil
}
