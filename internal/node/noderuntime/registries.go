package noderuntime

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"

	// The same parser as K3s', so that both read a document alike.
	"gopkg.in/yaml.v2"

	"github.com/zarf-dev/zarf-registry/internal/mask"
)

// registries adds K3s' registries.yaml as it is.
func (b *builder) registries() {
	k3s := b.Config.K3s
	if k3s.File == "" {
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
	if bytes.HasPrefix(b.Registries, []byte("\ufeff")) { // K3s would ignore the first key below our first line
		b.problem("%s: starts with a byte order mark: save it as UTF-8 without one", place)
		return
	}
	// Do not append a newline: it would become part of a block scalar at the end of the document.
	b.add(source{fromRegistries, ""}, File{Path: k3s.File, Kind: KindRegistries, Content: b.Registries, Mode: private})
	if err := yaml.Unmarshal(belowMark(b.Registries), &b.k3s); err != nil {
		b.problem("%s: K3s cannot read it%s", place, atLine(err))
		return
	}
	for _, host := range slices.Sorted(maps.Keys(b.k3s.Configs)) {
		if tls := b.k3s.Configs[host].TLS; tls != nil {
			for _, file := range []string{tls.CAFile, tls.CertFile, tls.KeyFile} {
				b.certificate(place, file)
			}
		}
	}
}

// belowMark returns the document below a first line that is a comment, as the node has it.
func belowMark(data []byte) []byte { return append([]byte("#\n"), data...) }

// configuredByK3s reports whether K3s writes the hosts.toml of a host in that directory when it starts.
func (b *builder) configuredByK3s(directory, name string) bool {
	if name == "_default" {
		name = "*"
	}
	_, mirror := b.k3s.Mirrors[name]
	_, config := b.k3s.Configs[name]
	return Below(directory, "/var/lib/rancher") && (mirror || config)
}

// certificate checks that a certificate or key exists on the node, unless its path is relative.
func (b *builder) certificate(place, file string) {
	if b.CheckTLS == nil || !path.IsAbs(file) {
		return
	}
	err := b.CheckTLS(file)
	if failed, ok := errors.AsType[*fs.PathError](err); ok {
		err = failed.Err // without the path
	}
	file = mask.Text(file) // it may be a key in place of its path
	if errors.Is(err, ErrNotMounted) {
		b.warn("%s: %s was not checked: add its directory to nodeConfig.tlsDirectories", place, file)
	} else if err != nil {
		b.problem("%s: cannot use %s: %v; create it on the node first", place, file, err)
	}
}

var yamlLine = regexp.MustCompile(`^(?:yaml: )?(?:unmarshal errors:\s+)?line ([0-9]+): `)

// atLine returns " (line 3)" for a YAML parser's error below the mark. The rest of the error quotes the document.
func atLine(err error) string {
	if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
		line, _ := strconv.Atoi(m[1]) // digits
		return fmt.Sprintf(" (line %d)", max(1, line-1))
	}
	return ""
}
