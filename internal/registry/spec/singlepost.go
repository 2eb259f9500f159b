package spec

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/zarf-dev/zarf-registry/internal/registry/request"
)

func isSinglePost(r *http.Request) bool {
	query := r.URL.Query()
	return query.Get("digest") != "" && !query.Has("mount") // a mount is left to distribution
}

// uploadAtOnce serves uploads in a single POST (OCI distribution spec, "Single POST"), for which distribution begins an
// upload and ignores the content.
func (s *Registry) uploadAtOnce(w http.ResponseWriter, r *http.Request) {
	begin := r.Clone(r.Context())
	begin.URL.RawQuery = ""
	begin.Body, begin.ContentLength = http.NoBody, 0
	begun := request.Detach()
	s.distribute(begun, begin)
	location, err := url.Parse(begun.Header().Get("Location"))
	if begun.Status != http.StatusAccepted || err != nil {
		begun.Send(w)
		return
	}
	finish := r.Clone(r.Context())
	finish.Method, finish.URL = http.MethodPut, location
	d := url.Values{"digest": {r.URL.Query().Get("digest")}}
	finish.URL.RawQuery = strings.TrimPrefix(location.RawQuery+"&"+d.Encode(), "&")
	s.continueUpload(w, finish, request.TargetOf(r))
}
