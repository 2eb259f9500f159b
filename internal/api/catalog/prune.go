package catalog

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
)

// Rules select the images to prune: those that match, that no rule keeps, and that nothing uses.
type Rules struct {
	// Match are patterns of REPOSITORY or REPOSITORY:TAG, of which an image must match one with its repository or with
	// all of its tags. Empty matches all images.
	Match []Pattern
	// Keep are patterns of images to keep: those that match one with their repository or any tag.
	Keep []Pattern
	// KeepLast is how many tagged images to keep in each repository: those that were pushed last. 0 keeps none.
	KeepLast int
	// OlderThan keeps images that were pushed within this time. 0 keeps none.
	OlderThan time.Duration
	// Untagged restricts to images without a tag.
	Untagged bool
	// Used returns what uses an image, such as "Deployment shop/web". Images that are used are kept.
	Used func(*Image) []string
}

// Validate returns an error if the rules would select every image that is not used, or if one is invalid.
func (r Rules) Validate() error {
	switch {
	case r.KeepLast < 0:
		return fmt.Errorf("invalid number %d of images to keep: must not be negative", r.KeepLast)
	case r.OlderThan < 0:
		return fmt.Errorf("invalid age %s: must not be negative", r.OlderThan)
	case len(r.Match) == 0 && r.KeepLast == 0 && r.OlderThan == 0 && !r.Untagged:
		return errors.New("no rule selects images: name their minimum age, how many to keep, or patterns")
	}
	return nil
}

// Decision is whether an image is pruned.
type Decision struct {
	Image *Image
	// Kept is why the image is kept. Empty: it is pruned.
	Kept string
}

// OwnRepositories is the first component of the names of the registry's own repositories.
const OwnRepositories = "zarf-registry"

// Own reports whether a repository belongs to the registry itself: init-hook fills it with the project's images, and
// with those that verify nodes. Its images are neither pruned nor exported.
func Own(repository string) bool { return strings.HasPrefix(repository, OwnRepositories+"/") }

// Decide applies the rules to all images.
func (c *Catalog) Decide(rules Rules) []Decision {
	images := c.Images()
	last := newest(images, rules.KeepLast)
	decisions := make([]Decision, 0, len(images))
	for _, image := range images {
		decisions = append(decisions, Decision{image, rules.keeps(image, c.At, last)})
	}
	return decisions
}

// keeps returns why an image is kept, or "".
func (r Rules) keeps(image *Image, now time.Time, last map[*Image]bool) string {
	if Own(image.Repository) {
		return "belongs to the registry itself"
	}
	if image.Problem != "" {
		return "cannot be read: " + image.Problem
	}
	if !r.selects(image) {
		return "not selected"
	}
	for _, p := range r.Keep {
		if p.matchesAny(image) {
			return "matches " + p.text
		}
	}
	if used := r.Used(image); len(used) > 0 {
		return "used by " + strings.Join(used, ", ")
	}
	if last[image] {
		return fmt.Sprintf("among the last %d of its repository", r.KeepLast)
	}
	if r.OlderThan > 0 && image.Pushed.After(now.Add(-r.OlderThan)) {
		return "pushed " + image.Pushed.UTC().Format(time.RFC3339)
	}
	return ""
}

func (r Rules) selects(image *Image) bool {
	if r.Untagged && len(image.Tags) > 0 {
		return false
	}
	return len(r.Match) == 0 || slices.ContainsFunc(r.Match, func(p Pattern) bool { return p.matchesAll(image) })
}

// newest returns the images that were pushed last in each repository, at most count of each.
func newest(images []*Image, count int) map[*Image]bool {
	tagged := map[string][]*Image{}
	for _, image := range images {
		if len(image.Tags) > 0 {
			tagged[image.Repository] = append(tagged[image.Repository], image)
		}
	}
	found := map[*Image]bool{}
	for _, group := range tagged {
		slices.SortStableFunc(group, func(a, b *Image) int { return b.Pushed.Compare(a.Pushed) })
		for _, image := range group[:min(count, len(group))] {
			found[image] = true
		}
	}
	return found
}

// ManifestsToDelete returns the manifests to delete with the images of decisions that keep nothing, each index before
// what it contains, which is the order in which to delete them. What a kept image needs is not among them.
func ManifestsToDelete(decisions []Decision) []*Manifest {
	var kept, pruned []*Manifest
	for _, d := range decisions {
		if d.Kept != "" {
			kept = append(kept, d.Image.Members...)
		} else {
			pruned = append(pruned, d.Image.Members...)
		}
	}
	type key struct {
		repository string
		digest     digest.Digest
	}
	deleted := map[key]*Manifest{}
	for _, m := range pruned {
		for _, d := range append(m.Aliases, m.Digest) {
			deleted[key{m.Repository, d}] = m
		}
	}
	for _, m := range kept {
		for _, d := range append(m.Aliases, m.Digest) {
			delete(deleted, key{m.Repository, d})
		}
	}
	var order []*Manifest // what an index contains before the index
	seen := map[*Manifest]bool{}
	var visit func(m *Manifest)
	visit = func(m *Manifest) {
		if m == nil || seen[m] {
			return
		}
		seen[m] = true
		for _, d := range m.Needs {
			visit(deleted[key{m.Repository, d}])
		}
		order = append(order, m)
	}
	for _, m := range pruned {
		visit(deleted[key{m.Repository, m.Digest}])
	}
	slices.Reverse(order)
	return order
}

// Pattern matches REPOSITORY, or REPOSITORY:TAG, without the registry's address. * matches any characters, ? any one.
type Pattern struct {
	text   string
	tagged bool
	match  *regexp.Regexp
}

// patternSyntax is what names and tags can contain, with the wildcards.
var patternSyntax = regexp.MustCompile(`^[a-z0-9._/*?-]+(:[A-Za-z0-9_.*?-]+)?$`)

// ParsePattern parses a pattern.
func ParsePattern(text string) (Pattern, error) {
	if !patternSyntax.MatchString(text) {
		return Pattern{}, fmt.Errorf("pattern %q: want REPOSITORY or REPOSITORY:TAG without the registry's address, such as "+
			"team/* or *:dev-*", text)
	}
	quoted := strings.NewReplacer(`\*`, `.*`, `\?`, `.`).Replace(regexp.QuoteMeta(text))
	return Pattern{text, strings.Contains(text, ":"), regexp.MustCompile("^" + quoted + "$")}, nil
}

// ParsePatterns parses several patterns. It returns the valid ones, and an error about all others.
func ParsePatterns(texts ...string) (patterns []Pattern, err error) {
	var errs []error
	for _, text := range texts {
		p, err := ParsePattern(text)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		patterns = append(patterns, p)
	}
	return patterns, errors.Join(errs...)
}

func (p Pattern) matchesTag(image *Image, tag string) bool {
	return p.match.MatchString(image.Repository + ":" + tag)
}

func (p Pattern) matchesAny(image *Image) bool {
	if !p.tagged {
		return p.match.MatchString(image.Repository)
	}
	return slices.ContainsFunc(image.Tags, func(tag string) bool { return p.matchesTag(image, tag) })
}

func (p Pattern) matchesAll(image *Image) bool {
	if !p.tagged {
		return p.match.MatchString(image.Repository)
	}
	other := func(tag string) bool { return !p.matchesTag(image, tag) }
	return len(image.Tags) > 0 && !slices.ContainsFunc(image.Tags, other)
}
