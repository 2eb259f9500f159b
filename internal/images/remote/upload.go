package remote

import (
	"cmp"
	"context"
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

	"github.com/zarf-dev/zarf-registry/internal/images/blob"
	"github.com/zarf-dev/zarf-registry/internal/oci"
)

// PushBlob makes a blob part of the repository. It mounts the blob if the registry has it in another repository (from,
// unless empty, or any other that the registry considers), and uploads it otherwise. mounted reports which. If from is
// given and the registry does not mount the blob, PushBlob asks whether the repository has it already; that counts as
// mounted.
//
// open opens the content at its beginning, as often as needed. If it returns an [io.Seeker], resuming is cheap.
//
// The content is verified while it is sent. If it does not match desc, the registry does not get its last bytes, and
// the error is a [blob.Error].
//
// An interrupted upload resumes where the registry's copy ends if the registry knows that, and restarts otherwise.
// [Options.Retries] counts consecutive attempts without progress.
//
// progress, unless nil, is called when n bytes at offset were handed to the connection; retries repeat offsets. Calls
// are not concurrent and end before PushBlob returns.
func (r *Repository) PushBlob(ctx context.Context, desc ocispec.Descriptor, from string,
	open func() (io.ReadCloser, error), progress func(offset, n int64)) (mounted bool, err error) {
	if err := oci.CheckDigest(desc.Digest); err != nil {
		return false, blob.NewError(err)
	}
	if progress == nil {
		progress = func(int64, int64) {}
	}
	desc = ocispec.Descriptor{Digest: desc.Digest, Size: desc.Size} // looked up as a blob, whatever its media type
	u := &upload{repo: r, desc: desc, from: from, open: open, progress: progress,
		digester: desc.Digest.Algorithm().Digester()}
	mounted, err = u.push(ctx)
	if u.contentErr != nil && ctx.Err() == nil {
		return false, u.contentErr
	}
	return mounted, r.registry.wrap(ctx, err)
}

// upload sends one blob in one or more requests.
type upload struct {
	repo     *Repository
	desc     ocispec.Descriptor
	from     string
	open     func() (io.ReadCloser, error)
	progress func(offset, n int64)

	at         *url.URL // where it continues; nil if the registry does not know the upload any more
	offset     int64    // where to resume
	best       int64    // the furthest offset so far
	rejections int
	restarts   bool // the registry cannot resume an upload

	// Owned by the current body; there is one at a time.
	digester   digest.Digester
	hashed     int64 // each byte is hashed once, when it is first sent
	sent       int64 // the furthest that any body has come
	contentErr error // about opening, reading or verifying the content; not retried
}

// maxRejections limits how often a registry may reject bytes that are correct, because it has stored others or counts
// them differently.
const maxRejections = 3

func (u *upload) push(ctx context.Context) (mounted bool, err error) {
	u.at, err = u.start(ctx)
	if u.at == nil || err != nil {
		return err == nil, err
	}
	if u.from != "" {
		// A registry that does not mount blobs may have this one in the repository already.
		if ok, err := u.repo.Exists(ctx, u.desc); ok && err == nil {
			u.cancel(ctx, u.at)
			return true, nil
		}
	}
	for attempt := 0; ; attempt++ {
		err := u.put(ctx, u.at, u.offset)
		if err == nil || ctx.Err() != nil {
			return false, err
		}
		if !u.mayRetry(err) {
			u.cancel(ctx, u.at)
			return false, cmp.Or(u.contentErr, err)
		}
		if !u.repo.registry.retry.backOff(ctx, attempt, nil, err, slog.String("blob", u.desc.Digest.String()),
			slog.Int64("offset", u.offset)) {
			return false, err
		}
		if err := u.resume(ctx); err != nil {
			return false, err
		}
		if u.offset > u.best {
			u.best, attempt = u.offset, -1
		}
		if u.offset > 0 {
			continue
		}
		if done, err := u.restart(ctx); done || err != nil {
			return false, err
		}
	}
}

// mayRetry reports whether another attempt may succeed after an error, and how: see at and restarts.
func (u *upload) mayRetry(err error) bool {
	code := statusCode(err)
	rejected := hasErrorCode(err, errcode.ErrorCodeDigestInvalid) || u.offset > 0 && code/100 == 4 &&
		code != http.StatusUnauthorized && code != http.StatusForbidden
	switch {
	case u.contentErr != nil:
		return false
	case lostUpload(err):
		u.at = nil
		return true
	case transient(nil, err):
		return true
	case rejected && u.rejections < maxRejections:
		// The registry may still have been writing when it reported its offset. Ask it once more.
		u.rejections++
		u.restarts = u.restarts || code != http.StatusRequestedRangeNotSatisfiable || u.rejections > 1
		return true
	}
	return false
}

// resume finds out where to continue.
func (u *upload) resume(ctx context.Context) (err error) {
	u.offset = 0
	if u.at != nil && !u.restarts {
		u.offset, u.at, err = u.resumeOffset(ctx, u.at)
	}
	return err
}

// restart starts another upload. Done means that the registry has the blob.
func (u *upload) restart(ctx context.Context) (done bool, err error) {
	// It may have arrived although the response was lost. Push-only credentials get a 4xx here.
	ok, err := u.repo.Exists(ctx, u.desc)
	if ok || err != nil && statusCode(err)/100 != 4 {
		return ok, err
	}
	u.at, err = u.start(ctx)
	return u.at == nil, err
}

