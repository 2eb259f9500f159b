package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/distribution/distribution/v3/registry/api/errcode"
)

func denied(format string, args ...any) error {
	return errcode.ErrorCodeDenied.WithMessage(fmt.Sprintf(format, args...))
}

func unavailable(format string, args ...any) error {
	return errcode.ErrorCodeUnavailable.WithMessage(fmt.Sprintf(format, args...))
}

// errTooLarge means that a manifest is larger than oci.MaxManifestSize.
var errTooLarge = errcode.ErrorCodeSizeInvalid.WithMessage("a manifest may have at most 4 MiB")

// errCanceled is the response to a client that has disconnected.
var errCanceled = errcode.ErrorCodeUnavailable.WithMessage("the request was canceled")

// writeError responds with err as an OCI error.
func writeError(w http.ResponseWriter, err error) {
	var coded errcode.Error
	switch {
	case errors.As(err, &coded):
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		coded = errCanceled
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

// clearHeader removes what was set for another response, but not that the connection ends with this one.
func clearHeader(header http.Header) {
	connection := header["Connection"]
	clear(header)
	if connection != nil {
		header["Connection"] = connection
	}
}

// withStatus responds with another status than the one that belongs to an error code.
type withStatus struct {
	http.ResponseWriter
	status int
}

func (w withStatus) WriteHeader(int) { w.ResponseWriter.WriteHeader(w.status) }
