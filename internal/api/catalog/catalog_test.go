package catalog_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
	"github.com/zarf-dev/zarf-registry/test/require"
)

var now = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func d(name string) digest.Digest { return digest.FromString(name) }

// builder makes catalogs in which a manifest named x has the digest d("x"), and is 10 bytes large.
type builder struct{ *catalog.Catalog }

func newBuilder() builder {
	return builder{&catalog.Catalog{At: now, Blobs: map[digest.Digest]catalog.Blob{}}}
}

func (b builder) blob(name string, size int64, age time.Duration) digest.Digest {
	b.Blobs[d(name)] = catalog.Blob{Digest: d(name), Size: size, Written: now.Add(-age)}
	return d(name)
}

const day = 24 * time.Hour

// manifest adds a manifest that was pushed so many days ago. It needs blobs of 100 bytes, or manifests.
func (b builder) manifest(repository, name string, days int, tags string, needs ...string) *catalog.Manifest {
	age := time.Duration(days) * day
	m := &catalog.Manifest{
		Repository: repository, Digest: b.blob(name, 10, age), Pushed: now.Add(-age), Tags: strings.Fields(tags),
	}
	for _, n := range needs {
		if _, ok := b.Blobs[d(n)]; !ok {
			b.blob(n, 100, age)
		}
		m.Needs = append(m.Needs, d(n))
	}
	b.Manifests = append(b.Manifests, m)
	return m
}

func references(images []*catalog.Image) (all []string) {
	for _, i := range images {
		all = append(all, strings.Replace(i.Reference(), i.Digest.String(), "digest", 1))
	}
	return all
}

func TestImagesIncludeWhatBelongsToThem(t *testing.T) {
	b := newBuilder()
	b.manifest("app", "amd64", 1, "", "layer")
	b.manifest("app", "arm64", 1, "old-arm", "layer")
	index := b.manifest("app", "index", 1, "1 latest", "amd64", "arm64", "attestation")
	b.manifest("app", "attestation", 1, "", "statement").Predicates = []string{"https://spdx.dev/Document"}
	b.manifest("app", "signature", 1, "").Subject = d("index")
	b.Manifests[4].ArtifactType = "application/vnd.dev.cosign.artifact.sig.v1+json"
	b.manifest("app", "signature of signature", 1, "").Subject = d("signature")
	b.manifest("app", "cosign", 1, "sha256-"+d("amd64").Encoded()+".sig")
	b.manifest("app", "orphan", 1, "").Subject = d("nothing")
	b.manifest("other", "signature elsewhere", 1, "").Subject = d("index")

	images := b.Images()
	want := []string{"app:1", "app:old-arm", "app@digest", "other@digest"}
	if got := references(images); !cmp.Equal(got, want) {
		t.Fatalf("images are %q, want %q", got, want)
	}
	// All but what the index contains and has no tag.
	if roots := b.Roots(); len(roots) != 7 || slices.Contains(roots, b.Manifests[0]) || !slices.Contains(roots, b.Manifests[1]) {
		t.Errorf("%d roots", len(roots))
	}
	app := images[0]
	if app.Manifest != index || app.Signatures != 2 || app.SBOMs != 1 || len(app.Members) != 7 {
		t.Errorf("%d signatures, %d SBOMs, %d members", app.Signatures, app.SBOMs, len(app.Members))
	}
}

func TestSignaturesAndSBOMs(t *testing.T) {
	const bundle = "application/vnd.dev.sigstore.bundle.v0.3+json"
	for name, c := range map[string]struct {
		m               catalog.Manifest
		signature, sbom bool
	}{
		"image":            {catalog.Manifest{ArtifactType: "application/vnd.oci.image.config.v1+json"}, false, false},
		"notation":         {catalog.Manifest{ArtifactType: "application/vnd.cncf.notary.signature"}, true, false},
		"bundle":           {catalog.Manifest{ArtifactType: bundle}, true, false},
		"signing bundle":   {catalog.Manifest{ArtifactType: bundle, Predicates: []string{"https://sigstore.dev/cosign/sign/v1"}}, true, false},
		"SBOM bundle":      {catalog.Manifest{ArtifactType: bundle, Predicates: []string{"https://cyclonedx.org/bom"}}, false, true},
		"provenance":       {catalog.Manifest{ArtifactType: bundle, Predicates: []string{"https://slsa.dev/provenance/v1"}}, false, false},
		"SPDX":             {catalog.Manifest{ArtifactType: "application/spdx+json"}, false, true},
		"cosign signature": {catalog.Manifest{Tags: []string{"sha256-" + d("a").Encoded() + ".sig"}}, true, false},
		"cosign SBOM":      {catalog.Manifest{Tags: []string{"sha256-" + d("a").Encoded() + ".sbom"}}, false, true},
	} {
		if c.m.IsSignature() != c.signature || c.m.IsSBOM() != c.sbom {
			t.Errorf("%s: signature %t, SBOM %t", name, c.m.IsSignature(), c.m.IsSBOM())
		}
	}
}

