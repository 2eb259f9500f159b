package spec

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/registry/request"
)

// commits are the uploads that are being finished, which on S3 takes minutes for a large blob. It goes on when the
// client has disconnected. The zero value is empty.
type commits struct {
	mu       sync.Mutex
	running  map[string]*commit       // by the path of the upload
	finished map[string]digest.Digest // the blobs of the last uploads, likewise
}

// maxFinished is how many finished uploads are remembered: clients repeat a request soon or never.
const maxFinished = 10_000

type commit struct {
	location string // of the request that finishes the upload
	size     int64
	done     chan struct{}
}

// begin returns what must be called when the upload is finished, with its digest, or with "" if that has failed.
func (c *commits) begin(path string, running *commit) (end func(digest.Digest)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running == nil {
		c.running, c.finished = map[string]*commit{}, map[string]digest.Digest{}
	}
	running.done = make(chan struct{})
	c.running[path] = running
	return func(d digest.Digest) {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.running, path)
		if d != "" {
			if len(c.finished) >= maxFinished {
				clear(c.finished)
			}
			c.finished[path] = d
		}
		close(running.done)
	}
}

// has reports whether an upload was finished as a blob, and not cancelled.
func (c *commits) has(path string, d digest.Digest) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return d != "" && c.finished[path] == d
}

func (c *commits) get(path string) *commit {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.running[path]
}

func uploadPath(repository, id string) string { return "/v2/" + repository + "/blobs/uploads/" + id }

// continueUpload serves requests for an existing upload. While it is being finished, a repeated PUT waits for that, and
// a client that asks for its status learns that everything has arrived. A PUT of an upload that is finished succeeds,
// if the blob exists, unless the process has restarted: then the client learns that the upload is unknown.
//
// A blob that a collection would refuse is refused before it is sent.
func (s *Registry) continueUpload(w http.ResponseWriter, r *http.Request, to request.Target) error {
	running := s.commits.get(r.URL.Path)
	d := digest.Digest(r.URL.Query().Get("digest"))
	switch {
	case r.Method != http.MethodPut && running == nil:
		s.distribute(w, r)
		return nil
	case r.Method == http.MethodGet || r.Method == http.MethodHead:
		w.Header().Set("Location", running.location)
		w.Header().Set("Range", fmt.Sprintf("0-%d", max(0, running.size-1)))
		w.WriteHeader(http.StatusNoContent)
		return nil
	case r.Method != http.MethodPut:
		return request.Unavailable("the upload is being finished: ask whether the blob exists")
	case running != nil:
		select {
		case <-running.done:
		case <-r.Context().Done():
			return request.ErrCanceled
		}
	case d.Validate() == nil:
		if err := s.collector.AdmitBlob(r.Context(), d); err != nil {
			return err
		}
	}
	response := request.Buffer(w)
	s.distribute(response, r)
	finished := false
	if response.Status == http.StatusNotFound && s.commits.has(r.URL.Path, d) {
		_, _, err := s.findBlob(r.Context(), to.Repository, d, true)
		finished = err == nil
	}
	if finished {
		request.ClearHeader(w.Header())
		blobCreated(w, to.Repository, d)
	} else {
		response.Send(w)
	}
	return nil
}

func isSinglePost(r *http.Request) bool {
	query := r.URL.Query()
	return query.Get("digest") != "" && !query.Has("mount") // a mount is left to distribution
}

// uploadAtOnce serves uploads in a single POST (OCI distribution spec, "Single POST"), for which distribution begins an
// upload and ignores the content.
func (s *Registry) uploadAtOnce(w http.ResponseWriter, r *http.Request) error {
	begin := r.Clone(r.Context())
	begin.URL.RawQuery = ""
	begin.Body, begin.ContentLength = http.NoBody, 0
	begun := request.Detach()
	s.distribute(begun, begin)
	location, err := url.Parse(begun.Header().Get("Location"))
	if begun.Status != http.StatusAccepted || err != nil {
		begun.Send(w)
		return nil
	}
	finish := r.Clone(r.Context())
	finish.Method, finish.URL = http.MethodPut, location
	d := url.Values{"digest": {r.URL.Query().Get("digest")}}
	finish.URL.RawQuery = strings.TrimPrefix(location.RawQuery+"&"+d.Encode(), "&")
	return s.continueUpload(w, finish, request.TargetOf(r))
}
