package registrycheck

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// The histories of TestChecks use these objects, all in repository a. Times are seconds.
var (
	testPool = newPool(rand.New(rand.NewPCG(1, 0)))
	imageX   = testPool.items[0]
	imageY   = testPool.items[1]
	index    = testPool.items[images] // of two images
	child    = index.children[0]
	signed   = testPool.items[images+indexes] // a referrer
	layer    = imageX.blobs[1]
)

func at(call, ret int, e event) *event {
	e.Call, e.Return = time.Duration(call)*time.Second, time.Duration(ret)*time.Second
	if e.Outcome == "" {
		e.Outcome = done
	}
	if e.Repository == "" && e.Kind != collectGarbage {
		e.Repository = "a"
	}
	return &e
}

func put(call, ret int, tag string, i *item, o ...outcome) *event {
	return at(call, ret, event{Kind: putManifest, Tag: tag, Digest: i.digest.String(), Outcome: slices.Concat(o, []outcome{done})[0]})
}

// read reads a tag; i is nil if it was not found.
func read(call, ret int, tag string, i *item) *event {
	if i == nil {
		return at(call, ret, event{Kind: getManifest, Tag: tag, Outcome: absent})
	}
	return at(call, ret, event{Kind: getManifest, Tag: tag, Digest: i.digest.String()})
}

func remove(call, ret int, i *item, o ...outcome) *event {
	return at(call, ret, event{Kind: deleteManifest, Digest: i.digest.String(), Outcome: slices.Concat(o, []outcome{done})[0]})
}

// unneeded deletes a manifest unless an index refers to it.
func unneeded(call, ret int, i *item) *event {
	e := remove(call, ret, i)
	e.Conditional = true
	return e
}

func found(call, ret int, i *item) *event {
	return at(call, ret, event{Kind: getManifest, Digest: i.digest.String()})
}

// missing is a read by digest that finds nothing.
func missing(call, ret int, i *item) *event {
	return at(call, ret, event{Kind: getManifest, Digest: i.digest.String(), Outcome: absent})
}

func drop(call, ret int, tag string) *event { return at(call, ret, event{Kind: deleteTag, Tag: tag}) }

func onBlob(kind string, call, ret int, o ...outcome) *event {
	return at(call, ret, event{Kind: kind, Digest: layer.digest.String(), Outcome: slices.Concat(o, []outcome{done})[0]})
}

func garbage(call, ret int, untagged bool, grace int) *event {
	return at(call, ret, event{Kind: collectGarbage, Untagged: untagged, Cutoff: time.Duration(call-grace) * time.Second})
}

func tags(call, ret int, names ...string) *event {
	return at(call, ret, event{Kind: listTags, List: names})
}

func referrersOf(call, ret int, i *item, found ...*item) *event {
	e := at(call, ret, event{Kind: listReferrers, Digest: i.digest.String()})
	for _, f := range found {
		e.List = append(e.List, f.digest.String())
	}
	return e
}

