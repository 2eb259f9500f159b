package registrycheck

import (
	"fmt"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
)

// clockStep is by how much the time of a file may be behind the clock.
const clockStep = 20 * time.Millisecond

// object is a manifest or blob in a repository.
type object struct{ repository, digest string }

// judge decides what must exist, and what must not. All rules consider intervals only, because clients do not
// know when a request took effect: something must exist if every order of the events says so.
type judge struct {
	pool      *pool
	writes    map[object][]*event // acknowledged or unknown pushes of manifests
	deletions map[object][]*event // of manifests
	found     map[object][]*event // reads that found the manifest
	tags      map[tagKey][]*event // all that change them, apart from deletions of manifests
	blobs     map[object][]*event // uploads and mounts, and reads that found the blob
	unlinks   map[object][]*event // deletions of blobs
	gcs       []*event
	needing   map[string][]*item // manifests by a blob that they need
	parents   map[string][]*item // indexes by child
}

func newJudge(events []*event, p *pool) *judge {
	j := &judge{
		pool: p, writes: map[object][]*event{}, deletions: map[object][]*event{}, found: map[object][]*event{}, tags: map[tagKey][]*event{},
		blobs: map[object][]*event{}, unlinks: map[object][]*event{}, needing: map[string][]*item{},
		parents: map[string][]*item{},
	}
	for _, i := range p.items {
		for _, b := range i.blobs {
			j.needing[b.digest.String()] = append(j.needing[b.digest.String()], i)
		}
		for _, c := range i.children {
			j.parents[c.digest.String()] = append(j.parents[c.digest.String()], i)
		}
	}
	for _, e := range events {
		o, key := object{e.Repository, e.Digest}, tagKey{e.Repository, e.Tag}
		switch {
		case e.Kind == deleteTag && e.Outcome != refused:
			j.tags[key] = append(j.tags[key], e)
		case e.Kind == deleteManifest && e.Outcome != refused:
			j.deletions[o] = append(j.deletions[o], e)
		case e.Kind == deleteBlob && e.Outcome != refused:
			j.unlinks[o] = append(j.unlinks[o], e)
		case !e.happened():
		case e.Kind == putManifest:
			j.writes[o] = append(j.writes[o], e)
			if e.Tag != "" {
				j.tags[key] = append(j.tags[key], e)
			}
		case e.Kind == getManifest && e.Server >= 0:
			j.found[o] = append(j.found[o], e)
		case e.Kind == uploadBlob, e.Kind == mountBlob, e.Kind == readBlob && e.Head && e.Server >= 0:
			j.blobs[o] = append(j.blobs[o], e)
		case e.Kind == collectGarbage:
			j.gcs = append(j.gcs, e)
		}
	}
	return j
}

// undisturbed reports whether none of the events may have an effect between from and to.
func undisturbed(events []*event, from, to time.Duration) bool {
	return !slices.ContainsFunc(events, func(e *event) bool { return e.happened() && e.overlaps(from, to) })
}

// stored reports whether a manifest must exist from an acknowledged push, w, until then.
func (j *judge) stored(w *event, until time.Duration) bool {
	o := object{w.Repository, w.Digest}
	if w.Outcome != done || !undisturbed(j.deletions[o], w.Call, until) {
		return false
	}
	for _, g := range j.gcs {
		if g.Untagged && g.overlaps(w.Call, until) && w.Call <= g.Cutoff+clockStep && !j.keeps(g, o) {
			return false
		}
	}
	return true
}

// keeps reports whether a collection of untagged manifests must keep a manifest, whatever its age: because of
// a tag, of an index, or of its subject.
func (j *judge) keeps(g *event, o object) bool {
	if !undisturbed(j.deletions[o], g.Call, g.Return) {
		return false
	}
	for _, w := range j.writes[o] {
		if w.Tag == "" || w.Outcome != done || w.Return >= g.Call || !undisturbed(j.deletions[o], w.Call, g.Return) {
			continue
		}
		others := slices.DeleteFunc(slices.Clone(j.tags[tagKey{w.Repository, w.Tag}]), func(e *event) bool {
			return e.Kind == putManifest && e.Digest == w.Digest
		})
		if undisturbed(others, w.Call, g.Return) && undisturbed(j.removals(w), w.Call, g.Return) {
			return true
		}
	}
	keeping := slices.Clone(j.parents[o.digest])
	if i := j.pool.byName[digest.Digest(o.digest)]; i.subject != nil {
		keeping = append(keeping, i.subject)
	}
	return slices.ContainsFunc(keeping, func(i *item) bool { return j.storedBefore(i, g) })
}

