package remote

import (
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

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/errdef"

	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// TestReferrers lists referrers by the API or, where a registry lacks it, by the index that PushManifest keeps.
func TestReferrers(t *testing.T) {
	for _, api := range []bool{true, false} {
		for _, algorithm := range []digest.Algorithm{digest.SHA256, digest.SHA512} {
			t.Run(fmt.Sprintf("%s, API %v", algorithm, api), func(t *testing.T) {
				registry := newAnyDigest()
				registry.api = api
				server := newTestServer(t, true, registry.ServeHTTP)
				repo := repository(t, server.client(t, nil), "some/where")
				raw := []byte(`{"schemaVersion":2,"manifests":[]}`)
				subject := describeAs(algorithm, ocispec.MediaTypeImageIndex, raw)
				require.NoError(t, repo.PushManifest(t.Context(), subject, raw, "v1"))
				var want []string
				var pushing sync.WaitGroup
				for i := range 5 {
					mediaType := ocispec.MediaTypeImageManifest
					if i == 4 {
						mediaType = ocispec.MediaTypeImageIndex // an index can be a referrer, too
					}
					raw, err := json.Marshal(map[string]any{
						"schemaVersion": 2, "mediaType": mediaType, "artifactType": fmt.Sprint("example/", i),
						"subject": subject, "annotations": map[string]string{"n": strconv.Itoa(i)},
					})
					require.NoError(t, err)
					desc := describeAs(algorithm, mediaType, raw)
					want = append(want, desc.Digest.String())
					pushing.Go(func() {
						if err := repo.PushManifest(t.Context(), desc, raw, ""); err != nil {
							t.Error(err)
						}
					})
				}
				pushing.Wait()
				var got []ocispec.Descriptor
				require.NoError(t, repo.Referrers(t.Context(), subject.Digest, func(page []ocispec.Descriptor) error {
					got = append(got, page...)
					return nil
				}))
				var digests []string
				for _, desc := range got {
					digests = append(digests, desc.Digest.String())
				}
				slices.Sort(digests)
				slices.Sort(want)
				if diff := cmp.Diff(want, digests); diff != "" {
					t.Error(diff)
				}
				tag := algorithm.String() + "-" + subject.Digest.Encoded()[:64]
				_, _, err := repo.Manifest(t.Context(), tag)
				if api {
					if !errors.Is(err, errdef.ErrNotFound) {
						t.Errorf("a referrers tag exists although the registry has the API: error %v", err)
					}
					return
				}
				require.NoError(t, err)
				for _, desc := range got {
					if !strings.HasPrefix(desc.ArtifactType, "example/") || desc.Annotations["n"] == "" {
						t.Errorf("listed without its type and annotations: %+v", desc)
					}
				}
			})
		}
	}
}

func TestEndlessReferrers(t *testing.T) {
	server := newTestServer(t, true, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", ocispec.MediaTypeImageIndex)
		w.Header().Set("Link", `<`+r.URL.Path+`>; rel="next"`)
		io.WriteString(w, `{"schemaVersion":2,"manifests":[]}`)
	})
	repo := repository(t, server.client(t, nil), "some/where")
	err := repo.Referrers(t.Context(), digest.FromString("x"), func([]ocispec.Descriptor) error { return nil })
	wantError(t, err, "exceeded 1000 pages")
}

// A registry may take a referrers tag for the subject's digest.
func TestReferrersTagThatNamesTheSubject(t *testing.T) {
	raw := []byte(`{"schemaVersion":2,"manifests":[{"mediaType":"` + ocispec.MediaTypeImageManifest + `","digest":"` +
		digest.FromString("child").String() + `","size":5}]}`)
	for name, mediaType := range map[string]string{"an index": ocispec.MediaTypeImageIndex,
		"an image": ocispec.MediaTypeImageManifest, "a Docker list": oci.MediaTypeDockerManifestList} {
		t.Run(name, func(t *testing.T) {
			server := newTestServer(t, true, func(w http.ResponseWriter, r *http.Request) {
				if !strings.Contains(r.URL.Path, "/manifests/") {
					http.NotFound(w, r)
					return
				}
				w.Header().Set("Content-Type", mediaType)
				w.Write(raw)
			})
			repo := repository(t, server.client(t, nil), "some/where")
			if err := repo.Referrers(t.Context(), digest.FromBytes(raw), func(list []ocispec.Descriptor) error {
				return fmt.Errorf("listed %v", list)
			}); err != nil {
				t.Error(err)
			}
		})
	}
}
