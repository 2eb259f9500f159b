package images

import (
	"fmt"
	"io"

	"github.com/zarf-dev/zarf-registry/internal/images/blob"
	"github.com/zarf-dev/zarf-registry/internal/oci"
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

// readMetadata reads content that must not be larger than a manifest. It does not verify it.
func readMetadata(b blob.Blob) ([]byte, error) {
	if err := checkMetadataSize(b.Size); err != nil {
		return nil, err
	}
	rc, err := b.Open()
	if err != nil {
		return nil, err
	}
	defer rc.Close()
	return io.ReadAll(rc)
}

// checkMetadataSize rejects what is too large to read into memory.
func checkMetadataSize(size int64) error {
	if size > oci.MaxManifestSize {
		return fmt.Errorf("has %d bytes: want at most %d", size, oci.MaxManifestSize)
	}
	return nil
}
