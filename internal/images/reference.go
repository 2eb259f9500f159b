package images

import (
	"fmt"

	"github.com/distribution/reference"
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
// So images of one path in two registries go to one repository.
func Repository(ref string) (repository, tagOrDigest string, err error) {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return "", "", fmt.Errorf("image reference %q: %w", ref, err)
	}
	repository = reference.Path(named)
	if digested, ok := named.(reference.Digested); ok {
		return repository, digested.Digest().String(), nil
	}
	return repository, named.(reference.Tagged).Tag(), nil
}
