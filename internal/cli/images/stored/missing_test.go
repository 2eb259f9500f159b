package stored

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
	"github.com/zarf-dev/zarf-registry/internal/cli/clitest"
	"github.com/zarf-dev/zarf-registry/internal/cli/cmdflags"
	"github.com/zarf-dev/zarf-registry/internal/cli/render"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/internal/images/name"
	"github.com/zarf-dev/zarf-registry/internal/images/workloads"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// searchIn searches images for two platforms in a registry that has some.
func searchIn(t *testing.T) *imageSearch {
	t.Helper()
	both, amd64 := []string{"linux/amd64", "linux/arm64/v8"}, []string{"linux/amd64"}
	content := &catalog.Catalog{}
	add := func(repository, tags string, platforms []string, needs ...string) *catalog.Manifest {
		m := &catalog.Manifest{Repository: repository, Digest: digest.FromString(repository + tags), Tags: strings.Fields(tags),
			Platforms: platforms, MediaType: ocispec.MediaTypeImageManifest}
		for _, n := range needs {
			m.Needs, m.MediaType = append(m.Needs, digest.FromString(n)), ocispec.MediaTypeImageIndex
		}
		content.Manifests = append(content.Manifests, m)
		return m
	}
	add("team/multi", "amd64", amd64)
	add("team/multi", "arm64", both[1:])
	add("team/multi", "1", both, "team/multiamd64", "team/multiarm64")
	add("team/multi", "sparse", both, "team/multiamd64", "elsewhere")
	add("team/single", "1", amd64)
	add("team/chart", "1", nil)
	add("team/broken", "1", nil).Problem = "its configuration: gone"
	add("mirror/library/nginx", "1", both)
	add("library/redis", "7-zarf-1028528839", both) // as Zarf names docker.io/library/redis:7
	add("library/redis", "8", both)
	platforms := require.Value(graph.ParsePlatforms("linux/amd64,linux/arm64"))(t)
	return &imageSearch{content.Finder(), "127.0.0.1:31999", "", platforms}
}

// pods returns the needs of pods p0 and so on, each with an image.
func pods(t *testing.T, refs ...string) []*workloads.Need {
	t.Helper()
	var manifests strings.Builder
	for i, ref := range refs {
		argument, ok := strings.CutPrefix(ref, "argument ")
		container := fmt.Sprintf(`{"image": %q}`, ref)
		if ok {
			container = fmt.Sprintf(`{"args": ["--image=%s"]}`, argument)
		}
		fmt.Fprintf(&manifests, `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p%d"}, "spec": {"containers": [%s]}}`,
			i, container)
	}
	set := &workloads.Set{}
	require.Value(set.AddManifests(strings.NewReader(manifests.String()), "pods"))(t)
	return set.Needs(nil)
}

func TestImagesAreSearched(t *testing.T) {
	child := digest.FromString("team/multiamd64").String()
	for search, c := range map[string]struct {
		ref, prefix, want string
	}{
		"an index":                         {"quay.io/team/multi:1", "", "yes"},
		"one of a single platform":         {"quay.io/team/single:1", "", "not for linux/arm64"},
		"an index without its manifests":   {"quay.io/team/multi:sparse", "", "not for linux/arm64"},
		"a manifest of an index by digest": {"team/multi:1@" + child, "", "not for linux/arm64"},
		"a digest of another repository":   {"team/single@" + child, "", "no"},
		"an artifact":                      {"ghcr.io/team/chart:1", "", "yes"},
		"a damaged one":                    {"ghcr.io/team/broken:1", "", "cannot be read: its configuration: gone"},
		"another tag":                      {"ghcr.io/team/multi", "", "no"},
		"a longer path":                    {"docker.io/nginx:1", "", "no"},
		"with a prefix":                    {"docker.io/nginx:1", "mirror", "yes"},
		"the registry's own name":          {"127.0.0.1:31999/team/multi:1", "mirror", "yes"},
		"localhost":                        {"localhost:31999/team/multi:1", "mirror", "yes"},
		"another loopback address":         {"[::1]:31999/team/multi:1", "mirror", "yes"},
		"another port":                     {"127.0.0.1:5000/team/multi:1", "mirror", "no"},
		"Zarf's tag":                       {"redis:7", "", "yes"},
		"Zarf's tag of another registry":   {"quay.io/library/redis:7", "", "no"},
		"Zarf's tag, rewritten":            {"127.0.0.1:31999/library/redis:7-zarf-1028528839", "", "yes"},
	} {
		t.Run(search, func(t *testing.T) {
			s := searchIn(t)
			s.prefix = name.Prefix(c.prefix)
			report := s.report(pods(t, c.ref), true)
			if len(report.Images) != 1 || report.Images[0].stored() != c.want || report.References != 1 {
				t.Errorf("%+v, want %q", report, c.want)
			}
			s.platforms = nil
			want, _, _ := strings.Cut(c.want, " for ")
			if got := s.report(pods(t, c.ref), true); want == "not" && got.Missing > 0 || len(got.Platforms) > 0 {
				t.Errorf("without platforms: %+v", got)
			}
		})
	}
}

// missing runs what follows the search.
func missing(t *testing.T, output string, all bool, refs ...string) (out string, err error) {
	t.Helper()
	var printed bytes.Buffer
	f := &missingFlags{output: output}
	err = f.print(&printed, searchIn(t).report(pods(t, refs...), all))
	return printed.String(), err
}

