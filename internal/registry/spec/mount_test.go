package spec

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/distribution/distribution/v3"
	upstream "github.com/distribution/distribution/v3/registry/storage"
	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/distribution/distribution/v3/registry/storage/driver/filesystem"
	"github.com/distribution/distribution/v3/registry/storage/driver/inmemory"
	"github.com/distribution/reference"

	"github.com/zarf-dev/zarf-registry/internal/registry/collect"
	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// A mount writes the same bytes as distribution's own.
func TestMountWritesWhatDistributionWrites(t *testing.T) {
	t.Parallel()
	for name, driver := range map[string]storagedriver.StorageDriver{
		"filesystem": filesystem.New(filesystem.DriverParameters{RootDirectory: t.TempDir(), MaxThreads: 25}),
		"inmemory":   inmemory.New(),
	} {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			own, err := upstream.NewRegistry(ctx, driver, upstream.EnableDelete)
			if err != nil {
				t.Fatal(err)
			}
			blobs := func(namespace distribution.Namespace, name string) distribution.BlobStore {
				t.Helper()
				repository, err := namespace.Repository(ctx, named(name))
				if err != nil {
					t.Fatal(err)
				}
				return repository.Blobs(ctx)
			}
			stored, err := blobs(own, "first").Put(ctx, "application/octet-stream", []byte("shared"))
			if err != nil {
				t.Fatal(err)
			}
			from, err := reference.WithDigest(named("first"), stored.Digest)
			if err != nil {
				t.Fatal(err)
			}
			store := &content.Store{Driver: driver, Log: slog.New(slog.DiscardHandler)}
			ours := blobNamespace{own, own.(distribution.RepositoryRemover),
				&Registry{Store: store, collector: collect.New(store, "")}}

			var want, got distribution.ErrBlobMounted
			if _, err := blobs(own, "distribution").Create(ctx, upstream.WithMountFrom(from)); !errors.As(err, &want) {
				t.Fatalf("distribution did not mount: %v", err)
			}
			request := httptest.NewRequestWithContext(ctx, http.MethodPost, "/?mount="+stored.Digest.String(), nil)
			if _, err := blobs(ours, "discovered").Create(context.WithValue(ctx, requestKey{}, request)); !errors.As(err, &got) {
				t.Fatalf("it was not mounted: %v", err)
			}
			if got.Descriptor.Digest != want.Descriptor.Digest || got.Descriptor.Size != want.Descriptor.Size ||
				got.Descriptor.MediaType != want.Descriptor.MediaType {
				t.Errorf("mounted %+v, distribution %+v", got.Descriptor, want.Descriptor)
			}
			wrote, wanted := tree(t, driver, "discovered"), tree(t, driver, "distribution")
			if !maps.Equal(wrote, wanted) || len(wanted) == 0 {
				t.Errorf("wrote %q, distribution writes %q", wrote, wanted)
			}
			if got, want := slices.Sorted(maps.Keys(wanted)), []string{"/_layers/sha256/" + stored.Digest.Encoded() +
				"/link"}; !slices.Equal(got, want) {
				t.Errorf("distribution writes %q, want %q", got, want)
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
