package request

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/distribution/distribution/v3/registry/api/errcode"
)

// Denied returns the error of a request that the client may not make.
func Denied(format string, args ...any) error {
	return errcode.ErrorCodeDenied.WithMessage(fmt.Sprintf(format, args...))
}

// Unavailable returns an error after which the client may retry.
func Unavailable(format string, args ...any) error {
	return errcode.ErrorCodeUnavailable.WithMessage(fmt.Sprintf(format, args...))
}

// ErrCanceled is the response to a client that has disconnected.
var ErrCanceled = errcode.ErrorCodeUnavailable.WithMessage("the request was canceled")

// Methods passes requests with these methods on to next, and refuses others. What names what is served, in the plural.
func Methods(what string, next http.HandlerFunc, methods ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !slices.Contains(methods, r.Method) {
			w.Header().Set("Allow", strings.Join(methods, ", "))
			WriteError(w, errcode.ErrorCodeUnsupported.WithMessage(what+" require "+strings.Join(methods, " or ")))
			return
		}
		next(w, r)
	})
}

// WriteError responds with err as an OCI error.
func WriteError(w http.ResponseWriter, err error) {
	var coded errcode.Error
	switch {
	case errors.As(err, &coded):
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		coded = ErrCanceled
	default:
		coded = errcode.ErrorCodeUnknown.WithMessage(err.Error())
	}
	switch coded.Code {
	case errcode.ErrorCodeSizeInvalid:
		w = withStatus{w, http.StatusRequestEntityTooLarge}
	case errcode.ErrorCodeTooManyRequests:
		w.Header().Set("Retry-After", "1")
	case errcode.ErrorCodeUnavailable:
		w.Header().Set("Retry-After", "10")
	}
	_ = errcode.ServeJSON(w, coded) // the client may have disconnected
}
