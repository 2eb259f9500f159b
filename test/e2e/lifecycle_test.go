package e2e

import (
	"context"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// removalJSON is the output of images delete and images prune.
type removalJSON struct {
	Images            []struct{ References []string }
	Kept              []struct{ References []string }
	Manifests         int
	Reclaimable       struct{ Bytes int64 }
	GarbageCollection *struct{ Bytes int64 }
	PushedAgain       []string
}

// testLifecycle lists, deletes and prunes images, one of which a CronJob names as it is called outside.
func testLifecycle(t *testing.T, w *world) {
	const size = 4 << 20
	for _, name := range []string{"used:1", "old:1", "old:2", "gone:1"} {
		w.push(t, w.makeArchive(t, "example.com/life/"+name, size))
	}
	w.push(t, w.makeArchive(t, "example.com/life/gone:1", size)) // the previous image loses its tag
	w.scheduled(t, "lifecycle", "registry.example.com/life/used:1")
	refuses := func(args ...string) string {
		t.Helper()
		_, errOut, err := try(w.command(t, w.hook, append([]string{"images"}, args...)...))
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 3 {
			t.Errorf("images %q: %v: %s", args, err, errOut)
		}
		return errOut
	}

	var listed struct {
		Items []struct {
			Reference      string
			Size, Unshared int64
			Pushed         time.Time
			Platforms      []string
			UsedBy         []string
		}
	}
	decode(t, output(t, w.command(t, w.hook, "images", "list", "--untagged", "--output=json")), &listed)
	found := 0
	for _, image := range listed.Items {
		name, ours := strings.CutPrefix(image.Reference, w.address+"/life/")
		if !ours {
			continue
		}
		found++
		used := slices.Equal(image.UsedBy, []string{"CronJob " + workloads + "/lifecycle"})
		if used != (name == "used:1") || !used && len(image.UsedBy) > 0 || image.Unshared < size ||
			image.Size < image.Unshared || time.Since(image.Pushed).Abs() > time.Hour || len(image.Platforms) != 1 {
			t.Errorf("list says %+v", image)
		}
	}
	if found != 5 {
		t.Errorf("list has %d of 5 images: %+v", found, listed)
	}
	t.Logf("images list:\n%s", output(t, w.command(t, w.hook, "images", "list")))
	text := output(t, w.command(t, w.hook, "images", "list", "--repositories"))
	t.Logf("images list --repositories:\n%s", text)
	if !strings.Contains(text, w.address+"/life/gone ") || !strings.Contains(text, "CronJob "+workloads+"/lifecycle") {
		t.Errorf("it lacks repositories of the test")
	}

	if said := refuses("delete", w.address+"/life/used:1"); !strings.Contains(said, "CronJob "+workloads+"/lifecycle") {
		t.Errorf("deleting an image in use: %s", said)
	}
	refuses("delete", "life/unknown:1", "life/gone:1")
	refuses("prune")
	prune := []string{"images", "prune", "--match=life/*", "--keep-last=1", "--grace-period=0s", "--output=json"}
	before := w.stored(t).blobs
	var preview, done, again removalJSON
	time.Sleep(time.Second) // what was pushed in the same second as the catalog was read is kept
	decode(t, output(t, w.command(t, w.hook, append(prune, "--dry-run")...)), &preview)
	t.Logf("images prune:\n%s", output(t, w.command(t, w.hook, append(prune, "--dry-run", "--output=table")...)))
	if after := w.stored(t).blobs; len(preview.Images) != 2 || preview.Reclaimable.Bytes < 2*size || after != before {
		t.Errorf("the preview is %+v; %d bytes are stored, %d were before", preview, after, before)
	}
	decode(t, output(t, w.command(t, w.hook, prune...)), &done)
	after := w.stored(t).blobs
	freed := float64(before - after)
	t.Logf("figure: prune freed %.0f bytes, its preview was %d", freed, preview.Reclaimable.Bytes)
	if done.GarbageCollection == nil || len(done.Images) != 2 || len(done.PushedAgain) > 0 ||
		math.Abs(freed-float64(preview.Reclaimable.Bytes)) > 0.01*freed {
		t.Errorf("it pruned %+v", done)
	}
	decode(t, output(t, w.command(t, w.hook, prune...)), &again)
	if len(again.Images) != 0 || again.GarbageCollection != nil {
		t.Errorf("it pruned again: %+v", again)
	}
	w.runsEverywhere(t, "lifecycle", w.address+"/life/used:1")

	said := output(t, w.command(t, w.hook, "images", "delete", "life/gone:1", w.address+"/life/old:2", "--grace-period=0s"))
	t.Logf("images delete:\n%s", said)
	if left := w.stored(t).blobs; after-left < 2*size || !strings.Contains(said, "deleted 2 images") {
		t.Errorf("%d bytes were stored, %d are now", after, left)
	}
	refuses("delete", "life/gone:1")
}

// scheduled creates a CronJob that never runs, until the test ends.
func (w *world) scheduled(t *testing.T, name, image string) {
	t.Helper()
	suspended := true
	jobs := w.client.BatchV1().CronJobs(workloads)
	job := &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: workloads},
		Spec: batchv1.CronJobSpec{
			Schedule: "0 0 31 12 *", Suspend: &suspended,
			JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{
				Template: corev1.PodTemplateSpec{Spec: pod(name, "", image).Spec},
			}},
		},
	}
	require.Value(jobs.Create(t.Context(), job, metav1.CreateOptions{}))(t)
	t.Cleanup(func() {
		if err := jobs.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// testThinArchive carries an update into the cluster in an archive that has only what the registry lacks.
func testThinArchive(t *testing.T, w *world) {
	const size = 8 << 20
	connected, dir := connectedRegistry(t), t.TempDir()
	inside := w.makeArchive(t, "example.com/thin/base:1", size)
	w.push(t, inside)
	list := filepath.Join(dir, "inventory.bin")
	output(t, w.command(t, w.hook, "images", "inventory", "--out", list))
	info, err := os.Stat(list)
	require.NoError(t, err)
	t.Logf("figure: the inventory has %d bytes", info.Size())

	refs := []string{connected + "/thin/base:1", connected + "/thin/new:1"}
	for _, archive := range []string{inside, w.makeArchive(t, "example.com/thin/new:1", 1<<20)} {
		output(t, w.command(t, w.hook, "images", "push", "--to", connected, "--plain-http", archive))
	}
	thin := filepath.Join(dir, "thin.tar")
	pull := []string{"images", "pull", "--plain-http", "--store-dir", dir + "/store", "--platform", "linux/amd64", "--have", list,
		"--out", thin}
	output(t, w.command(t, w.hook, append(pull, refs...)...))
	if info, err = os.Stat(thin); err != nil || info.Size() > size {
		t.Fatalf("the archive has %v bytes, error %v", info, err)
	}
	t.Logf("figure: the thin archive has %d bytes", info.Size())
	output(t, w.command(t, w.hook, "images", "push", thin, "--prefix=updated"))
	w.runsEverywhere(t, "thin", w.address+"/updated/thin/base:1")

	// The registry loses what the inventory promised.
	output(t, w.command(t, w.hook, "images", "delete", "--grace-period=0s", w.address+"/thin/base:1",
		w.address+"/updated/thin/base:1", "--force"))
	_, errOut, err := try(w.command(t, w.hook, "images", "push", thin, "--prefix=late"))
	if err == nil || !strings.Contains(errOut, refs[0]) || strings.Contains(errOut, refs[1]) {
		t.Errorf("a push of an archive that lacks blobs: %v: %s", err, errOut)
	}
	output(t, w.command(t, w.hook, "images", "inventory", "--out", list))
	output(t, w.command(t, w.hook, append(pull, refs...)...))
	output(t, w.command(t, w.hook, "images", "push", thin, "--prefix=late"))
	w.runsEverywhere(t, "late", w.address+"/late/thin/base:1")
}

// testExport writes everything into an archive, and restores from it what was deleted.
func testExport(t *testing.T, w *world) {
	for _, name := range []string{"a:1", "a:2", "b:1"} {
		w.push(t, w.makeArchive(t, "example.com/exported/"+name, 3<<20))
	}
	export := filepath.Join(t.TempDir(), "backup.tar")
	output(t, w.command(t, w.hook, "images", "export", "--out", export, "--no-store"))
	output(t, w.command(t, w.hook, "images", "prune", "--match=exported/*", "--grace-period=0s"))
	restored := output(t, w.command(t, w.hook, "images", "push", export))
	for _, name := range []string{"a:1", "a:2", "b:1"} {
		if want := w.address + "/exported/" + name + "\n"; !strings.Contains(restored, want) {
			t.Errorf("%q is not restored: %s", want, restored)
		}
	}
	w.runsEverywhere(t, "exported", w.address+"/exported/b:1")
}