func TestMissingImagesArePrinted(t *testing.T) {
	refs := []string{"quay.io/team/single:1", "quay.io/team/multi:1", "ghcr.io/team/gone:2", "ghcr.io/team/gone:2",
		"argument quay.io/team/sidecar:1", "argument quay.io/team/multi:1", "127.0.0.1:31999/team/lost:1",
		// By both names, as it is rewritten.
		"docker.io/team/rewritten:1", "127.0.0.1:31999/team/rewritten:1",
		"docker.io/library/redis:8", "127.0.0.1:31999/library/redis:8-zarf-1028528839",
		"127.0.0.1:31999/zarf-registry/init-hook:0.0.1"}
	out, err := missing(t, "table", false, refs...)
	clitest.Same(t, "text", out, `REFERENCE                                        IN THE REGISTRY      NEEDED BY
127.0.0.1:31999/library/redis:8-zarf-1028528839  no                   Pod p10
127.0.0.1:31999/team/lost:1                      no                   Pod p6
docker.io/team/rewritten:1                       no                   Pod p7 and 1 more
ghcr.io/team/gone:2                              no                   Pod p2 and 1 more
quay.io/team/single:1                            not for linux/arm64  Pod p0
quay.io/team/sidecar:1                           no                   Pod p4 (argument --image)
5 of 7 images missing; possibly 1 more, named only in arguments or environment variables
`)
	if silent, ok := errors.AsType[*render.SilentError](err); !ok || silent.Code != exitcode.Found {
		t.Errorf("the error is %v", err)
	}

	out, err = missing(t, "name", false, refs...)
	clitest.Same(t, "names", out, `# pull with --platform linux/amd64,linux/arm64
docker.io/library/redis:8  # Pod p10
# unknown origin: 127.0.0.1:31999/team/lost:1  # Pod p6
docker.io/team/rewritten:1  # Pod p7 and 1 more
ghcr.io/team/gone:2  # Pod p2 and 1 more
quay.io/team/single:1  # Pod p0
# possibly quay.io/team/sidecar:1  # Pod p4 (argument --image)
`)
	if err == nil {
		t.Error("no error")
	}
	if read, err := name.ReadList(strings.NewReader(out), "list"); err != nil || len(read) != 4 {
		t.Errorf("pull reads %q, error %v", read, err)
	}

	out, err = missing(t, "json", true, refs[:3]...)
	if err == nil {
		t.Error("no error")
	}
	clitest.JSON(t, render.MissingImages, out)

	for output, want := range map[string]string{"table": "0 of 1 images missing\n", "name": ""} {
		if out, err := missing(t, output, false, refs[1]); err != nil || out != want {
			t.Errorf("%s of no missing images: %q, error %v", output, out, err)
		}
	}
	if out, err := missing(t, "table", false, refs[4]); err != nil || !strings.Contains(out, "0 of 0") {
		t.Errorf("a possible image: error %v, output %s", err, out)
	}
}

func TestManifestsAreRead(t *testing.T) {
	dir := t.TempDir()
	const pod = "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{image: %s}]}}\n"
	for name, content := range map[string]string{
		"a.yaml": fmt.Sprintf(pod, "a"), "sub/b.YML": fmt.Sprintf(pod, "b"), "sub/c.json": fmt.Sprintf(pod, "c"),
		"NOTES.txt": "notes", ".hidden.yaml": "hidden", ".git/x.yaml": "hidden", "sub/kustomization.yaml": "resources: [b.YML]",
		"d": fmt.Sprintf(pod, "d"), "empty/README.md": "", "comment.yaml": "# comment\n",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	set, err := readManifests(strings.NewReader(fmt.Sprintf(pod, "stdin")), []string{dir, filepath.Join(dir, "d"), "-", "-"})
	require.NoError(t, err)
	var found []string
	for _, n := range set.Needs(nil) {
		found = append(found, n.Path)
	}
	clitest.Same(t, "needs", strings.Join(found, " "), "library/a library/b library/c library/d library/stdin")
	if set, err := readManifests(nil, nil); set != nil || err != nil {
		t.Errorf("without arguments: %v, %v", set, err)
	}
	for _, c := range []struct{ path, want string }{
		{"gone", "gone"}, {"empty", "no Kubernetes manifest in"}, {"comment.yaml", "no Kubernetes manifest in"},
		{"NOTES.txt", "NOTES.txt: document 1"},
	} {
		if _, err := readManifests(nil, []string{filepath.Join(dir, c.path)}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error is %v", c.path, err)
		}
	}
}

func TestWorkloadsOfTheReleaseDoNotCount(t *testing.T) {
	f := &missingFlags{cluster: cmdflags.Cluster{Global: &cmdflags.Global{Namespace: "zarf", Release: "r"}}, excluded: []string{"kube-system"}}
	own := map[string]string{"app.kubernetes.io/instance": "r"}
	for _, c := range []struct {
		namespace string
		labels    map[string]string
		want      bool
	}{{"zarf", own, false}, {"zarf", nil, true}, {"shop", own, true}, {"kube-system", nil, false}} {
		if f.counts(c.namespace, c.labels) != c.want {
			t.Errorf("namespace %s with %v counts: %t", c.namespace, c.labels, !c.want)
		}
	}
}

func TestPlatformsOfNodesMayBeUnknown(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	node.Status.NodeInfo.OperatingSystem, node.Status.NodeInfo.Architecture = "linux", "arm64"
	client := fake.NewClientset(node)
	var logged bytes.Buffer
	log := slog.New(slog.NewTextHandler(&logged, nil))
	c := &cmdflags.Access{Client: client}
	if p, err := platformsOfNodes(t.Context(), c, log); err != nil || p.String() != "linux/arm64" || logged.Len() > 0 {
		t.Errorf("%s, error %v, log %s", p, err, &logged)
	}
	client.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("forbidden")
	})
	if p, err := platformsOfNodes(t.Context(), c, log); err != nil || p != nil || !strings.Contains(logged.String(), "forbidden") {
		t.Errorf("%s, error %v, log %s", p, err, &logged)
	}
}
