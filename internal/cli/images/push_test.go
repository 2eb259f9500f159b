package images

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/api/space"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
)

// spaceful is a registry that has some blobs, and tells how full it is.
type spaceful struct {
	usage  space.Usage
	stored []digest.Digest
	err    error // of Space
	asked  int   // for missing blobs
	failed error // of Missing
}

func (s *spaceful) Space(context.Context) (space.Usage, error) { return s.usage, s.err }

func (s *spaceful) Missing(_ context.Context, digests []digest.Digest) ([]digest.Digest, error) {
	s.asked++
	return slices.DeleteFunc(slices.Clone(digests), func(d digest.Digest) bool { return slices.Contains(s.stored, d) }), s.failed
}

func TestImagesThatDoNotFitAreRefused(t *testing.T) {
	a, b := digest.FromString("a"), digest.FromString("b")
	content := []ocispec.Descriptor{{Digest: a, Size: 30_000_000}, {Digest: b, Size: 40_000_000}}
	volume := func(used int64) space.Usage { return space.Usage{Used: used * 1_000_000, Limit: 100_000_000} }
	gone := errors.New("connection lost")
	for name, test := range map[string]struct {
		registry spaceful
		refused  []string
		asked    int
		logged   string
	}{
		"an older registry":            {spaceful{}, nil, 0, ""},
		"everything fits":              {spaceful{usage: volume(20)}, nil, 0, ""},
		"what is missing fits":         {spaceful{usage: volume(60), stored: []digest.Digest{b}}, nil, 1, ""},
		"nothing is missing":           {spaceful{usage: volume(99), stored: []digest.Digest{a, b}}, nil, 1, ""},
		"what is missing does not fit": {spaceful{usage: volume(60), stored: []digest.Digest{a}}, []string{"the images need 40.0 MB that the registry does not have, and it accepts 35.0 MB more", "60.0 % of the volume is used, 60.0 MB of 100.0 MB", "registry.persistence.size", "nothing was sent"}, 1, ""},
		"it is full":                   {spaceful{usage: volume(96)}, []string{"need 70.0 MB", "accepts 0 B more"}, 1, ""},
		"it does not answer":           {spaceful{err: gone}, nil, 0, "connection lost"},
		"it does not say what it has":  {spaceful{usage: volume(90), failed: gone}, nil, 1, "connection lost"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			err := fits(t.Context(), &test.registry, content, slog.New(slog.NewTextHandler(&out, nil)))
			if (err != nil) != (test.refused != nil) || err != nil && !exitcode.IsRefusal(err) {
				t.Fatalf("%v", err)
			}
			for _, want := range test.refused {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v does not say %q", err, want)
				}
			}
			if test.registry.asked != test.asked {
				t.Errorf("asked %d times for missing blobs", test.registry.asked)
			}
			if test.logged == "" && out.Len() > 0 || !strings.Contains(out.String(), test.logged) {
				t.Errorf("logged %q", &out)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := fits(ctx, &spaceful{err: gone}, content, slog.New(slog.DiscardHandler)); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}
