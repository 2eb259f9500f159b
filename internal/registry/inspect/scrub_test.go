package inspect

import (
	"testing"

	"github.com/distribution/distribution/v3/registry/storage/driver/inmemory"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/api/scrub"
	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
	"github.com/zarf-dev/zarf-registry/test/require"
)

func TestScrubReportsDamagedLinksOfManifests(t *testing.T) {
	t.Parallel()
	store, d := &content.Store{Driver: inmemory.New()}, digest.FromString("{}")
	for path, text := range map[string]string{storage.BlobPath(d): "{}", storage.RevisionPath("a", d): ""} {
		require.NoError(t, store.Driver.PutContent(t.Context(), path, []byte(text)))
	}
	var problems []string
	_, err := NewScrubber(store).Run(t.Context(), scrub.Request{Rate: 1 << 30}, func(*scrub.Progress) {},
		func(p scrub.Problem) { problems = append(problems, p.String()) })
	if want := "missing " + d.String() + " a@" + d.String(); err != nil || len(problems) != 1 || problems[0] != want {
		t.Errorf("%q, %v, want %q", problems, err, want)
	}
}
