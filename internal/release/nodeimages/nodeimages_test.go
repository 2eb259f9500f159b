package nodeimages_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/internal/release/nodeimages"
	"github.com/zarf-dev/zarf-registry/test/require"
)

const (
	official = "@sha256:7031c1b283388d2c2e09b57badb803c05ebed362dc88d84b480cc47f72a21097"
	other    = "@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
)

// rules are as the chart makes them, but shorter.
var rules = nodeimages.Rules{
	References: []string{"example.com/mine:1"}, Digest: "^[^@]+" + official + "$",
	Name: `^(registry\.k8s\.io/pause)(:[0-9A-Za-z_][0-9A-Za-z_.-]*|@sha256:[0-9a-f]{64})$`,
	Own:  `(?i)^(localhost|[^/]*:31999)(:[0-9]+)?/`, Official: []string{"untrusted.example/pause:1", "registry.k8s.io/pause:3.8"},
}

func list(images ...nodeimages.Image) []nodeimages.Image { return images }

func image(names ...string) nodeimages.Image { return nodeimages.Image{Names: names, SizeBytes: 1} }

func TestChoose(t *testing.T) {
	full := make([]nodeimages.Image, nodeimages.MaxReported)
	for description, c := range map[string]struct {
		images []nodeimages.Image
		inUse  []string
		except []string
		want   string
	}{
		"the release's own image first": {
			list(image("a/p"+official), image("registry.k8s.io/pause:3"), image("example.com/mine:1")), nil, nil,
			"example.com/mine:1",
		},
		"an official digest in any repository": {
			list(image("registry.k8s.io/pause:3.9"), image("a/p"+official, "a/p:1")), nil, nil, "a/p" + official,
		},
		"a well-known repository": {list(image("registry.k8s.io/pause"+other, "a/b:1")), nil, nil, "registry.k8s.io/pause" + other},
		"the next one, of as much trust": {
			list(image("b/p"+official), image("a/p"+official)), nil, []string{"a/p" + official}, "b/p" + official,
		},
		"those of this registry last": {
			list(image("LOCALHOST/p"+official, "registry.k8s.io/pause:3.9")), nil, nil, "registry.k8s.io/pause:3.9",
		},
		"one of this registry by its digest": {
			list(image("x:31999/p"+official, "x:31999/p:9"), image("x:31999/p"+other)), nil, nil, "x:31999/p" + official,
		},
		"no image only for its name": {list(image("a/pause:9"), image("a/pause"+other), image("a/small:1")), nil, nil, ""},
		"nothing if all failed":      {list(image("a/p" + official)), nil, []string{"a/p" + official}, ""},
		"nothing of no images":       {nil, []string{"example.com/mine:1"}, nil, ""},
		"not those in use elsewhere, if the list is complete": {
			list(image("a/b:1")), []string{"registry.k8s.io/pause:3.9"}, nil, "",
		},
		"of a truncated list, the release's own image may be there": {full, nil, nil, "example.com/mine:1"},
		"then those in use elsewhere": {
			full, []string{"evil/pause:1", "registry.k8s.io/pause:3.9"}, []string{"example.com/mine:1"},
			"registry.k8s.io/pause:3.9",
		},
		"then official ones": {full, []string{"evil/pause:1"}, []string{"example.com/mine:1"}, "registry.k8s.io/pause:3.8"},
		"then nothing":       {full, []string{"evil/pause:1"}, []string{"example.com/mine:1", "registry.k8s.io/pause:3.8"}, ""},
	} {
		if got := rules.Choose(c.images, c.inUse, c.except...); got != c.want {
			t.Errorf("%s: %q, want %q", description, got, c.want)
		}
	}
}

func TestComplete(t *testing.T) {
	full := make([]nodeimages.Image, nodeimages.MaxReported)
	for description, c := range map[string]struct {
		images []nodeimages.Image
		want   bool
	}{
		"no list yet":                       {nil, false},
		"a short list":                      {full[1:], true},
		"a truncated list":                  {full, false},
		"a full list with a trusted image":  {append(list(image("registry.k8s.io/pause:3")), full[1:]...), true},
		"a full list with a tenant's pause": {append(list(image("a/pause:3")), full[1:]...), false},
	} {
		if got := rules.Complete(c.images); got != c.want {
			t.Errorf("%s: %t", description, got)
		}
	}
	if images := list(image("a:1", "b:1")); !nodeimages.Reported(images, "b:1") || nodeimages.Reported(images, "c:1") {
		t.Error("Reported is wrong")
	}
}

func TestRulesAreRead(t *testing.T) {
	dir := t.TempDir()
	write := func(key, value string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, key), []byte(value), 0o600))
	}
	write("references", "a:1\nb:1\n")
	write("name", "^a$")
	write("own", "^b$")
	write("official", "c:1\nd:1\n")
	if _, err := nodeimages.Read(dir); err == nil {
		t.Error("read without a digest")
	}
	for _, bad := range []string{"", "("} {
		write("digest", bad)
		if r, err := nodeimages.Read(dir); err == nil || !strings.Contains(err.Error(), "digest") || r.Trust("x") != nodeimages.None {
			t.Errorf("%q: %v", bad, err)
		}
	}
	write("digest", "^d$")
	if r, err := nodeimages.Read(dir); err != nil || !slices.Equal(r.References, []string{"a:1", "b:1"}) ||
		!slices.Equal(r.Official, []string{"c:1", "d:1"}) ||
		r.Trust("d") != nodeimages.ByDigest || r.Trust("a") != nodeimages.ByName || r.Trust("b:1") != nodeimages.ByReference {
		t.Errorf("%+v: %v", r, err)
	}
	if (nodeimages.Rules{}).Trust("registry.k8s.io/pause:3") != nodeimages.None {
		t.Error("no rules trust an image")
	}
}

func TestCandidatesAreNamedByTheirDigest(t *testing.T) {
	got := nodeimages.Candidates(list(image("b/pause:1", "b/pause"+other), image("a/mirrored-pause:3.6"), image("a/menopause:1"),
		image("a/b:1")))
	if want := []string{"a/mirrored-pause:3.6", "b/pause" + other}; !slices.Equal(got, want) {
		t.Errorf("%s, want %s", got, want)
	}
}
