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
	"strings"
	"time"

	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/errcode"

	"github.com/zarf-dev/zarf-registry/internal/blob"
)

// answerError is about an answer that is wrong and will be wrong again. Its text
// follows the registry's name.
type answerError struct{ text string }

// Error implements error.
func (e *answerError) Error() string { return e.text }

func answerErrorf(format string, args ...any) error {
	return &answerError{fmt.Sprintf(format, args...)}
}

// refusal is an answer that says no.
type refusal struct {
	*errcode.ErrorResponse
	retryAfter time.Duration
}

// Unwrap returns what the registry said.
func (r *refusal) Unwrap() error { return r.ErrorResponse }

// maxErrorBody bounds what is read of an answer that says no.
const maxErrorBody = 8 << 10

// refused is the error about an answer that says no. It closes its body.
func refused(resp *http.Response) error {
	defer resp.Body.Close()
	said := &errcode.ErrorResponse{Method: resp.Request.Method, URL: resp.Request.URL, StatusCode: resp.StatusCode}
	var body struct {
		Errors errcode.Errors `json:"errors"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxErrorBody)).Decode(&body); err == nil {
		said.Errors = body.Errors
	}
	return &refusal{said, retryAfter(resp, time.Now())}
}

// status is the status of an answer that said no, or 0.
func status(err error) int {
	var response *errcode.ErrorResponse
	if errors.As(err, &response) {
		return response.StatusCode
	}
	return 0
}

// hasCode tells whether the registry gave that reason.
func hasCode(err error, codes ...string) bool {
	var response *errcode.ErrorResponse
	if !errors.As(err, &response) {
		return false
	}
	for _, e := range response.Errors {
		for _, code := range codes {
			if e.Code == code {
				return true
			}
		}
	}
	return false
}

// explained is an error that says what to do.
type explained struct {
	text string
	err  error
}

// Error implements error.
func (e *explained) Error() string { return e.text }

// Unwrap returns the cause.
func (e *explained) Unwrap() error { return e.err }

// explain says of an error which registry it is about, and what to do. Errors
// about content ([blob.Error]) it leaves alone.
func (r *Registry) explain(ctx context.Context, err error) error {
	var (
		content   *blob.Error
		done      *explained
		answer    *answerError
		response  *errcode.ErrorResponse
		untrusted *tls.CertificateVerificationError
		unknown   x509.UnknownAuthorityError
		otherName x509.HostnameError
		invalid   x509.CertificateInvalidError
		alert     tls.AlertError
		notTLS    tls.RecordHeaderError
	)
	if err == nil || errors.As(err, &content) || errors.As(err, &done) {
		return err
	}
	host := r.Host()
	name := "registry " + host
	if at := atHost(err); at != "" && at != host {
		name += ", which leads to " + at
	}
	say := func(format string, args ...any) error {
		return &explained{scrub(name + fmt.Sprintf(format, args...)), err}
	}
	plain := withoutURL(err)
	switch {
	case ctx.Err() != nil:
		return &explained{name + ": " + ctx.Err().Error(), ctx.Err()}
	case errors.As(err, &answer):
		return say(" %s", answer.text)
	case errors.Is(err, auth.ErrBasicCredentialNotFound):
		return say(" wants a credential, and there is none: %s", r.login)
	case errors.As(err, &response):
		reason := fmt.Sprintf("%d %s", response.StatusCode, http.StatusText(response.StatusCode))
		if len(response.Errors) > 0 {
			reason += ": " + response.Errors.Error()
		}
		switch response.StatusCode {
		case http.StatusUnauthorized:
			return say(" does not let in (%s): %s", reason, r.login)
		case http.StatusForbidden:
			return say(" forbids it (%s): the credential does not permit this, or there is none: %s", reason, r.login)
		case http.StatusNotFound:
			err = &notFound{err}
			return say(": not found (%s)", reason)
		case http.StatusBadRequest:
			if r.remote.PlainHTTP && len(response.Errors) == 0 {
				return say(" answers with %s: if it wants HTTPS, leave out --plain-http", reason)
			}
		case http.StatusTooManyRequests:
			return say(" limits how often it is asked (%s): try again later, or log in", reason)
		}
		return say(" answers %s with %s", response.Method, reason)
	case errors.Is(err, errdef.ErrNotFound):
		return say(": not found")
	case errors.As(err, &otherName), errors.As(err, &invalid):
		return say(" has a certificate that is not valid for it: %v", plain)
	case errors.As(err, &untrusted), errors.As(err, &unknown):
		return say(" has a certificate of a CA that is not trusted (%v): give the CA's certificate with --ca-file", plain)
	case errors.As(err, &alert):
		return say(" breaks off the TLS handshake (%v): it may want a client certificate", plain)
	case errors.Is(err, http.ErrSchemeMismatch), errors.As(err, &notTLS):
		return say(" speaks HTTP and not HTTPS: give --plain-http if that is how it is meant")
	case errors.Is(err, errStalled):
		return say(": %v", errStalled)
	}
	return say(": %v", plain)
}

// notFound is an [errdef.ErrNotFound] with what the registry said.
type notFound struct{ error }

// Unwrap returns both.
func (e *notFound) Unwrap() []error { return []error{errdef.ErrNotFound, e.error} }

// withoutURL is the error without the URL that net/http puts before it.
func withoutURL(err error) error {
	for {
		var failed *url.Error
		if !errors.As(err, &failed) {
			return err
		}
		err = failed.Err
	}
}

// atHost is the host that a request was for that failed, or "".
func atHost(err error) string {
	var failed *url.Error
	if !errors.As(err, &failed) {
		return ""
	}
	at, err := url.Parse(failed.URL)
	if err != nil {
		return ""
	}
	return at.Host
}

// secrets are what a URL may have in it that is not for everybody: a password, and
// in its query a signature or the state of an upload.
var secrets = regexp.MustCompile(`(//)[^/\s"@]*@|\?[^\s"']*=[^\s"']*`)

func scrub(text string) string {
	return strings.TrimSpace(secrets.ReplaceAllString(text, "$1"))
}
