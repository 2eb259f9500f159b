package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// part is the range of a blob that an answer's body is.
type part struct {
	start, end int64  // in bytes, end is exclusive
	total      string // the length of the whole as Content-Range has it
}

// partOf says which bytes of a blob an answer carries. It is an error if that cannot be told, so that nothing can be
// asked for to continue it.
func partOf(r *http.Response) (part, error) {
	if r.ContentLength < 0 {
		return part{}, errors.New("the answer has no length")
	}
	switch r.StatusCode {
	case http.StatusOK:
		return part{0, r.ContentLength, strconv.FormatInt(r.ContentLength, 10)}, nil
	case http.StatusPartialContent:
		p, err := parseContentRange(r.Header.Get("Content-Range"))
		if err == nil && p.end-p.start != r.ContentLength {
			err = fmt.Errorf("Content-Range %q does not agree with Content-Length %d", r.Header.Get("Content-Range"), r.ContentLength)
		}
		return p, err
	default:
		return part{}, fmt.Errorf("the answer's status is %s", r.Status)
	}
}

// parseContentRange reads a Content-Range of bytes with a known range (RFC 9110, section 14.4).
func parseContentRange(value string) (part, error) {
	bad := fmt.Errorf("Content-Range %q is not understood", value)
	rest, ok := strings.CutPrefix(value, "bytes ")
	if !ok {
		return part{}, bad
	}
	bounds, total, ok := strings.Cut(rest, "/")
	if !ok || total == "" {
		return part{}, bad
	}
	first, last, ok := strings.Cut(bounds, "-")
	if !ok {
		return part{}, bad
	}
	start, err1 := strconv.ParseUint(first, 10, 62)
	end, err2 := strconv.ParseUint(last, 10, 62)
	if err1 != nil || err2 != nil || end < start {
		return part{}, bad
	}
	return part{int64(start), int64(end) + 1, total}, nil
}

// validators are what tells that two answers are of the same bytes.
type validators struct{ etag, digest string }

func validatorsOf(r *http.Response) validators {
	v := validators{r.Header.Get("Etag"), r.Header.Get(headerDigest)}
	if strings.HasPrefix(v.etag, "W/") {
		v.etag = "" // weak: equal meaning, not equal bytes
	}
	return v
}

// interrupted is a body that broke off at least once.
type interrupted struct {
	first    *http.Response
	sent     int64 // when it last broke off
	patience *patience
}

// resume continues a body that broke off after sent bytes. The retry timeout begins anew if the client has seen progress
// since the last time, of progressSize at least, so that a body which comes byte by byte is not asked for byte by byte. It returns the answer whose body goes on, and how many bytes of that to skip.
func (p *Proxy) resume(request *request, body *interrupted, sent int64, cause error) (a *answer, skip int64, err error) {
	ctx := request.Context()
	if ctx.Err() != nil {
		return nil, 0, ctx.Err()
	}
	defer func() {
		switch {
		case err == nil:
			p.metrics.resumes.Inc()
		case ctx.Err() == nil:
			p.metrics.resumeErrors.Inc()
			err = fmt.Errorf("the body broke off after %d bytes (%w) and cannot be continued: %w", sent, cause, err)
		}
	}()
	whole, err := partOf(body.first)
	if err != nil {
		return nil, 0, err
	}
	want := validatorsOf(body.first)
	if want == (validators{}) {
		return nil, 0, errors.New("the answer has neither a strong ETag nor a digest")
	}
	rest := part{whole.start + sent, whole.end, whole.total}
	p.log.Warn("a body broke off, continuing it", "path", request.URL.Path, "bytes", sent, "error", cause)
	if body.patience == nil || sent-body.sent >= progressSize {
		body.patience = p.newPatience()
	} else if err := body.patience.wait(ctx, cause); err != nil {
		return nil, 0, err
	}
	body.sent = sent

	a, err = p.fetch(continuation(ctx, request, rest, want.etag), body.patience, func(r *http.Response) (verdict, error) {
		return judgeContinuation(r, rest, want)
	})
	if err != nil {
		return nil, 0, err
	}
	if a.StatusCode == http.StatusOK {
		skip = rest.start
	}
	return a, skip, nil
}

// continuation asks for rest. The client's own conditions do not apply: they have been answered.
func continuation(ctx context.Context, r *request, rest part, etag string) *request {
	out := &request{r.Clone(ctx), r.scheme}
	for name := range out.Header {
		if namedBy(r.Header, name) {
			out.Header.Del(name)
		}
	}
	for _, name := range [...]string{"Connection", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since", "If-Range"} {
		out.Header.Del(name)
	}
	out.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", rest.start, rest.end-1))
	if etag != "" {
		out.Header.Set("If-Range", etag)
	}
	return out
}

// judgeContinuation accepts exactly the rest, or the whole from its beginning from a registry that has no ranges for it
// (distribution has none for manifests).
func judgeContinuation(r *http.Response, rest part, want validators) (verdict, error) {
	if r.StatusCode >= http.StatusInternalServerError {
		return again, fmt.Errorf("the registry answered %s", r.Status)
	}
	if r.StatusCode != http.StatusPartialContent && r.StatusCode != http.StatusOK {
		return refuse, fmt.Errorf("the registry answered %s", r.Status)
	}
	got, err := partOf(r)
	if err != nil {
		return refuse, err
	}
	if v := validatorsOf(r); v != want {
		return refuse, fmt.Errorf("the registry has other bytes there now: ETag %q, digest %q, want %q, %q",
			v.etag, v.digest, want.etag, want.digest)
	}
	switch {
	case got == rest:
		return accept, nil
	case r.StatusCode == http.StatusOK && got.total == rest.total && got.end == rest.end:
		return accept, nil
	}
	return refuse, fmt.Errorf("the registry sent bytes %d-%d/%s, want %d-%d/%s",
		got.start, got.end-1, got.total, rest.start, rest.end-1, rest.total)
}
