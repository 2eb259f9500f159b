// Package nodeimages holds the rules about the images that a node reports: which of them are pause
// images, and which one injected programs can run in. It reads no cluster.
//
// The chart applies the same rules to all nodes when it is rendered (_cluster.tpl). Tests of
// templates-tests compare them.
package nodeimages

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// MaxReported is the kubelet's default limit on reported images (nodeStatusMaxImages). It reports the
// largest ones, so a list of this length may lack small images.
const MaxReported = 50

// Image is an image as a node's status lists it.
type Image struct {
	Names     []string `json:"names"`
	SizeBytes int64    `json:"sizeBytes"`
}

var pause = regexp.MustCompile(`(^|/)(mirrored-)?pause(-amd64|-arm64)?[:@]`)

// IsPause reports whether an image is a pause image, by its name.
func IsPause(name string) bool { return pause.MatchString(name) }

// Reported reports whether a list contains an image under that name.
func Reported(images []Image, name string) bool {
	return slices.ContainsFunc(images, func(i Image) bool { return slices.Contains(i.Names, name) })
}

// Complete reports whether an image that is not in the list is not on the node. Pause is the smallest
// image, so a list with a pause image contains all others too.
func Complete(images []Image) bool {
	return len(images) > 0 && len(images) < MaxReported ||
		slices.ContainsFunc(images, func(i Image) bool { return slices.ContainsFunc(i.Names, IsPause) })
}

// Choose returns the image for injected programs on a node that reports these: the newest pause
// image, else the smallest image. It leaves out those in except and returns "" if none remains. None
// of the image's programs is used, and the loader excludes its variables and volumes. It cannot exclude an
// image that replaces the loader itself.
func Choose(images []Image, except ...string) string {
	type candidate struct{ name, rank string }
	var pauses, others []candidate
	for _, image := range images {
		named := slices.DeleteFunc(slices.Clone(image.Names), func(name string) bool { return !IsPause(name) })
		for _, name := range usable(named) {
			if !slices.Contains(except, name) {
				pauses = append(pauses, candidate{name, version(name) + " " + name})
			}
		}
		for _, name := range usable(image.Names) {
			if !slices.Contains(except, name) {
				rank := fmt.Sprintf("%016d %t %s", image.SizeBytes, strings.Contains(name, "@"), name)
				others = append(others, candidate{name, rank})
			}
		}
	}
	byRank := func(a, b candidate) int { return cmp.Compare(a.rank, b.rank) }
	switch {
	case len(pauses) > 0:
		return slices.MaxFunc(pauses, byRank).name
	case len(others) > 0:
		return slices.MinFunc(others, byRank).name
	}
	return ""
}

// usable returns the names under which a pod can use an image: tagged names, or digests if there is
// no tag. Names in this registry are left out: the registry must not depend on itself.
func usable(names []string) []string {
	var tagged, digests []string
	for _, name := range names {
		switch {
		case strings.Contains(name, "<none>"), strings.HasPrefix(name, "127.0.0.1:"), strings.HasPrefix(name, "[::1]:"):
		case strings.Contains(name, "@"):
			digests = append(digests, name)
		default:
			tagged = append(tagged, name)
		}
	}
	if len(tagged) > 0 {
		return tagged
	}
	return digests
}

var (
	tag     = regexp.MustCompile(`:v?[0-9][^/@]*$`)
	numbers = regexp.MustCompile(`[0-9]+(\.[0-9]+)*`)
)

// version returns the version in an image's tag in a form that sorts, or "".
func version(name string) string {
	parts := strings.Split(numbers.FindString(tag.FindString(name)), ".")
	for i, part := range parts {
		number, _ := strconv.Atoi(part) // 0 without a version
		parts[i] = fmt.Sprintf("%06d", number)
	}
	return strings.Join(parts, ".")
}
