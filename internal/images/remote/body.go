package remote

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"github.com/zarf-dev/zarf-registry/internal/images/blob"
)

// errCanceled ends a body that is no longer wanted.
var errCanceled = errors.New("upload canceled")

// body is a request's body: the rest of a blob from an offset on. It verifies the blob and withholds the last bytes
// if they do not match the digest.
type body struct {
	upload *upload
	timer  *idleTimer

	canceled atomic.Bool

	mu       sync.Mutex // held during reads
	src      io.ReadCloser
	pos      int64
	released bool
}

// newBody opens the content from offset on.
func (u *upload) newBody(offset int64, timer *idleTimer) (*body, error) {
	src, err := u.open()
	if err == nil {
		if err = blob.Skip(src, offset); err == nil {
			return &body{upload: u, src: src, timer: timer, pos: offset}, nil
		}
		src.Close()
	}
	u.contentErr = asContentError(err)
	return nil, u.contentErr
}

func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	left := b.upload.desc.Size - b.pos
	switch {
	case left == 0:
		return 0, io.EOF // also when canceled: the connection can be reused
	case b.canceled.Load() || b.released:
		return 0, errCanceled
	case len(p) == 0:
		return 0, nil
	}
	b.timer.pause() // the content may come from another registry, with timeouts of its own
	n, err := b.src.Read(p[:min(int64(len(p)), left)])
	b.timer.reset()
	b.hash(p[:n])
	switch {
	case int64(n) == left:
		if err := b.verify(); err != nil {
			return 0, err
		}
	case errors.Is(err, io.EOF):
		return 0, b.fail(blob.ShortError(left - int64(n)))
	case err != nil:
		return 0, b.fail(asContentError(err))
	}
	b.advance(int64(n))
	return n, nil
}

// hash adds the bytes at b.pos to the digest, except those of a previous attempt.
func (b *body) hash(p []byte) {
	u := b.upload
	if end := b.pos + int64(len(p)); end > u.hashed {
		_, _ = u.digester.Hash().Write(p[u.hashed-b.pos:]) // never fails
		u.hashed = end
	}
}

// verify checks the digest. All bytes were hashed.
func (b *body) verify() error {
	if b.upload.digester.Digest() != b.upload.desc.Digest {
		return b.fail(blob.MismatchError())
	}
	return nil
}

// fail records an error about the content: net/http may return another one.
func (b *body) fail(err error) error {
	b.upload.contentErr = err
	return err
}

// advance records that n bytes were handed to the connection.
func (b *body) advance(n int64) {
	b.upload.progress(b.pos, n)
	b.pos += n
	b.upload.sent = max(b.upload.sent, b.pos)
	if b.pos == b.upload.desc.Size {
		b.timer.awaitResponse()
	} else {
		b.timer.reset()
	}
}

// cancel ends the body with the next read.
func (b *body) cancel() { b.canceled.Store(true) }

// Close implements [io.Closer]. net/http may call it during a read.
func (b *body) Close() error {
	b.cancel()
	return nil
}

// release waits for the last read and closes the content. The request must have ended.
func (b *body) release() {
	b.cancel()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.released {
		b.released = true
		b.src.Close()
	}
}

func asContentError(err error) error {
	if _, ok := errors.AsType[*blob.Error](err); ok {
		return err
	}
	return blob.NewError(err)
}
