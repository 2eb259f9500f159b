package nodeconfig

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/zarf-dev/zarf-registry/internal/noderuntime"
)

// maxLinks is how many symbolic links lead to a file at most, as in Linux.
const maxLinks = 40

// lookBelow returns what looks whether a file is on the node. It sees what is mounted below root; links are followed as on the
// node, where an absolute one begins at the node's own root.
func lookBelow(root string, mounted []string) func(name string) error {
	return func(name string) error {
		if !path.IsAbs(name) {
			return errors.New("is not an absolute path")
		}
		resolved, rest, file := "/", elements(name), false
		for links := 0; len(rest) > 0; {
			next := path.Join(resolved, rest[0])
			rest = rest[1:]
			if !slices.ContainsFunc(mounted, func(dir string) bool { return within(dir, next) }) {
				if !slices.ContainsFunc(mounted, func(dir string) bool { return within(next, dir) }) {
					return noderuntime.ErrNotMounted
				}
				resolved, file = next, false // made for the mounts below it; what the node has there is not to be seen
				continue
			}
			info, err := os.Lstat(filepath.Join(root, next))
			switch {
			case err != nil:
				return reason(err)
			case info.Mode()&fs.ModeSymlink != 0:
				if links++; links > maxLinks {
					return errors.New("is a symbolic link that leads nowhere")
				}
				target, err := os.Readlink(filepath.Join(root, next))
				if err != nil {
					return reason(err)
				}
				if path.IsAbs(target) {
					resolved = "/"
				}
				rest = append(elements(target), rest...)
			default:
				resolved, file = next, info.Mode().IsRegular()
			}
		}
		if !file {
			return errors.New("is not a file")
		}
		return nil
	}
}

// within says whether name is dir or below it.
func within(dir, name string) bool {
	return name == dir || strings.HasPrefix(name, strings.TrimSuffix(dir, "/")+"/")
}

func elements(name string) []string {
	return strings.FieldsFunc(name, func(r rune) bool { return r == '/' })
}

// reason leaves out the path, which is the pod's and not the node's.
func reason(err error) error {
	if pathError := (*fs.PathError)(nil); errors.As(err, &pathError) {
		return pathError.Err
	}
	return err
}
