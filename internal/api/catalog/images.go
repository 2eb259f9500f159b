package catalog

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
)

// Image is what users name: a manifest that is neither part of an index nor attached to another manifest, with all
// that belongs to it. Artifacts such as Helm charts are images, too.
type Image struct {
	*Manifest
	// Members are the manifests of the image: its own, those of an index, and the signatures, SBOMs and other manifests
	// that are attached to one of these. An index and what it contains come before what is attached to them. Two images
	// can share members.
	Members []*Manifest
	// Signatures and SBOMs count the attached manifests, and those in an index, by what they are.
	Signatures, SBOMs int
}

// Reference names the image without the registry's address: by its first tag, or by its digest.
func (i *Image) Reference() string { return i.names()[0] }

// References returns the references of a manifest, which begin with the registry's address: one by each tag, or one by
// its digest.
func (m *Manifest) References(address string) []string {
	refs := m.names()
	for i := range refs {
		refs[i] = address + "/" + refs[i]
	}
	return refs
}

func (m *Manifest) names() []string {
	var names []string
	for _, tag := range m.Tags {
		names = append(names, m.Repository+":"+tag)
	}
	if names == nil {
		names = []string{m.Repository + "@" + m.Digest.String()}
	}
	return names
}

// attachedTag is a tag by which cosign, or a client of a registry without the referrers API, attaches a manifest to
// another one.
// https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md#referrers-tag-schema
var attachedTag = regexp.MustCompile(`^(sha256|sha512)-([0-9a-f]{64,128})(\.[a-z]+)?$`)

// subjects returns the digests of the manifests that m is attached to.
func (m *Manifest) subjects() []digest.Digest {
	var subjects []digest.Digest
	if m.Subject != "" {
		subjects = append(subjects, m.Subject)
	}
	for _, tag := range m.Tags {
		parts := attachedTag.FindStringSubmatch(tag)
		if parts == nil { // a user's tag makes it an image of its own
			return nil
		}
		subjects = append(subjects, digest.NewDigestFromEncoded(digest.Algorithm(parts[1]), parts[2]))
	}
	return subjects
}

// Is reports whether d is one of the manifest's digests.
func (m *Manifest) Is(d digest.Digest) bool { return m.Digest == d || slices.Contains(m.Aliases, d) }

// IsSignature reports whether a manifest contains a signature, by its artifact type, or by cosign's tag.
func (m *Manifest) IsSignature() bool {
	switch m.ArtifactType {
	case "application/vnd.dev.cosign.artifact.sig.v1+json", "application/vnd.dev.cosign.simplesigning.v1+json",
		"application/vnd.cncf.notary.signature":
		return true
	}
	if strings.HasPrefix(m.ArtifactType, "application/vnd.dev.sigstore.bundle") && !m.IsSBOM() {
		return len(m.Predicates) == 0 || slices.ContainsFunc(m.Predicates, func(p string) bool {
			return strings.Contains(p, "cosign/sign")
		})
	}
	return m.hasAttachedTag(".sig")
}

// IsSBOM reports whether a manifest contains a software bill of materials, by its artifact type, by the type of its
// statements, or by cosign's tag.
func (m *Manifest) IsSBOM() bool {
	for _, text := range append([]string{m.ArtifactType}, m.Predicates...) {
		for _, format := range []string{"spdx", "cyclonedx", "syft"} {
			if strings.Contains(strings.ToLower(text), format) {
				return true
			}
		}
	}
	return m.hasAttachedTag(".sbom")
}

func (m *Manifest) hasAttachedTag(suffix string) bool {
	return slices.ContainsFunc(m.Tags, func(tag string) bool {
		parts := attachedTag.FindStringSubmatch(tag)
		return parts != nil && parts[3] == suffix
	})
}

// Images returns the images, ordered by repository and reference. What is attached to a manifest that does not exist
// is an image of its own.
func (c *Catalog) Images() []*Image {
	var images []*Image
	for _, group := range c.repositories() {
		images = append(images, group.images()...)
	}
	slices.SortFunc(images, func(a, b *Image) int {
		return cmp.Or(cmp.Compare(a.Repository, b.Repository), cmp.Compare(a.Reference(), b.Reference()))
	})
	return images
}

// Roots returns the manifests by which everything is reached: those with a tag, and those that no index contains.
func (c *Catalog) Roots() []*Manifest {
	var roots []*Manifest
	for _, r := range c.repositories() {
		for _, m := range r.manifests {
			if len(m.Tags) > 0 || !r.contained[m] {
				roots = append(roots, m)
			}
		}
	}
	return roots
}

// repository is the manifests of a repository.
type repository struct {
	manifests []*Manifest
	byDigest  map[digest.Digest]*Manifest // with aliases
	attached  map[*Manifest][]*Manifest   // by the manifest that they are attached to
	contained map[*Manifest]bool          // parts of an index
	inside    map[*Manifest]bool          // contained, or attached
}

