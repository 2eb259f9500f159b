package spec

import (
	"fmt"
	"net/http"
	"sync"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/registry/request"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
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
func (s *Registry) continueUpload(w http.ResponseWriter, r *http.Request, to request.Target) {
	running := s.commits.get(r.URL.Path)
	d := digest.Digest(r.URL.Query().Get("digest"))
	switch {
	case r.Method != http.MethodPut && running == nil:
		s.distribute(w, r)
		return
	case r.Method == http.MethodGet || r.Method == http.MethodHead:
		w.Header().Set("Location", running.location)
		w.Header().Set("Range", fmt.Sprintf("0-%d", max(0, running.size-1)))
		w.WriteHeader(http.StatusNoContent)
		return
	case r.Method != http.MethodPut:
		request.WriteError(w, request.Unavailable("the upload is being finished: ask whether the blob exists"))
		return
	case running != nil:
		select {
		case <-running.done:
		case <-r.Context().Done():
			request.WriteError(w, request.ErrCanceled)
			return
		}
	case d.Validate() == nil:
		if err := s.collector.AdmitBlob(r.Context(), d); err != nil {
			request.WriteError(w, err)
			return
		}
	}
	response := request.Buffer(w)
	s.distribute(response, r)
	if response.Status == http.StatusNotFound && s.commits.has(r.URL.Path, d) && s.holds(r, to.Repository, d) {
		request.ClearHeader(w.Header())
		w.Header().Set("Docker-Content-Digest", d.String())
		w.Header().Set("Location", "/v2/"+to.Repository+"/blobs/"+d.String())
		w.WriteHeader(http.StatusCreated)
		return
	}
	response.Send(w)
}

// holds reports whether a repository has a blob that is intact, as far as its size tells.
func (s *Registry) holds(r *http.Request, repository string, d digest.Digest) bool {
	stored, err := s.ReadLink(r.Context(), storage.LayerPath(repository, d))
	if err != nil {
		return false
	}
	use := s.collector.Rely(stored)
	_, _, err = s.Size(r.Context(), stored)
	use.Done(err == nil)
	return err == nil
}
