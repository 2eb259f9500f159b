package registry

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// TestMountOfACollectedBlob mounts a blob from a repository with a link to it, as a mount during a collection
// leaves it, after which the content was pushed again by its SHA-256 digest.
func TestMountOfACollectedBlob(t *testing.T) {
	t.Parallel()
	i := start(t, newTestCA(t), t.TempDir())
	c := i.pusher()
	d := digest.SHA512.FromString("collected")
	c.pushAs("a", d, "collected")
	require.NoError(t, os.Remove(filepath.Join(i.root, storage.DigestLinkPath(d))))
	begun := c.must(http.StatusAccepted, "POST", "/v2/b/blobs/uploads/?mount="+d.String()+"&from=a", nil)
	c.must(http.StatusNotFound, "GET", "/v2/b/blobs/"+d.String(), nil)
	c.must(http.StatusCreated, "PUT", begun.Header.Get("Location")+"&digest="+d.String(), strings.NewReader("collected"), octets...)
	c.must(http.StatusOK, "GET", "/v2/b/blobs/"+d.String(), nil)
}

func TestMount(t *testing.T) {
	t.Parallel()
	const uploads = "/blobs/uploads/"
	i := start(t, newTestCA(t), t.TempDir())
	c, node := i.pusher(), i.node()
	d := c.pushBlob("first", "shared")
	empty := c.pushBlob("first", "")
	absent := digest.FromString("missing blob")

	for desc, tt := range map[string]struct {
		to, query string
		want      digest.Digest // empty: an upload starts
	}{
		"without a repository":                   {"a", "?mount=" + d.String(), d},
		"from the repository that has the blob":  {"b", "?mount=" + d.String() + "&from=first", d},
		"from a repository that has other blobs": {"c", "?mount=" + d.String() + "&from=e", d},
		"from a missing repository":              {"d", "?mount=" + d.String() + "&from=nowhere", d},
		"from an invalid repository":             {"f", "?mount=" + d.String() + "&from=NO%20NAME", d},
		"into the repository that has the blob":  {"first", "?mount=" + d.String(), d},
		"the empty blob":                         {"g", "?mount=" + empty.String(), empty},
		"a missing blob":                         {"h", "?mount=" + absent.String(), ""},
		"a missing blob, from a repository":      {"h", "?mount=" + absent.String() + "&from=first", ""},
		"another algorithm's digest":             {"h", "?mount=" + digest.SHA512.FromString("shared").String(), ""},
		"an unknown algorithm":                   {"h", "?mount=md5:5d41402abc4b2a76b9719d911017c592", ""},
		"a digest that is too short":             {"h", "?mount=sha256:abc", ""},
		"a path traversal":                       {"h", "?mount=sha256:../../../../etc/passwd", ""},
		"nothing":                                {"h", "?mount=", ""},
		"an upload without a mount":              {"h", "", ""},
	} {
		t.Run(desc, func(t *testing.T) {
			c.t = t
			if tt.want == "" {
				begun := c.must(http.StatusAccepted, "POST", "/v2/"+tt.to+uploads+tt.query, nil)
				if !strings.Contains(begun.Header.Get("Location"), "/v2/"+tt.to+uploads) ||
					begun.Header.Get("Docker-Content-Digest") != "" {
					t.Errorf("headers of an upload: %v", begun.Header)
				}
				return
			}
			path := "/v2/" + tt.to + "/blobs/" + tt.want.String()
			mounted := c.must(http.StatusCreated, "POST", "/v2/"+tt.to+uploads+tt.query, nil)
			if got := mounted.Header; got.Get("Location") != path || got.Get("Docker-Content-Digest") != tt.want.String() ||
				mounted.body != "" {
				t.Errorf("headers %v, body %q", got, mounted.body)
			}
			node.must(http.StatusOK, "HEAD", path, nil)
			if got := node.must(http.StatusOK, "GET", path, nil); digest.FromString(got.body) != tt.want {
				t.Errorf("the mounted blob is %q", got.body)
			}
		})
	}
}

// Distribution also reads parameters from the body of a form, and prefers them.
func TestUploadParametersComeFromTheURL(t *testing.T) {
	t.Parallel()
	c := start(t, newTestCA(t), t.TempDir()).pusher()
	stored, absent := c.pushBlob("a", "content").String(), digest.FromString("absent").String()
	const form = "application/x-www-form-urlencoded"
	for name, tt := range map[string]struct {
		query, body string
		status      int
	}{
		"a body does not replace the digest": {"?mount=" + absent, "mount=" + stored + "&from=a", http.StatusAccepted},
		"a body does not add a digest":       {"", "mount=" + stored + "&from=a", http.StatusAccepted},
		"a body does not hide the digest":    {"?mount=" + stored, "mount=" + absent, http.StatusCreated},
		"the first of two digests counts":    {"?mount=" + absent + "&mount=" + stored, "", http.StatusAccepted},
	} {
		t.Run(name, func(t *testing.T) {
			c.t = t
			a := c.must(tt.status, "POST", "/v2/b/blobs/uploads/"+tt.query, strings.NewReader(tt.body), "Content-Type", form)
			if got := a.Header.Get("Docker-Content-Digest"); tt.status == http.StatusCreated && got != stored {
				t.Errorf("mounted %s", got)
			}
		})
	}
	t.Run("a body is content, whatever its type", func(t *testing.T) {
		c.t = t
		const content = "digest=x&_state=y"
		begun := c.begin("b")
		c.must(http.StatusCreated, "PUT", c.base+begun+"&digest="+digest.FromString(content).String(),
			strings.NewReader(content), "Content-Type", form)
	})
}

// A directory in the place of a blob is not mounted; for other damage, see TestDamagedBlobsDoNotExist.
func TestMountOfADirectory(t *testing.T) {
	t.Parallel()
	i := start(t, newTestCA(t), t.TempDir())
	d := i.pusher().pushBlob("first", "shared")
	data := filepath.Join(i.root, storage.BlobPath(d))
	require.NoError(t, errors.Join(os.Remove(data), os.Mkdir(data, 0o700)))
	i.pusher().must(http.StatusAccepted, "POST", "/v2/second/blobs/uploads/?mount="+d.String(), nil)
}

func TestMountWhileReadOnly(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	i := start(t, newTestCA(t), root)
	d := i.pusher().pushBlob("first", "shared")
	config := "version: 0.1\n" + storageAt(root, "maintenance: {readonly: {enabled: true}}")
	i = start(t, newTestCA(t), root, configured(t, config))
	i.pusher().must(http.StatusMethodNotAllowed, "POST", "/v2/second/blobs/uploads/?mount="+d.String(), nil)
	i.node().must(http.StatusNotFound, "HEAD", "/v2/second/blobs/"+d.String(), nil)
}