func TestFinder(t *testing.T) {
	b := newBuilder()
	one := b.manifest("app", "one", 1, "1 latest")
	one.Aliases = []digest.Digest{"sha512:one"}
	two := b.manifest("app", "two", 1, "")
	copied := b.manifest("copy", "one", 1, "2")
	find := b.Finder()
	for _, c := range []struct {
		repository, tag string
		digest          digest.Digest
		want            *catalog.Manifest
	}{
		{"app", "1", "", one},
		{"app", "latest", "", one},
		{"app", "", one.Aliases[0], one},
		{"app", "", d("two"), two},
		{"app", "1", d("two"), two},
		{"copy", "", d("one"), copied},
		{"copy", "1", "", nil},
		{"copy", "", d("two"), nil},
		{"app", "", "", nil},
	} {
		if got := find(c.repository, c.tag, c.digest); got != c.want {
			t.Errorf("%s, tag %q, digest %q: found %+v", c.repository, c.tag, c.digest, got)
		}
	}
}

func TestSizes(t *testing.T) {
	b := newBuilder()
	one := b.manifest("app", "one", 1, "1", "shared", "own")
	two := b.manifest("app", "two", 1, "2", "shared")
	copied := b.manifest("copy", "two", 1, "2", "shared")
	if got := b.Size([]*catalog.Manifest{one, two}); got != 220 {
		t.Errorf("the size is %d", got)
	}
	unshared := b.Unshared()
	for want, manifests := range map[int64][]*catalog.Manifest{
		110: {one}, 0: {two}, 10: {two, copied}, 220: {one, two, copied},
	} {
		if got := unshared(manifests); got != want {
			t.Errorf("%d manifests have %d unshared bytes, want %d", len(manifests), got, want)
		}
	}
}

func TestFreesCountsWhatTheGracePeriodProtects(t *testing.T) {
	b := newBuilder()
	b.manifest("app", "kept", 9, "1", "shared")
	old := b.manifest("app", "old", 9, "2", "shared", "old layer")
	young := b.manifest("app", "young", 0, "3", "young layer")
	b.blob("garbage", 1, 9*day)
	for _, c := range []struct {
		deleted []*catalog.Manifest
		want    catalog.Reclaimable
	}{
		{nil, catalog.Reclaimable{Blobs: 1, Bytes: 1}},
		{[]*catalog.Manifest{old}, catalog.Reclaimable{Blobs: 3, Bytes: 111}},
		{[]*catalog.Manifest{old, young}, catalog.Reclaimable{Blobs: 3, Bytes: 111, GracePeriodBlobs: 2,
			GracePeriodBytes: 110}},
	} {
		if got := b.Reclaimable(c.deleted, day); got != c.want {
			t.Errorf("deleting %d: %+v, want %+v", len(c.deleted), got, c.want)
		}
	}
}

func pattern(t *testing.T, text string) catalog.Pattern {
	t.Helper()
	return require.Value(catalog.ParsePattern(text))(t)
}

