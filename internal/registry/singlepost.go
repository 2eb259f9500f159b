package registry

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/zarf-dev/zarf-registry/internal/registry/request"
)

// withSinglePosts serves uploads in a single POST (OCI distribution spec, "Single POST"), for which distribution
// begins an upload and ignores the content. It is left to distribution if the client mounts a blob.
func withSinglePosts(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		d := query.Get("digest")
		if r.Method != http.MethodPost || d == "" || query.Has("mount") || !request.TargetOf(r).Upload {
			next.ServeHTTP(w, r)
			return
		}
		begin := r.Clone(r.Context())
		begin.URL.RawQuery = ""
		begin.Body, begin.ContentLength = http.NoBody, 0
		begun := request.Detach(w)
		next.ServeHTTP(begun, begin)
		location, err := url.Parse(begun.Header().Get("Location"))
		if begun.Status != http.StatusAccepted || err != nil {
			begun.Send(w)
			return
		}
		finish := r.Clone(r.Context())
		finish.Method, finish.URL = http.MethodPut, location
		finish.URL.RawQuery = strings.TrimPrefix(location.RawQuery+"&"+url.Values{"digest": {d}}.Encode(), "&")
		next.ServeHTTP(w, finish)
	})
}
