package stored

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
	"github.com/zarf-dev/zarf-registry/internal/api/deletion"
	"github.com/zarf-dev/zarf-registry/internal/api/gc"
	"github.com/zarf-dev/zarf-registry/internal/cli/clitest"
	"github.com/zarf-dev/zarf-registry/internal/cli/render"
	"github.com/zarf-dev/zarf-registry/internal/images/name"
	"github.com/zarf-dev/zarf-registry/internal/images/workloads"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// contents is a catalog with images that have these tags.
func contents(tags map[string][]string) *catalog.Catalog {
	c := &catalog.Catalog{Blobs: map[digest.Digest]catalog.Blob{}, At: time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)}
	for _, repository := range []string{"library/nginx", "nginx", "team/app", "zarf-registry/init-hook"} {
		d := digest.FromString(repository)
		c.Blobs[d] = catalog.Blob{Digest: d, Size: 1000}
		c.Manifests = append(c.Manifests, &catalog.Manifest{Repository: repository, Digest: d, Tags: tags[repository],
			Pushed: c.At.Add(-48 * time.Hour), Platforms: []string{"linux/amd64"}})
	}
	return c
}

func TestDeleteChooses(t *testing.T) {
	content := contents(map[string][]string{"library/nginx": {"1", "2"}, "nginx": {"own", "2"}, "team/app": {"1", "2", "latest"},
		"zarf-registry/init-hook": {"0.1.0"}})
	used, err := workloads.List(t.Context(), fake.NewClientset())
	require.NoError(t, err)
	require.NoError(t, used.AddList("Pod shop/web", []string{"nginx:1"}))
	app := "team/app@" + digest.FromString("team/app").String()
	for _, c := range []struct {
		args           string
		force          bool
		deleted, untag string
		fails          []string
	}{
		{"team/app:1", false, "", "team/app:1", nil},
		{"127.0.0.1:31999/team/app:1 team/app:2 team/app", false, "team/app", "", nil},
		{app, false, "team/app", "", nil},
		{"nginx:own nginx:2", false, "nginx", "", nil},
		{"127.0.0.1:31999/nginx:own", false, "", "nginx:own", nil},
		{"nginx:1", true, "", "library/nginx:1", nil},
		{"nginx:1", false, "", "", []string{"library/nginx:1 is used by Pod shop/web", "--force"}},
		{"team/app:3 other/app:1", false, "", "", []string{"team/app:3: not found", "other/app:1: not found"}},
		{"zarf-registry/init-hook:0.1.0", true, "", "", []string{"belongs to the registry itself"}},
	} {
		args := strings.Fields(c.args)
		names := make([]name.Name, len(args))
		for i, arg := range args {
			names[i] = require.Value(name.Parse(arg))(t)
		}
		chosen, err := (&deleteFlags{force: c.force}).choose(content, used, args, names)
		for _, want := range c.fails {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error is %v, want %q", c.args, err, want)
			}
		}
		if len(c.fails) > 0 {
			continue
		}
		var deleted, untag []string
		for _, m := range catalog.ManifestsToDelete(chosen.decisions) {
			deleted = append(deleted, m.Repository)
		}
		for _, u := range chosen.untagged {
			untag = append(untag, u.repository+":"+u.tag)
		}
		if strings.Join(deleted, " ") != c.deleted || strings.Join(untag, " ") != c.untag || err != nil {
			t.Errorf("%s deletes %q and the tags %q, error %v", c.args, deleted, untag, err)
		}
	}
}

func TestRemovalIsPrinted(t *testing.T) {
	content := contents(map[string][]string{"team/app": {"1", "2"}})
	match := require.Value(catalog.ParsePatterns("team/*"))(t)
	decisions := content.Decide(catalog.Rules{Match: match, Used: func(*catalog.Image) []string { return nil }})
	doomed := catalog.ManifestsToDelete(decisions)
	what := newRemoval(true, "127.0.0.1:31999", content, choice{decisions, []tagged{{"nginx", "1"}}}, doomed)
	what.Reclaimable = content.Reclaimable(doomed, 0)
	f := &removalFlags{collect: true, request: gc.Request{Grace: time.Hour}}
	var last string
	for _, c := range []struct {
		change func()
		want   string
	}{
		{func() {}, "would delete 1 image with 1 manifest; garbage collection would free 1.0 kB"},
		{func() { f.collect = false }, "would delete 1 image with 1 manifest; zarf-registry images garbage-collect would free 1.0 kB"},
		{func() { what.DryRun, what.Reclaimable.GracePeriodBytes = false, 5 },
			"deleted 1 image with 1 manifest; zarf-registry images garbage-collect frees 1.0 kB; 5 B more after the grace period of 1h0m0s"},
		{func() {
			what.GarbageCollection, what.PushedAgain, what.Reclaimable.GracePeriodBytes = &gc.Result{Bytes: 990}, []string{"x"},
				0
		},
			"deleted 1 image with 0 manifests; garbage collection freed 990 B; 1 manifest pushed again meanwhile, and kept"},
	} {
		c.change()
		out := clitest.Text(t, f.print, what)
		last = clitest.Data(t, render.ImageRemoval, what)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if lines[len(lines)-1] != c.want {
			t.Errorf("it prints %q, want %q", lines[len(lines)-1], c.want)
		}
		for _, want := range []string{"127.0.0.1:31999/team/app:1  2026-10-30T00:00:00Z  1.0 kB",
			"127.0.0.1:31999/team/app:2  2026-10-30T00:00:00Z  the same image", "127.0.0.1:31999/nginx:1: its image has other tags"} {
			if !strings.Contains(out, want) {
				t.Errorf("it lacks %q:\n%s", want, out)
			}
		}
	}
	clitest.JSON(t, render.ImageRemoval, last)
}

