package noderuntime

import (
	"strings"

	"github.com/zarf-dev/zarf-registry/internal/pki"
)

// crio adds the files that CRI-O, podman and skopeo read. They contain no secrets: podman of every
// user reads them.
func (b *builder) crio() {
	config := b.Config.CRIO
	if config.CertsDirectory == "" && config.ConfDirectory == "" {
		return
	}
	if !validHost(b.Config.Address) {
		b.problem("%s: requires an address of the registry on the nodes", fromCRIO)
		return
	}
	if config.CertsDirectory != "" {
		b.ca()
	}
	if content := b.registriesConf(); config.ConfDirectory != "" && content != nil {
		b.add(source{fromCRIO, ""}, File{
			Path: inDirectory(config.ConfDirectory, "50-zarf-registry.conf"), Kind: KindRegistriesConf,
			Content: content, Mode: public,
		})
	}
}

func (b *builder) ca() {
	if len(b.CA) == 0 {
		b.problem("%s.ca: no CAs to trust: the Secret with the proxies' certificates has no %s yet", fromCRIO, KeyCA)
		return
	}
	if _, err := pki.ParseBundle(b.CA); err != nil {
		b.problem("%s.ca: invalid CAs of the proxies: %v", fromCRIO, err)
		return
	}
	b.add(source{fromCRIO, ""}, File{
		Path:    inDirectory(b.Config.CRIO.CertsDirectory, b.Config.Address, KeyCA),
		Kind:    KindCA,
		Content: withNewline(b.CA),
		Mode:    public,
	})
}

// registriesConf returns nil if there is nothing to configure.
func (b *builder) registriesConf() []byte {
	config := b.Config
	var t tomlWriter
	t.line("")
	if config.CRIO.Insecure {
		t.table("[[registry]]")
		t.line("prefix = %s", quote(config.Address))
		t.line("location = %s", quote(config.Address))
		t.line("insecure = true")
	}
	for _, name := range config.Mirrors {
		if name == "*" && config.CRIO.ConfDirectory != "" {
			b.warn("%s: CRI-O and podman do not support a mirror of all registries: list each registry besides \"*\"",
				fromMirrors)
		}
		if name == "*" || strings.HasPrefix(name, "!") {
			continue
		}
		t.table("[[registry]]")
		t.line("prefix = %s", quote(name))
		t.line("location = %s", quote(name))
		t.table("[[registry.mirror]]")
		t.line("location = %s", quote(config.Address))
		// Without a CA there is no TLS on loopback. Of mirrors, CRI-O expects TLS also in versions that allow plain
		// HTTP on loopback.
		t.line("insecure = %t", config.CRIO.Insecure || config.CRIO.CertsDirectory == "")
	}
	if t.Len() == 1 {
		return nil
	}
	return t.Bytes()
}
