package remote

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/images/blob"
	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// anyDigest is a registry of one repository in memory that supports all digest algorithms, and what OCI 1.1 and
// later add if a test wants it.
type anyDigest struct {
	api       bool // serves the referrers API
	page      int  // referrers on a page
	parameter bool // supports tag parameters

	mu        sync.Mutex
	blobs     map[digest.Digest][]byte
	manifests map[digest.Digest]ocispec.Descriptor
	tags      map[string]digest.Digest
	breakAt   int // bytes after which the next response with a blob breaks off
}

func newAnyDigest() *anyDigest {
	return &anyDigest{api: true, page: 2, parameter: true, blobs: map[digest.Digest][]byte{},
		manifests: map[digest.Digest]ocispec.Descriptor{}, tags: map[string]digest.Digest{}}
}

func (a *anyDigest) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	path := strings.TrimPrefix(r.URL.Path, "/v2/some/where/")
	kind, name, _ := strings.Cut(path, "/")
	query := r.URL.Query()
	body, err := io.ReadAll(r.Body)
	switch {
	case err != nil:
		say(w, http.StatusBadRequest, "UNKNOWN")
	case r.Method == http.MethodPost:
		w.Header().Set("Location", r.URL.Path+"one")
		w.WriteHeader(http.StatusAccepted)
	case kind == "blobs" && r.Method == http.MethodPut:
		d := digest.Digest(query.Get("digest"))
		a.blobs[d] = body
		w.Header().Set(oci.HeaderDigest, d.String())
		w.WriteHeader(http.StatusCreated)
	case kind == "blobs":
		a.serve(w, r, digest.Digest(name), "application/octet-stream")
	case kind == "manifests" && r.Method == http.MethodPut:
		a.putManifest(w, name, query["tag"], r.Header.Get("Content-Type"), body)
	case kind == "manifests":
		d := digest.Digest(name)
		if tagged, ok := a.tags[name]; ok {
			d = tagged
		}
		a.serve(w, r, d, a.manifests[d].MediaType)
	case kind == "referrers" && a.api:
		a.list(w, r, digest.Digest(name))
	default:
		http.NotFound(w, r)
	}
}

func (a *anyDigest) serve(w http.ResponseWriter, r *http.Request, d digest.Digest, mediaType string) {
	content, ok := a.blobs[d]
	if !ok || mediaType == "" {
		say(w, http.StatusNotFound, "UNKNOWN")
		return
	}
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set(oci.HeaderDigest, d.String())
	if a.breakAt > 0 && r.Method == http.MethodGet {
		w.Header().Set("Content-Length", strconv.Itoa(len(content)))
		w.Write(content[:a.breakAt])
		a.breakAt = 0
		panic(http.ErrAbortHandler)
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
}

func (a *anyDigest) putManifest(w http.ResponseWriter, name string, tags []string, mediaType string, raw []byte) {
	d := digest.Digest(name)
	if d.Validate() != nil {
		d, tags = digest.FromBytes(raw), []string{name}
	} else if !a.parameter {
		tags = nil
	} else {
		w.Header()[http.CanonicalHeaderKey(tagHeader)] = tags
	}
	for _, tag := range tags {
		a.tags[tag] = d
	}
	a.blobs[d] = raw
	a.manifests[d] = ocispec.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(raw))}
	if subject := subjectOf(raw); subject != "" && a.api {
		w.Header().Set(subjectHeader, subject.String())
	}
	w.Header().Set(oci.HeaderDigest, d.String())
	w.WriteHeader(http.StatusCreated)
}

func (a *anyDigest) list(w http.ResponseWriter, r *http.Request, subject digest.Digest) {
	var all []ocispec.Descriptor
	for d, desc := range a.manifests {
		if subjectOf(a.blobs[d]) == subject {
			all = append(all, desc)
		}
	}
	slices.SortFunc(all, func(a, b ocispec.Descriptor) int { return strings.Compare(a.Digest.String(), b.Digest.String()) })
	from, _ := strconv.Atoi(r.URL.Query().Get("from"))
	to := min(from+a.page, len(all))
	if to < len(all) {
		w.Header().Set("Link", fmt.Sprintf(`<%s?from=%d>; rel="next"`, r.URL.Path, to))
	}
	w.Header().Set("Content-Type", ocispec.MediaTypeImageIndex)
	json.NewEncoder(w).Encode(ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, Manifests: all[from:to]})
}

func subjectOf(raw []byte) digest.Digest {
	var manifest ocispec.Manifest
	if json.Unmarshal(raw, &manifest) != nil || manifest.Subject == nil {
		return ""
	}
	return manifest.Subject.Digest
}

func describeAs(algorithm digest.Algorithm, mediaType string, b []byte) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: mediaType, Digest: algorithm.FromBytes(b), Size: int64(len(b))}
}

