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

// ParseConfig parses the chart's configuration. It rejects unknown fields. Its errors contain no
// values, because they may be contents of files.
func ParseConfig(data []byte) (Config, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	var config Config
	if err := decoder.Decode(&config); err != nil {
		return Config{}, fmt.Errorf("reading %s: %w", KeyConfig, withoutValue(err))
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return Config{}, fmt.Errorf("reading %s: unexpected data after the object", KeyConfig)
	}
	if config.Release == "" {
		return Config{}, fmt.Errorf("reading %s: release is missing", KeyConfig)
	}
	return config, nil
}

// withoutValue removes the values from an error of encoding/json.
func withoutValue(err error) error {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("%s: want a value of type %s", wrong.Field, wrong.Type)
	}
	if wrong, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("invalid JSON at byte %d", wrong.Offset)
	}
	return err // a truncated document or an unknown field
}

// roots are the directories in which container runtimes keep their configuration. No file is
// written elsewhere, whatever the values say.
var roots = []string{
	"/etc/containerd", "/etc/containers", "/etc/rancher", "/etc/k0s", "/etc/crio", "/var/lib/rancher",
	"/var/snap/microk8s", "/var/snap/k8s",
}

// Below reports whether a clean path is directory itself or inside it.
func Below(name, directory string) bool {
	return name == directory || strings.HasPrefix(name, strings.TrimSuffix(directory, "/")+"/")
}

func clean(name string) bool { return path.IsAbs(name) && path.Clean(name) == name }

func (b *builder) directories() {
	for _, name := range b.Config.Directories {
		switch {
		case !clean(name):
			b.problem("directory %q: must be an absolute path without .. or redundant slashes", name)
		case !slices.ContainsFunc(roots, func(root string) bool { return Below(name, root) }):
			b.problem("directory %s: must be below one of %s", name, strings.Join(roots, ", "))
		}
	}
	for _, name := range b.Config.TLSDirectories {
		if !clean(name) {
			b.problem("nodeConfig.tlsDirectories: %q must be an absolute path without .. or redundant slashes", name)
		}
	}
}

// checkPath checks that a file is in one of the directories or in a direct subdirectory, which are
// the places that are searched for obsolete files.
func (b *builder) checkPath(name string) {
	if !clean(name) {
		b.problem("file %q: must be an absolute path without .. or redundant slashes", name)
		return
	}
	for _, directory := range b.Config.Directories {
		if in, found := strings.CutPrefix(name, strings.TrimSuffix(directory, "/")+"/"); found && strings.Count(in, "/") < 2 {
			return
		}
	}
	b.problem("file %s: must be in a directory of nodeConfig or in a direct subdirectory: %s",
		name, strings.Join(b.Config.Directories, ", "))
}