// lostUpload reports whether the registry does not know the upload, because it restarted or because its replicas do
// not share upload state. A new upload may succeed.
func lostUpload(err error) bool {
	return statusCode(err) == http.StatusNotFound || hasErrorCode(err, errcode.ErrorCodeBlobUploadUnknown,
		errcode.ErrorCodeBlobUploadInvalid)
}

// start starts an upload and returns its location, or nil if the registry mounted the blob.
func (u *upload) start(ctx context.Context) (*url.URL, error) {
	query := url.Values{"mount": {u.desc.Digest.String()}}
	mountCtx := ctx
	if u.from != "" {
		query.Set("from", u.from)
		from := u.repo.remote.Reference
		from.Repository = u.from
		mountCtx = auth.AppendRepositoryScope(ctx, from, auth.ActionPull)
	}
	location, err := u.post(mountCtx, "?"+query.Encode())
	if code := statusCode(err); code/100 == 4 && code != http.StatusTooManyRequests {
		// The registry may reject the mount only: access to the other repository, or mounts in general.
		return u.post(ctx, "")
	}
	return location, err
}

func (u *upload) post(ctx context.Context, query string) (*url.URL, error) {
	req, err := u.repo.newRequest(ctx, http.MethodPost, "blobs/uploads/"+query, nil, auth.ActionPull, auth.ActionPush)
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
		return nil, u.repo.checkStored(ctx, resp, u.desc)
	case resp.StatusCode == http.StatusAccepted:
		resp.Body.Close()
		return u.location(resp)
	}
	return nil, newResponseError(resp)
}

// location returns the URL where an upload continues. It gets the registry's credential, so it must be on the same
// host.
func (u *upload) location(resp *http.Response) (*url.URL, error) {
	location, err := resp.Location()
	if err != nil {
		return nil, protocolErrorf("returned no valid location for an upload (%v)", withoutURL(err))
	}
	if at := resp.Request.URL; location.Scheme != at.Scheme || !sameHost(location, at.Host) {
		return nil, protocolErrorf("redirected an upload to %s://%s, which is not allowed", location.Scheme, location.Host)
	}
	return location, nil
}

// put sends the blob from offset on and completes the upload.
func (u *upload) put(ctx context.Context, location *url.URL, offset int64) error {
	ctx = auth.AppendRepositoryScope(ctx, u.repo.remote.Reference, auth.ActionPull, auth.ActionPush)
	timeouts := u.repo.registry.timeouts
	timeouts.response += time.Duration(u.desc.Size/storageBytesPerSecond) * time.Second
	timer := timeouts.start(ctx)
	defer timer.stop()
	target := *location
	if target.RawQuery != "" {
		target.RawQuery += "&"
	}
	target.RawQuery += url.Values{"digest": {u.desc.Digest.String()}}.Encode()
	req, err := http.NewRequestWithContext(withTransfer(timer.ctx, sendsBlob), http.MethodPut, target.String(),
		http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/octet-stream")
	var current *body
	reopen := func() (io.ReadCloser, error) {
		if current != nil {
			current.release()
		}
		var err error
		if current, err = u.newBody(offset, timer); err != nil {
			return nil, err
		}
		return current, nil
	}
	if _, err := reopen(); err != nil {
		return err
	}
	defer func() { current.release() }()
	if offset == u.desc.Size {
		// Nothing is left to send.
		if err := current.verify(); err != nil {
			return err
		}
		timer.awaitResponse()
	} else {
		req.Body, req.GetBody = current, reopen
		req.ContentLength = u.desc.Size - offset
		if offset > 0 {
			req.Header.Set("Content-Range", fmt.Sprintf("%d-%d", offset, u.desc.Size-1))
		}
	}
	resp, err := u.repo.registry.client.Do(req)
	current.cancel()
	if err != nil {
		return timer.cause(err)
	}
	if resp.StatusCode != http.StatusCreated && resp.StatusCode != http.StatusNoContent {
		return timer.cause(newResponseError(resp))
	}
	resp.Body.Close()
	current.release()
	if u.contentErr == nil && current.pos < u.desc.Size {
		return protocolErrorf("reported success before the whole blob was sent")
	}
	if err := u.repo.checkStored(ctx, resp, u.desc); err != nil {
		return err
	}
	return u.contentErr
}

// resumeOffset asks how much of an upload the registry has and where it continues. It returns 0 and nil if the
// registry has nothing or does not know.
func (u *upload) resumeOffset(ctx context.Context, location *url.URL) (int64, *url.URL, error) {
	resp, err := u.atLocation(ctx, http.MethodGet, location)
	if err != nil {
		return 0, nil, err
	}
	if resp.StatusCode/100 != 2 {
		err := newResponseError(resp)
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
	// The end is inclusive, so that 0-0 is one byte. distribution reports it for an empty upload as well.
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

// defaultCancelTimeout is short because cancelling is optional.
const defaultCancelTimeout = 5 * time.Second

// cancel deletes an upload from the registry, unless ctx has ended. Errors are ignored: registries delete abandoned
// uploads after some days.
func (u *upload) cancel(ctx context.Context, location *url.URL) {
	if location == nil {
		return
	}
	ctx, stop := context.WithTimeout(withTransfer(ctx, noRetry), u.repo.registry.cancelTimeout)
	defer stop()
	// The location depends on how much the registry has.
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
