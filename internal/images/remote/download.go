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

// Blob opens a blob at an offset. The error is [errdef.ErrNotFound] if it does not exist. The reader resumes
// interrupted transfers; [Options.Retries] counts consecutive attempts without progress. It checks the blob's size but
// not its digest. ctx applies to the reader as well.
func (r *Repository) Blob(ctx context.Context, desc ocispec.Descriptor, offset int64) (io.ReadCloser, error) {
	if err := oci.CheckDigest(desc.Digest); err != nil {
		return nil, blob.NewError(err)
	}
	if offset < 0 || offset > desc.Size {
		return nil, fmt.Errorf("offset %d is outside of a blob of %d bytes", offset, desc.Size)
	}
	d := &download{ctx: ctx, repo: r, desc: desc, pos: offset}
	if offset == desc.Size && offset > 0 {
		return d, nil
	}
	if err := d.open(); err != nil {
		return nil, r.registry.wrap(ctx, err)
	}
	return d, nil
}

// download receives one blob in one or more requests.
type download struct {
	ctx     context.Context
	repo    *Repository
	desc    ocispec.Descriptor
	pos     int64
	body    io.ReadCloser // of the current request, or nil
	skip    int64         // bytes of body to discard, because the registry ignored the requested range
	exact   bool          // the body's Content-Length matches the descriptor
	attempt int           // since the last progress
	err     error
}

// Read implements [io.Reader].
func (d *download) Read(p []byte) (int, error) {
	for d.err == nil {
		left := d.desc.Size - d.pos
		if left == 0 {
			d.checkEnd()
			break
		}
		if len(p) == 0 {
			return 0, nil
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
			d.pos += int64(n)
			d.attempt = 0
			// An error recurs with the next read if it matters.
			return n, nil
		}
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			d.resume(err)
		}
	}
	return 0, d.err
}

// checkEnd sets d.err to EOF, or to an error if the body has more bytes than the blob.
func (d *download) checkEnd() {
	d.err = io.EOF
	if d.body == nil || d.exact {
		return
	}
	var more [1]byte
	if n, _ := io.ReadFull(d.body, more[:]); n > 0 {
		d.err = d.repo.registry.wrap(d.ctx, protocolErrorf("returned more than the %d bytes of the blob's descriptor",
			d.desc.Size))
	}
}

// resume requests the rest after the body failed with err. It sets d.err if the retry budget is spent.
func (d *download) resume(err error) {
	d.body.Close()
	d.body = nil
	log := []any{slog.String("blob", d.desc.Digest.String()), slog.Int64("offset", d.pos)}
	if d.repo.registry.retry.retry(d.ctx, d.attempt, nil, err, log...) {
		d.attempt++
		err = d.open() // with retries of its own
		if err == nil {
			return
		}
	}
	d.err = d.repo.registry.wrap(d.ctx, err)
}

// open requests the rest of the blob.
func (d *download) open() error {
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
	d.exact = resp.ContentLength == d.skip+d.desc.Size-d.pos
	return nil
}

// Close implements [io.Closer].
func (d *download) Close() error {
	if d.err == nil || errors.Is(d.err, io.EOF) {
		d.err = fs.ErrClosed
	}
	if d.body == nil {
		return nil
	}
	err := d.body.Close()
	d.body = nil
	return err
}
