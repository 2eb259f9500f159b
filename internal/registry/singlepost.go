package registry

import (
	"net/http"
	"net/url"
	"strings"
)

// withSinglePosts serves uploads in a single POST (OCI distribution spec, "Single POST"), for which distribution
// begins an upload and ignores the content. It is left to distribution if the client mounts a blob.
func withSinglePosts(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		d := query.Get("digest")
		if r.Method != http.MethodPost || d == "" || query.Has("mount") || !targetOf(r).upload {
			next.ServeHTTP(w, r)
			return
		}
		begin := r.Clone(r.Context())
		begin.URL.RawQuery = ""
		begin.Body, begin.ContentLength = http.NoBody, 0
		begun := &bufferedResponse{ResponseWriter: withHeader{w, http.Header{}}}
		next.ServeHTTP(begun, begin)
		location, err := url.Parse(begun.Header().Get("Location"))
		if begun.status != http.StatusAccepted || err != nil {
			for name, values := range begun.Header() {
				w.Header()[name] = values
			}
			w.WriteHeader(begun.code())
			_, _ = w.Write(begun.body) // the client may have disconnected
			return
		}
		finish := r.Clone(r.Context())
		finish.Method, finish.URL = http.MethodPut, location
		finish.URL.RawQuery = strings.TrimPrefix(location.RawQuery+"&"+url.Values{"digest": {d}}.Encode(), "&")
		next.ServeHTTP(w, finish)
	})
}

// withHeader has another header than the response that it belongs to.
type withHeader struct {
	http.ResponseWriter
	header http.Header
}

func (w withHeader) Header() http.Header { return w.header }
