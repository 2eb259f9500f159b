package nodeconfig

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/zarf-dev/zarf-registry/internal/node/noderuntime"
)

// maxLinks is the maximum number of symbolic links followed, the same as in Linux.
const maxLinks = 40

// lookBelow returns a function that checks whether a file exists on the node. It sees only what is
// mounted below root. Links are resolved as on the node: absolute ones start at the node's root.
func lookBelow(root string, mounted []string) func(name string) error {
	return func(name string) error {
		if !path.IsAbs(name) {
			return errors.New("not an absolute path")
		}
		resolved, rest, file := "/", elements(name), false
		for links := 0; len(rest) > 0; {
			next := path.Join(resolved, rest[0])
			rest = rest[1:]
			if !slices.ContainsFunc(mounted, func(dir string) bool { return noderuntime.Below(next, dir) }) {
				if !slices.ContainsFunc(mounted, func(dir string) bool { return noderuntime.Below(dir, next) }) {
					return noderuntime.ErrNotMounted
				}
				resolved, file = next, false // created as a mount point: the node's own content is not visible
				continue
			}
			info, err := os.Lstat(filepath.Join(root, next))
			switch {
			case err != nil:
				return reason(err)
			case info.Mode()&fs.ModeSymlink != 0:
				if links++; links > maxLinks {
					return errors.New("dangling symbolic link")
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
			return errors.New("not a file")
		}
		return nil
	}
}

// within reports whether name is dir or below it.
func elements(name string) []string {
	return strings.FieldsFunc(name, func(r rune) bool { return r == '/' })
}

// reason removes the path, which is that in the pod.
func reason(err error) error {
	if pathError, ok := errors.AsType[*fs.PathError](err); ok {
		return pathError.Err
	}
	return err
}
