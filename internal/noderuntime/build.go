package noderuntime

import (
	"bytes"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/rancher/wharfie/pkg/registries"
)

// ErrNotMounted is LookTLS' answer for a path that the pod cannot see.
var ErrNotMounted = errors.New("not mounted")

// Build says which files a node is to have. The error names everything that is wrong, by its place in the values, without
// a secret in it; it is of type Problems.
func Build(in Inputs) (*Wanted, error) {
	b := &builder{Inputs: in, files: map[string]File{}, from: map[string]source{}}
	b.directories()
	b.registries()
	b.mirrors()
	b.hosts()
	b.crio()
	wanted := &Wanted{Warnings: b.warnings}
	for _, name := range slices.Sorted(maps.Keys(b.files)) {
		b.place(name)
		wanted.Files = append(wanted.Files, b.files[name])
	}
	if err := b.err(); err != nil {
		return nil, err
	}
	return wanted, nil
}

type builder struct {
	Inputs
	findings
	files map[string]File
	from  map[string]source
	// k3s is what K3s' own reader made of registries.yaml; nil where there is none, or nothing to be made of it.
	k3s *registries.Registry
	// live are the hosts that K3s will write a hosts.toml for, by the name of its directory.
	live map[string]*remotes
}

// A source is where a file comes from: one of the values, and the host in it.
type source struct{ value, host string }

const (
	fromRegistries = "nodeConfig.k3s.registries"
	fromMirrors    = "nodeConfig.mirrors"
	fromHosts      = "nodeConfig.containerd.hosts"
	fromCRIO       = "nodeConfig.crio"
)

// add wants a file. One that is wanted already is a problem.
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
		b.problem("%s: registries.yaml says already what is asked for %s: put http://%s first among its endpoints there, or leave it out of nodeConfig.mirrors",
			second.value, second.host, b.Config.Address)
	case both(fromMirrors, fromHosts) || both(fromRegistries, fromHosts):
		b.problem("%s: %s says already what is asked for %s: leave it out of one of them", second.value, first.value, first.host)
	default:
		b.problem("%s and %s both want the file %s: give them different directories", first.value, second.value, name)
	}
}

// The modes of files: see [File.Mode].
const (
	private fs.FileMode = 0o600
	public  fs.FileMode = 0o644
)

// withNewline ends a text as text files end.
func withNewline(data []byte) []byte {
	if len(data) == 0 || data[len(data)-1] == '\n' {
		return data
	}
	return append(bytes.Clone(data), '\n')
}

// inDirectory is a path on the node.
func inDirectory(directory string, names ...string) string {
	return strings.TrimSuffix(directory, "/") + "/" + strings.Join(names, "/")
}
