package spec

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/registry/request"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// commits are the uploads that are being finished, which goes on without their clients. The zero value is empty.
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
	if response.Status == http.StatusNotFound && s.commits.has(r.URL.Path, d) {
		if _, _, err := s.findBlob(r.Context(), to.Repository, d, true); err == nil {
			request.ClearHeader(w.Header())
			blobCreated(w, to.Repository, d)
			return nil
		}
	}
	response.Send(w)
	return nil
}

// uploadAtOnce serves uploads in a single POST (OCI distribution spec, "Single POST"), which distribution lacks.
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

// beginUpload begins an upload, or mounts the blob that the client names (OCI distribution spec 1.1, "Mounting a blob
// from another repository") from any repository, because clients that may push to one may read all of them.
//
// What a collection would refuse is refused before it is sent. An invalid digest is left to distribution.
func (s *Registry) beginUpload(w http.ResponseWriter, r *http.Request, to request.Target) error {
	d, err := digest.Parse(r.URL.Query().Get("mount"))
	if err != nil || s.readOnly {
		s.distribute(w, r)
		return nil
	}
	if err := s.collector.AdmitBlob(r.Context(), d); err != nil {
		return err
	}
	stored, found := s.collector.Stored(r.Context(), d)
	if !found {
		// Distribution would mount what the other repository has a link to, even if a collection has removed it.
		r = r.Clone(r.Context())
		r.URL.RawQuery = ""
		s.distribute(w, r)
		return nil
	}
	for _, name := range slices.Compact([]digest.Digest{stored, d}) {
		if err := s.Link(r.Context(), storage.LayerPath(to.Repository, name), stored); err != nil {
			return err
		}
	}
	blobCreated(w, to.Repository, d)
	return nil
}

// blobCreated responds that a repository has a blob.
func blobCreated(w http.ResponseWriter, repository string, d digest.Digest) {
	w.Header().Set("Docker-Content-Digest", d.String())
	w.Header().Set("Location", "/v2/"+repository+"/blobs/"+d.String())
	w.WriteHeader(http.StatusCreated)
}
