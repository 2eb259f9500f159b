package registry

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/distribution/distribution/v3"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/internal/registry/collect"
	"github.com/zarf-dev/zarf-registry/internal/registry/request"
)

// withManifestLock delays manifest uploads to next that need what another process's collection may remove: see
// package collect. The body must have been read before: a slow client would use up the time for which a reading is valid.
func withManifestLock(collector *collect.Collector, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPut {
			next.ServeHTTP(w, r)
			return
		}
		to := request.TargetOf(r)
		if to.Manifest == "" {
			next.ServeHTTP(w, r)
			return
		}
		pushed, _ := r.Context().Value(pushKey{}).(push)
		a, err := collector.Admit(r.Context(), to.Repository, slices.Concat(pushed.digests, pushed.needs))
		if err != nil {
			request.WriteError(w, err)
			return
		}
		response := request.Buffer(w)
		next.ServeHTTP(response, r.WithContext(context.WithValue(r.Context(), admissionKey{}, a)))
		err = a.RefusedWith()
		if err == nil && response.Status < http.StatusMultipleChoices {
			err = a.ConfirmResponse(r.Context())
		}
		if err != nil {
			request.ClearHeader(w.Header())
			request.WriteError(w, err)
			return
		}
		response.Send(w)
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

type admissionKey struct{}

// confirmingTags moves no tag to a manifest that will be refused: the previous one stays.
type confirmingTags struct{ distribution.TagService }

func (t confirmingTags) Tag(ctx context.Context, tag string, manifest v1.Descriptor) error {
	if a, ok := ctx.Value(admissionKey{}).(*collect.Admission); ok {
		if err := a.ConfirmTag(ctx); err != nil {
			return err
		}
	}
	return t.TagService.Tag(ctx, tag, manifest)
}