func TestStoredImagesAreListed(t *testing.T) {
	short := func(noTrunc bool) func(io.Writer, Images) error {
		return func(w io.Writer, list Images) error { return printStored(w, list, noTrunc) }
	}
	content := contents(map[string][]string{"library/nginx": {"1", "2"}, "nginx": {"1"}})
	l := &lister{content: content, address: "[::1]:31999", unshared: content.Unshared()}
	if all, tagged := l.images(true).Items, l.images(false).Items; len(all) != 5 || len(tagged) != 3 || all[0].UsedBy != nil {
		t.Errorf("%d images, of which %d have tags: %+v", len(all), len(tagged), all)
	}
	l.using = func(i *catalog.Image) []string {
		if i.Repository == "nginx" {
			return []string{"Pod a/b", "Pod a/c"}
		}
		return nil
	}
	clitest.Same(t, "list", strings.Join(strings.Fields(clitest.Text(t, short(false), l.images(false))), " "), strings.Join([]string{
		"REFERENCE PLATFORMS SIZE UNSHARED SIGNATURES SBOMS PUSHED USED BY",
		"[::1]:31999/library/nginx:1 linux/amd64 1.0 kB 1.0 kB 0 0 2026-10-30 -",
		"[::1]:31999/library/nginx:2 linux/amd64 1.0 kB 1.0 kB 0 0 2026-10-30 -",
		"[::1]:31999/nginx:1 linux/amd64 1.0 kB 1.0 kB 0 0 2026-10-30 Pod a/b and 1 more",
	}, " "))
	clitest.JSON(t, render.ImageList, clitest.Data(t, render.ImageList, l.images(false)))
	list := l.repositories()
	list.Items = list.Items[:2]
	clitest.JSON(t, render.RepositoryList, clitest.Data(t, render.RepositoryList, list))
	clitest.Same(t, "names", clitest.Text(t, printRepositoryNames, list), "[::1]:31999/library/nginx\n[::1]:31999/nginx\n")
	untagged := l.images(true)
	untagged.Items = slices.DeleteFunc(untagged.Items, func(i Listed) bool { return !strings.Contains(i.Reference, "@") })
	whole := untagged.Items[0].Digest.String()
	for noTrunc, want := range map[bool]string{false: "@" + whole[:len("sha256:")+12] + "… ", true: "@" + whole + " "} {
		if text := clitest.Text(t, short(noTrunc), untagged); !strings.Contains(text, want) {
			t.Errorf("--no-trunc=%t: it lacks %q:\n%s", noTrunc, want, text)
		}
	}
	repositories := clitest.Text(t, printRepositories, list)
	clitest.Same(t, "list --repositories", strings.Join(strings.Fields(repositories), " "), strings.Join([]string{
		"REPOSITORY IMAGES TAGS PLATFORMS SIZE UNSHARED SIGNATURES SBOMS PUSHED USED BY",
		"[::1]:31999/library/nginx 1 2 linux/amd64 1.0 kB 1.0 kB 0 0 2026-10-30 -",
		"[::1]:31999/nginx 1 1 linux/amd64 1.0 kB 1.0 kB 0 0 2026-10-30 Pod a/b and 1 more",
	}, " "))
}

func TestManifestsAreDeletedInOneRequest(t *testing.T) {
	failing := false
	var sent deletion.Request
	server := newTLSServer(t, func(w http.ResponseWriter, r *http.Request) {
		if err := json.NewDecoder(r.Body).Decode(&sent); err != nil || r.URL.Path != deletion.Path {
			t.Errorf("%s: %v", r.URL.Path, err)
		}
		out := json.NewEncoder(w)
		for repository, digests := range sent.Manifests {
			for _, d := range digests {
				e := deletion.Event{Repository: repository, Digest: d}
				if d == digest.FromString("pushed again") {
					e.Kept = "it was pushed again"
				}
				out.Encode(e)
			}
		}
		if failing {
			out.Encode(deletion.Event{Error: "the storage is gone"})
			return
		}
		out.Encode(deletion.Event{End: true})
	})
	access := release.PushAccess{ServerName: "r"}
	want := deletion.Request{Since: time.Now().UTC(), Manifests: map[string][]digest.Digest{}}
	var manifests []*catalog.Manifest
	for _, name := range []string{"index", "pushed again", "first platform", "second platform"} {
		for n := range 16 {
			m := &catalog.Manifest{Repository: fmt.Sprintf("team/app-%d", n), Digest: digest.FromString(name)}
			manifests = append(manifests, m)
			want.Manifests[m.Repository] = append(want.Manifests[m.Repository], m.Digest)
		}
	}
	f, r, log := &removalFlags{}, &removal{}, slog.New(slog.DiscardHandler)
	require.NoError(t, f.delete(t.Context(), server, access, want.Since, manifests, r, log))
	if diff := cmp.Diff(want, sent); diff != "" {
		t.Errorf("deleted (-want +got):\n%s", diff)
	}
	if len(r.PushedAgain) != 16 || !slices.IsSorted(r.PushedAgain) {
		t.Errorf("%d manifests were pushed again, want 16: %v", len(r.PushedAgain), r.PushedAgain)
	}
	failing = true
	err := f.delete(t.Context(), server, access, want.Since, manifests, &removal{}, log)
	if err == nil || !strings.Contains(err.Error(), "the storage is gone; 48 of 64 are deleted: run the command again") {
		t.Errorf("if a part cannot be deleted, the error is %v", err)
	}
}
