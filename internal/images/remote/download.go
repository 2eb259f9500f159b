package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/zarf-dev/zarf-registry/internal/images/blob"
	"github.com/zarf-dev/zarf-registry/internal/net/httprange"
	"github.com/zarf-dev/zarf-registry/internal/oci"
)

// Blob returns a reader of a blob. The first read, and the first after a seek, sends a request; its error is
// [errdef.ErrNotFound] if the blob does not exist. The reader resumes interrupted transfers; [Options.Retries] counts
// consecutive attempts without progress. It checks the blob's size but not its digest. received, unless nil, is called
// for every n bytes at offset. ctx applies to the reader as well.
func (r *Repository) Blob(ctx context.Context, desc ocispec.Descriptor,
	received func(offset, n int64)) io.ReadSeekCloser {
	if received == nil {
		received = func(int64, int64) {}
	}
	return &download{ctx: ctx, repo: r, desc: desc, received: received}
}

// download receives one blob in one or more requests.
type download struct {
	ctx      context.Context
	repo     *Repository
	desc     ocispec.Descriptor
	received func(offset, n int64)
	pos      int64
	body     io.ReadCloser // of the current request, or nil
	skip     int64         // bytes of body to discard, because the registry ignored the requested range
	attempt  int           // since the last progress
	err      error
}

func (d *download) Read(p []byte) (int, error) {
	for d.err == nil {
		left := d.desc.Size - d.pos
		if left == 0 {
			return 0, io.EOF
		}
		if len(p) == 0 {
			return 0, nil
		}
		if d.body == nil {
			d.err = d.repo.registry.wrap(d.ctx, d.open()) // with retries of its own
			continue
		}
		var n int
		var err error
		if d.skip > 0 {
			var skipped int64
			skipped, err = io.CopyN(io.Discard, d.body, d.skip)
			d.skip -= skipped
		} else {
			n, err = d.body.Read(p[:min(int64(len(p)), left)])
		}
		if n > 0 {
			d.received(d.pos, int64(n))
			d.pos += int64(n)
			d.attempt = 0
			// An error recurs with the next read if it matters.
			return n, nil
		}
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			d.interrupted(err)
		}
	}
	return 0, d.err
}

func (d *download) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += d.pos
	case io.SeekEnd:
		offset += d.desc.Size
	}
	if offset < 0 || offset > d.desc.Size {
		return d.pos, fs.ErrInvalid
	}
	if offset != d.pos {
		d.close()
		d.pos = offset
	}
	return offset, nil
}

// interrupted closes the body that failed with err, and waits. It sets d.err if the retry budget is spent.
func (d *download) interrupted(err error) {
	d.close()
	log := []any{slog.String("blob", d.desc.Digest.String()), slog.Int64("offset", d.pos)}
	if !d.repo.registry.retry.retry(d.ctx, d.attempt, nil, err, log...) {
		d.err = d.repo.registry.wrap(d.ctx, err)
	}
	d.attempt++
}

// open requests the rest of the blob.
func (d *download) open() error {
	if err := oci.CheckDigest(d.desc.Digest); err != nil {
		return blob.NewError(err)
	}
	req, err := d.repo.newRequest(withTransfer(d.ctx, receivesBlob), http.MethodGet, "blobs/"+d.desc.Digest.String(), nil,
		auth.ActionPull)
	if err != nil {
		return err
	}
	if d.pos > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", d.pos))
	}
	resp, err := d.repo.registry.client.Do(req)
	if err != nil {
		return err
	}
	size := resp.ContentLength
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusPartialContent:
		var got httprange.ContentRange
		if got, err = httprange.Parse(resp.Header.Get("Content-Range")); err != nil {
			err = protocolErrorf("returned part of a blob with an %v", err)
		} else if got.Start != d.pos {
			err = protocolErrorf("returned a blob from byte %d where byte %d was requested", got.Start, d.pos)
		}
		size = got.Size
	case http.StatusRequestedRangeNotSatisfiable:
		err = protocolErrorf("says that the blob ends before byte %d where its descriptor says %d", d.pos, d.desc.Size)
	default:
		return newResponseError(resp)
	}
	if err == nil && size >= 0 && size != d.desc.Size {
		err = blobSizeError(size, d.desc)
	}
	if err != nil {
		resp.Body.Close()
		return err
	}
	d.body, d.skip = resp.Body, 0
	if resp.StatusCode == http.StatusOK {
		d.skip = d.pos
	}
	return nil
}

func (d *download) Close() error {
	d.close()
	d.err = fs.ErrClosed
	return nil
}

func (d *download) close() {
	if d.body != nil {
		d.body.Close()
		d.body = nil
	}
}
