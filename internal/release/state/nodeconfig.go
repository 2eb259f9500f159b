package state

import (
	"errors"
	"fmt"
	"path"
	"slices"
)

// NodeConfig records where the release may have written files on nodes, so that they can be restored even
// after the values that configured them are gone.
type NodeConfig struct {
	// Directories are absolute paths on nodes, sorted and unique; at least one.
	Directories []string `json:"directories"`
}

// Remember returns a copy of n with more directories, or nil if there are none. n may be nil.
func (n *NodeConfig) Remember(directories ...string) *NodeConfig {
	all := slices.Clone(directories)
	if n != nil {
		all = append(all, n.Directories...)
	}
	if len(all) == 0 {
		return nil
	}
	slices.Sort(all)
	return &NodeConfig{Directories: slices.Compact(all)}
}

// Validate returns the first problem of n.
func (n NodeConfig) Validate() error {
	if len(n.Directories) == 0 {
		return errors.New("no directories")
	}
	for i, d := range n.Directories {
		switch {
		case !path.IsAbs(d) || path.Clean(d) != d || d == "/":
			return fmt.Errorf("invalid directory %q: want an absolute path other than / without ., .. or a trailing slash", d)
		case slices.Contains(n.Directories[:i], d):
			return fmt.Errorf("duplicate directory %q", d)
		}
	}
	return nil
}
