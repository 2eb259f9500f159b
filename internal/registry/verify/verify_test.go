package verify

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/distribution/distribution/v3/registry/storage/driver/inmemory"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/registry/content"
)

func TestResultsOfAVerificationBeforeAChangeDoNotCount(t *testing.T) {
	t.Parallel()
	var r results
	d, now := digest.FromString("image"), time.Now()
	memory := r.forRepository("a")
	r.forget("a")
	r.put(memory, d, verdict{}, now)
	if _, ok := r.get("a", d, now); ok {
		t.Error("a result from before the change counts")
	}
	if r.size != 0 {
		t.Errorf("%d results count that are not in memory", r.size)
	}
	r.put(r.forRepository("a"), d, verdict{}, now)
	if _, ok := r.get("a", d, now); !ok {
		t.Error("a result from after the change does not count")
	}
	for n := range maxResults + 1 {
		r.put(r.forRepository("b"), digest.FromString(fmt.Sprint(n)), verdict{}, now)
	}
	if n := len(r.known["b"].known); n > 10 {
		t.Errorf("%d results in memory", n)
	}
}

// The kubelet replaces the generation of a mounted Secret while keys are read.
func TestKeysAreOfOneGeneration(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mount := func(n int) {
		t.Helper()
		generation := fmt.Sprintf("..%d", n)
		for _, err := range []error{
			os.Mkdir(filepath.Join(dir, generation), 0o700),
			os.WriteFile(filepath.Join(dir, generation, "a.pub"), []byte(fmt.Sprint(n)), 0o600),
			os.WriteFile(filepath.Join(dir, generation, "b.pub"), []byte(fmt.Sprint(n)), 0o600),
			os.Symlink(generation, filepath.Join(dir, "..data_tmp")),
			os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")),
			os.RemoveAll(filepath.Join(dir, fmt.Sprintf("..%d", n-1))),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	mount(0)
	for _, name := range []string{"a.pub", "b.pub"} {
		if err := os.Symlink("..data/"+name, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			files, err := readDir(dir)
			if err != nil && !errors.Is(err, errReplaced) {
				t.Error(err)
				return
			}
			if err == nil && (len(files) != 2 || string(files["a.pub"]) != string(files["b.pub"])) {
				t.Errorf("read %s", files)
				return
			}
		}
	}()
	for n := 1; n < 300; n++ {
		mount(n)
	}
	close(stop)
	<-stopped
}

func TestImagesAreAuditedBeforeSignaturesAreEnforced(t *testing.T) {
	t.Parallel()
	store := &content.Store{Driver: inmemory.New(), Log: slog.New(slog.DiscardHandler)}
	open := func() *Verifier {
		return New(Enforce, t.TempDir(), "", store, true, store.Log)
	}
	v := open()
	if v.indexed() {
		t.Error("it does not wait for back links")
	}
	if !v.decide(t.Context()) || v.enforcing.Load() {
		t.Error("signatures are enforced before the stored images are audited")
	}
	if err := v.audit(t.Context()); err != nil || !v.enforcing.Load() || v.unsigned.Load() != 0 {
		t.Errorf("audit() = %v, enforcing %t, %d unsigned", err, v.enforcing.Load(), v.unsigned.Load())
	}
	if again := open(); !again.decide(t.Context()) || !again.enforcing.Load() {
		t.Error("a registry that restarts does not enforce signatures at once")
	}
}
