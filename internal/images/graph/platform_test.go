package graph

import (
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/test/require"
)

func TestLackingPlatforms(t *testing.T) {
	for _, c := range []struct{ wanted, available, want string }{
		{"linux/amd64", "linux/amd64", ""},
		{"linux/amd64,linux/arm64", "linux/amd64", "linux/arm64"},
		{"linux/amd64,linux/arm64", "linux/arm64/v8 linux/amd64 windows/amd64", ""},
		{"linux/arm/v7", "linux/arm/v6", ""}, // which it runs
		{"linux/arm/v6", "linux/arm/v7", "linux/arm/v6"},
		{"linux/amd64,linux/arm64", "", "linux/amd64 linux/arm64"},
		{"linux/amd64", "of what?", "linux/amd64"},
		{"all", "", ""},
	} {
		wanted := require.Value(ParsePlatforms(c.wanted))(t)
		if got := strings.Join(wanted.Lacking(strings.Fields(c.available)), " "); got != c.want {
			t.Errorf("of %s, %q lacks %q, want %q", c.wanted, c.available, got, c.want)
		}
	}
}

func TestPlatforms(t *testing.T) {
	for text, want := range map[string]string{
		"all":                       "all",
		"linux/amd64":               "linux/amd64",
		"linux/x86_64,linux/amd64":  "linux/amd64",
		"linux/arm/v7, linux/arm64": "linux/arm/v7,linux/arm64",
	} {
		if got, err := ParsePlatforms(text); err != nil || got.String() != want {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"", "amd64", "linux/", "linux/amd64,", "a/b/c/d", "linux/amd 64"} {
		if got, err := ParsePlatforms(text); err == nil || !strings.Contains(err.Error(), "platform ") {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
	index := ocispec.Index{}
	for _, name := range []string{"linux/amd64", "linux/arm/v6", "linux/arm/v7", "linux/arm64"} {
		p := require.Value(ParsePlatforms(name))(t)
		index.Manifests = append(index.Manifests, ocispec.Descriptor{Digest: digest.FromString(name), Platform: &p[0]})
	}
	index.Manifests = append(index.Manifests, ocispec.Descriptor{
		Digest: "about amd64", Platform: &ocispec.Platform{OS: "unknown", Architecture: "unknown"},
		Annotations: map[string]string{annotationReference: digest.FromString("linux/amd64").String()},
	})
	for text, want := range map[string][]digest.Digest{
		"linux/arm/v8":            {digest.FromString("linux/arm/v7")},
		"linux/arm/v7":            {digest.FromString("linux/arm/v7")},
		"linux/arm/v6":            {digest.FromString("linux/arm/v6")},
		"linux/arm64":             {digest.FromString("linux/arm64")},
		"linux/amd64":             {digest.FromString("linux/amd64")},
		"linux/amd64,linux/arm64": {digest.FromString("linux/amd64"), digest.FromString("linux/arm64"), "about amd64"},
	} {
		p := require.Value(ParsePlatforms(text))(t)
		selectManifests, err := p.selectManifests(index)
		var got []digest.Digest
		for _, m := range selectManifests {
			got = append(got, m.Digest)
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v; want %v", text, got, err, want)
		}
	}
}
