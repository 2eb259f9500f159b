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

	"github.com/zarf-dev/zarf-registry/internal/blob"
	"github.com/zarf-dev/zarf-registry/internal/httprange"
)

// Blob opens a blob at an offset. It is [errdef.ErrNotFound] where there is none.
// The reader ends after desc.Size - offset bytes. What breaks off or stalls on the
// way it asks for again from there, as often as [Options.Retries] says without
// getting further. What it gives is not verified; that its length is not that of
// desc is an error. ctx is for the reader, too.
func (r *Repository) Blob(ctx context.Context, desc ocispec.Descriptor, offset int64) (io.ReadCloser, error) {
	if err := desc.Digest.Validate(); err != nil {
		return nil, blob.NewError(err)
	}
	if offset < 0 || offset > desc.Size {
		return nil, fmt.Errorf("offset %d is not in a blob of %d bytes", offset, desc.Size)
	}
	d := &download{ctx: ctx, repo: r, desc: desc, pos: offset}
	if offset == desc.Size && offset > 0 {
		return d, nil
	}
	if err := d.open(); err != nil {
		return nil, r.registry.explain(ctx, err)
	}
	return d, nil
}

// download is a blob that is received, in one request or several.
type download struct {
	ctx     context.Context
	repo    *Repository
	desc    ocispec.Descriptor
	pos     int64
	body    io.ReadCloser // nil where one must be asked for
	ahead   int64         // bytes of body that are there already: the registry cannot skip them
	exact   bool          // body is known to end where it should
	attempt int           // since something came
	err     error
}

// Read implements [io.Reader].
func (d *download) Read(p []byte) (int, error) {
	for d.err == nil {
		left := d.desc.Size - d.pos
		if left == 0 {
			d.finish()
			break
		}
		if len(p) == 0 {
			return 0, nil
		}
		var n int
		var err error
		if d.ahead > 0 {
			var skipped int64
			skipped, err = io.CopyN(io.Discard, d.body, d.ahead)
			d.ahead -= skipped
		} else {
			n, err = d.body.Read(p[:min(int64(len(p)), left)])
		}
		if n > 0 {
			d.pos += int64(n)
			d.attempt = 0
			// An error comes again at the next read, if it matters.
			return n, nil
		}
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			d.mend(err)
		}
	}
	return 0, d.err
}

// finish looks whether the registry has more than it should.
func (d *download) finish() {
	d.err = io.EOF
	if d.body == nil || d.exact {
		return
	}
	var more [1]byte
	if n, _ := io.ReadFull(d.body, more[:]); n > 0 {
		d.err = d.repo.registry.explain(d.ctx, answerErrorf("gives more bytes than the blob's descriptor says, %d", d.desc.Size))
	}
}

// mend asks for the rest after a body broke off with err, as often as it may; else
// d.err is set.
func (d *download) mend(err error) {
	d.body.Close()
	d.body = nil
	log := []any{slog.String("blob", d.desc.Digest.String()), slog.Int64("from", d.pos)}
	if d.repo.registry.policy.again(d.ctx, d.attempt, nil, err, log...) {
		d.attempt++
		err = d.open() // the request is repeated as often as it may be
		if err == nil {
			return
		}
	}
	d.err = d.repo.registry.explain(d.ctx, err)
}

// open asks for what is left.
func (d *download) open() error {
	req, err := d.repo.request(streaming(d.ctx, down), http.MethodGet, "blobs/"+d.desc.Digest.String(), auth.ActionPull)
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
			err = answerErrorf("sends part of a blob with an %v", err)
		} else if got.Start != d.pos {
			err = answerErrorf("sends a blob from byte %d where byte %d was requested", got.Start, d.pos)
		}
		size = got.Size
	case http.StatusRequestedRangeNotSatisfiable:
		err = answerErrorf("says that the blob ends before byte %d where its descriptor says %d", d.pos, d.desc.Size)
	default:
		return refused(resp)
	}
	if err == nil && size >= 0 && size != d.desc.Size {
		err = answerErrorf("says that the blob has %d bytes where its descriptor says %d", size, d.desc.Size)
	}
	if err != nil {
		resp.Body.Close()
		return err
	}
	d.body, d.ahead = resp.Body, 0
	if resp.StatusCode == http.StatusOK {
		d.ahead = d.pos
	}
	d.exact = resp.ContentLength == d.ahead+d.desc.Size-d.pos
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
