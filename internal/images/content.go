package images

import (
	"io"

	"github.com/zarf-dev/zarf-registry/internal/images/blob"
)

// countReads returns rc with received, unless nil, called after every read.
func countReads(rc io.ReadCloser, offset int64, received func(offset, n int64)) io.ReadCloser {
	if received == nil {
		return rc
	}
	return &countingReader{rc, offset, received}
}

type countingReader struct {
	io.ReadCloser
	offset   int64
	received func(offset, n int64)
}

// Read implements [io.Reader].
func (r *countingReader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if n > 0 {
		r.received(r.offset, int64(n))
		r.offset += int64(n)
	}
	return n, err
}

// openAt opens a blob at an offset.
func openAt(b blob.Blob, offset int64) (io.ReadCloser, error) {
	rc, err := b.Open()
	if err != nil || offset == 0 {
		return rc, err
	}
	if seeker, ok := rc.(io.Seeker); ok {
		_, err = seeker.Seek(offset, io.SeekStart)
	} else {
		_, err = io.CopyN(io.Discard, rc, offset)
	}
	if err != nil {
		rc.Close()
		return nil, err
	}
	return rc, nil
}

// readAll reads content of limited size. It does not verify it.
func readAll(b blob.Blob) ([]byte, error) {
	rc, err := b.Open()
	if err != nil {
		return nil, err
	}
	defer rc.Close()
	return io.ReadAll(rc)
}