func TestRules(t *testing.T) {
	b := newBuilder()
	for i := range 5 {
		b.manifest("team/app", fmt.Sprint("app ", i), 10*i, fmt.Sprint("v", i))
	}
	b.manifest("team/app", "untagged", 50, "")
	b.manifest("team/dev", "both", 50, "dev-1 release")
	b.manifest("team/dev", "dev", 50, "dev-2")
	b.manifest("zarf-registry/init-hook", "own", 50, "0.1.0")
	b.manifest("team/broken", "broken", 50, "1").Problem = "it is missing"

	none := func(*catalog.Image) []string { return nil }
	for name, c := range map[string]struct {
		rules catalog.Rules
		want  []string
	}{
		"by age": {catalog.Rules{OlderThan: 25 * day},
			[]string{"team/app:v3", "team/app:v4", "team/app@digest", "team/dev:dev-1", "team/dev:dev-2"}},
		"all but the last": {catalog.Rules{KeepLast: 2},
			[]string{"team/app:v2", "team/app:v3", "team/app:v4", "team/app@digest"}},
		"age and number": {catalog.Rules{OlderThan: 25 * day, KeepLast: 4}, []string{"team/app:v4", "team/app@digest"}},
		"untagged":       {catalog.Rules{Untagged: true}, []string{"team/app@digest"}},
		"a repository":   {catalog.Rules{Match: []catalog.Pattern{pattern(t, "*/dev")}}, []string{"team/dev:dev-1", "team/dev:dev-2"}},
		"all of its tags": {catalog.Rules{Match: []catalog.Pattern{pattern(t, "team/dev:dev-?"), pattern(t, "*:v3")}},
			[]string{"team/app:v3", "team/dev:dev-2"}},
		"but some": {catalog.Rules{Match: []catalog.Pattern{pattern(t, "team/*")}, Keep: []catalog.Pattern{pattern(t, "*:release"),
			pattern(t, "team/app")}}, []string{"team/dev:dev-2"}},
		"but those in use": {catalog.Rules{OlderThan: 25 * day, Used: func(i *catalog.Image) []string {
			if i.Repository == "team/app" && len(i.Tags) > 0 {
				return []string{"Pod shop/web"}
			}
			return nil
		}}, []string{"team/app@digest", "team/dev:dev-1", "team/dev:dev-2"}},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, c.rules.Validate())
			if c.rules.Used == nil {
				c.rules.Used = none
			}
			var got []*catalog.Image
			for _, decision := range b.Decide(c.rules) {
				if decision.Kept == "" {
					got = append(got, decision.Image)
				}
			}
			if got := references(got); !cmp.Equal(got, c.want) {
				t.Errorf("it deletes %q, want %q", got, c.want)
			}
		})
	}
}

func TestInvalidRules(t *testing.T) {
	for _, r := range []catalog.Rules{{}, {KeepLast: -1}, {OlderThan: -day}, {Keep: []catalog.Pattern{pattern(t, "a")}}} {
		if r.Validate() == nil {
			t.Errorf("%+v is accepted", r)
		}
	}
	for _, text := range []string{"", "Team/app", "a b", "127.0.0.1:31999/a", "a@sha256:1", "a:b:c", "[ab]"} {
		if _, err := catalog.ParsePattern(text); err == nil {
			t.Errorf("pattern %q is accepted", text)
		}
	}
}

func TestDoomedKeepsWhatKeptImagesNeed(t *testing.T) {
	b := newBuilder()
	b.manifest("app", "shared child", 1, "", "layer")
	b.manifest("app", "own child", 1, "")
	inner := b.manifest("app", "inner index", 1, "", "own child", "shared child")
	old := b.manifest("app", "old index", 1, "old", "inner index")
	older := b.manifest("app", "older index", 1, "older", "inner index", "own child")
	b.manifest("app", "new index", 1, "new", "shared child")
	signature := b.manifest("app", "signature", 1, "")
	signature.Subject = d("old index")

	rules := catalog.Rules{Match: []catalog.Pattern{pattern(t, "app:old*")}, Used: func(*catalog.Image) []string { return nil }}
	doomed := catalog.ManifestsToDelete(b.Decide(rules))
	at := func(m *catalog.Manifest) int { return slices.Index(doomed, m) }
	own := b.Manifests[1]
	if len(doomed) != 5 || at(b.Manifests[0]) >= 0 || at(signature) < 0 || at(old) < 0 || at(old) > at(inner) ||
		at(older) > at(inner) || at(inner) > at(own) {
		t.Errorf("to be deleted, in this order: %+v", doomed)
	}
}

func TestReadReportsIncompleteCatalogs(t *testing.T) {
	const blob, end = `{"blob":{"digest":"sha256:a","size":1}}` + "\n", `{"end":"2026-11-01T12:00:00Z"}` + "\n"
	if c, err := catalog.Read(strings.NewReader(blob + end)); err != nil || len(c.Blobs) != 1 || !c.At.Equal(now) {
		t.Errorf("%+v, %v", c, err)
	}
	for text, want := range map[string]string{
		"": "stopped", blob: "stopped", blob + `{"err`: "stopped", "<html>": "reading",
		blob + `{"error":"disk gone"}`: "disk gone",
	} {
		if _, err := catalog.Read(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
