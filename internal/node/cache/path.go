package cache

import (
	"strings"

	"github.com/opencontainers/go-digest"
)

// target is what a request names.
type target struct {
	repository string // empty for the base, /v2/
	blob       bool   // otherwise a manifest
	reference  string // a digest, or the tag of a manifest
}

// Serves reports whether caches respond to GET and HEAD of a path: of blobs, of manifests, and of the
// base, by which clients tell whether a registry is there.
func Serves(path string) bool {
	_, ok := parsePath(path)
	return ok
}

func parsePath(path string) (target, bool) {
	rest, ok := strings.CutPrefix(path, "/v2/")
	if !ok || rest == "" {
		return target{}, ok
	}
	// The last one counts: a repository may be called blobs.
	i := strings.LastIndexByte(rest, '/')
	if i < 0 {
		return target{}, false
	}
	t := target{reference: rest[i+1:]}
	for _, kind := range [...]string{"/blobs", "/manifests"} {
		if repository, ok := strings.CutSuffix(rest[:i], kind); ok && repository != "" {
			t.repository, t.blob = repository, kind == "/blobs"
		}
	}
	if t.repository == "" || t.reference == "" || t.blob && !isDigest(t.reference) {
		return target{}, false
	}
	return t, true
}

// path returns the path of something in the target's repository, of the target's kind.
func (t target) path(reference string) string {
	kind := "manifests"
	if t.blob {
		kind = "blobs"
	}
	return "/v2/" + t.repository + "/" + kind + "/" + reference
}

func isDigest(reference string) bool { return digest.Digest(reference).Validate() == nil }
