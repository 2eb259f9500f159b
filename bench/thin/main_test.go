package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/bench/internal/registries"
	"github.com/zarf-dev/zarf-registry/bench/internal/registries/registriestest"
	"github.com/zarf-dev/zarf-registry/bench/internal/results"
	"github.com/zarf-dev/zarf-registry/cmd/registry/root"
)

// TestMain runs the registry, which is the test binary.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		os.Exit(root.Run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

func TestEverythingIsMeasuredInEveryRun(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, written := registriestest.Memory(t), t.TempDir()
	args := []string{"-force", "-n", "2", "-registry", self, "-dir", dir, "-write", written, "-images", "21", "-changed", "2",
		"-layer", "200000"}
	if err := bench(t.Context(), args, new(bytes.Buffer)); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	r, err := results.Read(written)
	if err != nil {
		t.Fatal(err)
	}
	value := func(table, subject, what string) float64 {
		m := r.Find(table, subject, what)
		if m == nil || len(m.Runs) != 2 {
			t.Fatalf("%s, %s, %s: %+v, want two values", table, subject, what, m)
		}
		median, _, _ := m.Spread()
		return median
	}
	// 20 bases, and of each image 11 layers and the configuration.
	if blobs := value(tableInventory, subjectInventory, "blobs"); blobs != 20*3+21*12 {
		t.Errorf("the inventory has %v blobs", blobs)
	}
	if size := value(tableInventory, subjectInventory, "size"); size < 6*.312 || size > 2 {
		t.Errorf("the inventory has %v kB", size)
	}
	for _, subject := range []string{subjectThin, subjectFull} {
		if n := value(tableArchive, subject, "incomplete images"); n != 0 {
			t.Errorf("%s: %v images are incomplete", subject, n)
		}
		for _, what := range []string{"pull", "push"} {
			if value(tableArchive, subject, what) <= 0 {
				t.Errorf("%s: there is no %s", subject, what)
			}
		}
		if sent := value(tableArchive, subject, "sent by the push"); sent < 0.4 || sent > 0.5 {
			t.Errorf("%s: %v MB were sent", subject, sent)
		}
	}
	if size := value(tableArchive, subjectThin, "size"); size < 0.4 || size > 0.6 {
		t.Errorf("the thin archive has %v MB", size)
	}
	if size := value(tableArchive, subjectFull, "size"); size < 10 {
		t.Errorf("the full archive has %v MB", size)
	}
}

func TestIncompleteImagesAreCounted(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := registriestest.Memory(t)
	certificates, err := registries.NewCertificates(filepath.Join(dir, "tls"))
	if err != nil {
		t.Fatal(err)
	}
	m := &measurement{options: options{registry: self}, dir: dir, certificates: certificates}
	if m.previous, m.next, err = makeSets(3, 1, 1000); err != nil {
		t.Fatal(err)
	}
	stop, err := m.prepare(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	for _, want := range []int{0, 1} {
		if n, err := m.incomplete(t.Context(), m.upstream, m.next); n != want || err != nil {
			t.Errorf("%d images are incomplete, want %d, error %v", n, want, err)
		}
		lost := m.next[0].blobs[len(m.next[0].blobs)-1].Digest.Encoded()
		data := filepath.Join(m.path("upstream"), "storage/docker/registry/v2/blobs/sha256", lost[:2], lost, "data")
		if want == 0 {
			if err := os.Remove(data); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestSets(t *testing.T) {
	previous, next, err := makeSets(40, 7, 1000)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(blobsOf(previous)); n != 20*3+40*12 {
		t.Errorf("%d blobs", n)
	}
	had, changed, blobs, manifests := blobsOf(previous), 0, int64(0), int64(0)
	for n, i := range next {
		manifests += i.manifest.Size
		if i.tag == previous[n].tag {
			continue
		}
		changed++
		for k, b := range i.blobs {
			_, there := had[b.Digest]
			if want := k > 0 && k < len(i.blobs)-1; there != want {
				t.Errorf("blob %d of a changed image is in the previous ones: %t", k, there)
			}
			if !there {
				blobs += b.Size
			}
		}
	}
	if changed != 7 {
		t.Errorf("%d images changed", changed)
	}
	if n := newBytes(previous, next); n != blobs+manifests {
		t.Errorf("%d bytes are new, want %d", n, blobs+manifests)
	}
}

func TestBadInput(t *testing.T) {
	for _, args := range [][]string{{"-images", "3", "-changed", "4"}, {"-changed", "0"}, {"-layer", "0"}, {"argument"}} {
		if err := bench(t.Context(), args, new(bytes.Buffer)); err == nil || !strings.Contains(err.Error(), "-changed") {
			t.Errorf("%v: error %v", args, err)
		}
	}
}
