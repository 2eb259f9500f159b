package registry

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
)

func TestGarbageCollect(t *testing.T) {
	ca, root := newAuthority(t), t.TempDir()
	i := start(t, ca, root)
	c := i.pusher()
	kept, _ := c.pushImage("a/b", "kept", "kept layer")
	overwritten, overwrittenText := c.pushImage("a/b", "tag", "overwritten layer")
	c.pushImage("a/b", "tag", "new layer")
	deleted, deletedText := c.pushImage("c", "v1", "deleted layer")
	c.must(http.StatusAccepted, "DELETE", "/v2/c/manifests/"+deleted.String(), nil)
	if err := i.stop(); err != nil {
		t.Fatal(err)
	}
	config := "version: 0.1\nstorage: {filesystem: {rootdirectory: " + root + "}}\n"
	collect := func(t *testing.T, options CollectOptions) (Collected, string) {
		t.Helper()
		var report strings.Builder
		options.Report = &report
		collected, err := GarbageCollect(context.Background(), loadConfig(t, config).Config, options)
		if err != nil {
			t.Fatal(err)
		}
		return collected, report.String()
	}
	// What a deleted image leaves: its manifest and its layer; its configuration is shared.
	orphans := Collected{Blobs: 2, Bytes: int64(len(deletedText) + len("deleted layer"))}
	untagged := Collected{Manifests: 1, Blobs: 4, Bytes: orphans.Bytes + int64(len(overwrittenText)+len("overwritten layer"))}
	nothing := Collected{}
	for _, step := range []struct {
		sentence string
		options  CollectOptions
		want     Collected
		reported []string
	}{
		{"a dry run finds what a deleted image left", CollectOptions{DryRun: true}, orphans, []string{"blob " + deleted.String(), "blob " + digest.FromString("deleted layer").String()}},
		{"a dry run finds untagged manifests too", CollectOptions{DryRun: true, DeleteUntagged: true}, untagged, []string{"manifest a/b@" + overwritten.String()}},
		{"and removes nothing", CollectOptions{}, orphans, []string{"blob " + deleted.String()}},
		{"the second time there is nothing", CollectOptions{}, nothing, nil},
		{"untagged manifests are removed when asked for", CollectOptions{DeleteUntagged: true},
			Collected{Manifests: 1, Blobs: 2, Bytes: untagged.Bytes - orphans.Bytes}, []string{"manifest a/b@" + overwritten.String(), "blob " + overwritten.String()}},
		{"and then there is nothing", CollectOptions{DeleteUntagged: true}, nothing, nil},
	} {
		t.Run(step.sentence, func(t *testing.T) {
			got, report := collect(t, step.options)
			if got != step.want {
				t.Errorf("collected %+v, want %+v", got, step.want)
			}
			for _, want := range step.reported {
				if !strings.Contains(report, want) {
					t.Errorf("%q is not reported in\n%s", want, report)
				}
			}
			if lines := strings.Count(report, "\n"); lines != got.Blobs+got.Manifests {
				t.Errorf("%d lines for %+v:\n%s", lines, got, report)
			}
		})
	}
	again := start(t, ca, root)
	accept := []string{"Accept", "application/vnd.oci.image.manifest.v1+json"}
	again.node().must(http.StatusOK, "GET", "/v2/a/b/manifests/"+kept.String(), nil, accept...)
	again.node().must(http.StatusOK, "GET", "/v2/a/b/blobs/"+digest.FromString("kept layer").String(), nil)
	again.node().must(http.StatusOK, "GET", "/v2/a/b/blobs/"+digest.FromString("new layer").String(), nil)
	again.node().must(http.StatusNotFound, "GET", "/v2/a/b/blobs/"+digest.FromString("overwritten layer").String(), nil)
	// What is gone can be pushed again.
	again.pusher().pushImage("c", "v1", "deleted layer")
}

func TestGarbageCollectEdges(t *testing.T) {
	t.Run("a registry that was never pushed to", func(t *testing.T) {
		options := loadConfig(t, "version: 0.1\nstorage: {filesystem: {rootdirectory: "+t.TempDir()+"}}\n")
		if got, err := GarbageCollect(context.Background(), options.Config, CollectOptions{Report: os.Stderr}); err != nil || got != (Collected{}) {
			t.Errorf("%+v, %v", got, err)
		}
	})
	t.Run("storage in memory is refused", func(t *testing.T) {
		options := loadConfig(t, "version: 0.1\nstorage: inmemory\n")
		if _, err := GarbageCollect(context.Background(), options.Config, CollectOptions{Report: os.Stderr}); err == nil || !strings.Contains(err.Error(), "nothing to collect") {
			t.Errorf("%v", err)
		}
	})
	t.Run("storage that cannot be read is an error", func(t *testing.T) {
		file := writeFile(t, filepath.Join(t.TempDir(), "file"), nil)
		options := loadConfig(t, "version: 0.1\nstorage: {filesystem: {rootdirectory: "+file+"}}\n")
		if _, err := GarbageCollect(context.Background(), options.Config, CollectOptions{Report: os.Stderr}); err == nil || !strings.Contains(err.Error(), "reading the storage") {
			t.Errorf("%v", err)
		}
	})
}
