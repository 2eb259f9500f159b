// Package nodeimages holds the rules about the images that a node reports: which of them may carry the
// project's programs, and which of those to use. It reads no cluster.
//
// An image decides how a program starts, so content is trusted, not names. The chart makes the rules
// (pause-images/_pause.tpl), and applies them to all nodes when it is rendered (_cluster.tpl); so does
// the policy that limits the healer. Tests of templates-tests compare the three.
package nodeimages

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// MaxReported is the kubelet's default limit on reported images (nodeStatusMaxImages). It reports the
// largest ones, so a list of this length may lack small images.
const MaxReported = 50

// Image is an image as a node's status lists it.
type Image struct {
	Names     []string `json:"names"`
	SizeBytes int64    `json:"sizeBytes"`
}

// Rules say which images may carry the project's programs. The zero value trusts none.
type Rules struct {
	// References are the images of the release's pods: they are trusted as they are.
	References []string `json:"references"`
	// Digest and Name are regular expressions of the images that are trusted by their digest, and by
	// their repository. Own is one of those at the release's own registry, which come last: without them the
	// node would have to pull from itself.
	Digest string `json:"digest"`
	Name   string `json:"name"`
	Own    string `json:"own"`
	// Official are images that a node may have without reporting them: official pause images under the names
	// that installers give them, the most widespread first.
	Official []string `json:"official,omitempty"`
}

// Trust is why an image may carry programs.
type Trust int

// The kinds of trust, from the best to none.
const (
	ByReference Trust = iota
	ByDigest
	ByName
	ByOwnDigest
	None
)

// FromData returns the rules in the data of a ConfigMap.
func FromData(data map[string]string) (Rules, error) {
	references := strings.Fields(data["references"])
	r := Rules{References: references, Digest: data["digest"], Name: data["name"], Own: data["own"],
		Official: strings.Fields(data["official"])}
	return r, r.Validate()
}

// Read returns the rules in the files of a mounted ConfigMap.
func Read(dir string) (Rules, error) {
	data := map[string]string{}
	for _, key := range []string{"references", "digest", "name", "own", "official"} {
		content, err := os.ReadFile(filepath.Join(dir, key))
		if err != nil {
			return Rules{}, fmt.Errorf("reading which images may be used: %w", err)
		}
		data[key] = string(content)
	}
	return FromData(data)
}

// Validate returns an error for rules that would trust everything, or that nothing can evaluate.
func (r Rules) Validate() error {
	for key, expression := range map[string]string{"digest": r.Digest, "name": r.Name, "own": r.Own} {
		if compiled(expression) == nil {
			return fmt.Errorf("which images may be used: invalid %s %q: want a regular expression", key, expression)
		}
	}
	return nil
}

// expressions are those that were compiled before: the same few, for every image of every node.
var expressions sync.Map

// compiled returns a regular expression, or nil if it is empty or invalid.
func compiled(expression string) *regexp.Regexp {
	if known, ok := expressions.Load(expression); ok {
		return known.(*regexp.Regexp)
	}
	e, err := regexp.Compile(expression)
	if err != nil || expression == "" {
		e = nil
	}
	expressions.Store(expression, e)
	return e
}

// Trust returns why an image may carry programs.
func (r Rules) Trust(name string) Trust {
	matches := func(expression string) bool { return compiled(expression).MatchString(name) }
	switch {
	case slices.Contains(r.References, name):
		return ByReference
	case r.Validate() != nil:
		return None
	case matches(r.Digest) && !matches(r.Own):
		return ByDigest
	case matches(r.Name):
		return ByName
	case matches(r.Digest):
		return ByOwnDigest
	}
	return None
}

// Trusted returns the images of a list that may carry programs, the best first.
func (r Rules) Trusted(images []Image) []string {
	var found []string
	for _, image := range images {
		for _, name := range image.Names {
			if r.Trust(name) != None {
				found = append(found, name)
			}
		}
	}
	slices.SortFunc(found, func(a, b string) int {
		return cmp.Or(cmp.Compare(r.Trust(a), r.Trust(b)), cmp.Compare(a, b))
	})
	return slices.Compact(found)
}

// Complete reports whether an image that is not in the list is not on the node. Pause is the smallest
// image, so a list with one that is trusted contains all others too.
func (r Rules) Complete(images []Image) bool {
	return len(images) > 0 && len(images) < MaxReported || len(r.Trusted(images)) > 0
}

// Choose returns the image for injected programs on a node that reports these: the best that is trusted.
// Where a list may lack some, those in use elsewhere follow, and then official ones: they may be there. It leaves
// out those in except and returns "" if none remains.
func (r Rules) Choose(images []Image, inUse []string, except ...string) string {
	candidates := r.Trusted(images)
	if len(images) > 0 && !r.Complete(images) {
		candidates = slices.Concat(r.References, inUse, r.Official)
	}
	for _, name := range candidates {
		if r.Trust(name) != None && !slices.Contains(except, name) {
			return name
		}
	}
	return ""
}

// Reported reports whether a list contains an image under that name.
func Reported(images []Image, name string) bool {
	return slices.ContainsFunc(images, func(i Image) bool { return slices.Contains(i.Names, name) })
}

var pause = regexp.MustCompile(`(^|/)(mirrored-)?pause(-amd64|-arm64)?[:@]`)

// Candidates returns the images in a list that are called like a pause image, by their digest where the
// node knows it. A name says nothing about what an image does: these are for a person to judge.
func Candidates(images []Image) []string {
	var found []string
	for _, image := range images {
		named := slices.DeleteFunc(slices.Clone(image.Names), func(name string) bool { return !pause.MatchString(name) })
		digested := slices.DeleteFunc(slices.Clone(named), func(name string) bool { return !strings.Contains(name, "@") })
		if len(digested) > 0 {
			named = digested
		}
		found = append(found, named...)
	}
	slices.Sort(found)
	return slices.Compact(found)
}
