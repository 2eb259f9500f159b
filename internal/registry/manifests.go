package registry

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"time"
)

// withManifestLock delays manifest uploads to next while garbage is being collected: see leaseClient.
func withManifestLock(leases *leaseClient, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPut || targetOf(r).manifest == "" {
			next.ServeHTTP(w, r)
			return
		}
		// Read the body first: otherwise a slow client would use up the time for which a reading is valid.
		manifest, err := io.ReadAll(io.LimitReader(r.Body, maxManifest))
		if err != nil {
			writeError(w, err)
			return
		}
		r.Body = readCloser{io.MultiReader(bytes.NewReader(manifest), r.Body), r.Body}
		admitted, err := leases.admit(r.Context())
		if err != nil {
			writeError(w, err)
			return
		}
		response := &bufferedResponse{ResponseWriter: w}
		next.ServeHTTP(response, r)
		if response.status < http.StatusMultipleChoices {
			if err := leases.confirm(r.Context(), admitted); err != nil {
				clear(w.Header())
				writeError(w, err)
				return
			}
		}
		w.WriteHeader(response.code())
		_, _ = w.Write(response.body) // the client may have disconnected
	})
}

// maxManifest is distribution's limit.
const maxManifest = 4 << 20

// admit waits until manifests may be written.
func (c *leaseClient) admit(ctx context.Context) (*leaseReading, error) {
	deadline := time.Now().Add(c.times.waitTimeout)
	for {
		r, err := c.read(ctx, c.times.pollInterval)
		if err != nil {
			return nil, unavailable("%v", err)
		}
		if !c.held(r) {
			return r, nil
		}
		if time.Now().After(deadline) {
			return nil, unavailable("garbage is being collected: " +
				"images can be pulled but not pushed until that is done; retry later")
		}
		if err := sleep(ctx, c.times.pollInterval); err != nil {
			return nil, err
		}
	}
}

// confirm returns an error if a collection may have removed what a manifest needs since it was admitted.
func (c *leaseClient) confirm(ctx context.Context, admitted *leaseReading) error {
	if time.Since(admitted.at) <= c.times.validity {
		return nil
	}
	r, err := c.read(ctx, 0)
	if err != nil {
		return unavailable("%v", err)
	}
	if r.record.ID != admitted.record.ID {
		return unavailable("garbage was collected during this push and blobs of this image may be missing: push it again")
	}
	return nil
}

// readCloser combines a reader and a closer.
type readCloser struct {
	io.Reader
	io.Closer
}

// bufferedResponse holds back a response. Responses to manifest uploads are small.
type bufferedResponse struct {
	http.ResponseWriter
	status int
	body   []byte
}

func (r *bufferedResponse) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
}

func (r *bufferedResponse) Write(p []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	r.body = append(r.body, p...)
	return len(p), nil
}

func (r *bufferedResponse) code() int {
	if r.status == 0 {
		return http.StatusOK
	}
	return r.status
}
