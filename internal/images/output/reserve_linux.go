package output

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/zarf-dev/zarf-registry/internal/api/space"
)

// reservePiece is how many bytes are reserved between checks of the context. Some file systems write zeros.
const reservePiece = 256 << 20

// reserve allocates the disk space of a file of size bytes, if its file system can, so that a full disk is known before
// anything is transferred.
func reserve(ctx context.Context, f *os.File, size int64) error {
	for at := int64(0); at < size; at += reservePiece {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := error(unix.EINTR)
		for errors.Is(err, unix.EINTR) {
			err = unix.Fallocate(int(f.Fd()), 0, at, min(reservePiece, size-at))
		}
		switch {
		case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), errors.Is(err, unix.EFBIG):
			_ = f.Truncate(0)
			return fmt.Errorf("it needs %s: %w", space.FormatBytes(size), err)
		case err != nil:
			return nil // not supported
		}
	}
	return nil
}
