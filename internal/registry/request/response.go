package request

import (
	"net/http"

	"cmp"
)

// bufferedResponse holds back a response, which must be small.
type bufferedResponse struct {
	http.ResponseWriter
	Status int // 0 if the handler sets none
	body   []byte
}

// Buffer returns a buffered response with the header of w.
func Buffer(w http.ResponseWriter) *bufferedResponse { return &bufferedResponse{ResponseWriter: w} }

// Detach returns a buffered response with a header of its own.
func Detach(w http.ResponseWriter) *bufferedResponse {
	return &bufferedResponse{ResponseWriter: withHeader{w, http.Header{}}}
}

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

// withHeader has another header than the response that it belongs to.
type withHeader struct {
	http.ResponseWriter
	header http.Header
}

func (w withHeader) Header() http.Header { return w.header }

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
