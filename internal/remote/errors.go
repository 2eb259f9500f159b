package remote

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/errcode"

	"github.com/zarf-dev/zarf-registry/internal/blob"
)

// wrap adds the registry's name and a remedy to an error. It returns errors about content ([blob.Error]) as they are.
func (r *Registry) wrap(ctx context.Context, err error) error {
	var (
		content   *blob.Error
		wrapped   *wrappedError
		protocol  *protocolError
		response  *errcode.ErrorResponse
		untrusted *tls.CertificateVerificationError
		unknown   x509.UnknownAuthorityError
		otherName x509.HostnameError
		invalid   x509.CertificateInvalidError
		alert     tls.AlertError
		notTLS    tls.RecordHeaderError
	)
	if err == nil || errors.As(err, &content) || errors.As(err, &wrapped) {
		return err
	}
	name := "registry " + r.Host()
	if host := requestHost(err); host != "" && host != r.Host() {
		name += " (request to " + host + ")"
	}
	wrapf := func(format string, args ...any) error {
		return &wrappedError{redact(name + fmt.Sprintf(format, args...)), err}
	}
	cause := withoutURL(err)
	switch {
	case ctx.Err() != nil:
		return &wrappedError{name + ": " + ctx.Err().Error(), ctx.Err()}
	case errors.As(err, &protocol):
		return wrapf(" %s", protocol.text)
	case errors.Is(err, auth.ErrBasicCredentialNotFound):
		return wrapf(" requires a credential: %s", r.loginHint)
	case errors.As(err, &response):
		reason := fmt.Sprintf("%d %s", response.StatusCode, http.StatusText(response.StatusCode))
		if len(response.Errors) > 0 {
			reason += ": " + response.Errors.Error()
		}
		switch response.StatusCode {
		case http.StatusUnauthorized:
			return wrapf(" rejected the credential (%s): %s", reason, r.loginHint)
		case http.StatusForbidden:
			return wrapf(" denied access (%s): the credential lacks this permission or is missing: %s", reason, r.loginHint)
		case http.StatusNotFound:
			err = &notFoundError{err}
			return wrapf(": not found (%s)", reason)
		case http.StatusBadRequest:
			if r.remote.PlainHTTP && len(response.Errors) == 0 {
				return wrapf(" responded with %s: if it requires HTTPS, omit --plain-http", reason)
			}
		case http.StatusTooManyRequests:
			return wrapf(" limits the request rate (%s): retry later, or log in", reason)
		}
		return wrapf(" responded to %s with %s", response.Method, reason)
	case errors.Is(err, errdef.ErrNotFound):
		return wrapf(": not found")
	case errors.As(err, &otherName), errors.As(err, &invalid):
		return wrapf(" has an invalid certificate: %v", cause)
	case errors.As(err, &untrusted), errors.As(err, &unknown):
		return wrapf(" has a certificate of an untrusted CA (%v): pass the CA's certificate with --ca-file", cause)
	case errors.As(err, &alert):
		return wrapf(" aborted the TLS handshake (%v): it may require a client certificate", cause)
	case errors.Is(err, http.ErrSchemeMismatch), errors.As(err, &notTLS):
		return wrapf(" serves HTTP, not HTTPS: pass --plain-http if that is intended")
	case errors.Is(err, errIdleTimeout):
		return wrapf(": %v", errIdleTimeout)
	}
	return wrapf(": %v", cause)
}

// wrappedError is an error with the registry's name and a remedy.
type wrappedError struct {
	text string
	err  error
}

// Error implements error.
func (e *wrappedError) Error() string { return e.text }

// Unwrap returns the cause.
func (e *wrappedError) Unwrap() error { return e.err }

// notFoundError is an [errdef.ErrNotFound] with the registry's response.
type notFoundError struct{ error }

// Unwrap returns both.
func (e *notFoundError) Unwrap() []error { return []error{errdef.ErrNotFound, e.error} }

// protocolError is a response that is wrong and will be wrong again, so the request is not retried. Its text follows
// the registry's name.
type protocolError struct{ text string }

// Error implements error.
func (e *protocolError) Error() string { return e.text }

func protocolErrorf(format string, args ...any) error {
	return &protocolError{fmt.Sprintf(format, args...)}
}

// blobSizeError is the error about a blob that has another size in the registry than desc's.
func blobSizeError(size int64, desc ocispec.Descriptor) error {
	return protocolErrorf("says that the blob has %d bytes where its descriptor says %d", size, desc.Size)
}

// responseError is a response with an error status.
type responseError struct {
	*errcode.ErrorResponse
	retryAfter time.Duration
}

// Unwrap returns the registry's errors.
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

// statusCode returns the status of an error response, or 0 for other errors.
func statusCode(err error) int {
	var response *errcode.ErrorResponse
	if errors.As(err, &response) {
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

func redact(text string) string {
	return strings.TrimSpace(urlSecrets.ReplaceAllString(text, "$1"))
}
