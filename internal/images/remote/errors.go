package remote

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote/errcode"
)

// wrappedError is an error with the registry's name and a remedy.
type wrappedError struct {
	text string
	err  error
}

func (e *wrappedError) Error() string { return e.text }

func (e *wrappedError) Unwrap() error { return e.err }

// notFoundError is an [errdef.ErrNotFound] with the registry's response.
type notFoundError struct{ error }

func (e *notFoundError) Unwrap() []error { return []error{errdef.ErrNotFound, e.error} }

// protocolError is a response that is wrong and will be wrong again, so the request is not retried. Its text follows
// the registry's name.
type protocolError struct{ text string }

func (e *protocolError) Error() string { return e.text }

func protocolErrorf(format string, args ...any) error {
	return &protocolError{fmt.Sprintf(format, args...)}
}

// blobSizeError is the error about a blob that has another size in the registry than desc's.
func blobSizeError(size int64, desc ocispec.Descriptor) error {
	return protocolErrorf("says that the blob has %d bytes where its descriptor says %d", size, desc.Size)
}

type responseError struct {
	*errcode.ErrorResponse
	retryAfter time.Duration
}

func (r *responseError) Unwrap() error { return r.ErrorResponse }

// maxErrorBody limits how much is read of an error response, in bytes.
const maxErrorBody = 8 << 10

// newResponseError reads an error response and closes its body.
func newResponseError(resp *http.Response) error {
	defer resp.Body.Close()
	response := &errcode.ErrorResponse{Method: resp.Request.Method, URL: resp.Request.URL, StatusCode: resp.StatusCode}
	var body struct {
		Errors errcode.Errors `json:"errors"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxErrorBody)).Decode(&body); err == nil {
		response.Errors = body.Errors
	}
	return &responseError{response, retryAfter(resp, time.Now())}
}

// maxRetryAfter limits how long a registry may ask to wait. Rate limits are usually per minute.
const maxRetryAfter = 2 * time.Minute

// retryAfter returns how long the registry asks to wait: in seconds, or until a date (RFC 9110, section 10.2.3).
func retryAfter(resp *http.Response, now time.Time) time.Duration {
	if resp == nil {
		return 0
	}
	value := resp.Header.Get("Retry-After")
	wait := time.Duration(0)
	if seconds, err := strconv.Atoi(value); err == nil {
		wait = time.Duration(min(seconds, int(maxRetryAfter/time.Second))) * time.Second
	} else if date, err := http.ParseTime(value); err == nil {
		wait = date.Sub(now)
	}
	return max(0, min(wait, maxRetryAfter))
}

// statusCode returns the status of an error response, or 0 for other errors.
func statusCode(err error) int {
	if response, ok := errors.AsType[*errcode.ErrorResponse](err); ok {
		return response.StatusCode
	}
	return 0
}

// hasErrorCode reports whether the registry's response has one of the error codes.
func hasErrorCode(err error, codes ...string) bool {
	var response *errcode.ErrorResponse
	return errors.As(err, &response) &&
		slices.ContainsFunc(response.Errors, func(e errcode.Error) bool { return slices.Contains(codes, e.Code) })
}

// withoutURL strips the URL that net/http adds to errors.
func withoutURL(err error) error {
	for {
		var failed *url.Error
		if !errors.As(err, &failed) {
			return err
		}
		err = failed.Err
	}
}

// requestHost returns the host of the request that failed with err, or "".
func requestHost(err error) string {
	var failed *url.Error
	if !errors.As(err, &failed) {
		return ""
	}
	u, err := url.Parse(failed.URL)
	if err != nil {
		return ""
	}
	return u.Host
}

// urlSecrets matches the parts of a URL that may be secret: a password and, in its query, a signature or the state
// of an upload.
var urlSecrets = regexp.MustCompile(`(//)[^/\s"@]*@|\?[^\s"']*=[^\s"']*`)

// redact removes secrets of URLs and line ends from a text.
func redact(text string) string {
	// One line, which no message of a registry can end.
	return strings.Join(strings.Fields(urlSecrets.ReplaceAllString(text, "$1")), " ")
}
