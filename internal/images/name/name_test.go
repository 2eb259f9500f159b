package name

import (
	"fmt"
	"strings"
	"testing"
)

const emptySum = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

func TestRepository(t *testing.T) {
	for name, c := range map[string]struct{ ref, repository, tag string }{
		"a bare name is Docker Hub's latest":                {"nginx", "library/nginx", "latest"},
		"a bare name keeps its tag":                         {"nginx:1.27", "library/nginx", "1.27"},
		"a namespace of Docker Hub":                         {"bitnami/redis", "bitnami/redis", "latest"},
		"Docker Hub in full":                                {"docker.io/library/hello:1", "library/hello", "1"},
		"Docker Hub in full without library":                {"docker.io/hello:1", "library/hello", "1"},
		"Docker Hub's old name":                             {"index.docker.io/library/hello:1", "library/hello", "1"},
		"another registry":                                  {"ghcr.io/a/b:1", "a/b", "1"},
		"a deep path":                                       {"registry.example.com/a/b/c/d:v1", "a/b/c/d", "v1"},
		"a registry with a port":                            {"registry.example.com:5000/a", "a", "latest"},
		"the loopback address":                              {"127.0.0.1:31999/x:1", "x", "1"},
		"the loopback address of IPv6":                      {"[::1]:31999/x:1", "x", "1"},
		"localhost":                                         {"localhost/x:1", "x", "1"},
		"a name whose first part is not a host":             {"zarf-registry/registry:0.1.0", "zarf-registry/registry", "0.1.0"},
		"a digest":                                          {"quay.io/a/b@" + emptySum, "a/b", emptySum},
		"a digest takes precedence over a tag":              {"quay.io/a/b:1@" + emptySum, "a/b", emptySum},
		"a tag of cosign":                                   {"ghcr.io/a/b:sha256-e3b0c442.sig", "a/b", "sha256-e3b0c442.sig"},
		"upper case makes the first part a registry's name": {"MyHost/a:1", "a", "1"},
	} {
		t.Run(name, func(t *testing.T) {
			repository, tag, err := Repository(c.ref)
			if err != nil || repository != c.repository || tag != c.tag {
				t.Errorf("Repository(%q) = %q, %q, %v; want %q, %q", c.ref, repository, tag, err, c.repository, c.tag)
			}
		})
	}
	for name, ref := range map[string]string{
		"nothing":            "",
		"a scheme":           "https://ghcr.io/a/b:1",
		"upper case in path": "ghcr.io/A/b:1",
		"a path with ..":     "ghcr.io/a/../b:1",
		"a short digest":     "a@sha256:abc",
		"no tag after colon": "nginx:",
		"blanks":             "my image",
		"an image id":        emptySum[len("sha256:"):],
	} {
		t.Run("rejects "+name, func(t *testing.T) {
			if repository, tag, err := Repository(ref); err == nil {
				t.Errorf("Repository(%q) = %q, %q; want an error", ref, repository, tag)
			}
		})
	}
}

func TestNamesAreComplete(t *testing.T) {
	for ref, want := range map[string]string{
		"nginx": "docker.io/library/nginx:latest", "team/a:1": "docker.io/team/a:1", "[::1]:31999/x:1": "[::1]:31999/x:1",
		"quay.io/a/b:1@" + emptySum: "quay.io/a/b@" + emptySum,
	} {
		if n, err := Parse(ref); err != nil || n.String() != want {
			t.Errorf("%s is %s, error %v, want %s", ref, n, err, want)
		}
	}
}

func TestPrefix(t *testing.T) {
	for text, want := range map[string]string{"": "library/nginx", "team": "team/library/nginx",
		"/a/b-c/": "a/b-c/library/nginx"} {
		p, err := ParsePrefix(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
		}
		if got := p.Join("library/nginx"); got != want {
			t.Errorf("%q: %s", text, got)
		}
	}
	for _, text := range []string{"/", "Team", "a//b", "a:1", "-a", "a b"} {
		if p, err := ParsePrefix(text); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("prefix %q", text)) {
			t.Errorf("%q: %q, %v", text, p, err)
		}
	}
}
