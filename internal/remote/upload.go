package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/errcode"

	"github.com/zarf-dev/zarf-registry/internal/blob"
)

// PushBlob makes a blob part of the repository: by mounting it, if the registry has
// it in another repository (in from, if not "", and in any other where it looks for
// itself), and else by sending it, which mounted tells. If from was given and the
// registry mounts nothing, it is asked whether it has the blob before it is sent: that
// counts as mounted.
//
// open opens the content at its beginning, as often as needed. What it returns may
// be an [io.Seeker], which makes it cheap to go on somewhere, and goes from its
// file to the connection by itself if it is a [blob.Part] and there is no TLS.
//
// The content is verified on its way: if it does not match desc, the registry does
// not get the last of it, and the error is a [blob.Error]. A file that goes by itself
// is verified by the registry alone, if it says that it speaks the protocol in which
// it must (Docker-Distribution-Api-Version: registry/2.0), and has told the digest in the
// end: to hash it here too would take longer than all else that this program does about
// it. If the registry refuses it for its digest, or does not tell one, it is read here,
// so that the error is the same.
//
// An upload that breaks off is continued where the registry has come to, if it
// knows, and else begun again. [Options.Retries] counts how often in a row that
// brings nothing.
//
// progress, if not nil, is told that n bytes at offset went to the connection, the
// same ones again if they must go again. It is not called concurrently for one
// call of PushBlob, and not after that has returned.
func (r *Repository) PushBlob(ctx context.Context, desc ocispec.Descriptor, from string, open func() (io.ReadCloser, error), progress func(offset, n int64)) (mounted bool, err error) {
	if err := desc.Digest.Validate(); err != nil {
		return false, blob.NewError(err)
	}
	if progress == nil {
		progress = func(int64, int64) {}
	}
	u := &upload{repo: r, desc: desc, from: from, open: open, progress: progress, digester: desc.Digest.Algorithm().Digester()}
	mounted, err = u.push(ctx)
	if u.wrong != nil && ctx.Err() == nil {
		return false, u.wrong
	}
	return mounted, r.registry.explain(ctx, err)
}

// upload is one blob that is sent, in one request or several.
type upload struct {
	repo     *Repository
	desc     ocispec.Descriptor
	from     string
	open     func() (io.ReadCloser, error)
	progress func(offset, n int64)

	verifies  bool // the registry does, and says so
	inspected bool // it had doubts about the content, which was looked at then

	// These belong to whoever sends: one payload at a time.
	digester digest.Digester
	hashed   int64 // each byte is hashed once, when it is first sent
	sent     int64 // how far any payload has come
	wrong    error // with the content, or with opening and reading it: nothing helps
}

// apiVersion is what a registry's answers say of the protocol, and of itself who has
// the one of distribution: to compare a blob with its digest is part of that.
// https://distribution.github.io/distribution/spec/api/#completed-upload
const (
	apiVersionHeader = "Docker-Distribution-Api-Version"
	apiVersion       = "registry/2.0"
)

// maxMisfits bounds how often a registry may refuse bytes that are right: it has
// got others, or it keeps count of them in another way.
const maxMisfits = 3

func (u *upload) push(ctx context.Context) (mounted bool, err error) {
	location, err := u.begin(ctx)
	if location == nil || err != nil {
		return err == nil, err
	}
	if u.from != "" {
		// A registry that mounts nothing may still have it here, from before.
		if ok, err := u.repo.exists(ctx, ocispec.Descriptor{Digest: u.desc.Digest, Size: u.desc.Size}); ok && err == nil {
			u.cancel(ctx, location)
			return true, nil
		}
	}
	var (
		offset    int64 // where to go on
		best      int64 // how much any upload has had
		misfits   int
		continues = true // the registry can continue an upload
	)
	for attempt := 0; ; attempt++ {
		err := u.put(ctx, location, offset)
		if err == nil {
			return false, nil
		}
		if ctx.Err() != nil {
			return false, err
		}
		if u.verifies && hasCode(err, errcode.ErrorCodeDigestInvalid) {
			u.verifies = false
			u.inspect(ctx)
		}
		code := status(err)
		misfit := hasCode(err, errcode.ErrorCodeDigestInvalid) || offset > 0 && code/100 == 4 &&
			code != http.StatusUnauthorized && code != http.StatusForbidden
		switch {
		case u.wrong != nil:
			u.cancel(ctx, location)
			return false, u.wrong
		case lostUpload(err):
			location = nil
		case transient(nil, err):
		case misfit && misfits < maxMisfits:
			// The registry may still have been writing when it was asked how much it
			// has: it is asked again, once.
			misfits++
			if code != http.StatusRequestedRangeNotSatisfiable || misfits > 1 {
				continues = false
			}
		default:
			u.cancel(ctx, location)
			return false, err
		}
		if !u.repo.registry.policy.wait(ctx, attempt, nil, err, slog.String("blob", u.desc.Digest.String()), slog.Int64("from", offset)) {
			return false, err
		}
		offset = 0
		if location != nil && continues {
			offset, location, err = u.status(ctx, location)
			if err != nil {
				return false, err
			}
		}
		if offset > best {
			best, attempt = offset, -1
		}
		if offset > 0 {
			continue
		}
		// The blob may have arrived and the answer not. Who may only send is not
		// told.
		ok, err := u.repo.exists(ctx, ocispec.Descriptor{Digest: u.desc.Digest, Size: u.desc.Size})
		if ok || err != nil && status(err)/100 != 4 {
			return false, err
		}
		if location, err = u.begin(ctx); location == nil || err != nil {
			return false, err
		}
	}
}