func TestSHA512(t *testing.T) {
	registry := newAnyDigest()
	server := newTestServer(t, true, registry.ServeHTTP)
	repo := repository(t, server.client(t, nil), "some/where")
	content := noise(1, 100_000)
	desc := describeAs(digest.SHA512, ocispec.MediaTypeImageLayer, content)

	t.Run("a blob is uploaded and found", func(t *testing.T) {
		require.Value(repo.PushBlob(t.Context(), desc, "", opener(content), nil))(t)
		if ok, err := repo.Exists(t.Context(), desc); err != nil || !ok {
			t.Errorf("exists %v, error %v", ok, err)
		}
	})
	t.Run("an interrupted download is resumed", func(t *testing.T) {
		registry.mu.Lock()
		registry.breakAt = 40_000
		registry.mu.Unlock()
		got, err := pull(t.Context(), repo, desc, 0)
		if err != nil || !bytes.Equal(got, content) {
			t.Errorf("%d bytes, error %v", len(got), err)
		}
		if n := server.Count("GET /v2/some/where/blobs/sha512:"); n != 2 {
			t.Errorf("%d requests, want 2", n)
		}
	})
	t.Run("from an offset", func(t *testing.T) {
		if got, err := pull(t.Context(), repo, desc, 99_000); err != nil || !bytes.Equal(got, content[99_000:]) {
			t.Errorf("%d bytes, error %v", len(got), err)
		}
	})
	t.Run("content that does not match is not uploaded", func(t *testing.T) {
		other := describeAs(digest.SHA512, ocispec.MediaTypeImageLayer, noise(2, 1000))
		_, err := repo.PushBlob(t.Context(), other, "", opener(noise(3, 1000)), nil)
		if wrong := new(blob.Error); !errors.As(err, &wrong) {
			t.Errorf("error %v, want one about content", err)
		}
		if ok, err := repo.Exists(t.Context(), other); err != nil || ok {
			t.Errorf("exists %v, error %v", ok, err)
		}
	})
	t.Run("other algorithms are rejected", func(t *testing.T) {
		for _, d := range []digest.Digest{digest.SHA384.FromBytes(content), "blake3:" + digest.Digest(strings.Repeat("0", 64))} {
			desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: d, Size: desc.Size}
			_, pushErr := repo.PushBlob(t.Context(), desc, "", opener(content), nil)
			_, pullErr := pull(t.Context(), repo, desc, 0)
			for _, err := range []error{pushErr, pullErr, repo.PushManifest(t.Context(), desc, content, "v1")} {
				wantError(t, err, "digest algorithm "+d.Algorithm().String()+" is not supported: want sha256 or sha512")
			}
		}
	})
	for _, parameter := range []bool{true, false} {
		t.Run(fmt.Sprintf("a tagged manifest, tag parameters supported %v", parameter), func(t *testing.T) {
			registry.mu.Lock()
			registry.parameter = parameter
			registry.mu.Unlock()
			raw := []byte(fmt.Sprintf(`{"schemaVersion":2,"manifests":[],"annotations":{"a":"%v"}}`, parameter))
			desc := describeAs(digest.SHA512, ocispec.MediaTypeImageIndex, raw)
			tag := fmt.Sprint("tag-", parameter)
			require.NoError(t, repo.PushManifest(t.Context(), desc, raw, tag))
			got, b, err := repo.Manifest(t.Context(), desc.Digest.String())
			if err != nil || !sameContent(got, desc) || !bytes.Equal(b, raw) {
				t.Errorf("by digest: %v, error %v", got, err)
			}
			want := desc // a registry without tag parameters chooses the digest
			if !parameter {
				want = describeAs(digest.SHA256, ocispec.MediaTypeImageIndex, raw)
			}
			if got, err := repo.Resolve(t.Context(), tag); err != nil || !sameContent(got, want) {
				t.Errorf("by tag: %v, error %v, want %v", got, err, want)
			}
			if got, _, err := repo.Manifest(t.Context(), tag); err != nil || !sameContent(got, want) {
				t.Errorf("by tag: %v, error %v, want %v", got, err, want)
			}
		})
	}
	t.Run("a damaged manifest is detected", func(t *testing.T) {
		raw := []byte(`{"schemaVersion":2}`)
		d := digest.SHA512.FromBytes(raw)
		registry.mu.Lock()
		registry.blobs[d] = []byte(`{"schemaVersion":3}`)
		registry.manifests[d] = describeAs(digest.SHA512, ocispec.MediaTypeImageIndex, raw)
		registry.mu.Unlock()
		_, _, err := repo.Manifest(t.Context(), d.String())
		wantError(t, err, "returned a manifest with digest sha512:", "want "+d.String())
	})
}

// Distribution accepts blobs with any digest, but not manifests. Other registries then know the blobs by their SHA-256
// digest only.
func TestRegistryWithoutSHA512(t *testing.T) {
	registry := newTestRegistry(t, true)
	repo := repository(t, registry.client(t, nil), "some/where")
	content := noise(1, 1000)
	blob := describeAs(digest.SHA512, ocispec.MediaTypeImageLayer, content)
	if _, err := repo.PushBlob(t.Context(), blob, "", opener(content), nil); err != nil {
		t.Error(err)
	}
	raw := []byte(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[]}`)
	desc := describeAs(digest.SHA512, ocispec.MediaTypeImageIndex, raw)
	wantError(t, repo.PushManifest(t.Context(), desc, raw, "v1"),
		"rejected the manifest's digest "+desc.Digest.String()+": it may not support sha512")

	registry.SetFront(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodHead || !strings.Contains(r.URL.Path, "/sha512:") {
			return false
		}
		w.WriteHeader(http.StatusNotFound)
		return true
	})
	_, err := repo.PushBlob(t.Context(), blob, "", opener(content), nil)
	wantError(t, err, "stored "+blob.Digest.String()+" under digest "+digest.FromBytes(content).String()+
		": it does not support sha512")
}
