package state

import (
	"errors"
	"fmt"
	"path"
	"slices"
)

// NodeConfig says where files of the release may be on nodes, so that what was there
// before is put back even after the values that named them are gone.
type NodeConfig struct {
	// Directories are absolute paths of the nodes, sorted. There is at least one.
	Directories []string `json:"directories"`
}

// Remember returns n with more directories, nil where there are none at all. n may be
// nil, and is not changed.
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

// Validate says what is impossible in n.
func (n NodeConfig) Validate() error {
	if len(n.Directories) == 0 {
		return errors.New("it names no directory")
	}
	for i, d := range n.Directories {
		switch {
		case !path.IsAbs(d) || path.Clean(d) != d || d == "/":
			return fmt.Errorf("%q is no directory that files may be in: name it by an absolute path without . and .. and without a slash at its end", d)
		case slices.Contains(n.Directories[:i], d):
			return fmt.Errorf("%q is named twice", d)
		}
	}
	return nil
}