// lostUpload is the answer of a registry that restarted, or whose replicas do
// not share their uploads' state: a new upload may succeed.
func lostUpload(err error) bool {
	return status(err) == http.StatusNotFound || hasCode(err, errcode.ErrorCodeBlobUploadUnknown, errcode.ErrorCodeBlobUploadInvalid)
}

// begin asks for an upload. Its location is nil if the registry has the blob.
func (u *upload) begin(ctx context.Context) (*url.URL, error) {
	query := url.Values{"mount": {u.desc.Digest.String()}}
	mountCtx := ctx
	if u.from != "" {
		query.Set("from", u.from)
		from := u.repo.remote.Reference
		from.Repository = u.from
		mountCtx = auth.AppendRepositoryScope(ctx, from, auth.ActionPull)
	}
	location, err := u.post(mountCtx, "?"+query.Encode())
	if code := status(err); code/100 == 4 && code != http.StatusTooManyRequests {
		// It may be the mount that it refuses: because of the repository that has the
		// blob, or since it knows of no mounts.
		return u.post(ctx, "")
	}
	return location, err
}

func (u *upload) post(ctx context.Context, query string) (*url.URL, error) {
	req, err := u.repo.request(ctx, http.MethodPost, "blobs/uploads/"+query, auth.ActionPull, auth.ActionPush)
	if err != nil {
		return nil, err
	}
	resp, err := u.repo.registry.client.Do(req)
	if err != nil {
		return nil, err
	}
	switch {
	case resp.StatusCode == http.StatusCreated && query != "":
		resp.Body.Close()
		return nil, u.checkDigest(resp)
	case resp.StatusCode == http.StatusAccepted:
		resp.Body.Close()
		u.verifies = resp.Header.Get(apiVersionHeader) == apiVersion && u.hashed == 0 && !u.inspected
		return u.location(resp)
	}
	return nil, refused(resp)
}

// location is where an upload goes on. It has the registry's credential sent to
// it, and must not be elsewhere.
func (u *upload) location(resp *http.Response) (*url.URL, error) {
	location, err := resp.Location()
	if err != nil {
		return nil, answerErrorf("gives no location for an upload (%v)", withoutURL(err))
	}
	if at := resp.Request.URL; location.Scheme != at.Scheme || !sameHost(location, at.Host) {
		return nil, answerErrorf("wants a blob to be sent to %s://%s, which is elsewhere and not allowed", location.Scheme, location.Host)
	}
	return location, nil
}

func (u *upload) checkDigest(resp *http.Response) error {
	said, err := answeredDigest(resp, u.desc.Digest.String())
	if err == nil && said != u.desc.Digest {
		err = answerErrorf("has taken the blob as %s", said)
	}
	return err
}