// storedBefore reports whether a manifest must exist in any repository throughout a collection.
func (j *judge) storedBefore(i *item, g *event) bool {
	return slices.ContainsFunc(repositories, func(repository string) bool {
		return slices.ContainsFunc(j.writes[object{repository, i.digest.String()}], func(w *event) bool {
			return w.Return < g.Call && j.stored(w, g.Return)
		})
	})
}

// manifestExists reports whether a manifest must exist throughout a read.
func (j *judge) manifestExists(o object, read *event) bool {
	written := func(w *event) bool { return w.Return < read.Call && j.stored(w, read.Return) }
	if slices.ContainsFunc(j.writes[o], written) {
		return true
	}
	found := func(r *event) bool {
		return r.Outcome == done && r.Return < read.Call && undisturbed(j.deletions[o], r.Call, read.Return) &&
			!slices.ContainsFunc(j.gcs, func(g *event) bool { return g.Untagged && g.overlaps(r.Call, read.Return) })
	}
	if slices.ContainsFunc(j.found[o], found) {
		return true
	}
	// An index keeps its manifests, but from deletions without a condition.
	others := slices.DeleteFunc(slices.Clone(j.deletions[o]), func(d *event) bool { return d.Conditional })
	return slices.ContainsFunc(j.parents[o.digest], func(index *item) bool {
		return slices.ContainsFunc(j.writes[object{o.repository, index.digest.String()}], func(w *event) bool {
			return written(w) && undisturbed(others, w.Call, read.Return)
		})
	})
}

// blobExists reports whether a blob must exist throughout a read: because an acknowledged manifest needs it, or
// because of the grace period.
func (j *judge) blobExists(o object, read *event) bool {
	for _, i := range j.needing[o.digest] {
		for _, w := range j.writes[object{o.repository, i.digest.String()}] {
			if w.Return < read.Call && undisturbed(j.unlinks[o], w.Call, read.Return) && j.stored(w, read.Return) {
				return true
			}
		}
	}
	return slices.ContainsFunc(j.blobs[o], func(touch *event) bool {
		return touch.Outcome == done && touch.Return < read.Call && undisturbed(j.unlinks[o], touch.Call, read.Return) &&
			!slices.ContainsFunc(j.gcs, func(g *event) bool {
				return g.overlaps(touch.Call, read.Return) && !j.blobKept(o, touch, g)
			})
	})
}

// blobKept reports whether a collection must keep a blob that was uploaded, mounted or found by a push. The
// collector sees in the storage what came before it; what happens meanwhile, and reads, are known to the process
// that served them only. If another process collects, the registry may still refuse the manifest.
func (j *judge) blobKept(o object, touch, g *event) bool {
	young := touch.Call > g.Cutoff+clockStep
	sameProcess := touch.Server == g.Server && touch.Epoch == g.Epoch
	if young && (sameProcess || touch.Kind != readBlob && touch.Return < g.Call) {
		return true
	}
	return slices.ContainsFunc(j.needing[o.digest], func(i *item) bool { return j.storedBefore(i, g) })
}

// gone reports whether a deletion must have removed an object before a read, and nothing has put it back.
func gone(deletions, writes []*event, read *event) bool {
	return slices.ContainsFunc(deletions, func(d *event) bool {
		return d.Outcome != unknown && d.Return < read.Call && undisturbed(writes, d.Call, read.Return)
	})
}

// checkContent checks that reads and lists find what must exist, and nothing that must not.
func checkContent(events []*event, p *pool) (found []violation) {
	j := newJudge(events, p)
	related := func(read *event) (list []*event) {
		for _, e := range events {
			changes := e.Kind == putManifest || e.Kind == deleteManifest || e.Kind == deleteTag
			if e.Kind == collectGarbage || e.Repository == read.Repository && (changes || e.Digest == read.Digest) {
				list = append(list, e)
			}
		}
		return list
	}
	for _, e := range events {
		o := object{e.Repository, e.Digest}
		broken := ""
		switch {
		case e.reads() && e.Status >= 500 && e.Server >= 0:
			broken = "read failed: " + e.Error
		case e.Kind == getManifest && e.Tag == "" && e.Outcome == absent && j.manifestExists(o, e):
			broken = "manifest is missing"
		case e.Kind == getManifest && e.Outcome == done && gone(j.deletions[o], j.writes[o], e):
			broken = "manifest was deleted"
		case e.Kind == getManifest && e.Outcome == done && len(j.writes[o]) == 0:
			broken = "manifest was never pushed"
		case e.Kind == readBlob && e.Outcome == absent && j.blobExists(o, e):
			broken = "blob is missing"
		case e.Kind == readBlob && e.Outcome == done && gone(j.unlinks[o], linking(j.blobs[o]), e):
			broken = "blob was deleted"
		case e.Kind == listTags && e.Outcome == done:
			broken = j.checkList(e)
		case e.Kind == listReferrers && e.Outcome == done:
			broken = j.checkReferrers(e)
		}
		if broken != "" {
			found = append(found, violation{rule: broken, events: related(e),
				message: fmt.Sprintf("%s: %s %s %s by client %d at %s", broken, e.Kind, e.Repository, e.Digest, e.Client, e.Call)})
		}
	}
	return found
}

