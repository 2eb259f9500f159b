package remote

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/api/space"
)

func TestAFullRegistryIsNotAskedAgain(t *testing.T) {
	const message = "the storage is full: 96.0 % of the volume is used"
	for name, test := range map[string]struct {
		refuses func(r *http.Request) bool
		body    string
		want    string
	}{
		"at the beginning": {func(r *http.Request) bool { return r.Method == http.MethodPost }, message,
			" refuses pushes (507): " + message},
		"during the upload": {func(r *http.Request) bool { return r.Method == http.MethodPut }, message,
			" refuses pushes (507): " + message},
		"without a reason": {func(r *http.Request) bool { return r.Method == http.MethodPost }, "",
			" responded to POST with 507 Insufficient Storage"},
	} {
		t.Run(name, func(t *testing.T) {
			registry := newTestRegistry(t, true)
			refused := 0
			registry.SetFront(func(w http.ResponseWriter, r *http.Request) bool {
				if !test.refuses(r) {
					return false
				}
				refused++
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusInsufficientStorage)
				if test.body != "" {
					io.WriteString(w, `{"errors":[{"code":"INSUFFICIENT_STORAGE","message":"`+test.body+`"}]}`)
				}
				return true
			})
			b := noise(9, 200_000)
			repo := repository(t, registry.client(t, nil), "some/where")
			_, err := repo.PushBlob(t.Context(), describe(b), "", opener(b), nil)
			wantError(t, err, registry.Host()+test.want)
			if refused != 1 {
				t.Errorf("%d requests were refused", refused)
			}
			if name == "during the upload" && registry.Count("DELETE /v2/some/where/blobs/uploads/") != 1 {
				t.Errorf("the upload still occupies space: %q", registry.Requests())
			}
		})
	}
}

func TestSpaceOfARegistry(t *testing.T) {
	registry := newTestRegistry(t, true)
	client := registry.client(t, nil)
	if usage, err := client.Space(t.Context()); usage != (space.Usage{}) || err != nil {
		t.Errorf("a registry that does not tell: %+v, %v", usage, err)
	}
	if _, err := client.Missing(t.Context(), []digest.Digest{"sha256:a"}); err == nil ||
		!strings.Contains(err.Error(), "does not tell") {
		t.Errorf("%v", err)
	}

	sizes := []int{}
	registry.SetFront(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != space.Path {
			return false
		}
		if r.Method == http.MethodGet {
			io.WriteString(w, `{"used":1,"limit":2,"unknown":1}`)
			return true
		}
		var query space.Query
		if err := json.NewDecoder(r.Body).Decode(&query); err != nil {
			t.Error(err)
		}
		sizes = append(sizes, len(query.Digests))
		if err := json.NewEncoder(w).Encode(space.Answer{Missing: query.Digests[:1]}); err != nil {
			t.Error(err)
		}
		return true
	})
	usage, err := client.Space(t.Context())
	if err != nil || usage != (space.Usage{Used: 1, Limit: 2}) {
		t.Errorf("%+v, %v", usage, err)
	}
	digests := slices.Repeat([]digest.Digest{digest.FromString("a")}, space.MaxDigests+5)
	digests[space.MaxDigests] = digest.FromString("b")
	missing, err := client.Missing(t.Context(), digests)
	if err != nil || !slices.Equal(missing, []digest.Digest{digest.FromString("a"), digest.FromString("b")}) ||
		!slices.Equal(sizes, []int{space.MaxDigests, 5}) {
		t.Errorf("%v, %v, %v", missing, sizes, err)
	}

	registry.SetFront(func(w http.ResponseWriter, _ *http.Request) bool { io.WriteString(w, "<html>"); return true })
	if _, err := client.Space(t.Context()); err == nil || !strings.Contains(err.Error(), "invalid description of its storage") {
		t.Errorf("%v", err)
	}
	registry.SetFront(func(w http.ResponseWriter, _ *http.Request) bool { say(w, http.StatusForbidden, "DENIED"); return true })
	if _, err := client.Space(t.Context()); err == nil || !strings.Contains(err.Error(), "denied access") {
		t.Errorf("%v", err)
	}
}