// put sends the rest of the blob, and has the registry take it.
func (u *upload) put(ctx context.Context, location *url.URL, offset int64) error {
	watch := u.repo.registry.watch.start(auth.AppendRepositoryScope(ctx, u.repo.remote.Reference, auth.ActionPull, auth.ActionPush))
	defer watch.stop()
	target := *location
	if target.RawQuery != "" {
		target.RawQuery += "&"
	}
	target.RawQuery += url.Values{"digest": {u.desc.Digest.String()}}.Encode()
	req, err := http.NewRequestWithContext(streaming(watch.ctx, up), http.MethodPut, target.String(), http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/octet-stream")
	var body *payload
	again := func() (io.ReadCloser, error) {
		if body != nil {
			body.release()
		}
		var err error
		body, err = u.payload(ctx, offset, watch)
		if err != nil {
			return nil, err
		}
		return body, nil
	}
	// At least one byte is read of the content even if there is nothing to send:
	// there may be one.
	if _, err := again(); err != nil {
		return err
	}
	defer func() { body.release() }()
	if offset == u.desc.Size {
		if err := body.end(); err != nil {
			return err
		}
		watch.sent()
	} else {
		req.Body, req.GetBody = body, again
		req.ContentLength = u.desc.Size - offset
		if offset > 0 {
			req.Header.Set("Content-Range", fmt.Sprintf("%d-%d", offset, u.desc.Size-1))
		}
	}
	resp, err := u.repo.registry.client.Do(req)
	body.stop()
	if err != nil {
		return watch.why(err)
	}
	if resp.StatusCode != http.StatusCreated && resp.StatusCode != http.StatusNoContent {
		return watch.why(refused(resp))
	}
	resp.Body.Close()
	body.release()
	if u.wrong == nil && body.pos < u.desc.Size {
		return answerErrorf("says that it has the blob before it was sent")
	}
	if err := u.checkDigest(resp); err != nil {
		return err
	}
	if body.asIs && resp.Header.Get(digestHeader) == "" {
		// Who compares the blob with its digest has computed that, and tells it.
		if u.inspect(ctx); u.wrong == nil {
			return ctx.Err()
		}
	}
	return u.wrong
}

// status asks how much of an upload the registry has, and where it goes on now.
// Nothing is 0 and nil, and so is what it cannot tell.
func (u *upload) status(ctx context.Context, location *url.URL) (int64, *url.URL, error) {
	resp, err := u.atLocation(ctx, http.MethodGet, location)
	if err != nil {
		return 0, nil, err
	}
	if resp.StatusCode/100 != 2 {
		err := refused(resp)
		if transient(nil, err) {
			return 0, nil, err
		}
		return 0, nil, nil
	}
	resp.Body.Close()
	next := location
	if resp.Header.Get("Location") != "" {
		if next, err = u.location(resp); err != nil {
			return 0, nil, err
		}
	}
	// The end is included, so that 0-0 is one byte; distribution says it for none,
	// too.
	first, last, _ := strings.Cut(strings.TrimPrefix(resp.Header.Get("Range"), "bytes="), "-")
	end, err := strconv.ParseInt(last, 10, 64)
	if first != "0" || err != nil || end <= 0 || end >= u.sent {
		return 0, nil, nil
	}
	return end + 1, next, nil
}

func (u *upload) atLocation(ctx context.Context, method string, location *url.URL) (*http.Response, error) {
	ctx = auth.AppendRepositoryScope(ctx, u.repo.remote.Reference, auth.ActionPull, auth.ActionPush)
	req, err := http.NewRequestWithContext(ctx, method, location.String(), nil)
	if err != nil {
		return nil, err
	}
	return u.repo.registry.client.Do(req)
}

// cancelTimeout is for what is nice to have.
const cancelTimeout = 5 * time.Second

// cancel has the registry forget an upload, if it can be reached and ctx has not
// ended. Registries forget uploads by themselves, days later.
func (u *upload) cancel(ctx context.Context, location *url.URL) {
	if location == nil {
		return
	}
	ctx, stop := context.WithTimeout(streaming(ctx, once), cancelTimeout)
	defer stop()
	// The location changes with what the registry has.
	resp, err := u.atLocation(ctx, http.MethodGet, location)
	if err != nil {
		return
	}
	resp.Body.Close()
	if next, err := u.location(resp); err == nil {
		location = next
	}
	if resp, err := u.atLocation(ctx, http.MethodDelete, location); err == nil {
		resp.Body.Close()
	}
}

// payload opens the content for one request, from offset on.
func (u *upload) payload(ctx context.Context, offset int64, watch *watch) (*payload, error) {
	src, err := u.open()
	b := &payload{upload: u, ctx: ctx, src: src, watch: watch, pos: offset, piece: firstPiece}
	b.part, _ = src.(*blob.Part)
	b.asIs = b.part != nil && u.verifies && u.repo.registry.remote.PlainHTTP
	if err == nil {
		if u.hashed < offset && !b.asIs {
			err = u.catchUp(src, offset)
		} else {
			err = u.forward(src, offset)
		}
		if err != nil {
			src.Close()
		}
	}
	if err != nil {
		u.wrong = contentError(err)
		return nil, u.wrong
	}
	return b, nil
}

// catchUp is forward for content that is to be hashed from now on, and of which a part
// went as it is: a file that can be opened no more but through another one.
func (u *upload) catchUp(src io.Reader, offset int64) error {
	err := u.forward(src, u.hashed)
	if err == nil {
		var n int64
		n, err = io.CopyN(u.digester.Hash(), src, offset-u.hashed)
		u.hashed += n
	}
	return err
}

// inspect reads the content without sending it, and notes if it is not right.
func (u *upload) inspect(ctx context.Context) {
	u.inspected = true
	src, err := u.open()
	if err == nil {
		defer src.Close()
		rc := blob.Verify(src, u.desc)
		buffer := hashBuffers.Get().(*[hashBuffer]byte)
		defer hashBuffers.Put(buffer)
		for err == nil && ctx.Err() == nil {
			_, err = rc.Read(buffer[:])
		}
	}
	if err != nil && !errors.Is(err, io.EOF) && ctx.Err() == nil {
		u.wrong = contentError(err)
	}
}

// forward skips what need not go. If it can be known, it looks whether there is as
// much as there should be.
func (u *upload) forward(src io.Reader, offset int64) error {
	seeker, ok := src.(io.Seeker)
	if !ok {
		_, err := io.CopyN(io.Discard, src, offset)
		return err
	}
	size, err := seeker.Seek(0, io.SeekEnd)
	if err == nil && size != u.desc.Size {
		err = blob.SizeError(size, u.desc)
	}
	if err == nil {
		_, err = seeker.Seek(offset, io.SeekStart)
	}
	return err
}

// contentError marks an error of reading content as one.
func contentError(err error) error {
	var content *blob.Error
	if errors.As(err, &content) {
		return err
	}
	return blob.NewError(err)
}
