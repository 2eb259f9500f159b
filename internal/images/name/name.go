// Package name parses names of images as users, archives and pods give them, and turns them into names in registries.
// It knows neither registries nor images.
package name

import (
	"cmp"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/oci"
)

// Repository returns the repository path and the tag or digest of an image in the registry.
//
// The reference is parsed as Docker and containerd do: a name without a registry is Docker Hub's, one
// of Docker Hub's without a namespace is in library/, and one without tag and digest has the tag
// latest. The registry's host is dropped:
//
//	nginx                      library/nginx    latest
//	docker.io/library/hello:1  library/hello    1
//	ghcr.io/a/b:1              a/b              1
//	127.0.0.1:31999/x:1        x                1
//	quay.io/a/b@sha256:…       a/b              sha256:…
//	quay.io/a/b:1@sha256:…     a/b              sha256:…
//
// Images with the same path in two registries share a repository unless a [Prefix] separates them.
func Repository(ref string) (repository, tagOrDigest string, err error) {
	named, err := Named(ref)
	if err != nil {
		return "", "", err
	}
	return reference.Path(named), Tag(named), nil
}

// Name is a parsed image reference: with a tag or a digest, not both.
type Name struct {
	Registry string // host and port: docker.io, 127.0.0.1:31999
	Path     string // of the repository
	Digest   digest.Digest
	Tag      string
	// ZarfTag is the tag under which Zarf serves the image instead of Tag. See [ZarfTag].
	ZarfTag string
}

// Parse parses a reference as [Repository] does.
func Parse(ref string) (Name, error) {
	named, err := Named(ref)
	if err != nil {
		return Name{}, err
	}
	n := Name{Registry: reference.Domain(named), Path: reference.Path(named)}
	switch named := named.(type) {
	case reference.Digested:
		n.Digest = named.Digest()
	case reference.NamedTagged:
		n.Tag, n.ZarfTag = named.Tag(), ZarfTag(named)
	}
	return n, nil
}

// String returns the complete reference: docker.io/library/nginx:latest.
func (n Name) String() string {
	return Join(n.Registry+"/"+n.Path, cmp.Or(n.Digest.String(), n.Tag))
}

// Prefix is put before the path of every repository that images are pushed to: with the prefix
// team/mirror, nginx goes to team/mirror/library/nginx. Empty is no prefix.
type Prefix string

// ParsePrefix checks a prefix. It drops slashes at both ends.
func ParsePrefix(text string) (Prefix, error) {
	trimmed := strings.Trim(text, "/")
	if text == "" {
		return "", nil
	}
	if _, err := reference.WithName("localhost/" + trimmed); err != nil || trimmed == "" {
		return "", fmt.Errorf("prefix %q: want lower-case path components, such as team or team/mirror", text)
	}
	return Prefix(trimmed), nil
}

// Join puts the prefix before a path.
func (p Prefix) Join(path string) string {
	if p == "" {
		return path
	}
	return string(p) + "/" + path
}

// Named parses a reference as [Repository] does. The result has a tag or a digest.
func Named(ref string) (reference.Named, error) {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		if errors.Is(err, reference.ErrNameContainsUppercase) {
			err = errors.New("repository names are lower case")
		}
		return nil, fmt.Errorf("image reference %q: %w", ref, err)
	}
	if digested, ok := named.(reference.Digested); ok {
		if err := oci.CheckDigest(digested.Digest()); err != nil {
			return nil, fmt.Errorf("image reference %q: %w", ref, err)
		}
	}
	return named, nil
}

// Tag returns the tag or digest of a reference that [Named] returned.
func Tag(named reference.Named) string {
	if digested, ok := named.(reference.Digested); ok {
		return digested.Digest().String()
	}
	return named.(reference.Tagged).Tag()
}

// Host returns the registry of a reference as it is dialed: registry-1.docker.io for Docker Hub.
func Host(ref string) (string, error) {
	named, err := Named(ref)
	if err != nil {
		return "", err
	}
	return HostOf(named), nil
}

// HostOf returns the host that serves a reference's registry.
func HostOf(named reference.Named) string {
	if domain := reference.Domain(named); domain != "docker.io" {
		return domain
	}
	return "registry-1.docker.io"
}

// Join joins a repository and a tag or digest.
func Join(repository, tagOrDigest string) string {
	if _, err := digest.Parse(tagOrDigest); err == nil {
		return repository + "@" + tagOrDigest
	}
	return repository + ":" + tagOrDigest
}

// ZarfTag returns the tag that Zarf's agent replaces a reference's by in pods: the tag, -zarf- and the CRC-32 of the
// image's name, which distinguishes images of the same path in different registries.
// https://github.com/zarf-dev/zarf/blob/v0.84.0/src/pkg/transform/image.go
func ZarfTag(named reference.NamedTagged) string {
	return fmt.Sprintf("%s-zarf-%d", named.Tag(), crc32.ChecksumIEEE([]byte(named.Name())))
}
