package proxy

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/zarf-dev/zarf-registry/internal/net/hopbyhop"
	"github.com/zarf-dev/zarf-registry/internal/net/httprange"
	"github.com/zarf-dev/zarf-registry/internal/oci"
)

// validators identify the bytes of a body: two responses with equal validators carry the same blob.
type validators struct{ etag, digest string }

func validatorsFrom(r *http.Response) validators {
	v := validators{r.Header.Get("Etag"), r.Header.Get(oci.HeaderDigest)}
	if strings.HasPrefix(v.etag, "W/") {
		v.etag = "" // weak: equivalent, but not byte for byte
	}
	return v
}

// interruptedBody is a body that may break off.
type interruptedBody struct {
	whole       httprange.ContentRange // what the client gets
	want        validators
	unresumable error // why nothing else continues it
	sent        int64 // bytes sent when it last broke off
	budget      *retryBudget
	cached      int  // how many times it broke off at a cache
	direct      bool // the rest comes from the registry
}

func newInterruptedBody(first *http.Response) *interruptedBody {
	b := &interruptedBody{want: validatorsFrom(first)}
	b.whole, b.unresumable = httprange.FromResponse(first)
	if b.unresumable == nil && b.want == (validators{}) {
		b.unresumable = errors.New("the response has neither a strong ETag nor a digest")
	}
	return b
}

// rest returns what follows sent bytes.
func (b *interruptedBody) rest(sent int64) httprange.ContentRange {
	return httprange.ContentRange{Start: b.whole.Start + sent, End: b.whole.End, Size: b.whole.Size}
}

// skip returns how many bytes of the response to a continuation the client already has.
func (b *interruptedBody) skip(r *http.Response, sent int64) int64 {
	if r.StatusCode == http.StatusOK {
		return b.rest(sent).Start
	}
	return 0
}

// brokeAtCache notes that a cache did not deliver all. The cache may have been killed, or may have dropped
// corrupt content, and another one may be faster, so that the next request to caches succeeds. It is made once.
func (b *interruptedBody) brokeAtCache() {
	b.cached++
	b.direct = b.cached > 1
}

// resume continues a body that broke off after sent bytes. It returns the response whose body
// continues it and the number of bytes to skip. The retry budget is renewed if the client has
// received at least progressSize since the last interruption, so that a trickling body does not
// cause a request for every byte.
func (p *Proxy) resume(
	request *request, body *interruptedBody, sent int64, cause error,
) (resp *response, skip int64, err error) {
	ctx := request.Context()
	if ctx.Err() != nil {
		return nil, 0, ctx.Err()
	}
	paused := errors.Is(cause, errPaused)
	defer func() {
		switch {
		case err == nil && !paused:
			p.metrics.resumes.Inc()
		case err == nil:
		case ctx.Err() == nil:
			p.metrics.resumeErrors.Inc()
			err = fmt.Errorf("body broke off after %d bytes (%w) and cannot be resumed: %w", sent, cause, err)
		}
	}()
	if body.unresumable != nil {
		return nil, 0, body.unresumable
	}
	if !paused {
		p.log.Warn("body broke off, resuming it", "path", request.URL.Path, "bytes", sent, "error", cause)
	}
	if paused || body.budget == nil || sent-body.sent >= progressSize {
		body.budget = p.newRetryBudget()
	} else if err := body.budget.wait(ctx, cause); err != nil {
		body.budget.end()
		return nil, 0, err
	}
	body.sent, body.budget.direct = sent, body.direct
	rest := body.rest(sent)
	resp, err = p.fetch(continuation(request, rest, body.want.etag), body.budget,
		func(r *http.Response) (verdict, error) { return judgeContinuation(r, rest, body.want) })
	if err != nil {
		return nil, 0, err
	}
	return resp, body.skip(resp.Response, sent), nil
}

// takeTurn continues a body at another cache, and at the same one if that fails. It fails if meanwhile another
// request took the connection.
func (p *Proxy) takeTurn(
	request *request, body *interruptedBody, sent int64, resp *response, skip int64,
) (*response, int64, error) {
	p.slots.lend(resp) // or all could wait for each other
	rest := body.rest(sent)
	next, err := p.askCache(continuation(request, rest, body.want.etag),
		func(r *http.Response) (verdict, error) { return judgeContinuation(r, rest, body.want) })
	kept := p.slots.reclaim(resp)
	switch {
	case err != nil && kept:
		return resp, skip, nil
	case err != nil:
		return nil, 0, errPaused
	case kept:
		resp.discard()
	}
	return next, body.skip(next.Response, sent), nil
}

// continuation requests rest. The client's own conditions are dropped: they have already been
// evaluated.
func continuation(r *request, rest httprange.ContentRange, etag string) *request {
	out := &request{Request: r.Clone(r.Context()), scheme: r.scheme}
	for name := range out.Header {
		if hopbyhop.NamedBy(r.Header, name) {
			out.Header.Del(name)
		}
	}
	for _, name := range [...]string{
		"Connection", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since", "If-Range",
	} {
		out.Header.Del(name)
	}
	out.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", rest.Start, rest.End-1))
	if etag != "" {
		out.Header.Set("If-Range", etag)
	}
	return out
}

// judgeContinuation accepts exactly the rest, or the whole body from a registry that does not
// support ranges for it (distribution does not for manifests).
func judgeContinuation(r *http.Response, rest httprange.ContentRange, want validators) (verdict, error) {
	if r.StatusCode >= http.StatusInternalServerError {
		return retry, fmt.Errorf("the registry responded with %s", r.Status)
	}
	if r.StatusCode != http.StatusPartialContent && r.StatusCode != http.StatusOK {
		return refuse, fmt.Errorf("the registry responded with %s", r.Status)
	}
	got, err := httprange.FromResponse(r)
	if err != nil {
		return refuse, err
	}
	if v := validatorsFrom(r); v != want {
		return refuse, fmt.Errorf("the content changed at the registry: ETag %q, digest %q, want %q, %q",
			v.etag, v.digest, want.etag, want.digest)
	}
	switch {
	case got == rest:
		return accept, nil
	case r.StatusCode == http.StatusOK && got.Size == rest.Size && got.End == rest.End:
		return accept, nil
	}
	return refuse, fmt.Errorf("the registry sent %s, want %s", got, rest)
}
