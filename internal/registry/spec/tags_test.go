package spec

import (
	"context"
	"testing"

	"github.com/distribution/distribution/v3"
	"github.com/distribution/distribution/v3/registry/storage/driver/inmemory"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// storedTags stores tags like distribution. Lookup returns all tags.
type storedTags struct {
	distribution.TagService
	source *Registry
}

func (s storedTags) Tag(ctx context.Context, tag string, manifest v1.Descriptor) error {
	return s.source.Driver.PutContent(ctx, storage.TagPath("a", tag), []byte(manifest.Digest))
}

func (s storedTags) Lookup(context.Context, v1.Descriptor) ([]string, error) {
	return []string{"kept", "moved"}, nil
}

func (s storedTags) Untag(ctx context.Context, tag string) error {
	return s.source.Driver.Delete(ctx, storage.TagPath("a", tag))
}

// TestDeletionKeepsTagsThatMoved moves a tag after a deletion of its manifest has looked it up.
func TestDeletionKeepsTagsThatMoved(t *testing.T) {
	t.Parallel()
	source := &Registry{Store: &content.Store{Driver: inmemory.New()}}
	request := func() distribution.TagService {
		return &currentTags{TagService: storedTags{source: source}, source: source, repository: "a"}
	}
	first, second := digest.FromString("first"), digest.FromString("second")
	push, deletion := request(), request()
	for _, tag := range []string{"kept", "moved"} {
		if err := push.Tag(t.Context(), tag, v1.Descriptor{Digest: first}); err != nil {
			t.Fatal(err)
		}
	}
	tags, err := deletion.Lookup(t.Context(), v1.Descriptor{Digest: first})
	if err != nil {
		t.Fatal(err)
	}
	if err := push.Tag(t.Context(), "moved", v1.Descriptor{Digest: second}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // another deletion may have removed the tag
		for _, tag := range tags {
			if err := deletion.Untag(t.Context(), tag); err != nil {
				t.Errorf("%s: %v", tag, err)
			}
		}
	}
	if got := source.Tagged(t.Context(), "a", "kept"); got != "" {
		t.Errorf("the tag of the deleted manifest refers to %s", got)
	}
	if got := source.Tagged(t.Context(), "a", "moved"); got != second {
		t.Errorf("the tag that moved refers to %q", got)
	}
	if err := request().Untag(t.Context(), "moved"); err != nil {
		t.Error(err)
	}
	if got := source.Tagged(t.Context(), "a", "moved"); got != "" {
		t.Errorf("the deleted tag refers to %s", got)
	}
}
