package content

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/distribution/distribution/v3/registry/storage/driver/inmemory"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// Damaged links are left to the next push.
func TestDamagedLinksDoNotPreventARebuild(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	s := &Store{Driver: inmemory.New(), Log: slog.New(slog.NewTextHandler(&log, nil))}
	subject := digest.FromString("subject")
	referrer := fmt.Sprintf(`{"schemaVersion":2,"artifactType":"x","subject":{"digest":%q}}`, subject)
	intact := digest.FromString(referrer)
	for path, text := range map[string]string{
		storage.BlobPath(intact):                                  referrer,
		storage.RevisionPath("a", intact):                         intact.String(),
		storage.RevisionPath("a", digest.FromString("x")):         "",
		storage.RevisionsDir("a") + "/sha256/named/link":          "",
		storage.RevisionPath("a", digest.SHA512.FromString("x")):  "",
		storage.LayerPath("a", digest.SHA512.FromString("layer")): "",
	} {
		require.NoError(t, s.Driver.PutContent(t.Context(), path, []byte(text)))
	}
	if err := s.Rebuild(t.Context()); err != nil {
		t.Error(err)
	}
	if damaged := storage.RevisionsDir("a") + "/sha256/named/link is damaged"; !strings.Contains(log.String(), damaged) {
		t.Errorf("the log does not contain %q: %s", damaged, log.String())
	}
	for _, rebuilt := range []bool{false, true} {
		s.Rebuilt.Store(rebuilt)
		page, _, err := s.Referrers(t.Context(), "a", subject, "", "", MaxReferrers)
		if err != nil || len(page) != 1 || page[0].Digest != intact {
			t.Errorf("rebuilt: %t: %v, %v", rebuilt, page, err)
		}
	}
}
