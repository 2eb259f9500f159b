package request

import (
	"cmp"
	"net/http"
)

// bufferedResponse holds back a response, which must be small.
type bufferedResponse struct {
	Status int // 0 if the handler sets none
	header http.Header
	body   []byte
}

// Buffer returns a buffered response with the header of w.
func Buffer(w http.ResponseWriter) *bufferedResponse { return &bufferedResponse{header: w.Header()} }

// Detach returns a buffered response with a header of its own.
func Detach() *bufferedResponse { return &bufferedResponse{header: http.Header{}} }

// Header implements [http.ResponseWriter].
func (r *bufferedResponse) Header() http.Header { return r.header }

// WriteHeader implements [http.ResponseWriter].
func (r *bufferedResponse) WriteHeader(status int) {
	if r.Status == 0 {
		r.Status = status
	}
}

// Write implements [io.Writer].
func (r *bufferedResponse) Write(p []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	r.body = append(r.body, p...)
	return len(p), nil
}

// Send responds to a client, which may have disconnected, with what was held back.
func (r *bufferedResponse) Send(w http.ResponseWriter) {
	for name, values := range r.Header() {
		w.Header()[name] = values
	}
	w.WriteHeader(cmp.Or(r.Status, http.StatusOK))
	_, _ = w.Write(r.body)
}

// ClearHeader removes what was set for another response, but not that the connection ends with this one.
func ClearHeader(header http.Header) {
	connection := header["Connection"]
	clear(header)
	if connection != nil {
		header["Connection"] = connection
	}
}

// WriteErrorAs responds with err as an OCI error and another status than its code's.
func WriteErrorAs(w http.ResponseWriter, status int, err error) {
	WriteError(withStatus{w, status}, err)
}

// withStatus responds with another status than the one that belongs to an error code.
type withStatus struct {
	http.ResponseWriter
	status int
}

func (w withStatus) WriteHeader(int) { w.ResponseWriter.WriteHeader(w.status) }
