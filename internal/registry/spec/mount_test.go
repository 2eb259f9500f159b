package spec

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/distribution/distribution/v3"
	upstream "github.com/distribution/distribution/v3/registry/storage"
	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// A mount writes the same bytes as distribution's own.
func TestMountWritesWhatDistributionWrites(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]*Registry{"filesystem": openAt(t, t.TempDir(), unchanged), "inmemory": openInMemory(t)} {
		t.Run(name, func(t *testing.T) {
			d := digest.FromString("shared")
			s.request(t, http.StatusCreated, "POST", "/v2/first/blobs/uploads/?digest="+d.String(), strings.NewReader("shared"))
			s.request(t, http.StatusCreated, "POST", "/v2/discovered/blobs/uploads/?mount="+d.String(), nil)
			own, err := upstream.NewRegistry(t.Context(), s.Driver)
			if err != nil {
				t.Fatal(err)
			}
			repository, err := own.Repository(t.Context(), named("distribution"))
			if err != nil {
				t.Fatal(err)
			}
			from, err := reference.WithDigest(named("first"), d)
			if err != nil {
				t.Fatal(err)
			}
			_, err = repository.Blobs(t.Context()).Create(t.Context(), upstream.WithMountFrom(from))
			if !errors.As(err, new(distribution.ErrBlobMounted)) {
				t.Fatalf("distribution did not mount: %v", err)
			}
			wrote, wanted := tree(t, s.Driver, "discovered"), tree(t, s.Driver, "distribution")
			if !maps.Equal(wrote, wanted) || len(wanted) != 1 {
				t.Errorf("wrote %q, distribution writes %q", wrote, wanted)
			}
		})
	}
}

func named(repository string) reference.Named {
	name, err := reference.WithName(repository)
	if err != nil {
		panic(err)
	}
	return name
}

// tree returns the files of a repository and their content.
func tree(t *testing.T, driver storagedriver.StorageDriver, repository string) map[string]string {
	t.Helper()
	files, root := map[string]string{}, storage.RepositoriesPath+"/"+repository
	err := driver.Walk(context.Background(), root, func(info storagedriver.FileInfo) error {
		if info.IsDir() {
			return nil
		}
		reader, err := driver.Reader(context.Background(), info.Path(), 0)
		if err != nil {
			return err
		}
		defer reader.Close()
		content, err := io.ReadAll(reader)
		files[strings.TrimPrefix(info.Path(), root)] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
