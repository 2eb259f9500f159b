package registrycheck

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// A tag is a register: pushes write it, deletions of the tag or of its manifest empty it, pulls read it. It has
// one more property: a deletion of the manifest that is interrupted leaves a tag that refers to nothing, until
// somebody pushes the manifest again. Such a deletion therefore counts as two steps, in any order. A push stores what
// such a deletion removes meanwhile again, so that it may write the tag before and after the deletion.

// tagState is the state of a tag.
type tagState struct {
	digest string // what it refers to, or ""
	exists bool   // whether that manifest exists
}

// The steps of events on a tag.
const (
	stepWrite  = "write"
	stepFirst  = "write first"    // what a deletion then removes, if it does
	stepRead   = "read"           // digest is "" if the tag was not found
	stepDelete = "delete"         // the tag
	stepAbsent = "find no tag"    // a deletion that responds 404
	stepHide   = "delete digest"  // the manifest
	stepUntag  = "untag digest"   // and the tags that refer to it
	stepReveal = "push by digest" // or under another tag
)

type tagInput struct {
	step, digest string
	unknown      bool     // the step may have no effect
	overtaken    []string // what the tag may have referred to when a deletion removed it (mayOvertake)
}

func (i tagInput) String() string {
	text := i.step
	if i.digest != "" {
		text += " " + short(i.digest)
	}
	if i.unknown {
		text += "?"
	}
	return text
}

// short is a digest that fits into a visualization.
func short(digest string) string { return fmt.Sprintf("%.6s", digest[len("sha256:"):]) }

// step returns the states that may follow; none if the step cannot happen.
func (s tagState) step(i tagInput) (next []tagState) {
	if i.unknown {
		next = append(next, s)
	}
	switch i.step {
	case stepWrite:
		next = append(next, tagState{i.digest, true})
		if i.unknown { // an untagged manifest may be collected before the tag moves
			next = append(next, tagState{i.digest, false})
		}
	case stepFirst:
		next = append(next, s, tagState{i.digest, true})
	case stepRead:
		if s.exists && s.digest == i.digest || !s.exists && i.digest == "" {
			return []tagState{s}
		}
	case stepAbsent:
		if s.digest == "" {
			return []tagState{s}
		}
	case stepDelete:
		next = append(next, tagState{})
	case stepHide:
		if s.digest == i.digest {
			s.exists = false
		}
		next = append(next, s)
	case stepUntag:
		switch {
		case s.digest == i.digest:
			s = tagState{}
		case slices.Contains(i.overtaken, s.digest):
			next = append(next, tagState{})
		}
		next = append(next, s)
	case stepReveal:
		if s.digest == i.digest {
			s.exists = true
		}
		next = append(next, s)
	}
	return next
}

var tagModel = porcupine.NondeterministicModel{
	Init: func() []any { return []any{tagState{}} },
	Step: func(state, input, _ any) (next []any) {
		for _, s := range state.(tagState).step(input.(tagInput)) {
			next = append(next, s)
		}
		return next
	},
	DescribeOperation: func(input, _ any) string { return input.(tagInput).String() },
	DescribeState: func(state any) string {
		switch s := state.(tagState); {
		case s.digest == "":
			return "nothing"
		case s.exists:
			return short(s.digest)
		default:
			return short(s.digest) + " (deleted)"
		}
	},
}

// tagKey is a tag in a repository.
type tagKey struct{ repository, tag string }

// tagOperations returns the events that concern a tag, and their steps.
func tagOperations(events []*event, key tagKey) (concerned []*event, operations []porcupine.Operation) {
	written := map[string]bool{}
	var writes, deletions []*event
	// A tag may refer to nothing from then on, until the manifest is pushed again.
	hidden := map[string]time.Duration{}
	hides := func(e *event) {
		if since, ok := hidden[e.Digest]; !ok || e.Call < since {
			hidden[e.Digest] = e.Call
		}
	}
	for _, e := range events {
		switch {
		case e.Repository != key.repository || !e.happened():
		case e.Kind == deleteManifest:
			hides(e)
			deletions = append(deletions, e)
		case e.Kind == putManifest && e.Tag == key.tag:
			written[e.Digest] = true
			writes = append(writes, e)
			if e.Outcome == unknown {
				hides(e)
			}
		}
	}
	revealed := func(e *event) bool {
		since, ok := hidden[e.Digest]
		return ok && written[e.Digest] && since <= e.Return
	}
	for _, e := range events {
		if e.Repository != key.repository {
			continue
		}
		var inputs []tagInput
		add := func(step, digest string) {
			inputs = append(inputs, tagInput{step: step, digest: digest, unknown: e.Outcome == unknown})
		}
		switch {
		case e.Kind == getManifest && e.Tag == key.tag && e.Outcome == done:
			add(stepRead, e.Digest)
		case e.Kind == getManifest && e.Tag == key.tag && e.Outcome == absent:
			add(stepRead, "")
		case e.Kind == deleteTag && e.Tag == key.tag && e.Outcome == absent:
			add(stepAbsent, "")
		case !e.happened():
		case e.Kind == putManifest && e.Tag == key.tag:
			add(stepWrite, e.Digest)
			if slices.ContainsFunc(deletions, func(d *event) bool {
				return d.Digest == e.Digest && d.overlaps(e.Call, e.Return)
			}) {
				add(stepFirst, e.Digest)
			}
		case e.Kind == putManifest && revealed(e):
			add(stepReveal, e.Digest)
		case e.Kind == deleteTag && e.Tag == key.tag:
			add(stepDelete, "")
		case e.Kind == deleteManifest && written[e.Digest]:
			add(stepHide, e.Digest)
			add(stepUntag, e.Digest)
			last := &inputs[len(inputs)-1]
			for _, w := range writes {
				if mayOvertake(e, w) {
					last.overtaken = append(last.overtaken, w.Digest)
				}
			}
		}
		for _, input := range inputs {
			concerned = append(concerned, e)
			operations = append(operations, porcupine.Operation{
				ClientId: e.Client, Input: input, Call: int64(e.Call), Return: int64(e.Return),
			})
		}
	}
	return slices.Compact(concerned), operations
}

// checkTime is enough for every history of this size that was ever seen, by far.
const checkTime = time.Minute

// checkTags checks that each tag is linearizable. It writes visualizations into dir.
func checkTags(events []*event, dir string) (found []violation) {
	keys := map[tagKey]bool{}
	for _, e := range events {
		if e.Tag != "" {
			keys[tagKey{e.Repository, e.Tag}] = true
		}
	}
	model := tagModel.ToModel()
	for _, key := range slices.SortedFunc(maps.Keys(keys), func(a, b tagKey) int {
		return slices.Compare([]string{a.repository, a.tag}, []string{b.repository, b.tag})
	}) {
		concerned, operations := tagOperations(events, key)
		result, info := porcupine.CheckOperationsVerbose(model, operations, checkTime)
		if result == porcupine.Ok {
			continue
		}
		v := violation{rule: "linearizability", events: concerned,
			message: fmt.Sprintf("tag %s:%s is not linearizable", key.repository, key.tag)}
		if result == porcupine.Unknown {
			v.rule, v.message = "undecided", fmt.Sprintf("tag %s:%s: not decided within %s", key.repository, key.tag, checkTime)
		}
		v.page = filepath.Join(dir, filepath.Base(key.repository)+"-"+key.tag+".html")
		if err := porcupine.VisualizePath(model, info, v.page); err != nil {
			v.page = err.Error()
		}
		found = append(found, v)
	}
	return found
}
