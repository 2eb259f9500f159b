package noderuntime

import (
	"bytes"
	"io/fs"
	"strings"

	"github.com/rancher/wharfie/pkg/registries"
)

type builder struct {
	Inputs
	findings
	files map[string]File
	from  map[string]source
	// k3s is registries.yaml as K3s reads it; empty without a file.
	k3s registries.Registry
}

// A source is the origin of a file: the value, and the host in it.
type source struct{ value, host string }

const (
	fromRegistries = "nodeConfig.k3s.registries"
	fromMirrors    = "nodeConfig.mirrors"
	fromHosts      = "nodeConfig.containerd.hosts"
	fromCRIO       = "nodeConfig.crio"
)

// add adds a file. Two files with the same path are a problem.
func (b *builder) add(from source, file File) {
	if other, taken := b.from[file.Path]; taken {
		b.conflict(other, from, file.Path)
		return
	}
	b.from[file.Path], b.files[file.Path] = from, file
}

func (b *builder) conflict(first, second source, name string) {
	both := func(x, y string) bool { return first.value == x && second.value == y }
	switch {
	case both(fromRegistries, fromMirrors):
		b.problem("%s: registries.yaml already configures %s: put http://%s first in its endpoints there, "+
			"or remove it from nodeConfig.mirrors",
			second.value, second.host, b.Config.Address)
	case first.host != "" && second.value == fromHosts:
		b.problem("%s: %s already configures %s: remove it from one of them", second.value, first.value, first.host)
	default:
		b.problem("%s and %s both write the file %s: use different directories", first.value, second.value, name)
	}
}

// File modes, see [File.Mode].
const (
	private fs.FileMode = 0o600
	public  fs.FileMode = 0o644
)

// withNewline terminates the last line.
func withNewline(data []byte) []byte {
	if len(data) == 0 || data[len(data)-1] == '\n' {
		return data
	}
	return append(bytes.Clone(data), '\n')
}

func inDirectory(directory string, names ...string) string {
	return strings.TrimSuffix(directory, "/") + "/" + strings.Join(names, "/")
}