func TestChecks(t *testing.T) {
	const notLinear, lost, noBlob = "linearizability", "manifest is missing", "blob is missing"
	for name, test := range map[string]struct {
		events []*event
		want   string // the rule, or "" for a valid history
	}{
		"a tag is read as it was written":      {[]*event{put(1, 2, "v0", imageX), read(3, 4, "v0", imageX)}, ""},
		"a tag is read before it is written":   {[]*event{read(1, 2, "v0", imageX), put(3, 4, "v0", imageX)}, notLinear},
		"a written tag is not found":           {[]*event{put(1, 2, "v0", imageX), read(3, 4, "v0", nil)}, notLinear},
		"a tag is old after a newer one":       {[]*event{put(1, 2, "v0", imageX), put(3, 6, "v0", imageY), read(4, 5, "v0", imageY), read(7, 8, "v0", imageX)}, notLinear},
		"a read overlaps the write":            {[]*event{put(1, 2, "v0", imageX), put(3, 6, "v0", imageY), read(4, 5, "v0", imageX), read(7, 8, "v0", imageY)}, ""},
		"a failed write may be seen":           {[]*event{put(1, 2, "v0", imageX, unknown), read(3, 4, "v0", imageX)}, ""},
		"a failed write may not be seen":       {[]*event{put(1, 2, "v0", imageX, unknown), read(3, 4, "v0", nil)}, ""},
		"a failed write appears after its end": {[]*event{put(1, 4, "v0", imageX, unknown), read(5, 6, "v0", nil), read(7, 8, "v0", imageX)}, notLinear},
		"a refused write is seen": {[]*event{put(1, 2, "v1", imageY), put(1, 2, "v0", imageX, refused), read(3, 4, "v0", imageX)},
			notLinear},
		"a deleted tag is found":              {[]*event{put(1, 2, "v0", imageX), drop(3, 4, "v0"), read(5, 6, "v0", imageX)}, notLinear},
		"a tag of a deleted manifest":         {[]*event{put(1, 2, "v0", imageX), remove(3, 4, imageX), read(5, 6, "v0", nil)}, ""},
		"a tag returns with its manifest":     {[]*event{put(1, 2, "v0", imageX), remove(3, 4, imageX), put(5, 6, "", imageX), read(7, 8, "v0", imageX)}, notLinear},
		"an interrupted deletion may hide it": {[]*event{put(1, 2, "v0", imageX), remove(3, 20, imageX, unknown), read(5, 6, "v0", nil), put(7, 8, "", imageX), read(9, 10, "v0", imageX)}, ""},

		"a deletion of the old manifest": {[]*event{put(1, 2, "v0", imageX), put(3, 6, "v0", imageY), remove(4, 5, imageX),
			read(7, 8, "v0", nil)}, notLinear},
		"another process deletes the old manifest": {[]*event{put(1, 2, "v0", imageX), put(3, 6, "v0", imageY),
			at(4, 5, event{Kind: deleteManifest, Server: 1, Digest: imageX.digest.String()}), read(7, 8, "v0", nil), tags(7, 8)}, ""},

		"a push stores again what a deletion has removed": {[]*event{put(1, 2, "v0", imageY), put(3, 8, "v0", imageX),
			remove(4, 5, imageX), read(6, 7, "v0", nil), read(9, 10, "v0", imageX)}, ""},
		"a push hides the tag without a deletion": {[]*event{put(1, 2, "v0", imageY), remove(3, 4, imageX),
			put(5, 8, "v0", imageX), read(6, 7, "v0", nil), read(9, 10, "v0", imageX)}, notLinear},

		"a read fails": {[]*event{at(1, 2, event{Kind: listTags, Outcome: unknown, Status: 500, Error: "no idea"})},
			"read failed: no idea"},

		"a manifest is lost":               {[]*event{put(1, 2, "", imageX), missing(3, 4, imageX)}, lost},
		"a manifest was deleted":           {[]*event{put(1, 2, "", imageX), remove(2, 3, imageX), missing(4, 5, imageX)}, ""},
		"a manifest may have been deleted": {[]*event{put(1, 2, "", imageX), remove(2, 3, imageX, unknown), missing(4, 5, imageX)}, ""},
		"a deleted manifest is found": {[]*event{put(1, 2, "", imageX), remove(3, 4, imageX),
			found(5, 6, imageX)}, "manifest was deleted"},
		"a found manifest is lost": {[]*event{put(1, 4, "", imageX), remove(1, 3, imageX, refused), remove(2, 3, imageX),
			found(5, 6, imageX), missing(7, 8, imageX)}, lost},
		"an index loses its manifest":         {[]*event{put(1, 2, "", child), put(3, 6, "", index), unneeded(4, 5, child), missing(7, 8, child)}, lost},
		"an index never had it":               {[]*event{put(1, 2, "", child), put(3, 6, "", index, refused), unneeded(4, 5, child), missing(7, 8, child)}, ""},
		"somebody deletes it anyway":          {[]*event{put(1, 2, "", child), put(3, 4, "", index), remove(5, 6, child), missing(7, 8, child)}, ""},
		"a tagged manifest is collected":      {[]*event{put(1, 2, "v0", imageX), garbage(5, 6, true, 0), missing(7, 8, imageX)}, lost},
		"an untagged manifest is collected":   {[]*event{put(1, 2, "", imageX), garbage(5, 6, true, 0), missing(7, 8, imageX)}, ""},
		"untagged manifests are not to go":    {[]*event{put(1, 2, "", imageX), garbage(5, 6, false, 0), missing(7, 8, imageX)}, lost},
		"a young manifest is collected":       {[]*event{put(1, 2, "", imageX), garbage(5, 6, true, 5), missing(7, 8, imageX)}, lost},
		"a tag moves during a collection":     {[]*event{put(1, 2, "v0", imageX), put(4, 7, "v0", imageY), garbage(5, 6, true, 0), missing(8, 9, imageX)}, ""},
		"a child of an index is collected":    {[]*event{put(1, 2, "", child), put(3, 4, "v0", index), garbage(5, 6, true, 0), missing(7, 8, child)}, lost},
		"a child of an untagged index":        {[]*event{put(1, 2, "", child), put(3, 4, "", index), garbage(5, 6, true, 0), missing(7, 8, child)}, ""},
		"a signature is collected":            {[]*event{put(1, 2, "v0", signed.subject), put(3, 4, "", signed), garbage(5, 6, true, 0), missing(7, 8, signed)}, lost},
		"the signature of a collected image":  {[]*event{put(1, 2, "", signed.subject), put(3, 4, "", signed), garbage(5, 6, true, 0), missing(7, 8, signed)}, ""},
		"a manifest that nobody pushed":       {[]*event{found(5, 6, imageX)}, "manifest was never pushed"},
		"an image lacks its layer":            {[]*event{put(1, 2, "", imageX), onBlob(readBlob, 3, 4, absent)}, noBlob},
		"somebody deleted the layer":          {[]*event{put(1, 2, "", imageX), onBlob(deleteBlob, 2, 3), onBlob(readBlob, 4, 5, absent)}, ""},
		"an upload is lost":                   {[]*event{onBlob(uploadBlob, 1, 2), onBlob(readBlob, 3, 4, absent)}, noBlob},
		"an old upload is collected":          {[]*event{onBlob(uploadBlob, 1, 2), garbage(5, 6, false, 0), onBlob(readBlob, 7, 8, absent)}, ""},
		"a young upload is collected":         {[]*event{onBlob(uploadBlob, 1, 2), garbage(5, 6, false, 5), onBlob(readBlob, 7, 8, absent)}, noBlob},
		"a mount during a collection is lost": {[]*event{onBlob(mountBlob, 5, 6), garbage(4, 7, false, 1), onBlob(readBlob, 8, 9, absent)}, noBlob},
		"another process collects during a mount": {[]*event{onBlob(mountBlob, 5, 6), at(4, 7, event{Kind: collectGarbage, Server: 1}),
			onBlob(readBlob, 8, 9, absent)}, ""},
		"a deleted blob is found": {[]*event{onBlob(uploadBlob, 1, 2), onBlob(deleteBlob, 3, 4), onBlob(readBlob, 5, 6)}, "blob was deleted"},

		"a list is complete":               {[]*event{put(1, 2, "v0", imageX), put(3, 4, "v2", imageX), tags(5, 6, "v0", "v2")}, ""},
		"a list lacks a tag":               {[]*event{put(1, 2, "v0", imageX), tags(5, 6)}, "list lacks a tag"},
		"a list contains a deleted tag":    {[]*event{put(1, 2, "v0", imageX), drop(3, 4, "v0"), tags(5, 6, "v0")}, "list contains a deleted tag"},
		"a list contains what was removed": {[]*event{put(1, 2, "v0", imageX), remove(3, 4, imageX), tags(5, 6, "v0")}, "list contains a deleted tag"},
		"a list overlaps the deletion":     {[]*event{put(1, 2, "v0", imageX), drop(3, 6, "v0"), tags(4, 5, "v0")}, ""},
		"a list is not in order":           {[]*event{put(1, 2, "v0", imageX), put(1, 2, "v1", imageX), tags(5, 6, "v1", "v0")}, "list is not in order: [v1 v0]"},

		"a referrer is listed":           {[]*event{put(1, 2, "", signed), referrersOf(3, 4, signed.subject, signed)}, ""},
		"a referrer is not listed":       {[]*event{put(1, 2, "", signed), referrersOf(3, 4, signed.subject)}, "list lacks a referrer"},
		"a deleted referrer is listed":   {[]*event{put(1, 2, "", signed), remove(3, 4, signed), referrersOf(5, 6, signed.subject, signed)}, "list contains a deleted referrer"},
		"a referrer of another manifest": {[]*event{put(1, 2, "", signed), referrersOf(3, 4, signed, signed)}, "list contains a manifest with another subject"},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, v := range slices.Concat(checkTags(test.events, t.TempDir()), checkContent(test.events, testPool)) {
				got = append(got, v.rule)
			}
			if len(got) > 0 && test.want == "" || test.want != "" && !slices.Contains(got, test.want) {
				t.Errorf("found %q, want %q", got, test.want)
			}
		})
	}
}

func TestPlansDependOnTheSeedOnly(t *testing.T) {
	if a, b := newPlan(7, 300).sum(), newPlan(7, 300).sum(); a != b {
		t.Errorf("two plans of one seed differ: %s, %s", a, b)
	}
	if a, b := newPlan(7, 300).sum(), newPlan(8, 300).sum(); a == b {
		t.Error("the plans of two seeds are equal")
	}
}
