// Package httprange parses the Content-Range header of partial responses (RFC 9110, section 14.4). It
// handles byte ranges only, and not the Range header of requests.
package httprange

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// ContentRange is the part of a whole that a partial response carries.
type ContentRange struct {
	Start, End int64 // in bytes, End is exclusive
	Size       int64 // of the whole, in bytes; -1: unknown
}

// Parse parses the value of a Content-Range header. It fails if the range is unsatisfied ("bytes */5").
func Parse(header string) (ContentRange, error) {
	invalid := fmt.Errorf("invalid Content-Range %q", header)
	rest, ok := strings.CutPrefix(header, "bytes ")
	if !ok {
		return ContentRange{}, invalid
	}
	bounds, whole, ok := strings.Cut(rest, "/")
	if !ok {
		return ContentRange{}, invalid
	}
	first, last, ok := strings.Cut(bounds, "-")
	if !ok {
		return ContentRange{}, invalid
	}
	// 62 bits, so that End does not overflow.
	start, err1 := strconv.ParseUint(first, 10, 62)
	end, err2 := strconv.ParseUint(last, 10, 62)
	if err1 != nil || err2 != nil || end < start {
		return ContentRange{}, invalid
	}
	r := ContentRange{Start: int64(start), End: int64(end) + 1, Size: -1}
	if whole != "*" {
		size, err := strconv.ParseUint(whole, 10, 63)
		if err != nil {
			return ContentRange{}, invalid
		}
		r.Size = int64(size)
	}
	return r, nil
}

// FromResponse returns the bytes that the body of a response carries. It fails if they are unknown: then a body that
// breaks off cannot be resumed.
func FromResponse(r *http.Response) (ContentRange, error) {
	if r.ContentLength < 0 {
		return ContentRange{}, errors.New("the response has no length")
	}
	switch r.StatusCode {
	case http.StatusOK:
		return ContentRange{End: r.ContentLength, Size: r.ContentLength}, nil
	case http.StatusPartialContent:
		header := r.Header.Get("Content-Range")
		got, err := Parse(header)
		if err == nil && got.End-got.Start != r.ContentLength {
			err = fmt.Errorf("Content-Range %q does not match Content-Length %d", header, r.ContentLength)
		}
		return got, err
	default:
		return ContentRange{}, fmt.Errorf("the response has status %s", r.Status)
	}
}

// String returns the value of the Content-Range header.
func (r ContentRange) String() string {
	whole := "*"
	if r.Size >= 0 {
		whole = strconv.FormatInt(r.Size, 10)
	}
	return fmt.Sprintf("bytes %d-%d/%s", r.Start, r.End-1, whole)
}
