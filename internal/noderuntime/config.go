package noderuntime

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
)

// ParseConfig reads what the chart wrote, and refuses what it does not know. Its errors have no values in them: contents of
// files are among those.
func ParseConfig(data []byte) (Config, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	var config Config
	if err := decoder.Decode(&config); err != nil {
		return Config{}, fmt.Errorf("reading %s: %w", KeyConfig, withoutValue(err))
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return Config{}, fmt.Errorf("reading %s: something follows the end of the object", KeyConfig)
	}
	if config.Release == "" {
		return Config{}, fmt.Errorf("reading %s: release is missing", KeyConfig)
	}
	return config, nil
}

// withoutValue keeps of an error of encoding/json what is not a value.
func withoutValue(err error) error {
	if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
		return fmt.Errorf("%s is not what it should be, %s", wrong.Field, wrong.Type)
	}
	if wrong := (*json.SyntaxError)(nil); errors.As(err, &wrong) {
		return fmt.Errorf("is not JSON that can be read (byte %d)", wrong.Offset)
	}
	return err // the end in the middle, or the name of an unknown field
}

// roots are where container runtimes keep their configuration. Whatever the values say, no file is written elsewhere.
var roots = []string{
	"/etc/containerd", "/etc/containers", "/etc/rancher", "/etc/k0s", "/etc/crio", "/var/lib/rancher", "/var/snap/microk8s", "/var/snap/k8s",
}

// below says whether a clean path is a directory or in it.
func below(name, directory string) bool {
	return name == directory || strings.HasPrefix(name, strings.TrimSuffix(directory, "/")+"/")
}

func clean(name string) bool { return path.IsAbs(name) && path.Clean(name) == name }

func (b *builder) directories() {
	for _, name := range b.Config.Directories {
		switch {
		case !clean(name):
			b.problem("directory %q: must be an absolute path without .. and needless slashes", name)
		case !slices.ContainsFunc(roots, func(root string) bool { return below(name, root) }):
			b.problem("directory %s: files are written below these only: %s", name, strings.Join(roots, ", "))
		}
	}
	for _, name := range b.Config.TLSDirectories {
		if !clean(name) {
			b.problem("nodeConfig.tlsDirectories: %q must be an absolute path without .. and needless slashes", name)
		}
	}
}

// place says whether a file may be at a path: below one of the directories, or below a directory in one of them, which is
// where files that are not wanted any more are looked for.
func (b *builder) place(name string) {
	if !clean(name) {
		b.problem("file %q: must be an absolute path without .. and needless slashes", name)
		return
	}
	for _, directory := range b.Config.Directories {
		if in, found := strings.CutPrefix(name, strings.TrimSuffix(directory, "/")+"/"); found && strings.Count(in, "/") < 2 {
			return
		}
	}
	b.problem("file %s: is not in a directory that nodeConfig may write to, nor in one right below: %s", name, strings.Join(b.Config.Directories, ", "))
}