// linking are the events that put a blob into a repository.
func linking(events []*event) []*event {
	return slices.DeleteFunc(slices.Clone(events), func(e *event) bool { return e.Kind == readBlob })
}

// checkList returns what is wrong with a list of tags, or "".
func (j *judge) checkList(e *event) string {
	if !slices.IsSorted(e.List) || len(slices.Compact(slices.Clone(e.List))) != len(e.List) {
		return fmt.Sprintf("list is not in order: %v", e.List)
	}
	for _, tag := range e.List {
		if !slices.Contains(tagNames, tag) {
			return "list contains an unknown tag"
		}
	}
	for _, tag := range tagNames {
		switch listed := slices.Contains(e.List, tag); {
		case !listed && j.tagExists(e.Repository, tag, e):
			return "list lacks a tag"
		case listed && j.tagGone(e.Repository, tag, e):
			return "list contains a deleted tag"
		}
	}
	return ""
}

// checkReferrers returns what is wrong with a list of referrers, or "".
func (j *judge) checkReferrers(e *event) string {
	for _, i := range j.pool.items {
		o := object{e.Repository, i.digest.String()}
		refers := i.subject != nil && i.subject.digest.String() == e.Digest
		switch listed := slices.Contains(e.List, o.digest); {
		case listed && !refers:
			return "list contains a manifest with another subject"
		case listed && (len(j.writes[o]) == 0 || gone(j.deletions[o], j.writes[o], e)):
			return "list contains a deleted referrer"
		case !listed && refers && j.manifestExists(o, e):
			return "list lacks a referrer"
		}
	}
	return ""
}

// tagExists reports whether a tag must exist throughout a read.
func (j *judge) tagExists(repository, tag string, read *event) bool {
	return slices.ContainsFunc(j.tags[tagKey{repository, tag}], func(w *event) bool {
		return w.Kind == putManifest && w.Outcome == done && w.Return < read.Call &&
			undisturbed(j.removals(w), w.Call, read.Return)
	})
}

// removals are the deletions that may remove a tag after a push: of the tag, and of manifests that it refers to from
// then on.
func (j *judge) removals(w *event) (list []*event) {
	for _, e := range j.tags[tagKey{w.Repository, w.Tag}] {
		if e.Kind == deleteTag {
			list = append(list, e)
			continue
		}
		for _, d := range j.deletions[object{e.Repository, e.Digest}] {
			if e.Return >= w.Call || mayOvertake(d, w) {
				list = append(list, d)
			}
		}
	}
	return list
}

// mayOvertake reports whether a deletion of another manifest may remove the tag that a push moves meanwhile: only
// one process prevents that.
func mayOvertake(deletion, w *event) bool {
	return deletion.Server != w.Server && deletion.overlaps(w.Call, w.Return)
}

// tagGone reports whether a tag must not exist during a read: it was never written, or it was deleted, itself or
// by deleting its manifest, and not written since.
func (j *judge) tagGone(repository, tag string, read *event) bool {
	var writes, deletions []*event
	for _, e := range j.tags[tagKey{repository, tag}] {
		if e.Kind == putManifest {
			writes = append(writes, e)
		} else {
			deletions = append(deletions, e)
		}
	}
	if undisturbed(writes, 0, read.Return) || gone(deletions, writes, read) {
		return true
	}
	for _, w := range writes {
		others := slices.DeleteFunc(slices.Clone(writes), func(e *event) bool { return e.Digest == w.Digest })
		o := object{repository, w.Digest}
		for _, d := range j.deletions[o] {
			if w.Outcome == done && d.Outcome == done && w.Return < d.Call && d.Return < read.Call &&
				undisturbed(others, w.Call, read.Return) && undisturbed(writes, d.Call, read.Return) {
				return true
			}
		}
	}
	return false
}
