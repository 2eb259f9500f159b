//go:build !linux

package hostfiles

import (
	"errors"
	"os"
)

// Nodes run Linux. On other systems, for development, the package does nothing.

const nonblock = 0

type space struct {
	readOnly, unknown bool
	bytes, files      int64
}

func lock(*os.File) (bool, error)     { return false, errors.ErrUnsupported }
func spaceOf(*os.File) (space, error) { return space{}, errors.ErrUnsupported }
func writable(*os.File) error         { return errors.ErrUnsupported }
func device(*os.File) (uint64, error) { return 0, errors.ErrUnsupported }