// repositories groups the manifests, which are ordered by repository.
func (c *Catalog) repositories() []*repository {
	var all []*repository
	for i, m := range c.Manifests {
		if i == 0 || m.Repository != c.Manifests[i-1].Repository {
			all = append(all, &repository{
				byDigest: map[digest.Digest]*Manifest{}, attached: map[*Manifest][]*Manifest{},
				contained: map[*Manifest]bool{}, inside: map[*Manifest]bool{},
			})
		}
		r := all[len(all)-1]
		r.manifests = append(r.manifests, m)
		for _, d := range append(m.Aliases, m.Digest) {
			r.byDigest[d] = m
		}
	}
	for _, r := range all {
		for _, m := range r.manifests {
			for _, needed := range m.Needs {
				if child := r.byDigest[needed]; child != nil && child != m {
					r.contained[child], r.inside[child] = true, true
				}
			}
			for _, d := range m.subjects() {
				if subject := r.byDigest[d]; subject != nil && subject != m {
					r.attached[subject] = append(r.attached[subject], m)
					r.inside[m] = true
				}
			}
		}
	}
	return all
}

func (r *repository) images() []*Image {
	var images []*Image
	for _, m := range r.manifests {
		tagged := slices.ContainsFunc(m.Tags, func(tag string) bool { return !attachedTag.MatchString(tag) })
		if r.inside[m] && !tagged {
			continue
		}
		image := &Image{Manifest: m, Members: r.members(m)}
		for _, member := range image.Members {
			switch {
			case member.IsSBOM():
				image.SBOMs++
			case member.IsSignature():
				image.Signatures++
			}
		}
		images = append(images, image)
	}
	return images
}

// members returns a manifest, the manifests that it contains, and then those that are attached to these, in turn.
func (r *repository) members(m *Manifest) []*Manifest {
	var members []*Manifest
	seen := map[*Manifest]bool{}
	var add func(m *Manifest)
	add = func(m *Manifest) {
		if m == nil || seen[m] {
			return
		}
		seen[m] = true
		members = append(members, m)
		for _, needed := range m.Needs {
			add(r.byDigest[needed])
		}
	}
	add(m)
	for i := 0; i < len(members); i++ { //nolint:intrange // members grows
		for _, attached := range r.attached[members[i]] {
			add(attached)
		}
	}
	return members
}

// Finder returns a function that finds the manifest of a repository by its digest or, if that is empty, by a tag. It
// returns nil for an unknown one.
func (c *Catalog) Finder() func(repository, tag string, d digest.Digest) *Manifest {
	type key struct{ repository, reference string }
	found := map[key]*Manifest{}
	for _, m := range c.Manifests {
		found[key{m.Repository, m.Digest.String()}] = m
		for _, d := range m.Aliases {
			found[key{m.Repository, d.String()}] = m
		}
		for _, tag := range m.Tags {
			found[key{m.Repository, tag}] = m
		}
	}
	return func(repository, tag string, d digest.Digest) *Manifest {
		return found[key{repository, cmp.Or(d.String(), tag)}]
	}
}

// content returns the digests of all blobs of manifests, their own among them.
func content(manifests []*Manifest) map[digest.Digest]bool {
	found := map[digest.Digest]bool{}
	for _, m := range manifests {
		found[m.Digest] = true
		for _, d := range m.Needs {
			found[d] = true
		}
	}
	return found
}

// Size returns the size in bytes of all blobs of the manifests, each counted once.
func (c *Catalog) Size(manifests []*Manifest) int64 {
	var size int64
	for d := range content(manifests) {
		size += c.Blobs[d].Size
	}
	return size
}

// Reclaimable is what garbage collection removes.
type Reclaimable struct {
	// Blobs counts what the next collection removes, and Bytes is its size.
	Blobs int   `json:"blobs"`
	Bytes int64 `json:"bytes"`
	// GracePeriodBlobs and GracePeriodBytes are what the grace period still protects.
	GracePeriodBlobs int   `json:"gracePeriodBlobs"`
	GracePeriodBytes int64 `json:"gracePeriodBytes"`
}

// Reclaimable returns what garbage collection removes once the manifests are deleted, and what it would remove anyway,
// if it keeps blobs that are not older than grace.
func (c *Catalog) Reclaimable(deleted []*Manifest, grace time.Duration) Reclaimable {
	gone := map[*Manifest]bool{}
	for _, m := range deleted {
		gone[m] = true
	}
	needed := content(slices.DeleteFunc(slices.Clone(c.Manifests), func(m *Manifest) bool { return gone[m] }))
	var freed Reclaimable
	for d, b := range c.Blobs {
		switch {
		case needed[d]:
		case b.Written.After(c.At.Add(-grace)):
			freed.GracePeriodBlobs++
			freed.GracePeriodBytes += b.Size
		default:
			freed.Blobs++
			freed.Bytes += b.Size
		}
	}
	return freed
}

// Unshared returns the size in bytes of the blobs that no manifests but the given ones need: what deleting them frees.
// It answers for many sets of manifests of one catalog.
func (c *Catalog) Unshared() func(manifests []*Manifest) int64 {
	users := map[digest.Digest]int{}
	for _, m := range c.Manifests {
		for d := range content([]*Manifest{m}) {
			users[d]++
		}
	}
	return func(manifests []*Manifest) int64 {
		own := map[digest.Digest]int{}
		for _, m := range manifests {
			for d := range content([]*Manifest{m}) {
				own[d]++
			}
		}
		var size int64
		for d, count := range own {
			if count == users[d] {
				size += c.Blobs[d].Size
			}
		}
		return size
	}
}
