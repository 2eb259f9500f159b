package volume

import (
	"context"
	"io"
	"net/http"
	"sync/atomic"

	"github.com/distribution/distribution/v3/registry/api/errcode"

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
	"github.com/zarf-dev/zarf-registry/internal/api/space"
	"github.com/zarf-dev/zarf-registry/internal/registry/request"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// errorCodeFull is not in the OCI distribution specification, which has no code for this. Of its codes, DENIED makes
// clients ask for another credential, TOOMANYREQUESTS and distribution's UNAVAILABLE make them retry, and SIZE_INVALID
// is about a wrong length. Clients show an unknown code with its message.
var errorCodeFull = errcode.Register("zarf-registry", errcode.ErrorDescriptor{
	Value:          "INSUFFICIENT_STORAGE",
	Message:        "the storage is full",
	Description:    "Returned when a push does not fit into the storage",
	HTTPStatusCode: http.StatusInsufficientStorage,
})

// errNoSpace is the response if a file system is full although that was not expected.
var errNoSpace = errorCodeFull.WithMessage("the file system of the storage has no space left: " + space.Remedy)

// Limit refuses pushes to next that do not fit, and responds 507 to those that the file system refuses.
func (s *Space) Limit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		to := request.TargetOf(r)
		pushes := r.Method == http.MethodPost || r.Method == http.MethodPatch || r.Method == http.MethodPut
		if !pushes || !to.Upload && to.Manifest == "" {
			next.ServeHTTP(w, r)
			return
		}
		if err := s.admit(catalog.Own(to.Repository), r.ContentLength); err != nil {
			if to.Upload && r.Method != http.MethodPost {
				cancelUpload(next, r)
			}
			request.WriteError(w, err)
			return
		}
		body := &Body{ReadCloser: r.Body, space: s, own: catalog.Own(to.Repository), expected: max(r.ContentLength, 0)}
		defer body.finish()
		full := new(atomic.Bool)
		r = r.WithContext(context.WithValue(r.Context(), noSpaceKey{}, full))
		r.Body = body
		next.ServeHTTP(&noSpaceResponse{ResponseWriter: w, full: full}, r)
	})
}

// cancelUpload removes the upload that a request continues: few clients do, and until a purge it would occupy space.
func cancelUpload(next http.Handler, r *http.Request) {
	r = r.Clone(r.Context())
	r.Method, r.Body, r.ContentLength = http.MethodDelete, http.NoBody, 0
	next.ServeHTTP(request.Detach(), r)
}

// Body counts the body of a push. net/http does not read it concurrently.
type Body struct {
	io.ReadCloser
	space    *Space
	own      bool  // the repository is the project's
	expected int64 // 0 if the client does not say how large it is, as docker and skopeo
}

func (b *Body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		expected := min(int64(n), b.expected)
		b.expected -= expected
		b.space.Arrived(int64(n), expected)
	}
	return n, err
}

// Reserve admits what the push makes the registry write in addition. It is called after the body was read.
func (b *Body) Reserve(bytes int64) error {
	err := b.space.admit(b.own, bytes)
	if err == nil {
		b.expected += bytes
	}
	return err
}

// Wrote counts what the push has made the registry write in addition.
func (b *Body) Wrote(bytes int64) { b.space.Arrived(bytes, 0) }

// finish gives up what has not come.
func (b *Body) finish() {
	b.space.Arrived(0, b.expected)
	b.expected = 0
}

type noSpaceKey struct{}

// RecordNoSpace makes the response to a push 507, if err says that the file system is full. It reports whether it does.
func RecordNoSpace(ctx context.Context, err error) bool {
	if err == nil || !storage.NoSpace(err) {
		return false
	}
	if full, ok := ctx.Value(noSpaceKey{}).(*atomic.Bool); ok {
		full.Store(true)
	}
	return true
}

// noSpaceResponse replaces an error response if the file system is full.
type noSpaceResponse struct {
	http.ResponseWriter
	full     *atomic.Bool
	replaced bool
}

func (r *noSpaceResponse) WriteHeader(status int) {
	if status < http.StatusInternalServerError || !r.full.Load() {
		r.ResponseWriter.WriteHeader(status)
		return
	}
	if !r.replaced {
		r.replaced = true
		request.ClearHeader(r.Header())
		request.WriteError(r.ResponseWriter, errNoSpace)
	}
}

func (r *noSpaceResponse) Write(p []byte) (int, error) {
	if r.replaced {
		return len(p), nil
	}
	return r.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (r *noSpaceResponse) Unwrap() http.ResponseWriter { return r.ResponseWriter }
