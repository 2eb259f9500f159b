package registry

import (
	"context"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/distribution/distribution/v3"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/oci"
)

// withManifestLock delays manifest uploads to next while garbage is being collected: see leaseClient. The body
// must have been read before: a slow client would use up the time for which a reading is valid.
func withManifestLock(leases *leaseClient, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPut || targetOf(r).manifest == "" {
			next.ServeHTTP(w, r)
			return
		}
		reading, err := leases.admit(r.Context())
		if err != nil {
			writeError(w, err)
			return
		}
		response := &bufferedResponse{ResponseWriter: w}
		a := &admission{leases: leases, reading: reading}
		next.ServeHTTP(response, r.WithContext(context.WithValue(r.Context(), admissionKey{}, a)))
		if a.refused == nil && response.status < http.StatusMultipleChoices {
			_ = a.confirm(r.Context(), leases.times.validity)
		}
		if a.refused != nil {
			clear(w.Header())
			writeError(w, a.refused)
			return
		}
		w.WriteHeader(response.code())
		_, _ = w.Write(response.body) // the client may have disconnected
	})
}

// withAnyMediaType serves manifests of every media type to clients that accept any or do not say what they accept.
// Distribution responds to them that the manifest is unknown.
func withAnyMediaType(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if accept := strings.Join(r.Header["Accept"], ","); accept == "" || strings.Contains(accept, "*") {
			r.Header.Set("Accept", oci.Accept)
		}
		next.ServeHTTP(w, r)
	})
}

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

// admission is that of a manifest upload. It is in the upload's context.
type admission struct {
	leases  *leaseClient
	reading *leaseReading // the last one
	refused error         // of confirm
}

type admissionKey struct{}

// confirm returns an error if a collection may have removed what the manifest needs since it was admitted.
// It reads the record again if the last reading is older than age.
func (a *admission) confirm(ctx context.Context, age time.Duration) error {
	if time.Since(a.reading.at) <= age {
		return nil
	}
	r, err := a.leases.read(ctx, age)
	switch {
	case err != nil:
		a.refused = unavailable("%v", err)
	case r.record.ID != a.reading.record.ID:
		a.refused = unavailable(
			"garbage was collected during this push and blobs of this image may be missing: push it again")
	default:
		a.reading = r
	}
	return a.refused
}

// confirmingTags moves no tag to a manifest that will be refused: the previous one stays.
type confirmingTags struct{ distribution.TagService }

func (t confirmingTags) Tag(ctx context.Context, tag string, manifest v1.Descriptor) error {
	if a, ok := ctx.Value(admissionKey{}).(*admission); ok {
		if err := a.confirm(ctx, a.leases.times.pollInterval); err != nil {
			return err
		}
	}
	return t.TagService.Tag(ctx, tag, manifest)
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
