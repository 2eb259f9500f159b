package noderuntime

import (
	"strings"

	"github.com/zarf-dev/zarf-registry/internal/pki"
)

// crio wants what CRI-O, podman and skopeo read. Every user's podman reads it, and there is no secret in it.
func (b *builder) crio() {
	config := b.Config.CRIO
	if config.CertsDirectory == "" && config.ConfDirectory == "" {
		return
	}
	if !validHost(b.Config.Address) {
		b.problem("%s: there is no address on the nodes that the cluster's registry has; CRI-O needs one", fromCRIO)
		return
	}
	if config.CertsDirectory != "" {
		b.certificates()
	}
	if content := b.registriesConf(); config.ConfDirectory != "" && content != nil {
		b.add(source{fromCRIO, ""}, File{Path: inDirectory(config.ConfDirectory, "50-zarf-registry.conf"), Kind: KindRegistriesConf, Content: content, Mode: public})
	}
}

func (b *builder) certificates() {
	if len(b.CA) == 0 {
		b.problem("%s.ca: there are no authorities to trust: the Secret with the certificates of the nodes' proxies has no %s yet", fromCRIO, KeyCA)
		return
	}
	if _, err := pki.ParseBundle(b.CA); err != nil {
		b.problem("%s.ca: the authorities of the nodes' proxies cannot be used: %v", fromCRIO, err)
		return
	}
	b.add(source{fromCRIO, ""}, File{Path: inDirectory(b.Config.CRIO.CertsDirectory, b.Config.Address, KeyCA), Kind: KindCA, Content: withNewline(b.CA), Mode: public})
}

// registriesConf is nil where there is nothing to say.
func (b *builder) registriesConf() []byte {
	config := b.Config
	var t tomlWriter
	t.line("")
	if config.CRIO.Insecure {
		t.table("", "[[registry]]")
		t.line("prefix = %s", quote(config.Address))
		t.line("location = %s", quote(config.Address))
		t.line("insecure = true")
	}
	for _, name := range config.Mirrors {
		if name == "*" && config.CRIO.ConfDirectory != "" {
			b.warn("%s: CRI-O and podman know no mirror of all registries: name each registry beside \"*\"", fromMirrors)
		}
		if name == "*" || strings.HasPrefix(name, "!") {
			continue
		}
		t.table("", "[[registry]]")
		t.line("prefix = %s", quote(name))
		t.line("location = %s", quote(name))
		t.table("", "[[registry.mirror]]")
		t.line("location = %s", quote(config.Address))
		t.line("insecure = %t", config.CRIO.Insecure)
	}
	if t.Len() == 1 {
		return nil
	}
	return t.Bytes()
}
