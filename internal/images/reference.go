package images

import (
	"errors"
	"fmt"
	"strings"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
)

// Repository tells where an image goes in the registry: the repository's path,
// and the tag or digest in it.
//
// The reference is read as docker and containerd read it: a name without a
// registry is Docker Hub's, one of Docker Hub's without a namespace is in
// library/, and one without tag and digest has the tag latest. Then the
// registry's host is dropped, whichever it is; all else stays:
//
//	nginx                      library/nginx    latest
//	docker.io/library/hello:1  library/hello    1
//	ghcr.io/a/b:1              a/b              1
//	127.0.0.1:31999/x:1        x                1
//	quay.io/a/b@sha256:…       a/b              sha256:…
//	quay.io/a/b:1@sha256:…     a/b              sha256:…
//
// So images of one path in two registries go to one repository; a prefix keeps
// them apart ([Prefix]).
func Repository(ref string) (repository, tagOrDigest string, err error) {
	named, err := parseReference(ref)
	if err != nil {
		return "", "", err
	}
	return reference.Path(named), tagOf(named), nil
}

// Prefix is put before the path of every repository that images are pushed to:
// with the prefix team/mirror, nginx goes to team/mirror/library/nginx. Empty is
// none.
type Prefix string

// ParsePrefix checks a prefix as users write it; slashes at its ends are dropped.
func ParsePrefix(text string) (Prefix, error) {
	trimmed := strings.Trim(text, "/")
	if text == "" {
		return "", nil
	}
	if _, err := reference.WithName("localhost/" + trimmed); err != nil || trimmed == "" {
		return "", fmt.Errorf("prefix %q: want what a repository's path may begin with, as in team or team/mirror: lower-case letters, digits, and separators between them", text)
	}
	return Prefix(trimmed), nil
}

// Repository is [Repository] with the prefix.
func (p Prefix) Repository(ref string) (repository, tagOrDigest string, err error) {
	repository, tagOrDigest, err = Repository(ref)
	if p != "" && err == nil {
		repository = string(p) + "/" + repository
	}
	return repository, tagOrDigest, err
}

// parseReference reads a name as users write it; it has a tag or a digest then.
func parseReference(ref string) (reference.Named, error) {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		if errors.Is(err, reference.ErrNameContainsUppercase) {
			err = errors.New("a repository's name is in lower case")
		}
		return nil, fmt.Errorf("image reference %q: %w", ref, err)
	}
	return named, nil
}

func tagOf(named reference.Named) string {
	if digested, ok := named.(reference.Digested); ok {
		return digested.Digest().String()
	}
	return named.(reference.Tagged).Tag()
}

// Host is the registry that an image's name leads to, as it is dialled:
// registry-1.docker.io for Docker Hub.
func Host(ref string) (string, error) {
	named, err := parseReference(ref)
	if err != nil {
		return "", err
	}
	return dialHost(reference.Domain(named)), nil
}

// dialled is where a registry answers.
func dialHost(domain string) string {
	if domain == "docker.io" {
		return "registry-1.docker.io"
	}
	return domain
}

// joined writes a repository and a tag or digest as one name.
func joinReference(repository, tagOrDigest string) string {
	if _, err := digest.Parse(tagOrDigest); err == nil {
		return repository + "@" + tagOrDigest
	}
	return repository + ":" + tagOrDigest
}
