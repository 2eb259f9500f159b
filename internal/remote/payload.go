package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/blob"
)

const (
	// Files go to connections in pieces, each hashed while it is in the page cache.
	// Nothing is known of a piece's fate until all of it went, so on a slow link
	// pieces are small: the smallest one moves within [DefaultStall] at 300 B/s.
	firstPiece = 256 << 10
	minPiece   = 16 << 10
	maxPiece   = 1 << 20

	quickPiece = 50 * time.Millisecond // makes the next one larger
	slowPiece  = time.Second           // makes the next one smaller

	hashBuffer = 128 << 10 // fits into a core's own cache
)

var hashBuffers = sync.Pool{New: func() any { return new([hashBuffer]byte) }}

// errStopped ends the sending of a body that nobody wants any more.
var errStopped = errors.New("not wanted any more")

// payload is a request's body: what there is of a blob from an offset on. It
// verifies the blob, and holds the last of it back if that is not right.
type payload struct {
	upload *upload
	ctx    context.Context
	watch  *watch

	stopped atomic.Bool

	mu    sync.Mutex // held while something is read or sent
	src   io.ReadCloser
	part  *blob.Part // src, if it is one
	asIs  bool       // it is not hashed here
	pos   int64
	piece int64
	freed bool

	buffer *[hashBuffer]byte // of whoever hashes the one piece that is sent
}

// Read implements [io.Reader].
func (b *payload) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	left := b.upload.desc.Size - b.pos
	switch {
	case left == 0:
		return 0, io.EOF // also when it is not wanted any more: then the connection can be used again
	case b.stopped.Load() || b.freed:
		return 0, errStopped
	case len(p) == 0:
		return 0, nil
	}
	n, err := b.src.Read(p[:min(int64(len(p)), left)])
	b.hash(p[:n])
	switch {
	case int64(n) == left:
		if err := b.end(); err != nil {
			return 0, err
		}
	case errors.Is(err, io.EOF):
		return 0, b.fail(blob.ShortError(left - int64(n)))
	case err != nil:
		return 0, b.fail(contentError(err))
	}
	b.went(int64(n))
	return n, nil
}

// hash hashes what comes at b.pos, unless it was hashed before.
func (b *payload) hash(p []byte) {
	u := b.upload
	if b.asIs {
		return
	}
	if end := b.pos + int64(len(p)); end > u.hashed {
		_, _ = u.digester.Hash().Write(p[u.hashed-b.pos:]) // never fails
		u.hashed = end
	}
}

// end looks at the content when all of it was hashed, and the last of it read:
// there must be no more, and it must be right.
func (b *payload) end() error {
	u := b.upload
	if !b.asIs && u.digester.Digest() != u.desc.Digest {
		return b.fail(blob.MismatchError())
	}
	if _, ok := b.src.(io.Seeker); ok {
		return nil // [upload.forward] has looked
	}
	var more [1]byte
	if n, _ := io.ReadFull(b.src, more[:]); n > 0 {
		return b.fail(blob.NewError(fmt.Errorf("has more than the %d bytes that its descriptor says", u.desc.Size)))
	}
	return nil
}

// fail notes what is wrong with the content: net/http may tell of something else.
func (b *payload) fail(err error) error {
	b.upload.wrong = err
	return err
}

// went notes that n bytes went.
func (b *payload) went(n int64) {
	b.upload.progress(b.pos, n)
	b.pos += n
	b.upload.sent = max(b.upload.sent, b.pos)
	if b.pos == b.upload.desc.Size {
		b.watch.sent()
	} else {
		b.watch.moved()
	}
}

// sendTo sends at most n bytes from the file to a connection.
func (b *payload) sendTo(conn *net.TCPConn, n int64) (int64, error) {
	var total int64
	for total < n {
		sent, err := b.sendPiece(conn, n-total)
		total += sent
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

func (b *payload) sendPiece(conn *net.TCPConn, n int64) (int64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped.Load() || b.freed {
		return 0, errStopped
	}
	left := b.upload.desc.Size - b.pos
	n = min(n, left, b.piece)
	hashed := make(chan error, 1)
	if b.asIs {
		hashed <- nil
	} else if n < left {
		go func() { hashed <- b.hashPiece(n) }()
	} else {
		err := b.hashPiece(n)
		if err == nil {
			err = b.end()
		}
		if err != nil {
			return 0, err
		}
		hashed <- nil
	}
	start := time.Now()
	sent, err := b.part.SendTo(conn, n)
	took := time.Since(start)
	if err := <-hashed; err != nil {
		return sent, err
	}
	b.went(sent)
	switch {
	case err != nil:
		return sent, err
	case sent < n:
		return sent, b.fail(blob.ShortError(left - sent))
	case took < quickPiece:
		b.piece = min(b.piece*2, maxPiece)
	case took > slowPiece:
		b.piece = max(b.piece/2, minPiece)
	}
	return sent, nil
}

// hashPiece hashes the next n bytes, unless they were hashed before.
func (b *payload) hashPiece(n int64) error {
	u := b.upload
	if b.buffer == nil {
		b.buffer = hashBuffers.Get().(*[hashBuffer]byte)
	}
	for end := b.pos + n; u.hashed < end; {
		p := b.buffer[:min(end-u.hashed, hashBuffer)]
		if read, err := b.part.ReadAt(p, u.hashed); read < len(p) {
			if errors.Is(err, io.EOF) {
				return b.fail(blob.ShortError(u.desc.Size - u.hashed - int64(read)))
			}
			return b.fail(contentError(err))
		}
		_, _ = u.digester.Hash().Write(p) // never fails
		u.hashed += int64(len(p))
	}
	return nil
}

// stop ends the sending as soon as may be.
func (b *payload) stop() { b.stopped.Store(true) }

// Close implements [io.Closer]. net/http may call it while it still reads.
func (b *payload) Close() error {
	b.stop()
	return nil
}

// release waits until nothing is read or sent any more, and closes the content.
// The request must have ended.
func (b *payload) release() {
	b.stop()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.freed {
		b.freed = true
		b.src.Close()
		if b.buffer != nil {
			hashBuffers.Put(b.buffer)
			b.buffer = nil
		}
	}
}
